"""What several tests need: counts, patience, and the Python to start other processes with."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parent.parent
PYTHON = sys.executable


# (where, chosen, full) of every count asked for; shown at the end of the run.
COUNTS: list[tuple[str, int, int]] = []
# What was measured or counted; shown there too.
NOTES: list[str] = []


def note(text: str) -> None:
    """A figure worth seeing in the log of a run that passed."""
    NOTES.append(f"{running()}: {text.strip()}")


def running() -> str:
    """The test that runs now; empty while none does."""
    return os.environ.get("PYTEST_CURRENT_TEST", "").partition(" ")[0]


def soaking() -> bool:
    """Whether the full counts were asked for."""
    return bool(os.environ.get("LEASEHOLD_SOAK"))


def count(full: int, few: int | None = None) -> int:
    """How often to repeat: the full count in a soak run, else a tenth or a few. Shown at the end, so a log tells it."""
    chosen = full if soaking() else few or max(full // 10, 1)
    where = running() or sys._getframe(1).f_globals["__name__"]
    COUNTS.append((where, chosen, full))
    return chosen


async def turns(how_many: int) -> None:
    """Let the other tasks of the loop go on for a few rounds."""
    for _ in range(how_many):
        await asyncio.sleep(0)


def eventually(true: Callable[[], object], patience: float = 20.0, nudge: Callable[[], object] | None = None) -> None:
    """Wait for a condition, however slow the machine; `nudge` is called between looks."""
    end = time.monotonic() + patience
    while not true():
        if time.monotonic() > end:
            raise AssertionError(f"still not so after {patience:g} s")
        if nudge is not None:
            nudge()
        time.sleep(0.005)
