"""What the blocking client hands out: leases. `client_aio.py` has the same, awaited."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from typing import cast

from leasehold.engine import parts
from leasehold.engine.asks import release_all
from leasehold.engine.blocking import drive
from leasehold.engine.engine import Engine
from leasehold.engine.events import log_fields
from leasehold.engine.grant import Grant
from leasehold.engine.lease import BaseLease, BaseLeases, BaseLoss
from leasehold.model import Renewal

_log = logging.getLogger("leasehold")


class Loss(BaseLoss):
    """Set when the lease is lost, before the store frees it. A voluntary release does not set it."""

    __slots__ = ()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the lease is lost (True), or it was released or `timeout` seconds have passed (False)."""
        return drive(self._told(timeout))


class Lease(BaseLease):
    """A granted hold of a scope. Any thread may use it; pass it around freely."""

    __slots__ = ()

    @property
    def lost(self) -> Loss:
        """An event that is set when the lease is lost, before the store frees it."""
        return Loss(self._engine, self._grant)

    def renew(self) -> Renewal:
        """Extend trust now instead of at the next beat. Only RENEWED, the one true answer, extended it."""
        return drive(self._engine.renew(self._grant))

    def downgrade(self) -> None:
        """Share from now on what was held exclusively. The token stays."""
        drive(parts.downgrade(self._engine, self._grant))

    def upgrade(self, *, wait: float | None = None) -> None:
        """Have to oneself what was shared: waits in line, and holds what it has meanwhile. The token is new.

        Raises AcquireTimeout when `wait` is over, and WouldDeadlock if one who is ahead in line waits for this lease.
        """
        drive(parts.upgrade(self._engine, self._grant, wait))

    def release_part(self, start: int, end: int | None) -> None:
        """Let go of the bytes from `start` up to `end` (None: all that follow). The rest keeps its token."""
        drive(parts.release_part(self._engine, self._grant, start, end))

    def release(self) -> bool:
        """Let go: True if our record was removed, False if it was gone already.

        Raises StoreUnavailable if nobody can tell; the lease then ends by its ttl.
        Removes nothing but this very hold, however late or often it is called.
        """
        return drive(self._engine.release(self._grant))


class Leases(BaseLeases[Lease]):
    """Leases on several scopes that are held together, by scope. Each has its own token."""

    __slots__ = ()

    def release(self) -> bool:
        """Let go of all of them, the last one first: True if every record was removed.

        Where the store does not answer for one, the others are released all the same, and
        StoreUnavailable is raised at the end.
        """
        return drive(release_all(self._engine, self._grants()))


OnLost = Callable[[Lease], object]


def lease_of(engine: Engine, grant: Grant) -> Lease:
    """The one lease for a grant: asking again gives the same."""
    if grant.handle is None:
        grant.handle = Lease(engine, grant)
    return cast("Lease", grant.handle)


def tell(grant: Grant, callback: Callable[[], None]) -> None:
    # A thread of its own: a callback that blocks or raises must not hold up the heartbeat.
    once = [threading.Thread(target=callback, name="leasehold-on-lost", daemon=True)]

    def ended() -> None:
        if grant.lost is not None:
            with contextlib.suppress(IndexError):
                once.pop().start()

    grant.on_end.append(ended)
    ended()


def call(on_lost: OnLost, lease: Lease) -> None:
    try:
        on_lost(lease)
    except Exception:  # noqa: BLE001  the user's own, reported; nobody else waits for it
        _log.exception("on_lost failed for %r", lease.scope, extra=log_fields(lease.scope, lease.holder, lease.token))
