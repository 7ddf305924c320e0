"""A SQLite store driven from plain tests, and the processes that share its file."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import apsw

from leasehold.engine.blocking import BlockingRuntime, drive
from leasehold.model import Conflict, Key, Record
from leasehold.rules.clocks import ClockDomain
from leasehold.stores.open import open_store
from leasehold.testing.clock import VirtualClock
from leasehold.wires.clock import Clock, system_clock
from tests.support import PYTHON, ROOT

KEY = Key("app//name/job", "lock")
ROOT_OF_KEYS = "app//"


class Driven:
    """The verbs of a store as plain calls of the blocking colour."""

    def __init__(self, path: Path | str, clock: Clock | None = None, options: str = "", timeout: float = 5.0) -> None:
        self.colour = BlockingRuntime(clock or system_clock())
        self.store: Any = open_store(f"sqlite://{path}{options}", timeout=timeout, colour=self.colour)
        self.wire = self.store._wire
        self.open()

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        return lambda *given: drive(getattr(self.store, verb)(*given))

    def grant(self, key: Key = KEY, ttl: float | None = 30.0, value: bytes = b"mine") -> Record:
        """A swap that must succeed."""
        record = self.swap(key, None, value, ttl)
        assert isinstance(record, Record), record
        return record

    def refused(self, key: Key = KEY, ttl: float = 30.0) -> Record:
        """A swap that must find somebody else; returns what it found."""
        answer = self.swap(key, None, b"theirs", ttl)
        assert isinstance(answer, Conflict), answer
        assert answer.record is not None
        return answer.record


@contextmanager
def driven(path: Path | str, clock: Clock | None = None, options: str = "", timeout: float = 5.0) -> Iterator[Driven]:
    """An open store, closed at the end."""
    store = Driven(path, clock, options, timeout)
    try:
        yield store
    finally:
        store.close()


def virtual(machine: str = "m1", boot: str = "b1", start: float = 1000.0, *, shifted: bool = False) -> VirtualClock:
    """A clock of some machine and boot that stands still until advanced."""
    return VirtualClock(start, ClockDomain(machine=machine, boot=boot, shifted=shifted))


class SteppingClock(VirtualClock):
    """A clock that jumps to where somebody waits for, and calls `meanwhile` on the way: nothing waits for real."""

    meanwhile: Callable[[], object] = staticmethod(lambda: None)

    def wait(self, event: threading.Event, until: float | None) -> bool:
        if until is None:
            # For somebody, not for a time.
            return super().wait(event, None)
        self.advance(max(until - self.now(), 0.0))
        self.meanwhile()
        return event.is_set()


def key(number: int) -> Key:
    """One of many keys."""
    return Key(f"app//name/job-{number:05}", "lock")


def start(work: str, *words: object, before: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    """One of the programs of `workers.py`, as a process of its own."""
    command = [*before, PYTHON, "-m", "tests.stores.workers", work, *map(str, words)]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def result(process: subprocess.Popen[str], patience: float = 100.0) -> Any:
    """What the program printed as its last line, once it has ended well."""
    out, _ = process.communicate(timeout=patience)
    assert process.returncode == 0, out
    return json.loads(out.splitlines()[-1])


def run(work: str, *words: object, before: tuple[str, ...] = ()) -> Any:
    """Start a program and wait for what it prints."""
    return result(start(work, *words, before=before))


def healthy(path: Path) -> bool:
    """Whether SQLite finds every page and index of the file in order."""
    with closing(apsw.Connection(str(path))) as db:
        return db.pragma("integrity_check") == "ok"


class Turn:
    """One line of the shared log: what a holder wrote while it held."""

    def __init__(self, line: str) -> None:
        self.key, self.what, token, seen = line.split()
        self.token, self.seen = int(token), int(seen)


def turns(log: Path) -> list[Turn]:
    """The shared log, in the order in which the lines were written."""
    return [Turn(line) for line in log.read_text(encoding="ascii").splitlines()]


def overlaps(log: list[Turn]) -> int:
    """How often somebody began while another holder of the same key had not ended."""
    holding: dict[str, set[int]] = {}
    found = 0
    for turn in log:
        inside = holding.setdefault(turn.key, set())
        if turn.what == "begin":
            found += bool(inside)
            inside.add(turn.token)
        else:
            inside.discard(turn.token)
    return found


def regressions(log: list[Turn]) -> int:
    """How often a token was not above every token its holder could have known of before it asked."""
    last: dict[str, int] = {}
    found = 0
    for turn in log:
        if turn.what == "begin":
            found += turn.token <= max(turn.seen, last.get(turn.key, 0))
            last[turn.key] = turn.token
    return found
