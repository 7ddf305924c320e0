"""A semaphore: so many may do something at once, each with a lease of its own.

downloads = leasehold.Semaphore(locks, "downloads", permits=4)
with downloads.hold(wait=10) as lease:
    fetch(url, token=lease.token)
"""

from __future__ import annotations

from collections.abc import Mapping

from leasehold.client import Hold, Lease, Locks, OnLost
from leasehold.errors import InvalidInput
from leasehold.model import Permit, ResourceInfo
from leasehold.rules.scopes import resource
from leasehold.rules.timing import DEFAULT_TTL


class Semaphore:
    """`permits` leases under one name, first come, first served. Each is renewed, lost and released like any other.

    All who use a name must agree on its permits: whoever says another number while
    others use it gets InvalidInput.
    """

    def __init__(self, locks: Locks, name: str, *, permits: int) -> None:
        if not isinstance(locks, Locks):
            raise InvalidInput("locks", locks, "must be what leasehold.connect() returns")
        self._locks = locks
        self.scope: Permit = Permit(name, permits)
        resource(self.scope, "exclusive")

    def try_acquire(
        self,
        *,
        ttl: float = DEFAULT_TTL,
        metadata: Mapping[str, str] | None = None,
        max_hold: float | None = None,
        on_lost: OnLost | None = None,
    ) -> Lease | None:
        """A permit, or None if none is free or others wait for one."""
        return self._locks.try_acquire(self.scope, ttl=ttl, metadata=metadata, max_hold=max_hold, on_lost=on_lost)

    def acquire(
        self,
        *,
        ttl: float = DEFAULT_TTL,
        wait: float | None = None,
        metadata: Mapping[str, str] | None = None,
        max_hold: float | None = None,
        on_lost: OnLost | None = None,
    ) -> Lease:
        """A permit, or AcquireTimeout when `wait` is over."""
        return self._locks.acquire(
            self.scope, ttl=ttl, wait=wait, metadata=metadata, max_hold=max_hold, on_lost=on_lost
        )

    def hold(
        self,
        *,
        ttl: float = DEFAULT_TTL,
        wait: float | None = None,
        metadata: Mapping[str, str] | None = None,
        max_hold: float | None = None,
        on_lost: OnLost | None = None,
    ) -> Hold:
        """A permit for the length of a `with` block, which never runs without one."""
        return self._locks.hold(self.scope, ttl=ttl, wait=wait, metadata=metadata, max_hold=max_hold, on_lost=on_lost)

    def inspect(self) -> ResourceInfo:
        """Who has a permit and who waits for one."""
        return self._locks.inspect(self.scope)
