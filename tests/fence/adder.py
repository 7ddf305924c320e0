"""Somebody who adds to a fenced total, in a process: `python -m tests.fence.adder '{"locks": URL, …}'`; see `Told`.

The total is kept for each adder apart: `{"3": 17}`. Under a lease it reads all of it, adds one to its own, and writes
all of it back, until stdin is closed. Now and then it stops itself (SIGSTOP) between reading and writing, and whoever
started it lets it go on after its lease has ended. Everything is noted: `ack` for a write that was answered,
`late` for one that was refused, `lost N` when so many of its own acknowledged ones are no longer there.

The arm says how the resource is used: `fence` as it should be; `write-only` registers nothing and shows the token
with the write alone; `none` shows none.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
from typing import Any

import msgspec

import leasehold
from leasehold.rules.fencing import TOKEN_MAX
from leasehold.wires.colour import drive
from tests.fence.places import PLACES

TTL = 0.2
WAIT = 20.0

Total = dict[str, int]


class Told(msgspec.Struct):
    """What it is told when it is started. `pauses` is how often it stops itself."""

    locks: str
    kind: str
    place: str
    arm: str
    seed: int
    pauses: float
    journal: str


class Adder:
    """One of those who add."""

    def __init__(self, resource: Any, told: Told) -> None:
        self._resource, self._arm, self._pauses, self._me = resource, told.arm, told.pauses, str(told.seed)
        self._chance = random.Random(told.seed)
        self._acknowledged = 0
        # One write of a short line with O_APPEND is not torn.
        self._file = os.open(told.journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def turn(self, token: int) -> None:
        """Read, add one, write: and sometimes sleep in between."""
        try:
            total = self.read(token)
            self.judge(total)
            if self._chance.random() < self._pauses:
                self.note("stops")
                os.kill(os.getpid(), signal.SIGSTOP)
            self.write(token, {**total, self._me: total.get(self._me, 0) + 1})
        except leasehold.StaleToken:
            self.note("late")
        else:
            self._acknowledged += 1
            self.note("ack")

    def read(self, token: int) -> Total:
        if self._arm == "fence":
            drive(self._resource.open(token))
            return decoded(drive(self._resource.read(token)))
        return decoded(drive(self._resource.load())[0])

    def write(self, token: int, total: Total) -> None:
        drive(self._resource.write(TOKEN_MAX if self._arm == "none" else token, encoded(total)))

    def judge(self, total: Total) -> None:
        """What was acknowledged must be there."""
        lost = self._acknowledged - total.get(self._me, 0)
        if lost > 0:
            self.note(f"lost {lost}")
        self._acknowledged = total.get(self._me, 0)

    def note(self, line: str) -> None:
        os.write(self._file, f"{line}\n".encode())


def encoded(total: Total) -> Any:
    return {"total": json.dumps(total)}


def decoded(value: Any) -> Total:
    found: Total = json.loads(value["total"] or "{}")
    return found


def main(told: Told) -> None:
    over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    with leasehold.connect(told.locks, timeout=30) as locks, PLACES[told.kind].reach(told.place) as resource:
        adder = Adder(resource, told)
        while not over.is_set():
            # By hand, and not as one should: `hold` would tell whoever wakes up, and leave nothing to the fence.
            lease = locks.acquire("total", ttl=TTL, wait=WAIT)
            adder.turn(lease.token)
            lease.release()
        lease = locks.acquire("total", ttl=30, wait=WAIT)
        adder.judge(adder.read(lease.token))
        lease.release()


if __name__ == "__main__":
    main(msgspec.json.decode(sys.argv[1], type=Told))
