"""Databases for the tests of fenced rows, and the table that they share."""

from __future__ import annotations

import contextlib
import sqlite3
import uuid
from pathlib import Path
from typing import Any

import psycopg

from leasehold import fence
from tests.servers import postgres


class Postgres:
    """A schema of its own on the shared server."""

    def __init__(self) -> None:
        self.schema = f"fences_{uuid.uuid4().hex}"
        self._stack = contextlib.ExitStack()
        self._made = False
        self.options: dict[str, Any] = {
            # No disk: what is asked here does not depend on it.
            "options": f"-c search_path={self.schema} -c synchronous_commit=off"
        }

    def connect(self, *, autocommit: bool = False) -> psycopg.Connection[Any]:
        made = psycopg.connect(postgres().url, autocommit=autocommit, **self.options)
        self._stack.callback(made.close)
        if not self._made:
            made.execute(f"CREATE SCHEMA {self.schema}")
            self._made = True
        return made

    async def connect_aio(self) -> psycopg.AsyncConnection[Any]:
        return await psycopg.AsyncConnection.connect(postgres().url, **self.options)

    def made(self) -> dict[str, Any]:
        """What to connect with, once the schema is there."""
        self.connect().commit()
        return self.options

    def close(self) -> None:
        self._stack.close()


class Sqlite:
    """A file."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "fences.db"
        self._stack = contextlib.ExitStack()

    def connect(self, *, autocommit: bool = False) -> sqlite3.Connection:
        level = None if autocommit else "DEFERRED"
        made = sqlite3.connect(self._file, timeout=60, isolation_level=level, check_same_thread=False)
        self._stack.callback(made.close)
        made.execute("PRAGMA journal_mode = wal").fetchall()
        made.execute("PRAGMA synchronous = off")
        return made

    def close(self) -> None:
        self._stack.close()


def accounts(connection: Any, *, trigger: bool = False) -> Any:
    """The table of one account, with its mark; committed."""
    connection.execute("CREATE TABLE accounts (id INTEGER PRIMARY KEY, total BIGINT, owner TEXT)")
    connection.execute("INSERT INTO accounts VALUES (7, 0, 'ada')")
    fence.add_mark(connection, "accounts", trigger=trigger)
    connection.commit()
    return connection


def stored(connection: Any) -> tuple[Any, ...]:
    """Total and mark, as anybody sees them now."""
    found = connection.execute("SELECT total, lease_mark FROM accounts WHERE id = 7").fetchone()
    connection.commit()
    return found
