"""Doing something once for each key, awaited: the names of `once.py`."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from leasehold.client_aio import Locks, like
from leasehold.errors import InvalidInput
from leasehold.patterns import handled, steps
from leasehold.patterns import once as blocking
from leasehold.patterns.handled import OnceInfo
from leasehold.patterns.handling import Handling
from leasehold.patterns.work import KEEP, RESULT_MAX, Duplicates, Errors, Kept, Policy
from leasehold.rules.arguments import function as check_function
from leasehold.rules.timing import DEFAULT_TTL

P = ParamSpec("P")
R = TypeVar("R")


@like(blocking.Work)
class Work(steps.SteppedWork):
    @like(blocking.Work.step)
    async def step(self, name: str, function: Callable[[], Awaitable[R]], *, rerun: bool = False) -> R:
        check_function("function", function)
        known = await steps.step(self._handling, self._begun, name, rerun=rerun)
        if known is not None:
            return cast("R", known.value)
        try:
            value = await function()
        except BaseException as error:
            steps.unstepped(self._begun, name, error)
            raise
        await steps.stepped(self._handling, self._begun, name, value)
        return value


@like(blocking.Once)
class Once:
    def __init__(
        self,
        locks: Locks,
        name: str = "once",
        *,
        ttl: float = DEFAULT_TTL,
        keep: float = KEEP,
        duplicates: Duplicates = "wait",
        wait: float | None = None,
        definite: Errors = (),
        retry: Errors = (),
        rerun: bool = False,
        result: Any = Any,
        limit: int = RESULT_MAX,
        on_replay: Callable[[str, Any], Awaitable[Any]] | None = None,
    ) -> None:
        if not isinstance(locks, Locks):
            raise InvalidInput("locks", locks, "must be what leasehold.aio.connect() returns, awaited")
        policy = Policy(ttl, keep, duplicates, wait, definite, retry, rerun, result, limit, on_replay)
        self._handling = Handling(locks._engine, name, policy)  # noqa: SLF001  one library, two rooms

    @like(blocking.Once.run)
    async def run(
        self, key: str, function: Callable[[Work], Awaitable[R]], *, fingerprint: str | None = None, **changes: Any
    ) -> R:
        check_function("function", function)
        handling = self._handling
        begun = await handling.begin(key, fingerprint, handling.changed(changes))
        if isinstance(begun, Kept):
            return cast("R", begun.value if begun.hook is None else await begun.hook(begun.value))
        # Whatever happens to the caller from here on, the end of the work is written.
        finish = handling.engine.runtime.finish
        try:
            value = await function(Work(handling, begun))
        except BaseException as error:
            await finish(handling.failed(begun, error))
            raise
        return cast("R", await finish(handling.completed(begun, value)))

    @like(blocking.Once.handler)
    def handler(
        self, key: Callable[P, str], *, fingerprint: Callable[P, str] | None = None, **changes: Any
    ) -> Callable[[Callable[Concatenate[Work, P], Awaitable[R]]], Callable[P, Awaitable[R]]]:
        check_function("key", key)

        def decorate(function: Callable[Concatenate[Work, P], Awaitable[R]]) -> Callable[P, Awaitable[R]]:
            @functools.wraps(function)
            async def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
                printed = None if fingerprint is None else fingerprint(*args, **kwargs)
                return await self.run(
                    key(*args, **kwargs), lambda work: function(work, *args, **kwargs), fingerprint=printed, **changes
                )

            return wrapped

        return decorate

    @like(blocking.Once.inspect)
    async def inspect(self, key: str) -> OnceInfo | None:
        return await handled.inspect(self._handling, key)

    @like(blocking.Once.settle)
    async def settle(self, key: str, value: object) -> bool:
        return await handled.settle(self._handling, key, value)

    @like(blocking.Once.forget)
    async def forget(self, key: str) -> bool:
        return await handled.forget(self._handling, key)
