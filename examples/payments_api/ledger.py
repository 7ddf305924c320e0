"""The ledger: charges, refunds and what was booked, in a SQLite file that the workers share. Blocking: for threads.

A charge is a fenced row (`leasehold.fence`): who has a later token opens it, and from then on an earlier worker that
comes back books nothing, whatever the gateway told it. Whoever has the row finds there how far those before it came.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import audit
import msgspec
from asked import Charge, Refund, Refused

from leasehold import fence, sql

SCHEMA = """
CREATE TABLE IF NOT EXISTS charges (
    id TEXT PRIMARY KEY, tenant TEXT NOT NULL, amount INTEGER NOT NULL, currency TEXT NOT NULL,
    description TEXT NOT NULL, state TEXT NOT NULL, gateway_id TEXT, request TEXT NOT NULL, token TEXT, booked_at TEXT
);
CREATE TABLE IF NOT EXISTS refunds (
    id TEXT PRIMARY KEY, charge TEXT NOT NULL, amount INTEGER NOT NULL, reference TEXT NOT NULL, state TEXT NOT NULL,
    request TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS entries (
    id INTEGER PRIMARY KEY, charge TEXT NOT NULL, amount INTEGER NOT NULL, because TEXT NOT NULL
);
"""
TOPIC = "refund"
# For others' transactions: they are short.
PATIENCE = 30.0


class Ledger:
    """One file. `worker` is who writes, for the audit trail."""

    def __init__(self, path: Path, worker: str) -> None:
        self._path = path
        self._worker = worker

    def prepare(self) -> None:
        """Make the tables, unless they are there."""
        with self.connection() as db:
            db.executescript(SCHEMA + audit.SCHEMA)
            fence.add_mark(db, "charges")
            sql.add_tables(db)

    @contextlib.contextmanager
    def connection(self) -> Iterator[sqlite3.Connection]:
        """A connection in no transaction. The journal is SQLite's default, which is safe in every version of it."""
        db = self.connect()
        try:
            yield db
        finally:
            db.close()

    def connect(self) -> sqlite3.Connection:
        """The same, for who closes it."""
        return sqlite3.connect(self._path, timeout=PATIENCE, isolation_level=None)

    # Charges.

    def begin(self, number: str, tenant: str, asked: Charge, request: str, token: int) -> None:
        """The row of a charge, open for this token: it is there before the gateway hears of it."""
        with self._transaction() as db:
            given = (number, tenant, asked.amount, asked.currency, asked.description, request)
            db.execute(
                "INSERT INTO charges (id, tenant, amount, currency, description, state, request) "
                "VALUES (?, ?, ?, ?, ?, 'pending', ?) ON CONFLICT DO NOTHING",
                given,
            )
            fence.Row(db, "charges", number).open(token)
            audit.add(db, "charge.begun", number, request=request, token=token, worker=self._worker)

    def book(self, number: str, told: dict[str, Any], token: int) -> dict[str, Any]:
        """What the gateway told, and the entry, unless a run before this one came so far. The charge as it stands."""
        with self._transaction() as db:
            row = fence.Row(db, "charges", number).open(token)
            found = row.read()
            if found["state"] == "pending":
                state, request = told["status"], found["request"]
                at = audit.add(db, f"charge.{state}", number, request=request, token=token, worker=self._worker)
                row.write({"state": state, "gateway_id": told["id"], "token": str(token), "booked_at": at})
                if state == "charged":
                    self._enter(db, number, found["amount"], number)
            return self._charge(db, number)

    def charge(self, number: str, tenant: str) -> dict[str, Any]:
        """A tenant's charge, with its refunds. To others it is not there."""
        with self.connection() as db:
            owner = db.execute("SELECT tenant FROM charges WHERE id = ?", (number,)).fetchone()
            if owner != (tenant,):
                raise Refused(HTTPStatus.NOT_FOUND, "no-such-charge", "There is no such charge.")
            return self._charge(db, number)

    # Refunds.

    def accept(self, db: sqlite3.Connection, number: str, asked: Refund, refund: str, request: str) -> dict[str, Any]:
        """In the caller's transaction: the refund, and the message by which the relay tells the gateway."""
        found = self._charge(db, number)
        if found["status"] != "charged":
            raise Refused(HTTPStatus.CONFLICT, "not-charged", "The charge was not charged, or not yet.")
        left = found["amount"] - sum(one["amount"] for one in found["refunds"])
        if asked.amount > left:
            raise Refused(HTTPStatus.CONFLICT, "refund-too-large", f"Of this charge {left} can be refunded.")
        given = (refund, number, asked.amount, asked.reference, request)
        db.execute("INSERT INTO refunds VALUES (?, ?, ?, ?, 'accepted', ?)", given)
        message = {"refund": refund, "charge": number, "gateway_id": found["gateway_id"], "amount": asked.amount}
        sql.publish(db, TOPIC, msgspec.json.encode(message), key=number)
        audit.add(db, "refund.accepted", refund, request=request, token=0, worker=self._worker)
        return {"id": refund, "charge": number, "amount": asked.amount, "reference": asked.reference}

    def refunded(self, message: dict[str, Any], token: int) -> None:
        """The gateway has done it. The relay may tell this twice; it is booked when it is told first."""
        with self._transaction() as db:
            done = "UPDATE refunds SET state = 'refunded' WHERE id = ? AND state = 'accepted' RETURNING request"
            changed = db.execute(done, (message["refund"],)).fetchall()
            for (request,) in changed:
                self._enter(db, message["charge"], -message["amount"], message["refund"])
                told = {"request": request, "token": token, "worker": self._worker}
                audit.add(db, "refund.refunded", message["refund"], **told)

    # For people.

    def totals(self) -> dict[str, int]:
        """How many charges and refunds there are in each state."""
        with self.connection() as db:
            states = "SELECT '{0}.' || state, count(*) FROM {0}s GROUP BY state"
            return dict(db.execute(states.format("charge")).fetchall() + db.execute(states.format("refund")).fetchall())

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self.connection() as db:
            # At once: one that only read before it writes would be told that the database is locked.
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
            except BaseException:
                db.rollback()
                raise
            db.commit()

    def _enter(self, db: sqlite3.Connection, number: str, amount: int, because: str) -> None:
        db.execute("INSERT INTO entries (charge, amount, because) VALUES (?, ?, ?)", (number, amount, because))

    def _charge(self, db: sqlite3.Connection, number: str) -> dict[str, Any]:
        columns = "amount, currency, description, state, gateway_id, request, token, booked_at"
        row = db.execute(f"SELECT {columns} FROM charges WHERE id = ?", (number,)).fetchone()  # noqa: S608  names of ours
        amount, currency, description, state, gateway_id, *receipt = row
        refunds = db.execute("SELECT id, amount, reference, state FROM refunds WHERE charge = ? ORDER BY id", (number,))
        return {
            "id": number,
            "status": state,
            "amount": amount,
            "currency": currency,
            "description": description,
            "gateway_id": gateway_id,
            "receipt": dict(zip(("request", "token", "at"), receipt, strict=True)),
            "refunds": [dict(zip(("id", "amount", "reference", "status"), one, strict=True)) for one in refunds],
        }
