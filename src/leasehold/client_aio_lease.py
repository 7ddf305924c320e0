"""What the asyncio client hands out: leases, as in `client_lease.py`."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
from collections.abc import Callable
from typing import TypeVar, cast

from leasehold import client_lease as client
from leasehold.engine import parts
from leasehold.engine.asks import release_all
from leasehold.engine.engine import Engine
from leasehold.engine.events import log_fields
from leasehold.engine.grant import Grant
from leasehold.engine.lease import BaseLease, BaseLeases, BaseLoss
from leasehold.model import Renewal

F = TypeVar("F")

_log = logging.getLogger("leasehold")


def like(twin: object) -> Callable[[F], F]:
    """One text for both colours: take the docstring of the blocking twin."""

    def copy(mine: F) -> F:
        mine.__doc__ = twin.__doc__
        return mine

    return copy


@like(client.Loss)
class Loss(BaseLoss):
    __slots__ = ()

    @like(client.Loss.wait)
    async def wait(self, timeout: float | None = None) -> bool:  # noqa: ASYNC109  answers False, raises nothing
        return await self._told(timeout)


@like(client.Lease)
class Lease(BaseLease):
    __slots__ = ()

    @property
    @like(client.Lease.lost)
    def lost(self) -> Loss:
        return Loss(self._engine, self._grant)

    @like(client.Lease.renew)
    async def renew(self) -> Renewal:
        return await self._engine.renew(self._grant)

    @like(client.Lease.downgrade)
    async def downgrade(self) -> None:
        await parts.downgrade(self._engine, self._grant)

    @like(client.Lease.upgrade)
    async def upgrade(self, *, wait: float | None = None) -> None:
        await parts.upgrade(self._engine, self._grant, wait)

    @like(client.Lease.release_part)
    async def release_part(self, start: int, end: int | None) -> None:
        await parts.release_part(self._engine, self._grant, start, end)

    @like(client.Lease.release)
    async def release(self) -> bool:
        return await self._engine.release(self._grant)


@like(client.Leases)
class Leases(BaseLeases[Lease]):
    __slots__ = ()

    @like(client.Leases.release)
    async def release(self) -> bool:
        return await release_all(self._engine, self._grants())


OnLost = Callable[[Lease], object]


def lease_of(engine: Engine, grant: Grant) -> Lease:
    """The one lease for a grant: asking again gives the same."""
    if grant.handle is None:
        grant.handle = Lease(engine, grant)
    return cast("Lease", grant.handle)


def on_loss(grant: Grant, callback: Callable[[], object]) -> None:
    """Have the callback called once, on this loop, if the grant is lost; the news may come from any thread."""
    loop = asyncio.get_running_loop()
    once = [callback]

    def ended() -> None:
        if grant.lost is not None and once and not loop.is_closed():
            loop.call_soon_threadsafe(once.pop())

    grant.on_end.append(ended)
    ended()


_CALLS: set[asyncio.Future[object]] = set()


def call(on_lost: OnLost, lease: Lease) -> None:
    try:
        answer = on_lost(lease)
    except Exception:  # noqa: BLE001  the user's own, reported; nobody else waits for it
        _log.exception("on_lost failed for %r", lease.scope, extra=log_fields(lease.scope, lease.holder, lease.token))
        return
    if inspect.isawaitable(answer):
        call = asyncio.ensure_future(answer)
        _CALLS.add(call)
        call.add_done_callback(functools.partial(_called, lease))


def _called(lease: Lease, call: asyncio.Future[object]) -> None:
    _CALLS.discard(call)
    if not call.cancelled() and call.exception() is not None:
        _log.error(
            "on_lost failed for %r",
            lease.scope,
            exc_info=call.exception(),
            extra=log_fields(lease.scope, lease.holder, lease.token),
        )
