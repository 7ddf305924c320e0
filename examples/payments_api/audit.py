"""A trail that shows whether it was changed: each row has the hash of the one before it. Rows are only added.

Rows are written in the transaction that does what they tell, so neither lasts without the other.
"""

from __future__ import annotations

import sqlite3
import time
from typing import Any

import leasehold

SCHEMA = """
CREATE TABLE IF NOT EXISTS audit (
    id INTEGER PRIMARY KEY, at TEXT NOT NULL, did TEXT NOT NULL, subject TEXT NOT NULL, request TEXT NOT NULL,
    token TEXT NOT NULL, worker TEXT NOT NULL, hash TEXT NOT NULL
);
CREATE TRIGGER IF NOT EXISTS audit_is_not_changed BEFORE UPDATE ON audit
    BEGIN SELECT RAISE(ABORT, 'the audit trail is only added to'); END;
CREATE TRIGGER IF NOT EXISTS audit_is_not_shortened BEFORE DELETE ON audit
    BEGIN SELECT RAISE(ABORT, 'the audit trail is only added to'); END;
"""
COLUMNS = ("at", "did", "subject", "request", "token", "worker")
BEGINNING = "sha256:"


def add(db: sqlite3.Connection, did: str, subject: str, *, request: str, token: int, worker: str) -> str:
    """Tell what this transaction does: for which request, under which token, by which process. When, for a receipt."""
    last = db.execute("SELECT hash FROM audit ORDER BY id DESC LIMIT 1").fetchone()
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    row = (at, did, subject, request, str(token), worker)
    values = (*row, _hash(last[0] if last else BEGINNING, row))
    db.execute(
        "INSERT INTO audit (at, did, subject, request, token, worker, hash) VALUES (?, ?, ?, ?, ?, ?, ?)", values
    )
    return at


def rows(db: sqlite3.Connection) -> list[dict[str, Any]]:
    """Everything, from the beginning; `intact` is False from the first row on that is not what was written."""
    found, before, intact = [], BEGINNING, True
    for *values, said in db.execute("SELECT at, did, subject, request, token, worker, hash FROM audit ORDER BY id"):
        intact = intact and said == _hash(before, values)
        found.append(dict(zip(COLUMNS, values, strict=True)) | {"intact": intact})
        before = said
    return found


def _hash(before: str, row: tuple[str, ...] | list[str]) -> str:
    return leasehold.fingerprint([before, *row])
