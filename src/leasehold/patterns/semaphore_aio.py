"""A semaphore, awaited: the names of `semaphore.py`."""

from __future__ import annotations

from collections.abc import Mapping

from leasehold.client_aio import Hold, Lease, Locks, OnLost, like
from leasehold.errors import InvalidInput
from leasehold.model import Permit, ResourceInfo
from leasehold.patterns import semaphore as blocking
from leasehold.rules.scopes import resource
from leasehold.rules.timing import DEFAULT_TTL


@like(blocking.Semaphore)
class Semaphore:
    def __init__(self, locks: Locks, name: str, *, permits: int) -> None:
        if not isinstance(locks, Locks):
            raise InvalidInput("locks", locks, "must be what leasehold.aio.connect() returns, awaited")
        self._locks = locks
        self.scope: Permit = Permit(name, permits)
        resource(self.scope, "exclusive")

    @like(blocking.Semaphore.try_acquire)
    async def try_acquire(
        self,
        *,
        ttl: float = DEFAULT_TTL,
        metadata: Mapping[str, str] | None = None,
        max_hold: float | None = None,
        on_lost: OnLost | None = None,
    ) -> Lease | None:
        return await self._locks.try_acquire(self.scope, ttl=ttl, metadata=metadata, max_hold=max_hold, on_lost=on_lost)

    @like(blocking.Semaphore.acquire)
    async def acquire(
        self,
        *,
        ttl: float = DEFAULT_TTL,
        wait: float | None = None,
        metadata: Mapping[str, str] | None = None,
        max_hold: float | None = None,
        on_lost: OnLost | None = None,
    ) -> Lease:
        return await self._locks.acquire(
            self.scope, ttl=ttl, wait=wait, metadata=metadata, max_hold=max_hold, on_lost=on_lost
        )

    @like(blocking.Semaphore.hold)
    def hold(
        self,
        *,
        ttl: float = DEFAULT_TTL,
        wait: float | None = None,
        metadata: Mapping[str, str] | None = None,
        max_hold: float | None = None,
        on_lost: OnLost | None = None,
    ) -> Hold:
        return self._locks.hold(self.scope, ttl=ttl, wait=wait, metadata=metadata, max_hold=max_hold, on_lost=on_lost)

    @like(blocking.Semaphore.inspect)
    async def inspect(self) -> ResourceInfo:
        return await self._locks.inspect(self.scope)
