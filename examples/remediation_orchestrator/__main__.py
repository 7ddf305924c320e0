"""A replica of the orchestrator: `python examples/remediation_orchestrator --namespace team-a --port 8090`."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from pathlib import Path

import kopf
from aiohttp import web

from leasehold import InvalidInput, StoreError, StoreUnavailable
from leasehold.kube import aio as objects

# What the programs beside this one share.
sys.path.append(str(Path(__file__).resolve().parents[1]))

import executions
import server
from handlers import Replica
from router import Rules

TTL_MAX = 86_400
CLOSING = 0.25

log = logging.getLogger("orchestrator")


def main() -> None:
    parser = argparse.ArgumentParser(prog="remediation_orchestrator", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8090, help="where /readyz, /healthz and /metrics are")
    parser.add_argument("--namespace", required=True, help="of Leases, RemediationRequests and WorkflowExecutions")
    parser.add_argument("--workflow", default="restart", help="what a WorkflowExecution shall run")
    parser.add_argument("--cooldown", type=float, default=300, help="how long a target rests after an execution")
    parser.add_argument("--again", type=float, default=30, help="how long to wait after one that was skipped")
    parser.add_argument("--ttl", type=float, default=30, help="how long a lock outlives a replica that has died")
    parser.add_argument("--no-lock", action="store_true", help="check and create without a lock, to see what happens")
    given = parser.parse_args()
    if not (given.cooldown >= 0 and given.again > 0 and 1 <= given.ttl <= TTL_MAX):
        parser.error(f"--cooldown must be 0 or more, --again more than 0, --ttl 1 to {TTL_MAX}")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("leasehold").setLevel(logging.WARNING)
    rules = Rules(given.workflow, given.cooldown, given.again, given.ttl)
    replica = Replica(f"kubernetes://{given.namespace}", rules, locking=not given.no_lock)
    try:
        asyncio.run(serve(replica, given.host, given.port, given.namespace))
    except InvalidInput as error:
        sys.exit(f"remediation_orchestrator: {error}")


async def serve(replica: Replica, host: str, port: int, namespace: str) -> None:
    """Until a signal. What ends kopf, a definition that is deleted or a right that is taken, does not end us."""
    await check(replica)
    runner = web.AppRunner(server.app(replica), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, host, port).start()
    try:
        while not await is_stopped(replica, namespace):
            log.warning("not ready: %s", replica.why)
    finally:
        await runner.cleanup()
        # TLS connections of kopf's are closed by the loop, a moment after kopf; aiohttp offers no other way to wait.
        await asyncio.sleep(CLOSING)


async def check(replica: Replica) -> None:
    """An address that can never work ends the program, with the reason."""
    try:
        opened = await objects.connect(replica.store, executions.KIND)
    except StoreError:
        return
    await opened.close()


async def is_stopped(replica: Replica, namespace: str) -> bool:
    """Run kopf until it ends: by a signal, or by an error that nobody foresaw."""
    try:
        await kopf.operator(standalone=True, namespaces=[namespace], memo=kopf.Memo(replica=replica))
    except Exception as error:  # noqa: BLE001  whatever it is: it is told, and tried again
        await replica.leave(StoreUnavailable(f"kopf has ended and begins anew: {error}", applied=False))
        return False
    return True


if __name__ == "__main__":
    main()
