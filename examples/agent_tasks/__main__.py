"""A replica of the task controller: `python examples/agent_tasks --namespace team-a --model http://…/v1/chat`."""

from __future__ import annotations

import argparse
import logging
import os

# kopf finds the handlers by their import.
import controller
import kopf

SHORTEST, LONGEST = 0.05, 86_400.0


def main() -> None:
    parser = argparse.ArgumentParser(prog="agent_tasks", description=__doc__)
    parser.add_argument("--namespace", default=os.environ.get("POD_NAMESPACE", "default"), help="of tasks and leases")
    parser.add_argument("--model", default="http://127.0.0.1:8090/v1/chat", help="where the model is asked")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080, help="for /metrics and /healthz")
    parser.add_argument("--ttl", type=seconds, default=30, help="how long a lease outlives a replica that has died")
    parser.add_argument("--requeue", type=seconds, default=5, help="seconds until a task is tried again")
    parser.add_argument("--no-lock", action="store_true", help="send without a lease, to see what happens")
    parser.add_argument("--no-tools", action="store_true", help="leave the tool calls to somebody else")
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("kopf").setLevel(logging.WARNING)
    # The controller's own observer tells the same, in words that mean something here.
    logging.getLogger("leasehold").setLevel(logging.ERROR)
    options = controller.Options(
        namespace=given.namespace,
        model=given.model,
        host=given.host,
        port=given.port,
        ttl=given.ttl,
        requeue=given.requeue,
        locking=not given.no_lock,
        tools=not given.no_tools,
    )
    kopf.run(standalone=True, namespaces=[given.namespace], memo=kopf.Memo(options=options))


def seconds(text: str) -> float:
    """A time that can be waited for."""
    given = float(text)
    if not SHORTEST <= given <= LONGEST:
        raise argparse.ArgumentTypeError(f"must be {SHORTEST:g} to {LONGEST:g} seconds, not {text}")
    return given


if __name__ == "__main__":
    main()
