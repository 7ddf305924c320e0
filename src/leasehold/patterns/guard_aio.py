"""Guarding a target, awaited: the names of `guard.py`."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from leasehold import client_aio
from leasehold.client_aio import like
from leasehold.errors import InvalidInput
from leasehold.patterns import guard as blocking
from leasehold.patterns.run import BaseRun, Found
from leasehold.patterns.runs import COOLDOWN, MAX_SKEW, NAME, TIMEOUT, RunInfo, Runs
from leasehold.rules.cooldown import Phase


@like(blocking.Run)
class Run(BaseRun):
    @like(blocking.Run.complete)
    async def complete(self) -> bool:
        return await self._finish(Phase.COMPLETED)

    @like(blocking.Run.fail)
    async def fail(self) -> bool:
        return await self._finish(Phase.FAILED)

    @like(blocking.Run.abandon)
    async def abandon(self) -> bool:
        return await self._abandon()

    @like(blocking.Run.check)
    async def check(self) -> None:
        await self._check()

    @like(blocking.Run.__enter__)
    async def __aenter__(self) -> Self:
        return self

    @like(blocking.Run.__exit__)
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._leave(error)


@like(blocking.Guard)
class Guard:
    def __init__(
        self,
        locks: client_aio.Locks,
        *,
        cooldown: float = COOLDOWN,
        timeout: float = TIMEOUT,
        name: str = NAME,
        max_skew: float = MAX_SKEW,
    ) -> None:
        if not isinstance(locks, client_aio.Locks):
            raise InvalidInput("locks", locks, "must be what leasehold.aio.connect() returns, awaited")
        self._runs = Runs(locks._engine, name, cooldown, timeout, max_skew)  # noqa: SLF001  one library, two rooms

    @property
    @like(blocking.Guard.cooldown)
    def cooldown(self) -> float:
        return self._runs.cooldown

    @property
    @like(blocking.Guard.timeout)
    def timeout(self) -> float:
        return self._runs.timeout

    @like(blocking.Guard.name_of)
    def name_of(self, target: str) -> str:
        return self._runs.name_of(target)

    @like(blocking.Guard.check)
    async def check(self, target: str, *, owner: str | None = None, cooldown: float | None = None) -> None:
        await self._here().check(target, owner, cooldown)

    @like(blocking.Guard.begin)
    async def begin(
        self,
        target: str,
        *,
        owner: str,
        cooldown: float | None = None,
        timeout: float | None = None,  # noqa: ASYNC109  how long the run may take, not this call
    ) -> Run:
        return Run(self._runs, await self._here().begin(target, owner, cooldown, timeout))

    @like(blocking.Guard.once_per)
    async def once_per(self, target: str, interval: float, *, owner: str | None = None) -> Run | None:
        return self._run(await self._here().once_per(target, interval, owner))

    @like(blocking.Guard.resume)
    async def resume(self, target: str, *, owner: str) -> Run | None:
        return self._run(await self._here().resume(target, owner))

    @like(blocking.Guard.inspect)
    async def inspect(self, target: str) -> RunInfo | None:
        return await self._here().inspect(target)

    @like(blocking.Guard.free)
    async def free(self, target: str, *, reason: str) -> bool:
        return await self._here().free(target, reason)

    def _run(self, found: Found | None) -> Run | None:
        return None if found is None else Run(self._runs, found)

    def _here(self) -> Runs:
        engine = self._runs.engine
        if engine.closed is None:
            engine.runtime.check_here()
        return self._runs
