"""The payments API with its gateway, as processes, and what gateway, ledger and audit trail say was done."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import secrets
import signal
import sqlite3
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import leasehold
from leasehold.testing.servers.process import free_ports
from tests.examples.programs import PATIENCE, Served
from tests.support import ROOT, eventually

PAYMENTS = ROOT / "examples" / "payments_api"
WORKERS = 3
TENANTS = ("acme", "globex", "initech")
ASKED = {"amount": 4200, "currency": "EUR", "card": "tok_visa"}


class Answer(NamedTuple):
    """What a client got; status 0 if the connection broke."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def told(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found

    @property
    def is_replay(self) -> bool:
        return self.headers.get("idempotent-replayed") == "true"


class Place:
    """A folder with a ledger, a store for leases, a gateway, and the API."""

    def __init__(self, folder: Path, store: str | None = None, *options: str) -> None:
        self.data = folder / "payments"
        self.data.mkdir()
        self.store, self.prefix = store or f"sqlite://{self.data}/leases.db", f"payments-{secrets.token_hex(4)}"
        port, gateway = free_ports(2)
        self._folder = folder
        self.gateway = self.open_gateway(gateway)
        words = [str(PAYMENTS), "serve", "--data", str(self.data), "--store", self.store, "--prefix", self.prefix]
        words += ["--gateway", f"http://127.0.0.1:{gateway}", *options]
        # The workers are processes of their own: they hear of -W by the environment.
        self.api = Served(folder, port, words, PYTHONWARNINGS="error")

    def open_gateway(self, port: int) -> Served:
        """Start a gateway that has done nothing yet."""
        self.gateway = Served(self._folder, port, [str(PAYMENTS), "gateway"])
        return self.gateway

    def is_up(self) -> bool:
        """All of it: a worker that is yet to come would take no part in anything."""
        return self.gateway.is_up("/done") and self.api.said().count(" serves\n") >= WORKERS

    def end(self) -> None:
        for program in (self.api, self.gateway):
            program.kill()
        # One that sleeps does not see that its parent is gone.
        for stopped in self.data.glob("stopped-at-*"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(stopped.read_text()), signal.SIGCONT)

    # Asking.

    def charge(self, key: str | None = None, tenant: str = "acme", **changes: Any) -> Answer:
        """One request, sent once."""
        headers = {"Idempotency-Key": key} if key else {}
        return self.ask("POST", "/charges", {**ASKED, **changes}, tenant, headers)

    def charge_until_told(self, key: str, **changes: Any) -> tuple[Answer, int]:
        """Send the same again, as clients do, until there is an answer to keep; and how often it took."""
        answers: list[Answer] = []

        def is_told() -> bool:
            answers.append(self.charge(key, **changes))
            return answers[-1].status != 0 and not answers[-1].told.get("retry")

        eventually(is_told, PATIENCE)
        return answers[-1], len(answers)

    def charge_at_once(self, count: int, key: str | None, **changes: Any) -> list[Answer]:
        with ThreadPoolExecutor(count) as pool:
            return list(pool.map(lambda _: self.charge(key, **changes), range(count)))

    def ask(
        self, verb: str, path: str, body: Any = None, tenant: str = "acme", headers: Mapping[str, str] | None = None
    ) -> Answer:
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        shown = {"Authorization": f"Bearer sk_{tenant}", "Content-Type": "application/json", **(headers or {})}
        connection = http.client.HTTPConnection("127.0.0.1", self.api.port, timeout=PATIENCE)
        try:
            connection.request(verb, path, data, shown)
            answer = connection.getresponse()
            found = answer.read()
            return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, found)
        except (ConnectionError, http.client.HTTPException):
            return Answer(0, {}, b"")
        finally:
            connection.close()

    def behave(self, **behaviour: Any) -> None:
        """Tell the gateway how."""
        assert self.gateway.ask("POST", "/behaviour", json.dumps(behaviour).encode())[0] == http.client.OK

    # Judging.

    def charged(self) -> list[dict[str, Any]]:
        """What the gateway has charged."""
        return [one for one in self._gateway()["done"] if one["status"] == "charged"]

    def refunded(self) -> list[dict[str, Any]]:
        return [one for one in self._gateway()["done"] if one["status"] == "refunded"]

    def asked(self) -> int:
        """How often the gateway was asked."""
        return int(self._gateway()["asked"])

    def entries(self) -> list[tuple[str, int]]:
        """What the ledger has booked."""
        with contextlib.closing(self.ledger()) as db:
            return db.execute("SELECT charge, amount FROM entries ORDER BY id").fetchall()

    def did(self, subject: str) -> list[str]:
        """What the audit trail says of a charge or refund."""
        with contextlib.closing(self.ledger()) as db:
            found = db.execute("SELECT did FROM audit WHERE subject = ? ORDER BY id", (subject,))
            return [did for (did,) in found]

    def ledger(self) -> sqlite3.Connection:
        return sqlite3.connect(self.data / "ledger.db", timeout=PATIENCE)

    def worker(self, scope: str = "once:charges/") -> int:
        """The process that works on the one charge of this moment, or that has another lease."""
        with leasehold.connect(self.store, prefix=self.prefix) as locks:
            (holder,) = [info.holder for info in locks.list() if info.scope.startswith(scope)]
        return int(holder.removeprefix("payments-"))

    def metrics(self) -> str:
        return self.api.get("/metrics")[1]

    def _gateway(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.gateway.get("/done")[1])
        return found


@contextlib.contextmanager
def place(folder: Path, store: str | None = None, *options: str) -> Iterator[Place]:
    """Everything started, and ended with the block; none of it shows a traceback."""
    made = Place(folder, store, *options)
    try:
        eventually(made.is_up, PATIENCE)
        yield made
        for program in (made.api, made.gateway):
            said = program.end()
            assert "Traceback" not in said, said
    finally:
        made.end()
