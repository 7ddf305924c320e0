"""The tables in the caller's database: once-records, and messages that wait to be published."""

from __future__ import annotations

from leasehold.fence.sql_connections import Database
from leasehold.fence.sql_triggers import add_marks_table
from leasehold.sql.connections import ROOM

ONCE = "leasehold_once"
OUTBOX = "leasehold_outbox"
MARKS = "leasehold_marks"

# A row without a record is a mark alone: somebody began, and nothing came of it yet. `ends` is when either is rubbish.
_ONCE = f"""
CREATE TABLE IF NOT EXISTS {ONCE} (
    key TEXT PRIMARY KEY,
    mark BIGINT NOT NULL,
    fingerprint TEXT NOT NULL,
    record TEXT,
    ends DOUBLE PRECISION NOT NULL
)
"""
# Numbers are never used again: a message that was published is deleted, and those who get it compare them.
_NUMBER = {
    True: "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
    False: "INTEGER PRIMARY KEY AUTOINCREMENT",
}
_OUTBOX = """
CREATE TABLE IF NOT EXISTS {table} (
    id {number},
    topic TEXT NOT NULL,
    key TEXT,
    payload {bytes} NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0,
    due DOUBLE PRECISION NOT NULL DEFAULT 0
)
"""


async def add_tables(database: Database) -> None:
    """Everything that is missing."""
    if database.postgres:
        # Two that make the same table at once would be told that it is there already, as an error.
        await database.rows("SELECT pg_advisory_xact_lock(%s, 0)", (ROOM,))
    await database.rows(_ONCE, ())
    await database.rows(f"CREATE INDEX IF NOT EXISTS {ONCE}_ends ON {ONCE} (ends)", ())
    payload = "BYTEA" if database.postgres else "BLOB"
    await database.rows(_OUTBOX.format(table=OUTBOX, number=_NUMBER[database.postgres], bytes=payload), ())
    # Only those that failed: a handful, looked at with every batch.
    await database.rows(f"CREATE INDEX IF NOT EXISTS {OUTBOX}_due ON {OUTBOX} (due) WHERE due > 0", ())
    await add_marks_table(database, MARKS)
