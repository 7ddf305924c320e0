"""The orchestrator as kopf sees it: two indices, and for each request that is not over a daemon that takes it on.

kopf keeps no notes of its own about a daemon: after a restart each goes on from what the objects say. Its
peering is off; every replica runs a daemon for every request, and the lease decides.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any

import executions as runs
import kopf
from common.lock_metrics import LockMetrics
from executions import Execution
from notes import TERMINAL, Note
from router import Known, Memory, Router, Rules

from leasehold import StoreError, StoreUnavailable, aio
from leasehold.kube import aio as objects

PREFIX = "ro-lock-"
FINALIZER = "remediation.example.com/orchestrator"
GROUP = ("remediation.example.com", "v1")
AGAIN = 1.0
SOON = 0.01
# Of kopf's own requests, until it gives up and is begun anew; longer pauses would outlast a restart of the API server.
BACKOFFS = (0.2, 0.5, 1, 2, 2, 2, 2, 2)

log = logging.getLogger("orchestrator")


class Replica:
    """What outlives kopf: the options, the metrics, and why it is not ready, if it is not."""

    def __init__(self, store: str, rules: Rules, *, locking: bool) -> None:
        self.store = store
        self.rules = rules
        self.locking = locking
        self.metrics = LockMetrics("ro_lock")
        self.why: StoreError | None = StoreUnavailable("the API server has not been reached yet", applied=False)
        self.router: Router
        self._open = AsyncExitStack()

    async def reach(self) -> None:
        """Connect, and make sure that both kinds can be read; again and again, and say why it does not work."""
        missed = False
        while self.why is not None:
            try:
                await self._connect()
            except StoreError as error:
                await self._open.aclose()
                self.why = error
                log.warning("not ready: %s", error)
                missed = True
                await asyncio.sleep(AGAIN)
            else:
                # kopf asks once which kinds there are; a server that has just learnt of one serves it a moment sooner.
                await asyncio.sleep(AGAIN if missed else 0)
                self.why = None

    async def ready(self) -> None:
        """Raise what keeps requests from being routed."""
        if self.why is not None:
            raise self.why
        await self.router.ready()

    async def leave(self, why: StoreError) -> None:
        """Let go of everything."""
        self.why = why
        await self._open.aclose()

    async def _connect(self) -> None:
        requests = await self._open.enter_async_context(await objects.connect(self.store, runs.REQUEST_KIND))
        executions = await self._open.enter_async_context(await objects.connect(self.store, runs.KIND))
        locks = None
        if self.locking:
            opened = await aio.connect(self.store, prefix=PREFIX, observers=[self.metrics])
            locks = await self._open.enter_async_context(opened)
        self.router = Router(requests, executions, locks, rules=self.rules, metrics=self.metrics, tell=tell)
        await self.router.ready()


def tell(request: Mapping[str, Any], note: Note) -> None:
    """An event beside the status, where somebody has to do something."""
    log.info("%s: %s: %s", request["metadata"]["name"], note.phase, note.words)
    by_itself = {"ResourceBusy", "RecentlyRemediated", "Skipped"}
    if note.phase in {"Blocked", "Failed"} and note.reason not in by_itself:
        kopf.event(request, type="Warning", reason=note.reason, message=note.words)


@kopf.on.startup(errors=kopf.ErrorsMode.PERMANENT)
async def startup(memo: kopf.Memo, settings: kopf.OperatorSettings, **_: Any) -> None:
    """kopf waits for this before it watches anything."""
    settings.persistence.finalizer = FINALIZER
    settings.scanning.disabled = True
    settings.networking.error_backoffs = BACKOFFS
    settings.background.cancellation_polling = 1
    settings.posting.reporting_component = "remediation-orchestrator"
    await memo.replica.reach()


@kopf.on.cleanup()
async def cleanup(memo: kopf.Memo, **_: Any) -> None:
    await memo.replica.leave(StoreUnavailable("the orchestrator is stopping", applied=False))


@kopf.index(*GROUP, runs.KIND.plural)
async def by_target(body: kopf.Body, **_: Any) -> dict[str, Execution]:
    """Layer 1: kept by a watch, so that looking costs no request."""
    one = runs.read(body)
    return {one.target: one}


@kopf.index(*GROUP, runs.KIND.plural)
async def by_name(body: kopf.Body, **_: Any) -> dict[str, Execution]:
    one = runs.read(body)
    return {one.name: one}


def is_open(status: Mapping[str, Any], **_: Any) -> bool:
    """Whether a request is not over yet."""
    return status.get("overallPhase") not in TERMINAL


@kopf.daemon(*GROUP, runs.REQUEST_KIND.plural, when=is_open)
async def take_on(
    body: kopf.Body,
    memo: kopf.Memo,
    stopped: kopf.DaemonStopped,
    by_target: kopf.Index[str, Execution],
    by_name: kopf.Index[str, Execution],
    **_: Any,
) -> None:
    """Step by step until it is over, or somebody deletes it."""
    known = Known(
        of_target=lambda target: by_target.get(target, ()), named=lambda name: next(iter(by_name.get(name, ())), None)
    )
    memory = Memory()
    while not stopped:
        if FINALIZER not in body.metadata.get("finalizers", ()):
            # kopf is about to put it there, and a step that began before would have to be made again.
            await stopped.wait(SOON)
            continue
        try:
            # A copy: kopf keeps `body` new, and a step must write over nothing that it has not seen.
            pause = await memo.replica.router.step(dict(body), known, memory)
        except StoreError as error:
            raise kopf.TemporaryError(str(error), delay=AGAIN) from error
        await stopped.wait(pause)
