"""The executor as kopf runs it: a task for each execution, a bell for each run, and the finalizer.

kopf's peering is off: replicas all do the same, and the API server decides who was first.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any

import kopf
from executor import EXECUTION, FINALIZER, RUN, Executor

from leasehold import LeaseholdError

# Where Leasehold writes whose a lock is.
OWNER = "leasehold/owner"
AGAIN = 1.0

log = logging.getLogger("executor")


class Replica(kopf.Memo):
    """What the handlers of one process share."""

    executor: Executor
    namespace: str
    bells: dict[str, asyncio.Event]


class NoCopies(kopf.DiffBaseStorage):
    """kopf keeps a copy of each object in it, to see what has changed. Here the cluster is read instead."""

    def fetch(self, *, body: kopf.Body) -> kopf.BodyEssence:
        return self.build(body=body)

    def store(self, *, body: kopf.Body, patch: kopf.Patch, essence: kopf.BodyEssence) -> None:
        pass


def settings() -> kopf.OperatorSettings:
    """kopf as it is used here."""
    found = kopf.OperatorSettings()
    found.persistence.finalizer = FINALIZER
    found.persistence.diffbase_storage = NoCopies()
    # Definitions and namespaces are the cluster's: what is missing is noticed before kopf starts, and when it fails.
    found.scanning.disabled = True
    found.posting.reporting_component = "workflow-executor"
    # Short, because an API server that restarts is back in seconds.
    found.networking.error_backoffs = (1, 1, 2)
    found.networking.request_timeout = 10
    found.queueing.exit_timeout = 1
    # If it fails and cannot end it is killed: whoever started it starts it again.
    found.process.ultimate_exiting_timeout = 20
    return found


def is_here(namespace: str | None, memo: Replica, **_: Any) -> bool:
    """kopf watches every kind in every namespace; executions beside the runs are nobody's."""
    return namespace == memo.namespace


@kopf.daemon(EXECUTION.group, "v1", EXECUTION.plural, when=is_here, cancellation_timeout=10)
async def execute(name: str, uid: str, memo: Replica, **_: Any) -> None:
    """Step after step, from whatever is there; woken by its run, and by the clock."""
    bell = memo.bells[uid] = asyncio.Event()
    try:
        while True:
            bell.clear()
            wait = await _attempt(memo.executor, name, uid)
            if wait is None:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await bell.wait()
    finally:
        del memo.bells[uid]


@kopf.on.event(RUN.group, "v1", RUN.plural)
async def ring(annotations: kopf.Annotations, memo: Replica, **_: Any) -> None:
    """Something happened to a run, its deletion included: its execution looks."""
    bell = memo.bells.get(annotations.get(OWNER, "").rpartition("/")[2])
    if bell is not None:
        bell.set()


@kopf.on.delete(EXECUTION.group, "v1", EXECUTION.plural, when=is_here)
async def forget(name: str, body: kopf.Body, memo: Replica, **_: Any) -> None:
    """The finalizer: its own run goes first, whatever phase it is in."""
    try:
        await memo.executor.free(dict(body))
    except LeaseholdError as error:
        log.warning("%s cannot go before its PipelineRun does, which is tried again: %s", name, error)
        raise kopf.TemporaryError(str(error), delay=AGAIN) from error


async def _attempt(executor: Executor, name: str, uid: str) -> float | None:
    """A step; what the cluster refuses is said where people look, and tried again."""
    try:
        return await executor.step(name, uid)
    except LeaseholdError as error:
        log.warning("%s: tried again in %g s: %s", name, AGAIN, error)
        await executor.complain(name, error)
        # By the clock alone: what the step has written before it failed rings the bell.
        await asyncio.sleep(AGAIN)
        return 0
