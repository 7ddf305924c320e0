"""The gateway's HTTP side: what is asked, and how each outcome is answered.

It serves before the cluster is reached and while it is away: then it answers 503 with the reason and
Alertmanager sends again. It never ends because of the cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import AsyncIterator

import webhook
from aiohttp import web
from common.lock_metrics import LockMetrics
from desk import KIND, Desk, Outcome

from leasehold import LeaseholdError, NotAcquired, StoreError, StoreUnavailable, aio
from leasehold.kube import aio as objects

PREFIX = "gw-lock-"
BODY_MAX = 4 * 1024 * 1024
AGAIN = 2.0

log = logging.getLogger("gateway")


class Gateway:
    """One replica. Without `locking` it shows what the lock is for."""

    def __init__(self, store: str, ttl: float, *, locking: bool) -> None:
        self._store = store
        self._ttl = ttl
        self._locking = locking
        self._metrics = LockMetrics("gateway_lock")
        self._desk: Desk | None = None
        self._why: StoreError = StoreUnavailable("the API server has not been reached yet", applied=False)

    def app(self) -> web.Application:
        """What aiohttp serves."""
        app = web.Application(client_max_size=BODY_MAX)
        app.add_routes(
            [
                web.post("/api/v1/signals/prometheus", self.receive),
                web.get("/readyz", self.ready),
                web.get("/healthz", self.alive),
                web.get("/metrics", self.metrics),
            ]
        )
        app.cleanup_ctx.append(self._reach)
        return app

    # What is asked.

    async def receive(self, request: web.Request) -> web.Response:
        """Alertmanager's webhook: 201 if an object was created, 202 if all of it was known, else why not."""
        try:
            signals = webhook.read(await request.read())
        except webhook.Malformed as error:
            return web.json_response({"error": str(error)}, status=400)
        try:
            desk = self._at_desk()
            answers = await asyncio.gather(*map(desk.settle, signals), return_exceptions=True)
            outcomes = [_outcome(answer) for answer in answers]
        except LeaseholdError as error:
            log.warning("not settled: %s", error)
            return _unavailable(error)
        created = any(outcome.created for outcome in outcomes)
        said = [{"remediationRequest": outcome.name, "duplicate": not outcome.created} for outcome in outcomes]
        return web.json_response({"signals": said}, status=201 if created else 202)

    async def ready(self, _request: web.Request) -> web.Response:
        """Whether signals can be settled, and if not, what to do: the definition, the role, the server."""
        try:
            await self._at_desk().ready()
        except LeaseholdError as error:
            return _unavailable(error)
        return web.json_response({"ready": True})

    async def alive(self, _request: web.Request) -> web.Response:
        """Whether the process serves at all; restarting it would mend nothing else."""
        return web.json_response({"alive": True})

    async def metrics(self, _request: web.Request) -> web.Response:
        """For Prometheus."""
        return web.Response(text=self._metrics.text())

    # Reaching the cluster.

    async def _reach(self, _app: web.Application) -> AsyncIterator[None]:
        """Beside everything else, again and again; and let go of it at the end."""
        async with contextlib.AsyncExitStack() as stack:
            # Here and now, so that an address that can never work ends the program with the reason.
            await self._connect(stack)
            reaching = asyncio.create_task(self._connect_again(stack))
            yield
            reaching.cancel()
            if self._desk is not None:
                await self._desk.close()

    async def _connect(self, stack: contextlib.AsyncExitStack) -> None:
        try:
            requests = await stack.enter_async_context(await objects.connect(self._store, KIND))
            locks = None
            if self._locking:
                opened = await aio.connect(self._store, prefix=PREFIX, observers=[self._metrics])
                locks = await stack.enter_async_context(opened)
        except StoreError as error:
            self._why = error
            log.warning("the cluster is not reached: %s", error)
        else:
            self._desk = Desk(requests, locks, self._ttl, self._metrics)

    async def _connect_again(self, stack: contextlib.AsyncExitStack) -> None:
        while self._desk is None:
            await asyncio.sleep(AGAIN)
            await self._connect(stack)

    def _at_desk(self) -> Desk:
        if self._desk is None:
            raise self._why
        return self._desk


def _outcome(answer: Outcome | BaseException) -> Outcome:
    if isinstance(answer, BaseException):
        raise answer
    return answer


def _unavailable(error: LeaseholdError) -> web.Response:
    """Alertmanager sends again after a 5xx, and not after a 4xx."""
    again = error.retry_after if isinstance(error, NotAcquired) else AGAIN
    return web.json_response({"error": str(error)}, status=503, headers={"Retry-After": str(math.ceil(again))})
