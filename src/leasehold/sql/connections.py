"""The caller's own connection as work that is done once needs it: with the ends of its transactions.

What a statement means is `fence/sql_connections.py`; here is who begins and who commits. A connection that was *joined*
is in a transaction of the caller's, and nothing here ends that. One that is *ours* for a while was in none.
"""

from __future__ import annotations

import contextlib
import sqlite3
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from leasehold.errors import InvalidInput
from leasehold.fence.sql_connections import Database, Values, database, database_aio

if TYPE_CHECKING:
    import psycopg

# On PostgreSQL, the room of our advisory locks, which are two numbers; and what relays listen to.
ROOM = 0x6C656173
CHANNEL = "leasehold_outbox"

_NOW = {
    True: "extract(epoch FROM clock_timestamp())::double precision",
    False: "((julianday('now') - 2440587.5) * 86400.0)",
}


def now(*, postgres: bool) -> str:
    """The database's own clock, in seconds: it alone says when something has ended."""
    return _NOW[postgres]


class Connection(Protocol):
    """A connection, and who ends its transactions."""

    database: Database
    # Whether the caller's transaction decides over everything, also over what we would keep after a failure.
    joined: bool

    async def look(self, sql: str, given: Sequence[object]) -> list[Values]:
        """What one statement finds, before the work begins."""
        ...

    async def change(self, sql: str, given: Sequence[object]) -> int:
        """How many rows one statement changes, before the work begins or after it was rolled back."""
        ...

    async def begin(self) -> None:
        """Begin the transaction of the work."""
        ...

    async def check(self) -> None:
        """Raise InvalidInput if the work has ended its transaction itself."""
        ...

    async def commit(self) -> None:
        """Make what the work did last."""
        ...

    async def rollback(self, error: BaseException) -> None:
        """Undo what the work did, as this happened."""
        ...


class Joined:
    """A connection in the middle of the caller's transaction, which the caller ends."""

    joined: bool = True

    def __init__(self, found: Database) -> None:
        self.database: Database = found

    async def look(self, sql: str, given: Sequence[object]) -> list[Values]:
        return await self.database.rows(sql, given)

    async def change(self, sql: str, given: Sequence[object]) -> int:
        return await self.database.change(sql, given, None)

    async def begin(self) -> None:
        """It has begun."""

    async def check(self) -> None:
        """The caller ends it, before or after."""

    async def commit(self) -> None:
        """The caller does."""

    async def rollback(self, error: BaseException) -> None:
        """The caller does."""


class _Ours(ABC):
    """Short transactions of one statement, each committed."""

    joined: bool = False
    database: Database

    async def look(self, sql: str, given: Sequence[object]) -> list[Values]:
        await self.begin()
        try:
            found = await self.database.rows(sql, given)
        except BaseException as error:
            await self.rollback(error)
            raise
        await self.commit()
        return found

    async def change(self, sql: str, given: Sequence[object]) -> int:
        await self.begin()
        try:
            changed = await self.database.change(sql, given, None)
        except BaseException as error:
            await self.rollback(error)
            raise
        await self.commit()
        return changed

    @abstractmethod
    async def begin(self) -> None:
        """Begin a transaction."""

    @abstractmethod
    async def commit(self) -> None:
        """Make it last."""

    @abstractmethod
    async def rollback(self, error: BaseException) -> None:
        """Undo it, as this happened."""


class Postgres(_Ours):
    """psycopg, blocking. Its own block for transactions also refuses a commit in the middle of the work."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.database: Database = database(connection)
        self._connection = connection
        self._block = contextlib.ExitStack()

    async def begin(self) -> None:
        self._block.enter_context(self._connection.transaction())

    async def check(self) -> None:
        """A transaction cannot be ended inside its block."""

    async def commit(self) -> None:
        self._block.__exit__(None, None, None)

    async def rollback(self, error: BaseException) -> None:
        self._block.__exit__(type(error), error, error.__traceback__)


class AsyncPostgres(_Ours):
    """psycopg, awaited."""

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self.database: Database = database_aio(connection)
        self._connection = connection
        self._block = contextlib.AsyncExitStack()

    async def begin(self) -> None:
        await self._block.enter_async_context(self._connection.transaction())

    async def check(self) -> None:
        """A transaction cannot be ended inside its block."""

    async def commit(self) -> None:
        await self._block.__aexit__(None, None, None)

    async def rollback(self, error: BaseException) -> None:
        await self._block.__aexit__(type(error), error, error.__traceback__)


class Sqlite(_Ours):
    """The standard library's sqlite3. The work has the one write lock from its beginning."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.database: Database = database(connection)
        self._connection = connection

    async def look(self, sql: str, given: Sequence[object]) -> list[Values]:
        # A read alone waits for nobody, and leaves no transaction open.
        return await self.database.rows(sql, given)

    async def begin(self) -> None:
        # At once: one that only read before it writes would be told that the database is locked.
        self._connection.execute("BEGIN IMMEDIATE")

    async def check(self) -> None:
        if not self._connection.in_transaction:
            remedy = "must leave the transaction open: what it committed and its record no longer last together"
            raise InvalidInput("function", "a function that commits", remedy)

    async def commit(self) -> None:
        self._connection.commit()

    async def rollback(self, error: BaseException) -> None:
        del error
        self._connection.rollback()


def ours(connection: object) -> Connection:
    """A connection on which we may begin and commit: one that is in no transaction."""
    database(connection)
    if isinstance(connection, sqlite3.Connection):
        _check_idle(connection, idle=not connection.in_transaction)
        return Sqlite(connection)
    _check_idle(connection, idle=is_idle(connection))
    return Postgres(connection)  # type: ignore[arg-type]  # `database` has looked


def ours_aio(connection: object) -> Connection:
    """The same, of asyncio."""
    database_aio(connection)
    _check_idle(connection, idle=is_idle(connection))
    return AsyncPostgres(connection)  # type: ignore[arg-type]  # `database_aio` has looked


def joined(connection: object) -> Database:
    """A connection in a transaction, or one that begins one with its first statement."""
    found = database(connection)
    if isinstance(connection, sqlite3.Connection):
        _check_begun(connection, alone=connection.isolation_level is None and not connection.in_transaction)
    else:
        _check_begun(connection, alone=_is_alone(connection))
    return found


def joined_aio(connection: object) -> Database:
    """The same, of asyncio."""
    found = database_aio(connection)
    _check_begun(connection, alone=_is_alone(connection))
    return found


def is_transient(error: Exception) -> bool:
    """Whether the database could not be reached, or not just then: a new connection may do."""
    if isinstance(error, sqlite3.OperationalError):
        # The lower byte is the kind; a missing table is no reason to try again.
        return getattr(error, "sqlite_errorcode", 0) & 0xFF in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
    psycopg = sys.modules.get("psycopg")
    return psycopg is not None and isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)


def is_idle(connection: Any) -> bool:
    """Whether a connection of psycopg is in no transaction."""
    # Unknown is a connection that was closed, which says so itself.
    return connection.info.transaction_status.name in {"IDLE", "UNKNOWN"}


def _is_alone(connection: Any) -> bool:
    return bool(connection.autocommit) and is_idle(connection)


def _check_idle(connection: object, *, idle: bool) -> None:
    if not idle:
        remedy = "must be in no transaction, as one is begun and committed here; to be part of yours, use join()"
        raise InvalidInput("connection", connection, remedy)


def _check_begun(connection: object, *, alone: bool) -> None:
    if alone:
        remedy = "must be in a transaction, with which this lasts; in autocommit mode begin one first"
        raise InvalidInput("connection", connection, remedy)
