"""Databases of both makes for the tests of work in the caller's own transaction, and what that work changes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from leasehold import sql
from tests.fence.sql_support import Postgres, Sqlite
from tests.servers import postgres


class Ledger:
    """A database with our tables and one of the caller's: an entry for each effect."""

    def __init__(self, place: Postgres | Sqlite) -> None:
        self.place = place
        self._eye = place.connect(autocommit=True)
        with_tables = place.connect()
        sql.add_tables(with_tables)
        with_tables.execute("CREATE TABLE entries (key TEXT, token BIGINT)")
        with_tables.commit()

    @property
    def postgres(self) -> bool:
        return isinstance(self.place, Postgres)

    def connect(self) -> Any:
        """A connection in no transaction, as a pool would give it."""
        return self.place.connect()

    def seen(self, query: str = "SELECT key FROM entries ORDER BY token") -> list[Any]:
        """What anybody sees now: the first column."""
        return [row[0] for row in self._eye.execute(query).fetchall()]

    def marks(self) -> list[Any]:
        return self.seen("SELECT mark FROM leasehold_once")

    def records(self) -> list[Any]:
        return self.seen("SELECT record FROM leasehold_once WHERE record IS NOT NULL")

    def told(self, locks: str) -> dict[str, str]:
        """How another process reaches it: see `player.py`."""
        if isinstance(self.place, Postgres):
            return {"locks": locks, "database": postgres().url, "options": self.place.options["options"]}
        return {"locks": locks, "database": str(self.place._file)}


def enter(connection: Any, work: Any) -> None:
    """The effect."""
    at = "%s" if isinstance(connection, psycopg.Connection) else "?"
    connection.execute(f"INSERT INTO entries VALUES ({at}, {at})", (work.key, work.token))  # noqa: S608  bound


@pytest.fixture(params=["postgres", "sqlite"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ledger]:
    place = Postgres() if request.param == "postgres" else Sqlite(tmp_path)
    yield Ledger(place)
    place.close()
