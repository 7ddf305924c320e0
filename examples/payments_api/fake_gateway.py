"""A card gateway that notes everything, and misbehaves as it is told: `python examples/payments_api gateway`.

POST /charges, /refunds    as a real one: with Idempotency-Key, a request that comes again gets the same answer
GET  /done                 everything that was charged and refunded, and how often it was asked
POST /behaviour            {"before": 1, "after": 1, "fail": 2, "drop": 2, "keys": false}: seconds to wait before it
                           charges and after; how many of the next requests fail before, or get no answer after
"""

from __future__ import annotations

import contextlib
import json
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

DECLINED = "tok_declined"


class FakeGateway(ThreadingHTTPServer):
    """What was done, by whom, and how it behaves."""

    daemon_threads = True
    request_queue_size = 512

    def __init__(self, host: str, port: int) -> None:
        super().__init__((host, port), _Handler)
        self.lock = threading.Lock()
        self.done: list[dict[str, Any]] = []
        self.asked = 0
        self.answers: dict[str, dict[str, Any]] = {}
        self.behaviour: dict[str, Any] = {"before": 0, "after": 0, "fail": 0, "drop": 0, "keys": True}
        self.pause = threading.Event()

    def takes(self, what: str) -> bool:
        """Whether this request is one of those that fail, or are dropped."""
        with self.lock:
            left = int(self.behaviour[what])
            self.behaviour[what] = max(left - 1, 0)
        return left > 0

    def do(self, kind: str, key: str | None, asked: dict[str, Any]) -> dict[str, Any]:
        """Charge or refund, unless this key did so before."""
        with self.lock:
            known = self.answers.get(key or "") if self.behaviour["keys"] else None
            if known is not None:
                return known
            declined = asked.get("card") == DECLINED
            status = "declined" if declined else {"charges": "charged", "refunds": "refunded"}[kind]
            answer = {"id": f"gw_{len(self.done) + 1}", "status": status}
            self.done.append({"kind": kind, **asked, **answer})
            if key is not None:
                self.answers[key] = answer
            return answer


class _Handler(BaseHTTPRequestHandler):
    server: FakeGateway

    def do_GET(self) -> None:
        self._answer({"done": self.server.done, "asked": self.server.asked})

    def do_POST(self) -> None:
        gateway, kind = self.server, self.path.strip("/")
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if kind == "behaviour":
            gateway.behaviour |= asked
            self._answer(gateway.behaviour)
            return
        with gateway.lock:
            gateway.asked += 1
        # Never set: it only waits.
        gateway.pause.wait(gateway.behaviour["before"])
        if gateway.takes("fail"):
            self._answer({}, HTTPStatus.INTERNAL_SERVER_ERROR)
            return
        answer = gateway.do(kind, self.headers["Idempotency-Key"], asked)
        gateway.pause.wait(gateway.behaviour["after"])
        if not gateway.takes("drop"):
            self._answer(answer)

    def _answer(self, told: dict[str, Any], status: HTTPStatus = HTTPStatus.OK) -> None:
        data = json.dumps(told).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        # Whoever asked may be dead by now.
        with contextlib.suppress(ConnectionError):
            self.end_headers()
            self.wfile.write(data)

    def log_message(self, *_given: object) -> None:
        """Nothing: what was done can be asked for."""
