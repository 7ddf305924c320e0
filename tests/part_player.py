"""Somebody who wants parts of one file, in a process: `python part_player.py URL COLOUR SEED TTL JOURNAL`.

Random ranges, now and then the whole file, shared or not, one after the other, until stdin is closed. Each
grant is noted at once, `TOKEN START END SHARED GRANTED`, and once more before it is let go, with when it was last
held: `TOKEN ENDED`. Times are of the machine's monotonic clock, which all processes share. Sometimes it is gone with
what it holds: kill -9, by its own hand.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import threading
import time

import leasehold
from leasehold import AcquireTimeout, ByteRange, Inode, aio

FILE = 7
SIZE = 48
WAIT = 20.0
CRASHES = 0.02
HOLD = 0.001


class Player:
    """What both colours share: what to ask for, and what to note."""

    def __init__(self, seed: int, journal: str) -> None:
        self._chance = random.Random(seed)
        # One write of a short line with O_APPEND is not torn.
        self._file = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self.over = threading.Event()
        threading.Thread(target=lambda: (sys.stdin.read(), self.over.set()), daemon=True).start()

    def choice(self) -> tuple[Inode | ByteRange, str]:
        mode = self._chance.choice(["shared", "exclusive"])
        if self._chance.random() < 0.1:
            return Inode(FILE), mode
        start = self._chance.randrange(SIZE)
        return ByteRange(FILE, start, start + self._chance.randrange(1, SIZE // 3)), mode

    def granted(self, lease: leasehold.Lease | aio.Lease, scope: Inode | ByteRange, mode: str) -> None:
        start, end = (0, 2**63) if isinstance(scope, Inode) else (scope.start, scope.end)
        now = time.monotonic()
        if lease.held:
            self._note(f"{lease.token} {start} {end} {int(mode == 'shared')} {now!r}")
        if self._chance.random() < CRASHES:
            os.kill(os.getpid(), signal.SIGKILL)

    def ends(self, lease: leasehold.Lease | aio.Lease) -> None:
        now = time.monotonic()
        if lease.held:
            self._note(f"{lease.token} {now!r}")

    def _note(self, line: str) -> None:
        os.write(self._file, f"{line}\n".encode())


def blocking(url: str, player: Player, ttl: float) -> None:
    with leasehold.connect(url, timeout=30) as locks:
        while not player.over.is_set():
            scope, mode = player.choice()
            try:
                lease = locks.acquire(scope, ttl=ttl, mode=mode, wait=WAIT)
            except AcquireTimeout:
                continue
            player.granted(lease, scope, mode)
            time.sleep(HOLD)
            player.ends(lease)
            lease.release()


async def looped(url: str, player: Player, ttl: float) -> None:
    async with await aio.connect(url, timeout=30) as locks:
        while not player.over.is_set():
            scope, mode = player.choice()
            try:
                lease = await locks.acquire(scope, ttl=ttl, mode=mode, wait=WAIT)
            except AcquireTimeout:
                continue
            player.granted(lease, scope, mode)
            await asyncio.sleep(HOLD)
            player.ends(lease)
            await lease.release()


def main() -> None:
    url, colour, seed, ttl, journal = sys.argv[1:]
    player = Player(int(seed), journal)
    if colour == "blocking":
        blocking(url, player, float(ttl))
    else:
        asyncio.run(looped(url, player, float(ttl)))


if __name__ == "__main__":
    main()
