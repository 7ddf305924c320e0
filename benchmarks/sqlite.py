"""SQLite: acquire and release, against the two bare transactions that nobody could do without.

The floor writes the same bytes into an equal table with the same durability, and
nothing else: no names, no secret, no heartbeat, no clock.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from pathlib import Path

import apsw

import leasehold
from benchmarks.harness import Figure, medians, micro, seconds_each

ROUNDS = 41
TIMES = 50
TARGET = 1.5

SCHEMA = """
CREATE TABLE state (id INTEGER PRIMARY KEY, revision INTEGER NOT NULL) STRICT;
INSERT INTO state VALUES (1, 1);
CREATE TABLE records (
    family TEXT NOT NULL, member TEXT NOT NULL, value BLOB NOT NULL, revision INTEGER NOT NULL, born INTEGER NOT NULL,
    ttl REAL, ends REAL, clock INTEGER NOT NULL, PRIMARY KEY (family, member)
) STRICT, WITHOUT ROWID;
"""
VALUE = b'{"scope":"invoice/42","holder":"host:12345:abcdef","secret":"0123456789abcdef0123456789abcdef","since":1.7e9}'
KEY = ("//name/invoice/42", "lock")


def figures() -> list[Figure]:
    """The ratio at FULL is published; NORMAL, where no disk hides anything, is shown beside it."""
    # Not /tmp, which is often no disk.
    with tempfile.TemporaryDirectory(prefix="leasehold-bench-", dir="/var/tmp") as folder:
        return [_ratio(Path(folder), "full", TARGET), _ratio(Path(folder), "normal", None)]


def _ratio(folder: Path, synchronous: str, target: float | None) -> Figure:
    db = bare(folder / f"floor-{synchronous}.db", synchronous)
    with leasehold.connect(f"sqlite://{folder}/leases-{synchronous}.db?synchronous={synchronous}") as locks:

        def ours() -> None:
            locks.acquire("invoice/42").release()

        def floor() -> None:
            grant(db)
            remove(db)

        cases: dict[str, Callable[[], float]] = {
            "ours": functools.partial(seconds_each, ours, TIMES),
            "floor": functools.partial(seconds_each, floor, TIMES),
        }
        found = medians(cases, ROUNDS)
    db.close()
    name = f"SQLite {synchronous.upper()}: acquire + release ÷ two bare transactions"
    return Figure(name, micro(found["ours"]), micro(found["floor"]), found["ours"] / found["floor"], target)


def bare(path: Path, synchronous: str) -> apsw.Connection:
    """A connection as bare as it can be at this durability."""
    db = apsw.Connection(str(path))
    db.pragma("journal_mode", "wal")
    db.pragma("synchronous", synchronous)
    db.execute(SCHEMA)
    return db


def grant(db: apsw.Connection) -> None:
    """Write the record, if nobody else's is there."""
    db.execute("BEGIN IMMEDIATE")
    if db.execute("SELECT * FROM records WHERE family = ? AND member = ?", KEY).fetchone() is None:
        revision = db.execute("UPDATE state SET revision = revision + 1 RETURNING revision").get
        row = (*KEY, VALUE, revision, revision, 30.0, 1000.0, 1)
        db.execute("INSERT INTO records VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
    db.execute("COMMIT")


def remove(db: apsw.Connection) -> None:
    """Remove the record, if it is still there."""
    db.execute("BEGIN IMMEDIATE")
    if db.execute("SELECT * FROM records WHERE family = ? AND member = ?", KEY).fetchone() is not None:
        db.execute("DELETE FROM records WHERE family = ? AND member = ?", KEY)
    db.execute("COMMIT")
