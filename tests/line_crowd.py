"""Crowds before one lock, in processes, and what their journals say: who was granted what, when, and past whom."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from tests.support import PYTHON, ROOT

PLAYER = ROOT / "tests" / "line_player.py"
# Of a soak, too.
PATIENCE = 800.0


class Turn(NamedTuple):
    """One grant: it was certainly held from `granted` to `ended`. `ticket` 0: it stood in no line."""

    token: int
    ticket: int
    granted: float
    ended: float
    held: bool


class Player:
    """Some contenders in a process."""

    def __init__(
        self, url: str, journal: Path, *, colour: str, contenders: int, grants: int, how: str, **env: str
    ) -> None:
        command = [PYTHON, "-W", "error", str(PLAYER), url, colour, str(contenders), str(grants), how, str(journal)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True, env={**os.environ, **env}
        )

    def await_ready(self) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def tell(self) -> None:
        """Start, or for those who barge, stop."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def end(self) -> None:
        assert self._process.wait(PATIENCE) == 0

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


@contextlib.contextmanager
def players(made: Sequence[Player]) -> Iterator[None]:
    """All of them ready, and killed at the end of the block."""
    try:
        for each in made:
            each.await_ready()
        yield
    finally:
        for each in made:
            each.kill()


class Crowd(NamedTuple):
    """So many contenders in each of so many processes, each granted so often."""

    processes: int
    contenders: int
    grants: int

    @property
    def turns(self) -> int:
        return self.processes * self.contenders * self.grants


def crowd(
    url: str,
    size: Crowd,
    journal: Path,
    *,
    colours: Sequence[str] = ("blocking", "asyncio"),
    ready: Callable[[], object] = lambda: None,
) -> list[Turn]:
    """What becomes of a crowd that asks fairly, its colours in turn. `ready` is called when all have connected."""
    made = [
        Player(
            url, journal, colour=colours[n % len(colours)], contenders=size.contenders, grants=size.grants, how="fair"
        )
        for n in range(size.processes)
    ]
    with players(made):
        ready()
        for each in made:
            each.tell()
        for each in made:
            each.end()
    return read(journal)


def read(journal: Path) -> list[Turn]:
    """The turns of a journal, in the order of their tokens."""
    found = []
    for line in journal.read_text().splitlines():
        token, ticket, granted, ended, held = line.split()
        found.append(Turn(int(token), int(ticket), float(granted), float(ended), held == "1"))
    return sorted(found)


def overlaps(turns: Sequence[Turn]) -> list[tuple[Turn, Turn]]:
    """Neighbours of which the first still held when the second did."""
    return [(one, other) for one, other in pairwise(turns) if one.ended > other.granted]


def overtakes(turns: Sequence[Turn]) -> list[tuple[Turn, Turn]]:
    """Those who were granted before one who stood in line earlier."""
    lined = [turn for turn in turns if turn.ticket]
    return [(one, other) for one, other in pairwise(lined) if one.ticket > other.ticket]
