"""A replica of the alert gateway: `python examples/alert_gateway --port 8080 --store kubernetes://team-a`."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from aiohttp import web

from leasehold import InvalidInput

# What the programs beside this one share.
sys.path.append(str(Path(__file__).resolve().parents[1]))

from server import Gateway


def main() -> None:
    parser = argparse.ArgumentParser(prog="alert_gateway", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--store", default="kubernetes://", help="the namespace of Leases and RemediationRequests")
    parser.add_argument("--ttl", type=float, default=30, help="how long a lock outlives a replica that has died")
    parser.add_argument("--no-lock", action="store_true", help="check and create without a lock, to see what happens")
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("leasehold").setLevel(logging.WARNING)
    try:
        web.run_app(
            Gateway(given.store, given.ttl, locking=not given.no_lock).app(),
            host=given.host,
            port=given.port,
            access_log=None,
            # Who hung up is waited for by nobody; what a clerk has begun goes on.
            handler_cancellation=True,
        )
    except InvalidInput as error:
        sys.exit(f"alert_gateway: {error}")


if __name__ == "__main__":
    main()
