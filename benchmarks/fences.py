"""Fenced SQL: an update that sets and checks the mark, against the bare update, each in a transaction of its own.

Both go through the same connection and reach the disk alike. What costs more statements is shown beside it: to open
first, a table of marks, and triggers; and all of it once more without waiting for the disk, which hides the rest. There
a bare update of SQLite's takes a few µs, as much as a few calls of Python's.
"""

from __future__ import annotations

import functools
import itertools
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import Any

import psycopg

from benchmarks.harness import Figure, medians, micro, seconds_each
from leasehold import fence
from leasehold.testing.servers import PostgresServer

ROUNDS = 41
TIMES = 25
TARGET = 1.3
TOKEN = 7 * 256
BARE, FENCED = "bare update", "fenced update"


def figures() -> list[Figure]:
    """PostgreSQL and SQLite as they are by default, and without waiting for the disk."""
    found = []
    with ExitStack() as stack:
        server = stack.enter_context(PostgresServer())
        # Not /tmp, which is often no disk.
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="leasehold-bench-", dir="/var/tmp"))
        for setting in ("on", "off"):
            options = f"-c synchronous_commit={setting}"
            connection = stack.enter_context(psycopg.connect(server.url, options=options))
            found += _ratios(f"PostgreSQL synchronous_commit={setting}", connection, "%s", TARGET)
        for setting, target in (("full", TARGET), ("normal", None)):
            made = stack.enter_context(closing(sqlite3.connect(f"{folder}/{setting}.db")))
            made.execute("PRAGMA journal_mode = wal").fetchall()
            made.execute(f"PRAGMA synchronous = {setting}")
            found += _ratios(f"SQLite {setting.upper()}", made, "?", target)
    return found


def _ratios(where: str, connection: Any, place: str, target: float | None) -> list[Figure]:
    taken = medians(_cases(connection, place), ROUNDS)
    return [
        Figure(
            f"{where}: {name} ÷ {BARE}",
            micro(seconds),
            micro(taken[BARE]),
            seconds / taken[BARE],
            target if name == FENCED else None,
        )
        for name, seconds in taken.items()
        if name != BARE
    ]


def _cases(connection: Any, place: str) -> dict[str, Callable[[], float]]:
    """Each sets another total, in a table of its own, and commits. SQLite writes nothing that is there already."""
    totals = itertools.count()
    for table in ("bare", "fenced", "marked", "triggered"):
        connection.execute(f"DROP TABLE IF EXISTS {table}")
        connection.execute(f"CREATE TABLE {table} (id INTEGER PRIMARY KEY, total BIGINT NOT NULL, owner TEXT)")
        connection.execute(f"INSERT INTO {table} VALUES (7, 0, 'ada')")  # noqa: S608  the names above
    fence.add_mark(connection, "fenced")
    fence.add_mark(connection, "triggered", trigger=True)
    fence.add_marks_table(connection)
    row = fence.Row(connection, "fenced", 7).open(TOKEN)
    marks = fence.Marks(connection, "marked").open(TOKEN)
    watched = fence.Row(connection, "triggered", 7).open(TOKEN)
    connection.commit()

    def plain(table: str) -> None:
        connection.execute(f"UPDATE {table} SET total = {place} WHERE id = {place}", (next(totals), 7))  # noqa: S608

    def opened() -> None:
        fence.Row(connection, "fenced", 7).open(TOKEN).write({"total": next(totals)})

    def under_marks() -> None:
        marks.check()
        plain("marked")

    def under_trigger() -> None:
        with fence.under(connection, TOKEN):
            plain("triggered")

    works = {
        BARE: lambda: plain("bare"),
        FENCED: lambda: row.write({"total": next(totals)}),
        "open + fenced update": opened,
        "check of a table of marks + update": under_marks,
        "fenced update, with the trigger": lambda: watched.write({"total": next(totals)}),
        "update under the trigger": under_trigger,
    }
    return {name: functools.partial(seconds_each, _committed(connection, work), TIMES) for name, work in works.items()}


def _committed(connection: Any, work: Callable[[], None]) -> Callable[[], None]:
    def done() -> None:
        work()
        connection.commit()

    return done
