"""Contenders for one lock, in a process: `python line_player.py URL COLOUR CONTENDERS GRANTS FAIR JOURNAL`.

All share one client; of `memory://`, which no other process reaches, there are several
instead. Each acquires, holds for a moment, writes one line `TOKEN TICKET GRANTED ENDED HELD`
(the ticket's place, 0 for none; times of the machine's monotonic clock, which all processes
share), lets go, and begins again. With `barge` in place of FAIR they never stand in line:
they try, again and again, until they are told to stop.
They start when told to, by a line on stdin.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
import time

import msgspec

import leasehold
from leasehold import aio

SCOPE = "job"
TTL = 60.0
HOLD = 0.001
CLIENTS = 8


class Journal:
    """Where grants are written down."""

    def __init__(self, file: str) -> None:
        # One write of a short line with O_APPEND is not torn.
        self._file = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def note(self, lease: leasehold.Lease | aio.Lease, granted: float) -> None:
        ticket = lease._grant.ticket
        place = ticket.record.born if ticket else 0
        held, ended = lease.held, time.monotonic()
        os.write(self._file, f"{lease.token} {place} {granted!r} {ended!r} {int(held)}\n".encode())


def threads(url: str, contenders: int, grants: int, how: str, journal: Journal) -> None:
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(leasehold.connect(url, timeout=30)) for _ in range(clients_for(url))]

        def contend(locks: leasehold.Locks) -> None:
            for _ in range(grants):
                with locks.hold(SCOPE, ttl=TTL, fair=how == "fair") as lease:
                    granted = time.monotonic()
                    time.sleep(HOLD)
                    journal.note(lease, granted)

        people = [threading.Thread(target=contend, args=[clients[n % len(clients)]]) for n in range(contenders)]
        ready()
        for each in people:
            each.start()
        for each in people:
            each.join()


def tasks(url: str, contenders: int, grants: int, how: str, journal: Journal) -> None:
    async def contend(locks: aio.Locks) -> None:
        for _ in range(grants):
            async with locks.hold(SCOPE, ttl=TTL, fair=how == "fair") as lease:
                granted = time.monotonic()
                await asyncio.sleep(HOLD)
                journal.note(lease, granted)

    async def main() -> None:
        async with contextlib.AsyncExitStack() as stack:
            opened = [await aio.connect(url, timeout=30) for _ in range(clients_for(url))]
            clients = [await stack.enter_async_context(one) for one in opened]
            ready()
            await asyncio.gather(*(contend(clients[n % len(clients)]) for n in range(contenders)))

    asyncio.run(main())


def barge(url: str, grants: int, journal: Journal) -> None:
    """Try, until so many grants were had or nobody is left to come before: told by a second line on stdin."""
    over = threading.Event()
    with leasehold.connect(url, timeout=30) as locks:
        ready()
        threading.Thread(target=lambda: (sys.stdin.readline(), over.set()), daemon=True).start()
        had = 0
        while had < grants and not over.is_set():
            lease = locks.try_acquire(SCOPE, ttl=TTL)
            if lease is not None:
                journal.note(lease, time.monotonic())
                lease.release()
                had += 1


def clients_for(url: str) -> int:
    return CLIENTS if url.startswith("memory:") else 1


def ready() -> None:
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()


def count_transactions(file: str) -> None:
    """For SQLite, which has no wire: the transactions of all who wait, without looks at the file for news."""
    from leasehold.wires.sqlite import SqliteWire

    real, journal = SqliteWire._run, os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def run(self: SqliteWire, *asked: object) -> object:
        if threading.current_thread().name != "leasehold-ears":
            os.write(journal, b".")
        return real(self, *asked)

    SqliteWire._run = run


def main() -> None:
    url, colour, contenders, grants, how, file = sys.argv[1:]
    if "LINE_UNRESERVED" in os.environ:
        unreserved()
    if "LINE_TRANSACTIONS" in os.environ:
        count_transactions(os.environ["LINE_TRANSACTIONS"])
    journal = Journal(file)
    if how == "barge":
        barge(url, int(grants), journal)
    else:
        play = threads if colour == "blocking" else tasks
        play(url, int(contenders), int(grants), how, journal)


def unreserved() -> None:
    """For a control: whoever lets go forgets that others stand in line."""
    from leasehold.engine.engine import Engine

    real = Engine._give_up

    async def give_up(self: Engine, grant: object) -> object:
        grant.awaited = False
        self.store.guarantees = msgspec.structs.replace(self.store.guarantees, bequeaths=False)
        return await real(self, grant)

    Engine._give_up = give_up


if __name__ == "__main__":
    main()
