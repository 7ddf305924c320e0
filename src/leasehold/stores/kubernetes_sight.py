"""How long each Lease has stood unchanged, on this process's own clock.

Kubernetes ends nothing by itself, and its clients' wall clocks agree on nothing:
a record has ended when we ourselves have seen the same revision of it for as long
as it counts. What one client saw serves all clients of the process that live by
the same clock. Forgetting a sight is safe: it is seen anew.
"""

from __future__ import annotations

import os
import threading
import weakref

from leasehold.wires.clock import Clock

SIGHTS_MAX = 65_536


class Sights:
    """When the current revision of each Lease was first seen."""

    def __init__(self, most: int = SIGHTS_MAX) -> None:
        self._most = most
        self._lock = threading.Lock()
        # The one seen longest ago is the first to be forgotten.
        self._first: dict[str, tuple[int, float]] = {}

    def first(self, uid: str, revision: int, now: float) -> float:
        """When this revision was first seen, which is `now` if it never was."""
        known = self._first.get(uid)
        if known is not None and known[0] == revision:
            return known[1]
        with self._lock:
            self._first.pop(uid, None)
            self._first[uid] = (revision, now)
            if len(self._first) > self._most:
                del self._first[next(iter(self._first))]
        return now

    def known(self, uid: str, revision: int) -> float | None:
        """When it was first seen, or None if it never was."""
        known = self._first.get(uid)
        return known[1] if known is not None and known[0] == revision else None

    def forget(self, uid: str) -> None:
        """The Lease is gone."""
        with self._lock:
            self._first.pop(uid, None)

    def after_fork_in_child(self) -> None:
        """What was seen stays seen; whoever held the lock stayed behind."""
        self._lock = threading.Lock()


_BY_CLOCK: weakref.WeakKeyDictionary[Clock, Sights] = weakref.WeakKeyDictionary()


def sights_of(clock: Clock) -> Sights:
    """What clients that live by this clock have seen."""
    return _BY_CLOCK.setdefault(clock, Sights())


def _after_fork_in_child() -> None:
    for sights in list(_BY_CLOCK.values()):
        sights.after_fork_in_child()


os.register_at_fork(after_in_child=_after_fork_in_child)
