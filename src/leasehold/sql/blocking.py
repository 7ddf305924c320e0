"""Work that is done once, and messages, in the caller's own transaction. `aio.py` has the same names, awaited.

    payments = sql.Once(locks, "payments")

    def charge(work):
        connection.execute("UPDATE accounts SET total = total - 5 WHERE id = 7")
        sql.publish(connection, "charged", b"5", key="account/7")
        return {"charged": 5}

    receipt = payments.run(connection, "order/42", charge)

A facade decides nothing: it drives the coroutines of `handling.py` and `outbox.py`, and calls your functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

from leasehold.client import Locks
from leasehold.errors import InvalidInput
from leasehold.fence.sql_connections import database
from leasehold.patterns.candidate import Candidate
from leasehold.patterns.handled import OnceInfo
from leasehold.patterns.work import KEEP, RESULT_MAX, BaseWork, Duplicates, Errors, Kept, Policy
from leasehold.rules.arguments import function as check_function
from leasehold.rules.backoff import Backoff
from leasehold.rules.names import check_text
from leasehold.rules.timing import DEFAULT_TTL
from leasehold.sql import handling, outbox, tables
from leasehold.sql.connections import Connection as Ours
from leasehold.sql.connections import Joined, joined, ours
from leasehold.sql.handling import SqlHandling
from leasehold.sql.links import link
from leasehold.sql.outbox import AGAIN, Link, Message, Relaying
from leasehold.wires.colour import drive

if TYPE_CHECKING:
    import sqlite3

    from psycopg import Connection

R = TypeVar("R")


class Work(BaseWork):
    """What a function is given that does the work in the transaction."""


class Once:
    """Work in your database that is done once for each key: what it changes and its record commit together.

    A worker that dies has done all of it or nothing: its result is replayed, or the next one begins. What an overtaken
    one did in this database is undone. That somebody works on it is a lease of `locks`, which must not be in the same
    SQLite file: the work has its one write lock, and nobody could renew. `add_tables` makes the table.
    """

    def __init__(
        self,
        locks: Locks,
        name: str = "once",
        *,
        ttl: float = DEFAULT_TTL,
        keep: float = KEEP,
        duplicates: Duplicates = "wait",
        wait: float | None = None,
        definite: Errors = (),
        result: Any = Any,
        limit: int = RESULT_MAX,
        on_replay: Callable[[str, Any], Any] | None = None,
    ) -> None:
        if not isinstance(locks, Locks):
            raise InvalidInput("locks", locks, "must be what leasehold.connect() returns")
        policy = Policy(ttl, keep, duplicates, wait, definite, result=result, limit=limit, on_replay=on_replay)
        self._handling = SqlHandling(locks._engine, name, policy)  # noqa: SLF001  one library, two rooms

    def run(
        self,
        connection: Connection[Any] | sqlite3.Connection,
        key: str,
        function: Callable[[Work], R],
        *,
        fingerprint: str | None = None,
        **changes: Any,
    ) -> R:
        """Begin a transaction, call the function in it, **commit** it, and return what the function returned.

        Or what it returned when the key was handled before. The connection must be in no transaction, and the function
        must neither commit nor roll back. If it raises, everything is rolled back; an error in `definite` is kept then,
        and replayed as RunFailed. `changes` are options of `Once` that differ for this run. Raises StillRunning,
        KeyReused, RunFailed, ResultNotKept, FinishedLate, after which nothing of it lasts; what the database raises.
        """
        return self._run(ours(connection), key, function, fingerprint, changes)

    def join(
        self,
        connection: Connection[Any] | sqlite3.Connection,
        key: str,
        function: Callable[[Work], R],
        *,
        fingerprint: str | None = None,
        **changes: Any,
    ) -> R:
        """The same in a transaction of yours, which **you** commit: until then others with this key wait for it.

        Whatever is raised, roll back. Nothing is kept of a failure.
        """
        return self._run(Joined(joined(connection)), key, function, fingerprint, changes)

    def inspect(self, connection: Connection[Any] | sqlite3.Connection, key: str) -> OnceInfo | None:
        """What is kept of a key; None if it was not done, also while somebody is about it. Commits nothing."""
        return drive(self._handling.inspect(database(connection), key))

    def forget(self, connection: Connection[Any] | sqlite3.Connection, key: str) -> bool:
        """Remove what is kept of a key, and refuse whoever is about it. Commits nothing. False if there was nothing."""
        return drive(self._handling.forget(database(connection), key))

    def _run(
        self,
        connection: Ours,
        key: str,
        function: Callable[[Work], R],
        fingerprint: str | None,
        changes: dict[str, Any],
    ) -> R:
        check_function("function", function)
        begun = drive(self._handling.begin(connection, key, fingerprint, self._handling.changed(changes)))
        if isinstance(begun, Kept):
            return cast("R", begun.value if begun.hook is None else begun.hook(begun.value))
        try:
            value = function(Work(begun))
        except BaseException as error:
            drive(self._handling.failed(begun, error))
            raise
        return cast("R", drive(self._handling.completed(begun, value)))


class Relay:
    """Publishes what `publish` wrote: at least once, in order for each key. One relay works at a time, the others wait.

    `connect()` gives it a connection of its own. `publish(message)` returns once the message is safe with whoever gets
    it; if it raises, that key is tried again after a pause, and the others go on. `name` stands for the database:
    relays of one database share it. A relay that was stopped for longer than its `ttl` can publish one message out of
    order when it wakes: `message.id` tells whoever gets it, `message.token` a broker that can fence.
    """

    def __init__(
        self,
        locks: Locks,
        connect: Callable[[], Connection[Any] | sqlite3.Connection],
        publish: Callable[[Message], object],
        *,
        name: str = "outbox",
        ttl: float = DEFAULT_TTL,
        batch: int = 100,
        poll: float = 1.0,
        backoff: Backoff = AGAIN,
    ) -> None:
        if not isinstance(locks, Locks):
            raise InvalidInput("locks", locks, "must be what leasehold.connect() returns")
        check_function("connect", connect)
        check_function("publish", publish)
        engine = locks._engine  # noqa: SLF001  one library, two rooms

        async def opened() -> Link:
            return link(connect(), engine.runtime)

        async def send(message: Message) -> None:
            publish(message)

        candidate = Candidate(engine, f"outbox/{check_text('name', name)}", None, ttl)
        self._relaying = Relaying(candidate, opened, send, batch=batch, poll=poll, backoff=backoff)

    def run(self) -> None:
        """Publish whenever it is this relay's turn, until `stop()`; through outages, with a warning in the log."""
        drive(self._relaying.run())

    def drain(self, *, wait: float | None = None) -> int:
        """Publish what is due now: how many. AcquireTimeout if another relay works for longer than `wait`."""
        return drive(self._relaying.drain(wait))

    def stop(self) -> None:
        """End after the message in hand. Waits for nothing, and lasts: a signal handler may call it."""
        self._relaying.candidate.stop()


def publish(
    connection: Connection[Any] | sqlite3.Connection, topic: str, payload: bytes, *, key: str | None = None
) -> int:
    """Write a message in your transaction: a relay publishes it once you have committed. Its number, which grows.

    Messages with one `key` are published in the order in which their transactions commit: on PostgreSQL the second
    waits here for the first, so publish to several keys in a fixed order. Without a key there is no order.
    """
    return drive(outbox.publish(joined(connection), topic, payload, key))


def add_tables(connection: Connection[Any] | sqlite3.Connection) -> None:
    """Make the tables of `Once`, `publish` and `Relay`, unless they are there. Commits nothing. Can be repeated."""
    drive(tables.add_tables(database(connection)))


def collect(connection: Connection[Any] | sqlite3.Connection) -> int:
    """Remove the records whose time to be replayed is over: how many. Commits nothing."""
    return drive(handling.collect(database(connection)))
