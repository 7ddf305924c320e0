"""Memory store: how many Python functions one acquire and release call, counted and not timed."""

from __future__ import annotations

import sys
import threading
from types import FrameType

import leasehold
from benchmarks.harness import Figure

TIMES = 200
TARGET = 200


def figures() -> list[Figure]:
    """One figure: calls an acquire and release."""
    counted = calls()
    return [Figure("memory: Python calls, acquire + release", f"{counted:.1f}", "", counted, TARGET)]


def calls() -> float:
    """Python function calls of one acquire and release, those of background threads included."""
    counted = 0

    def count(_frame: FrameType, event: str, _arg: object) -> None:
        nonlocal counted
        counted += event == "call"

    threading.setprofile(count)
    try:
        with leasehold.connect("memory://benchmark") as locks:
            # The first grant starts the heartbeat; what counts is every one after it.
            locks.acquire("invoice/42").release()
            counted = 0
            sys.setprofile(count)
            for _ in range(TIMES):
                locks.acquire("invoice/42").release()
            sys.setprofile(None)
            total = counted
    finally:
        # None is what switches it off, as documented; the stubs do not know.
        threading.setprofile(None)  # type: ignore[arg-type]
    return total / TIMES
