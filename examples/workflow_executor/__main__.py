"""A replica of the executor: `python examples/workflow_executor --namespace team-a --runs workflows`."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from contextlib import AsyncExitStack
from typing import NamedTuple

import durations
import handlers
import kopf
from executor import EXECUTION, RUN, Executor, Options
from settings import KIND, Settings

from leasehold import InvalidInput, PermissionDenied, StoreError, StoreUnavailable
from leasehold.kube import aio

AGAIN, PROBE = 1.0, 5.0

log = logging.getLogger("executor")


def main() -> None:
    parser = argparse.ArgumentParser(prog="workflow_executor", description=__doc__)
    parser.add_argument("--namespace", required=True, help="where WorkflowExecutions and the ConfigMap are")
    parser.add_argument("--runs", required=True, help="where PipelineRuns are made: a namespace for nothing else")
    parser.add_argument("--timeout", type=_duration, default="1h", help="after which a run has failed")
    parser.add_argument("--look", type=_duration, default="10s", help="how often to look when nothing is heard")
    parser.add_argument("--no-lock", action="store_true", help="a run for each execution, to see what happens")
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("kopf.objects").setLevel(logging.WARNING)
    options = Options(given.timeout, given.look, locking=not given.no_lock)
    try:
        asyncio.run(serve(given.namespace, given.runs, options))
    except InvalidInput as error:
        sys.exit(f"workflow_executor: {error}")


async def serve(namespace: str, runs: str, options: Options) -> None:
    """Until the process is told to end. When a definition or a right is taken away, it begins anew."""
    async with AsyncExitStack() as stack:
        kinds = await reach(stack, namespace, runs)
        executor = Executor(kinds.executions, kinds.runs, Settings(kinds.maps), options)
        memo = handlers.Replica(executor=executor, namespace=namespace, bells={})
        # Before kopf, which takes every task that is begun later for its own.
        losing = asyncio.create_task(lost(kinds))
        failing = asyncio.create_task(failed())
        working = asyncio.create_task(
            kopf.operator(standalone=True, namespaces=[namespace, runs], memo=memo, settings=handlers.settings())
        )
        await asyncio.wait({losing, failing, working}, return_when=asyncio.FIRST_COMPLETED)
        for one in (losing, failing):
            if one.done():
                log.warning("begun anew: %s", one.result())
                # Without ado: nothing is in memory, and kopf without its watches may take for ever to end.
                os.execv(sys.executable, sys.orig_argv)  # noqa: S606  the very command that this process is
            one.cancel()
        await working


async def failed() -> str:
    """Wait until kopf says that one of its parts has failed. It tells nobody else before it has ended, if it does."""
    said: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if not said.done():
                said.set_result(record.getMessage())

    logging.getLogger("kopf._core.reactor.running").addHandler(Ear(logging.ERROR))
    return await said


class Kinds(NamedTuple):
    """What the executor reads and writes."""

    executions: aio.Objects
    runs: aio.Objects
    maps: aio.Objects

    async def look(self) -> None:
        """Raise what keeps us from working: no server, no definition, no right."""
        for objects in (self.executions, self.runs):
            await objects.list({"none": "none"})


async def reach(stack: AsyncExitStack, namespace: str, runs: str) -> Kinds:
    """Wait until both kinds can be listed; say what is missing."""
    while True:
        try:
            places = ((namespace, EXECUTION), (runs, RUN), (namespace, KIND))
            opened = [await aio.connect(f"kubernetes://{place}", kind) for place, kind in places]
            kinds = Kinds(*[await stack.enter_async_context(one) for one in opened])
            await kinds.look()
        except StoreError as error:
            log.warning("not ready: %s", error)
            await stack.aclose()
            await asyncio.sleep(AGAIN)
        else:
            log.info("ready: executions of %s, runs in %s", namespace, runs)
            return kinds


async def lost(kinds: Kinds) -> StoreError:
    """Wait until a definition is gone, and say so: kopf would not notice that it came back.

    A server that is away comes back by itself, and a right that is missing is told where it is needed.
    """
    while True:
        await asyncio.sleep(PROBE)
        try:
            await kinds.look()
        except (PermissionDenied, StoreUnavailable):
            continue
        except StoreError as error:
            return error


def _duration(text: str) -> float:
    try:
        found = durations.seconds(text)
    except durations.Malformed as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if not found:
        raise argparse.ArgumentTypeError("must be longer than 0")
    return found


if __name__ == "__main__":
    main()
