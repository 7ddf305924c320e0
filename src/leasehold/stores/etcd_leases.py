"""The etcd leases of one client: one for each ttl, on which all its records of that ttl hang.

An etcd lease lives from when its last keepalive was *sent*, and so does whatever
hangs on it. One that may carry more than its client renews (a write of unknown
outcome, a record that was revoked or is no longer touched) is never kept alive
again: what is renewed moves to a fresh one, and the old one takes the rest with it
at its end. A write that arrives after that is refused by etcd.
"""

from __future__ import annotations

import os

from leasehold.model import Key
from leasehold.wires.clock import Clock

# New records hang on a lease that has at least this part of its life before it.
FRESH = 0.5
# A record that was not touched for this part of its ttl is no longer meant to live.
FORGOTTEN = 0.5


class SharedLease:
    """One etcd lease and what hangs on it, as far as this client knows."""

    __slots__ = ("asked", "clean", "id", "sent", "touched", "ttl")

    def __init__(self, lease: int, asked: float, ttl: float, sent: float) -> None:
        self.id: int = lease
        self.asked: float = asked
        self.ttl: float = ttl
        # The reading before its grant or last keepalive was sent.
        self.sent: float = sent
        # Whether everything on it is ours to keep alive.
        self.clean: bool = True
        self.touched: dict[Key, float] = {}

    @property
    def ends(self) -> float:
        """No earlier than this, on our clock."""
        return self.sent + self.ttl

    def may_be_kept(self, now: float) -> bool:
        """Whether all that hangs on it was touched a short while ago."""
        self.clean = self.clean and all(now - last <= FORGOTTEN * self.ttl for last in self.touched.values())
        return self.clean


class SharedLeases:
    """All of them. A forked child has none: its parent's go on without it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._start()

    def _start(self) -> None:
        self._pid = os.getpid()
        self._by_id: dict[int, SharedLease] = {}
        self._by_ttl: dict[float, SharedLease] = {}

    def fresh(self, asked: float) -> SharedLease | None:
        """One for a new record of this ttl; None if one must be granted."""
        if self._pid != os.getpid():
            self._start()
        found = self._by_ttl.get(asked)
        if found is None or not found.clean or self._clock.now() > found.sent + FRESH * found.ttl:
            return None
        return found

    def add(self, lease: int, asked: float, ttl: float, sent: float, *, alone: bool) -> SharedLease:
        """A lease that was granted; the one for its ttl from now on, unless it is for one record `alone`."""
        now = self._clock.now()
        # Twice its life: a record found on one must be known to be ours for as long as it can be there.
        self._by_id = {one.id: one for one in self._by_id.values() if now < one.sent + 2 * one.ttl}
        made = self._by_id[lease] = SharedLease(lease, asked, ttl, sent)
        # What nobody renews is never kept alive.
        made.clean = not alone
        if not alone:
            self._by_ttl[asked] = made
        return made

    def find(self, lease: int) -> SharedLease | None:
        """The one with this id, if it is of this client."""
        if self._pid != os.getpid():
            self._start()
        return self._by_id.get(lease)

    def taint(self, lease: int) -> None:
        """It may carry what nobody renews: never keep it alive again."""
        found = self.find(lease)
        if found is not None:
            found.clean = False

    def forget(self, key: Key, lease: int) -> None:
        """The record hangs there no more."""
        found = self.find(lease)
        if found is not None:
            found.touched.pop(key, None)

    def drop(self, lease: SharedLease) -> None:
        """It has ended."""
        lease.clean = False
        lease.touched.clear()
