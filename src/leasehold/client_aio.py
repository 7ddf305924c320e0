"""The asyncio client: the names of `client.py`, awaited.

    locks = await leasehold.aio.connect("sqlite:///var/lib/app/leases.db")
    async with locks.hold("invoice/42", ttl=30) as lease:
        await charge(invoice, token=lease.token)

Where the blocking client says thread, read task. If the lease is lost, the
body of `hold` is cancelled and LeaseLost leaves the block, the way
`asyncio.timeout` does it; a cancellation from outside stays one.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar, cast, overload

from leasehold import client
from leasehold.client_aio_lease import Lease, Leases, Loss, OnLost, call, lease_of, like, on_loss
from leasehold.engine import looking
from leasehold.engine.asks import acquire_all, ask_for
from leasehold.engine.engine import Engine
from leasehold.engine.events import Observer
from leasehold.engine.looped import LoopedRuntime
from leasehold.engine.opening import open_engine
from leasehold.errors import AcquireTimeout, InvalidInput, LeaseLost, StoreError
from leasehold.model import Guarantees, LeaseInfo, Mode, Name, Resource, ResourceInfo, Scope
from leasehold.rules.arguments import function as check_function
from leasehold.rules.arguments import functions
from leasehold.rules.backoff import Retry
from leasehold.rules.names import check_text
from leasehold.rules.scopes import several
from leasehold.rules.templates import fill, parse
from leasehold.rules.timing import DEFAULT_TTL
from leasehold.rules.tokens import PASSES
from leasehold.telemetry.logs import log_event
from leasehold.wires.clock import system_clock

__all__ = ["Hold", "HoldAll", "Lease", "Leases", "Locks", "Loss", "OnLost", "connect", "like"]

P = ParamSpec("P")
R = TypeVar("R")


@like(client.connect)
async def connect(
    url: str,
    *,
    holder: str | None = None,
    prefix: str | None = None,
    tenant: str | None = None,
    timeout: float = 5.0,  # noqa: ASYNC109  bounds each request to the store, not this call
    helper: bool = False,
    local_passes: int = PASSES - 1,
    observers: Iterable[Observer] = (),
) -> Locks:
    runtime = LoopedRuntime(system_clock())
    engine = await open_engine(
        url,
        runtime,
        holder=holder,
        prefix=prefix,
        tenant=tenant,
        timeout=timeout,
        helper=helper,
        local_passes=local_passes,
        observers=(log_event, *functions("observers", observers)),
    )
    return Locks(engine)


@like(client.Locks)
class Locks:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    @like(client.Locks.holder)
    def holder(self) -> str:
        return self._engine.holder

    @property
    @like(client.Locks.guarantees)
    def guarantees(self) -> Guarantees:
        return self._engine.store.guarantees

    @property
    @like(client.Locks.lag)
    def lag(self) -> float:
        return self._engine.heartbeat.lag

    @like(client.Locks.try_acquire)
    async def try_acquire(
        self,
        scope: str | Scope,
        *,
        ttl: float = DEFAULT_TTL,
        mode: Mode = "exclusive",
        metadata: Mapping[str, str] | None = None,
        max_hold: float | None = None,
        reentrant: bool = False,
        on_lost: OnLost | None = None,
    ) -> Lease | None:
        try:
            return await self.acquire(
                scope,
                ttl=ttl,
                wait=0,
                mode=mode,
                metadata=metadata,
                max_hold=max_hold,
                reentrant=reentrant,
                on_lost=on_lost,
            )
        except AcquireTimeout:
            return None

    @like(client.Locks.acquire)
    async def acquire(
        self,
        scope: str | Scope,
        *,
        ttl: float = DEFAULT_TTL,
        wait: float | None = None,
        mode: Mode = "exclusive",
        metadata: Mapping[str, str] | None = None,
        max_hold: float | None = None,
        reentrant: bool = False,
        fair: bool = False,
        retry: Retry | None = None,
        on_lost: OnLost | None = None,
    ) -> Lease:
        if on_lost is not None:
            check_function("on_lost", on_lost)
        ask = ask_for(
            self._here(),
            scope,
            ttl=ttl,
            wait=wait,
            metadata=metadata,
            max_hold=max_hold,
            mode=mode,
            fair=fair,
            retry=retry,
        )
        grant = await self._engine.acquire(ask, reentrant=reentrant)
        lease = lease_of(self._engine, grant)
        if on_lost is not None:
            on_loss(grant, functools.partial(call, on_lost, lease))
        return lease

    @like(client.Locks.hold)
    def hold(
        self,
        scope: str | Scope,
        *,
        ttl: float = DEFAULT_TTL,
        wait: float | None = None,
        mode: Mode = "exclusive",
        metadata: Mapping[str, str] | None = None,
        max_hold: float | None = None,
        reentrant: bool = False,
        fair: bool = False,
        retry: Retry | None = None,
        on_lost: OnLost | None = None,
    ) -> Hold:
        acquire = functools.partial(
            self.acquire,
            scope,
            ttl=ttl,
            wait=wait,
            mode=mode,
            metadata=metadata,
            max_hold=max_hold,
            reentrant=reentrant,
            fair=fair,
            retry=retry,
            on_lost=on_lost,
        )
        return Hold(acquire)

    @like(client.Locks.hold_all)
    def hold_all(
        self,
        scopes: Iterable[str | Scope | tuple[Scope, Mode]],
        *,
        ttl: float = DEFAULT_TTL,
        wait: float | None = None,
        metadata: Mapping[str, str] | None = None,
        max_hold: float | None = None,
        fair: bool = False,
    ) -> HoldAll:
        async def acquire() -> Leases:
            engine = self._here()
            asks = [
                ask_for(engine, scope, ttl=ttl, wait=wait, metadata=metadata, max_hold=max_hold, mode=mode, fair=fair)
                for scope, mode in several(scopes)
            ]
            grants = await acquire_all(engine, asks)
            return Leases(engine, {scope: lease_of(engine, grant) for grant, each in grants for scope in each})

        return HoldAll(acquire)

    @like(client.Locks.locked)
    def locked(
        self,
        template: str,
        *,
        ttl: float = DEFAULT_TTL,
        wait: float | None = None,
        metadata: Mapping[str, str] | None = None,
        max_hold: float | None = None,
        reentrant: bool = False,
        fair: bool = False,
        retry: Retry | None = None,
    ) -> Callable[[Callable[P, Awaitable[R]]], Callable[P, Coroutine[Any, Any, R]]]:
        def decorate(function: Callable[P, Awaitable[R]]) -> Callable[P, Coroutine[Any, Any, R]]:
            if not inspect.iscoroutinefunction(function):
                raise InvalidInput("function", function, "must be an async def function; for plain ones use leasehold")
            signature = inspect.signature(function)
            parsed = parse(template, signature.parameters)
            hold = functools.partial(
                self.hold,
                ttl=ttl,
                wait=wait,
                metadata=metadata,
                max_hold=max_hold,
                reentrant=reentrant,
                fair=fair,
                retry=retry,
            )

            @functools.wraps(function)
            async def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
                call = signature.bind(*args, **kwargs)
                call.apply_defaults()
                key = fill(parsed, call.arguments)
                async with hold(key):
                    return await function(*args, **kwargs)

            return wrapped

        return decorate

    @like(client.Locks.suggest_retry)
    async def suggest_retry(self, scope: str | Scope) -> float:
        return await looking.suggest_retry(self._here(), scope)

    @overload
    async def inspect(self, scope: str | Name) -> LeaseInfo | None: ...
    @overload
    async def inspect(self, scope: Resource) -> ResourceInfo: ...
    @like(client.Locks.inspect)
    async def inspect(self, scope: str | Scope) -> LeaseInfo | ResourceInfo | None:
        if isinstance(scope, Resource):
            return await looking.inspect_resource(self._here(), scope)
        return await looking.inspect(self._here(), scope)

    @like(client.Locks.list)
    async def list(self) -> list[LeaseInfo]:
        return await looking.list_leases(self._here())

    @like(client.Locks.break_lease)
    async def break_lease(self, scope: str | Scope, *, reason: str, force: bool = False) -> LeaseInfo | None:
        return await looking.break_lease(self._here(), scope, check_text("reason", reason), force=force)

    @like(client.Locks.gc)
    async def gc(self, limit: int = 100_000) -> int:
        return await looking.collect(self._here(), limit)

    @like(client.Locks.close)
    async def close(self) -> None:
        await self._engine.close()

    @like(client.Locks.__enter__)
    async def __aenter__(self) -> Self:
        return self

    @like(client.Locks.__exit__)
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _here(self) -> Engine:
        if self._engine.closed is None:
            self._engine.runtime.check_here()
        return self._engine


class _Block:
    """What an `async with` block that holds leases does, however many they are."""

    def __init__(self) -> None:
        self._leases: tuple[Lease, ...] = ()
        self._inside = False
        self._cancelled = False

    def _begin(self, leases: Iterable[Lease]) -> None:
        self._leases = tuple(leases)
        self._task = cast("asyncio.Task[Any]", asyncio.current_task())
        self._cancelling = self._task.cancelling()
        self._inside = True
        for lease in self._leases:
            on_loss(lease._grant, self._cancel)  # noqa: SLF001  the facade's own lease

    async def _end(self, kind: type[BaseException] | None, error: BaseException | None) -> None:
        self._inside = False
        lost = next(((lease, reason) for lease in self._leases if (reason := lease.why_lost())), None)
        # As in asyncio.timeout: what is left of cancellations after ours is somebody else's.
        ours = self._cancelled and self._task.uncancel() <= self._cancelling
        for lease in reversed(self._leases):
            # Told to the observers already. The lease ends by its ttl, and the block's outcome stands.
            with contextlib.suppress(StoreError):
                await lease.release()
        told = kind is None or (ours and kind is asyncio.CancelledError)
        if lost is not None and told:
            lease, reason = lost
            raise LeaseLost(lease.scope, lease.token, reason) from error

    def _cancel(self) -> None:
        if self._inside and not self._cancelled:
            self._cancelled = True
            self._task.cancel()


@like(client.Hold)
class Hold(_Block):
    def __init__(self, acquire: Callable[[], Awaitable[Lease]]) -> None:
        super().__init__()
        self._acquire = acquire

    @like(client.Hold.__enter__)
    async def __aenter__(self) -> Lease:
        lease = await self._acquire()
        self._begin([lease])
        return lease

    @like(client.Hold.__exit__)
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end(kind, error)


@like(client.HoldAll)
class HoldAll(_Block):
    def __init__(self, acquire: Callable[[], Awaitable[Leases]]) -> None:
        super().__init__()
        self._acquire = acquire

    @like(client.HoldAll.__enter__)
    async def __aenter__(self) -> Leases:
        leases = await self._acquire()
        self._begin(leases.values())
        return leases

    @like(client.HoldAll.__exit__)
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end(kind, error)
