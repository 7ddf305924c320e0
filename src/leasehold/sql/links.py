"""A relay's own connection, and how it hears that there is something to publish."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any

from leasehold.sql.connections import CHANNEL, AsyncPostgres, Postgres, Sqlite, ours, ours_aio
from leasehold.sql.outbox import Link

if TYPE_CHECKING:
    import psycopg

    from leasehold.engine.runtime import Runtime


class PostgresLink(Postgres):
    """psycopg, blocking: woken by NOTIFY, which comes with the commit of what was written."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        super().__init__(connection)
        self._listens = False

    async def heard(self, seconds: float) -> bool:
        if not self._listens:
            await self.look(f"LISTEN {CHANNEL}", ())
            self._listens = True
            # What was written before that made no sound.
            return True
        return any(True for _ in self._connection.notifies(timeout=seconds, stop_after=1))

    async def close(self) -> None:
        self._connection.close()


class AsyncPostgresLink(AsyncPostgres):
    """psycopg, awaited."""

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        super().__init__(connection)
        self._listens = False

    async def heard(self, seconds: float) -> bool:
        if not self._listens:
            await self.look(f"LISTEN {CHANNEL}", ())
            self._listens = True
            return True
        heard = False
        async for _ in self._connection.notifies(timeout=seconds, stop_after=1):
            heard = True
        return heard

    async def close(self) -> None:
        await self._connection.close()


class SqliteLink(Sqlite):
    """sqlite3, which tells nobody: one looks now and then whether somebody else wrote."""

    def __init__(self, connection: sqlite3.Connection, runtime: Runtime) -> None:
        super().__init__(connection)
        self._runtime = runtime
        self._seen = self._version()

    async def heard(self, seconds: float) -> bool:
        await self._runtime.sleep(seconds)
        before, self._seen = self._seen, self._version()
        return self._seen != before

    async def close(self) -> None:
        self._connection.close()

    def _version(self) -> object:
        """Another number once another connection has committed something."""
        return self._connection.execute("PRAGMA data_version").fetchone()[0]


def link(connection: Any, runtime: Runtime) -> Link:
    """A connection for a relay of a blocking program."""
    ours(connection)
    return SqliteLink(connection, runtime) if isinstance(connection, sqlite3.Connection) else PostgresLink(connection)


def link_aio(connection: Any) -> Link:
    """The same, of asyncio."""
    ours_aio(connection)
    return AsyncPostgresLink(connection)
