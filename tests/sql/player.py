"""A process of its own that does work once in a transaction, or relays, and dies or stops where it is told to.

    python -m tests.sql.player '{"locks": …, "database": …, "die": 3}'

Its connection counts: 1 before the first statement, 2 after it, 3 before the second, and so on; BEGIN and COMMIT are
statements. At `die` the process is killed, at `stop` stopped until somebody lets it go on. The library knows nothing.
"""

from __future__ import annotations

import itertools
import os
import signal
import sqlite3
import sys
from typing import Any

import msgspec
import psycopg

import leasehold
from leasehold import sql
from tests.sql.support import enter


class Told(msgspec.Struct):
    """What it is told. `database` is a PostgreSQL URL with its options, or a file."""

    locks: str
    database: str
    options: str = ""
    job: str = "once"
    key: str = "order/1"
    ttl: float = 30.0
    die: int = 0
    stop: int = 0
    journal: str = ""
    # Stop after so many messages were published.
    pause: int = 0
    name: str = "outbox"


class Steps:
    """Counts what is asked of the database, and ends the process before one of them."""

    def __init__(self, told: Told) -> None:
        self._told = told
        self.taken = 0

    def __enter__(self) -> None:
        self.step()

    def __exit__(self, *_: object) -> None:
        self.step()

    def step(self) -> None:
        self.taken += 1
        if self.taken == self._told.die:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.taken == self._told.stop:
            os.kill(os.getpid(), signal.SIGSTOP)


def connected(told: Told, steps: Steps) -> Any:
    """A connection that counts; every statement of PostgreSQL's goes through one place, BEGIN and COMMIT too."""
    if told.database.startswith("postgresql:"):

        class Counting(psycopg.Connection[Any]):
            def wait(self, gen: Any, *args: Any, **options: Any) -> Any:
                with steps:
                    return super().wait(gen, *args, **options)

        return Counting.connect(told.database, options=told.options)

    class CountingFile(sqlite3.Connection):
        def execute(self, *given: Any) -> Any:
            with steps:
                return super().execute(*given)

        def commit(self) -> None:
            with steps:
                super().commit()

    return sqlite3.connect(told.database, timeout=60, factory=CountingFile, check_same_thread=False)


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def work_once(told: Told, locks: leasehold.Locks) -> None:
    steps = Steps(told)
    connection = connected(told, steps)
    steps.taken = 0
    try:
        answer = sql.Once(locks, ttl=told.ttl).run(
            connection, told.key, lambda work: enter(connection, work) or work.token
        )
        say(answer, steps.taken)
    except leasehold.FinishedLate:
        say("late", steps.taken)


def relay(told: Told, locks: leasehold.Locks) -> None:
    journal = os.open(told.journal, os.O_WRONLY | os.O_APPEND)
    steps = Steps(told)

    published = itertools.count(1)

    def note(message: sql.Message) -> None:
        os.write(journal, f"{message.key} {message.payload.decode()} {message.id} {os.getpid()}\n".encode())
        steps.step()
        if next(published) == told.pause:
            os.kill(os.getpid(), signal.SIGSTOP)

    relay = sql.Relay(
        locks, lambda: connected(told, steps), publish=note, name=told.name, ttl=told.ttl, batch=20, poll=0.2
    )
    signal.signal(signal.SIGTERM, lambda *_: relay.stop())
    say("ready")
    relay.run()


def main(told: Told) -> None:
    with leasehold.connect(told.locks) as locks:
        {"once": work_once, "relay": relay}[told.job](told, locks)


if __name__ == "__main__":
    main(msgspec.json.decode(sys.argv[1], type=Told))
