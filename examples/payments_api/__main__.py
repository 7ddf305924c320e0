"""A payments API on several processes, and what belongs to it: `python examples/payments_api serve`."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import socket
import sys
import threading
from pathlib import Path

TENANTS = "acme=sk_acme,globex=sk_globex,initech=sk_initech"


def main() -> None:
    given = _arguments().parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("payments").setLevel(logging.INFO)
    {"serve": serve, "work": work, "gateway": gateway, "pay": pay, "audit": audit}[given.command](given)


# Each imports what it needs: workers are started often.


def serve(given: argparse.Namespace) -> None:
    """The workers, behind one port."""
    from fleet import Fleet  # noqa: PLC0415
    from ledger import Ledger  # noqa: PLC0415

    given.data.mkdir(parents=True, exist_ok=True)
    Ledger(given.data / "ledger.db", "serve").prepare()
    names = ("data", "store", "prefix", "gateway", "tenants", "ttl", "wait", "timeout", "die_at", "stop_at")
    words = [f"--{name.replace('_', '-')}={getattr(given, name)}" for name in names if getattr(given, name) is not None]
    words += [f"--{name.replace('_', '-')}" for name in ("unkeyed", "no_once") if getattr(given, name)]
    Fleet(given.host, given.port, given.workers, words).run()


def work(given: argparse.Namespace) -> None:
    """One of them."""
    from worker import Options  # noqa: PLC0415
    from worker import work as serve_requests  # noqa: PLC0415

    from leasehold import StoreUnavailable  # noqa: PLC0415

    options = Options(
        ledger=given.data / "ledger.db",
        # Not the ledger's file: a transaction there has its one write lock.
        store=given.store or f"sqlite://{given.data.absolute()}/leases.db",
        prefix=given.prefix,
        gateway=given.gateway,
        tenants={key: tenant for tenant, _, key in (one.partition("=") for one in given.tenants.split(","))},
        ttl=given.ttl,
        wait=given.wait,
        timeout=given.timeout,
        keyed=not given.unkeyed,
        once=not given.no_once,
        die_at=frozenset(filter(None, given.die_at.split(","))),
        stop_at=frozenset(filter(None, given.stop_at.split(","))),
    )
    with socket.socket(fileno=given.socket) as listener:
        try:
            asyncio.run(serve_requests(options, listener))
        except StoreUnavailable as error:
            # At the start: whoever started it tries again.
            sys.exit(f"payments_api: {error}")


def gateway(given: argparse.Namespace) -> None:
    """The fake gateway."""
    import signal  # noqa: PLC0415

    from fake_gateway import FakeGateway  # noqa: PLC0415

    with FakeGateway(given.host, given.port) as server:
        stop = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        threading.Thread(target=server.serve_forever, daemon=True).start()
        stop.wait()
        server.shutdown()


def pay(given: argparse.Namespace) -> None:
    """A charge, with retries."""
    import pay as client  # noqa: PLC0415

    asked = {"amount": given.amount, "currency": given.currency, "card": given.card}
    try:
        status, replayed, answer = client.pay(given.server, given.key, asked, given.idempotency_key)
    except client.NoAnswer as error:
        sys.exit(f"payments_api: {error}")
    print(status, "(replayed)" if replayed else "(new)", json.dumps(answer, indent=2))  # noqa: T201


def audit(given: argparse.Namespace) -> None:
    """The audit trail, as lines of JSON; fails if it was changed."""
    import audit as trail  # noqa: PLC0415
    from ledger import Ledger  # noqa: PLC0415

    with Ledger(given.data / "ledger.db", "audit").connection() as db:
        rows = trail.rows(db)
    for row in rows:
        print(json.dumps(row))  # noqa: T201
    if not all(row["intact"] for row in rows):
        sys.exit("payments_api: the audit trail was changed")


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="payments_api", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    served = argparse.ArgumentParser(add_help=False)
    served.add_argument("--data", type=Path, default=Path("/tmp/payments"), help="folder of the ledger")  # noqa: S108
    served.add_argument("--store", help="of the leases and answers: any of Leasehold's; else a file in the folder")
    served.add_argument("--prefix", default="payments", help="each service's own, in the store")
    served.add_argument("--gateway", default="http://127.0.0.1:8090")
    served.add_argument("--tenants", default=TENANTS, help="and their API keys")
    served.add_argument("--ttl", type=float, default=10.0, help="how long a lease outlives a worker that has died")
    served.add_argument("--wait", type=float, default=10.0, help="how long a request waits for the same one")
    served.add_argument("--timeout", type=float, default=5.0, help="of each request to store and gateway")
    served.add_argument("--unkeyed", action="store_true", help="the gateway knows no keys: never ask it twice")
    served.add_argument("--no-once", action="store_true", help="handle each request as a new one, to see what happens")
    served.add_argument("--die-at", default="", help="points where the first worker to come there dies, by kill -9")
    served.add_argument("--stop-at", default="", help="and where it stops instead, by SIGSTOP")
    serving = commands.add_parser("serve", parents=[served], help=serve.__doc__)
    serving.add_argument("--workers", type=int, default=3)
    working = commands.add_parser("work", parents=[served], help=work.__doc__)
    working.add_argument("--socket", type=int, required=True, help="number of a file that listens")
    for each, port in ((serving, 8080), (commands.add_parser("gateway", help=gateway.__doc__), 8090)):
        each.add_argument("--host", default="127.0.0.1")
        each.add_argument("--port", type=int, default=port)
    paying = commands.add_parser("pay", help=pay.__doc__)
    paying.add_argument("amount", type=int, help="in cents")
    paying.add_argument("--currency", default="EUR")
    paying.add_argument("--card", default="tok_visa", help="tok_declined is declined")
    paying.add_argument("--server", default="http://127.0.0.1:8080")
    paying.add_argument("--key", default="sk_acme", help="the tenant's API key")
    paying.add_argument("--idempotency-key", help="of the request; else a new one")
    auditing = commands.add_parser("audit", help=audit.__doc__)
    auditing.add_argument("--data", type=Path, default=Path("/tmp/payments"))  # noqa: S108
    return parser


if __name__ == "__main__":
    main()
