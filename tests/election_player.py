"""A candidate in a process of its own, to be killed and stopped: `python election_player.py URL COLOUR ID TTL LOG`.

While it leads it writes down again and again that it believes to: one line
`ID TOKEN BEFORE AFTER`, between whose two times (wall clock) it was asked and said yes.
On SIGTERM it stops, lets go and ends.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time

import leasehold
from leasehold import aio

OFTEN = 0.01


class Diary:
    """Where belief is written down."""

    def __init__(self, identity: str, file: str) -> None:
        self._identity = identity
        # One write of a short line with O_APPEND is not torn.
        self._file = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def note(self, leadership: leasehold.Leadership | aio.Leadership) -> None:
        before = time.time()
        if leadership.held:
            os.write(self._file, f"{self._identity} {leadership.token} {before!r} {time.time()!r}\n".encode())


def blocking(url: str, identity: str, ttl: float, diary: Diary) -> None:
    with leasehold.connect(url) as locks:
        election = leasehold.Election(locks, "scheduler", identity=identity, ttl=ttl)
        signal.signal(signal.SIGTERM, lambda *_: election.stop())
        print("ready", flush=True)  # noqa: T201  the test waits for it

        def work(leadership: leasehold.Leadership) -> None:
            diary.note(leadership)
            while not leadership.wait(OFTEN):
                diary.note(leadership)

        election.lead(work)


async def looped(url: str, identity: str, ttl: float, diary: Diary) -> None:
    async with await aio.connect(url) as locks:
        election = aio.Election(locks, "scheduler", identity=identity, ttl=ttl)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, election.stop)
        print("ready", flush=True)  # noqa: T201  the test waits for it

        async def work(leadership: aio.Leadership) -> None:
            while True:
                diary.note(leadership)
                await asyncio.sleep(OFTEN)

        await election.lead(work)


if __name__ == "__main__":
    url, colour, identity, ttl, log = sys.argv[1:]
    diary = Diary(identity, log)
    if colour == "asyncio":
        asyncio.run(looped(url, identity, float(ttl), diary))
    else:
        blocking(url, identity, float(ttl), diary)
