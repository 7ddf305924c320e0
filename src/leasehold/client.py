"""The blocking client. `aio.py` has the same names, awaited.

    locks = leasehold.connect("sqlite:///var/lib/app/leases.db")
    with locks.hold("invoice/42", ttl=30) as lease:
        charge(invoice, token=lease.token)

A facade checks nothing and decides nothing: it drives the engine's coroutines
and is the only place that calls the user's functions.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import weakref
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import ParamSpec, Self, TypeVar, cast, overload

from leasehold.client_lease import Lease, Leases, Loss, OnLost, call, lease_of, tell
from leasehold.engine import looking
from leasehold.engine.asks import acquire_all, ask_for
from leasehold.engine.blocking import BlockingRuntime, drive
from leasehold.engine.engine import Engine
from leasehold.engine.events import Observer
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

__all__ = ["Hold", "HoldAll", "Lease", "Leases", "Locks", "Loss", "OnLost", "connect"]

P = ParamSpec("P")
R = TypeVar("R")


def connect(
    url: str,
    *,
    holder: str | None = None,
    prefix: str | None = None,
    tenant: str | None = None,
    timeout: float = 5.0,
    helper: bool = False,
    local_passes: int = PASSES - 1,
    observers: Iterable[Observer] = (),
) -> Locks:
    """Open a store and return the client for it.

    `holder` is the name shown to others (default: the pod, or host, process and a
    random part). `prefix` and `tenant` separate users of one store: no key reaches
    across. `timeout` bounds each request. `helper` renews from a second process, for
    programs that hold the GIL. `local_passes` is how often (0 to 255) a hold may pass between threads or tasks of this
    client before others get their turn. `observers` receive every event as a plain value.
    """
    runtime = BlockingRuntime(system_clock())
    opening = open_engine(
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
    engine = drive(opening)
    _OPEN.add(engine)
    return Locks(engine)


class Locks:
    """A client of one store. May be shared by threads; close it, or use it as a context manager."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def holder(self) -> str:
        """The name this client shows to others. It owns nothing: a secret per acquisition does."""
        return self._engine.holder

    @property
    def guarantees(self) -> Guarantees:
        """What the store promises, and the limits it sets."""
        return self._engine.store.guarantees

    @property
    def lag(self) -> float:
        """How late the last heartbeat was, in seconds."""
        return self._engine.heartbeat.lag

    def try_acquire(
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
        """The lease, or None if somebody else holds it. Never waits for a holder.

        Raises StoreUnavailable if the store does not answer: not knowing is not free.
        """
        try:
            return self.acquire(
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

    def acquire(
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
        """The lease, renewed in the background until it is released.

        `wait`: None as long as it takes, 0 one try, else seconds; then AcquireTimeout.
        `mode="shared"` shares it with others who do; a plain name cannot be shared, `leasehold.Shared` can.
        `metadata` is shown to others: who, where, why. `max_hold` ends renewal after
        that many seconds. `on_lost(lease)` is called once, on a thread of its own, if
        the lease is lost. The same thread asking again gets AlreadyHeld, or with
        `reentrant=True` the same lease, one deeper. Whoever finds it busy stands in line;
        with `fair=True` nobody who asks so is granted before those who came earlier. With
        `retry` (a `leasehold.Backoff`, or your own) it does not wait in line, but asks again after each pause.
        """
        if on_lost is not None:
            check_function("on_lost", on_lost)
        ask = ask_for(
            self._engine,
            scope,
            ttl=ttl,
            wait=wait,
            metadata=metadata,
            max_hold=max_hold,
            mode=mode,
            fair=fair,
            retry=retry,
        )
        grant = drive(self._engine.acquire(ask, reentrant=reentrant))
        lease = lease_of(self._engine, grant)
        if on_lost is not None:
            tell(grant, functools.partial(call, on_lost, lease))
        return lease

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
        """Hold the scope for the length of a `with` block. The block never runs without the lease.

        If the lease is lost, leaving the block raises LeaseLost, unless the block
        raised something itself. A release that fails after a good block is logged,
        not raised: the lease ends by its ttl.
        """
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
        """Hold several scopes for the length of a `with` block: all of them, or AcquireTimeout and none.

        They are acquired in one order that everybody keeps, whatever order they are
        given in, so that no two callers wait for each other. `wait` is for all of them together. The block
        gets the leases by scope; if one is lost, leaving it raises LeaseLost.
        """

        def acquire() -> Leases:
            engine = self._engine
            asks = [
                ask_for(engine, scope, ttl=ttl, wait=wait, metadata=metadata, max_hold=max_hold, mode=mode, fair=fair)
                for scope, mode in several(scopes)
            ]
            grants = drive(acquire_all(engine, asks))
            return Leases(engine, {scope: lease_of(engine, grant) for grant, each in grants for scope in each})

        return HoldAll(acquire)

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
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Decorate a function so that each call holds the key made from its arguments: `"report:{user_id}"`.

        Only plain parameter names may stand in the template; a wrong one is refused
        when the function is decorated.
        """

        import inspect  # noqa: PLC0415  slow to import, and only this needs it

        def decorate(function: Callable[P, R]) -> Callable[P, R]:
            check_function("function", function)
            later = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
            if any(kind(function) for kind in later):
                raise InvalidInput("function", function, "must be a plain function; for async def use leasehold.aio")
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
            def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
                call = signature.bind(*args, **kwargs)
                call.apply_defaults()
                key = fill(parsed, call.arguments)
                with hold(key):
                    return function(*args, **kwargs)

            return wrapped

        return decorate

    def suggest_retry(self, scope: str | Scope) -> float:
        """The seconds after which to ask for a scope again, for who requeues instead of waiting; 0 if it is free."""
        return drive(looking.suggest_retry(self._engine, scope))

    @overload
    def inspect(self, scope: str | Name) -> LeaseInfo | None: ...
    @overload
    def inspect(self, scope: Resource) -> ResourceInfo: ...
    def inspect(self, scope: str | Scope) -> LeaseInfo | ResourceInfo | None:
        """Who holds a name and who waits for it, as the store shows it now; None if it is free.

        Of any other scope: everybody who holds or waits for something that it overlaps.
        """
        if isinstance(scope, Resource):
            return drive(looking.inspect_resource(self._engine, scope))
        return drive(looking.inspect(self._engine, scope))

    def list(self) -> list[LeaseInfo]:
        """Everything held under this client's prefix and tenant, in the order of names."""
        return drive(looking.list_leases(self._engine))

    def break_lease(self, scope: str | Scope, *, reason: str, force: bool = False) -> LeaseInfo | None:
        """Take a lease away from its holder; returns it, or None if nothing is held.

        Revokes: the holder is told at its next renewal and nobody is granted before it
        lets go or its time ends. `force=True` frees the scope at once, while the holder
        may still believe: the one exception to exclusion.
        """
        return drive(looking.break_lease(self._engine, scope, check_text("reason", reason), force=force))

    def gc(self, limit: int = 100_000) -> int:
        """Delete up to `limit` expired records of the whole store; returns how many. Lowers no token."""
        return drive(looking.collect(self._engine, limit))

    def close(self) -> None:
        """Release everything this client holds and let go of the store. May be called twice."""
        _OPEN.discard(self._engine)
        drive(self._engine.close())

    def __enter__(self) -> Self:
        """The client itself; leaving the block closes it."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the client."""
        self.close()


class Hold:
    """The `with` block of `Locks.hold`: acquires on entry, lets go on exit. Use it once."""

    def __init__(self, acquire: Callable[[], Lease]) -> None:
        self._acquire = acquire
        self._lease: Lease | None = None

    def __enter__(self) -> Lease:
        """Acquire, or raise: the block never runs without the lease."""
        self._lease = self._acquire()
        return self._lease

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let go; raise LeaseLost if the lease was lost and the block raised nothing."""
        _leave([cast("Lease", self._lease)], error)


class HoldAll:
    """The `with` block of `Locks.hold_all`: acquires on entry, lets go on exit. Use it once."""

    def __init__(self, acquire: Callable[[], Leases]) -> None:
        self._acquire = acquire
        self._leases: Leases | None = None

    def __enter__(self) -> Leases:
        """Acquire all, or raise: the block never runs without them."""
        self._leases = self._acquire()
        return self._leases

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let go; raise LeaseLost if one was lost and the block raised nothing."""
        _leave(list(cast("Leases", self._leases).values()), error)


def _leave(leases: list[Lease], error: BaseException | None) -> None:
    """The end of a block: let go of all, the last one first; tell a loss, unless the block raised something itself."""
    lost = next(((lease, reason) for lease in leases if (reason := lease.why_lost())), None)
    for lease in reversed(leases):
        # Told to the observers already. The lease ends by its ttl, and the block's outcome stands.
        with contextlib.suppress(StoreError):
            lease.release()
    if lost is not None and error is None:
        lease, reason = lost
        raise LeaseLost(lease.scope, lease.token, reason)


_OPEN: weakref.WeakSet[Engine] = weakref.WeakSet()


def _close_all() -> None:
    # The program is over: whoever waits for its leases need not wait for a ttl.
    for engine in list(_OPEN):
        drive(engine.close())


atexit.register(_close_all)
