"""Leader election, awaited: the names of `election.py`. The worker is a task of its own, cancelled when it is over."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar, cast

from leasehold import client_aio
from leasehold.client_aio import like
from leasehold.engine.grant import Grant
from leasehold.errors import InvalidInput
from leasehold.patterns import election as blocking
from leasehold.patterns.candidate import DEFAULT_TTL, Candidate, Changes, Leader
from leasehold.rules.arguments import function as check_function

R = TypeVar("R")


@like(blocking.Leadership)
class Leadership(client_aio.Lease):
    __slots__ = ("_candidate",)

    def __init__(self, candidate: Candidate, grant: Grant) -> None:
        super().__init__(candidate.engine, grant)
        self._candidate = candidate

    @property
    @like(blocking.Leadership.over)
    def over(self) -> bool:
        return self._candidate.is_over(self._grant)

    @like(blocking.Leadership.wait)
    async def wait(self, timeout: float | None = None) -> bool:  # noqa: ASYNC109  answers False, raises nothing
        return await self._candidate.over_within(self._grant, timeout)


@like(blocking.Election)
class Election:
    def __init__(
        self, locks: client_aio.Locks, name: str, *, identity: str | None = None, ttl: float = DEFAULT_TTL
    ) -> None:
        if not isinstance(locks, client_aio.Locks):
            raise InvalidInput("locks", locks, "must be what leasehold.aio.connect() returns, awaited")
        self._candidate = Candidate(locks._engine, name, identity, ttl)  # noqa: SLF001  one library, two rooms

    @property
    @like(blocking.Election.name)
    def name(self) -> str:
        return self._candidate.name

    @property
    @like(blocking.Election.identity)
    def identity(self) -> str:
        return self._candidate.identity

    @property
    @like(blocking.Election.leading)
    def leading(self) -> bool:
        return self._candidate.leads()

    @like(blocking.Election.campaign)
    async def campaign(self, *, wait: float | None = None) -> Leadership:
        return self._leadership(await self._here().campaign(wait))

    @like(blocking.Election.lead)
    async def lead(self, worker: Callable[[Leadership], Coroutine[Any, Any, R]]) -> R | None:
        check_function("worker", worker)
        if not inspect.iscoroutinefunction(worker):
            raise InvalidInput("worker", worker, "must be an async def function; for plain ones use leasehold.Election")

        async def run(grant: Grant) -> R | None:
            return await self._run(worker(self._leadership(grant)), grant)

        return await self._here().lead(run)

    @like(blocking.Election.leader)
    async def leader(self) -> Leader | None:
        return await self._here().leader()

    @like(blocking.Election.observe)
    async def observe(self) -> AsyncIterator[Leader | None]:
        changes = Changes(self._here())
        while await changes.advance():
            yield changes.leader

    @like(blocking.Election.resign)
    async def resign(self) -> bool:
        return await self._here().resign()

    @like(blocking.Election.stop)
    def stop(self) -> None:
        self._candidate.stop()

    async def _run(self, work: Coroutine[Any, Any, R], grant: Grant) -> R | None:
        """The worker's result, or None if it was cancelled because its leadership was over."""
        me = cast("asyncio.Task[Any]", asyncio.current_task())
        before, loop = me.cancelling(), asyncio.get_running_loop()
        task = loop.create_task(work)
        once = [task.cancel]

        def end() -> None:
            # The news may come from any thread, and twice; a worker that tidies up is not disturbed again.
            with contextlib.suppress(IndexError):
                loop.call_soon_threadsafe(once.pop())

        with self._candidate.telling(grant, end):
            if self._candidate.is_over(grant):
                end()
            try:
                return await task
            except asyncio.CancelledError:
                # A cancellation of the caller stays one; so does one that nobody of us asked for.
                if once or me.cancelling() > before:
                    raise
                return None

    def _leadership(self, grant: Grant) -> Leadership:
        return Leadership(self._candidate, grant)

    def _here(self) -> Candidate:
        engine = self._candidate.engine
        if engine.closed is None:
            engine.runtime.check_here()
        return self._candidate
