"""Writes whose outcome nobody knows, until their trace is found and removed or cannot matter any more.

A request that timed out or was cancelled may still be applied. Its secret is
looked for under its key, at once and ever less often until one ttl has passed: by then an
orphan has ended by itself, except on stores where records share an expiry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

from leasehold.engine.grant import read_hold
from leasehold.model import Key

if TYPE_CHECKING:
    from leasehold.stores.base import Store
    from leasehold.wires.clock import Clock

RETRY = 0.5
RETRY_MAX = 60.0


class Doubt(msgspec.Struct, frozen=True):
    """A write that may have left a record with this secret under this key."""

    key: Key
    secret: str
    until: float

    def __repr__(self) -> str:
        return f"<Doubt about {self.key} until {self.until}>"


class Cleared(Protocol):
    """What is told of a doubt each time it was looked into."""

    def __call__(self, doubt: Doubt, *, cleared: bool) -> None: ...


class Doubts:
    """The list, and how it is worked off."""

    def __init__(self, store: Store, clock: Clock, cleared: Cleared) -> None:
        self._store = store
        self._clock = clock
        self._cleared = cleared
        self._open: list[Doubt] = []
        self._pause = RETRY
        self.next_try: float | None = None

    def add(self, key: Key, secret: str, ttl: float) -> None:
        """Remember to look for it. Plain code: safe in the middle of a cancellation."""
        now = self._clock.now()
        self._open.append(Doubt(key, secret, now + ttl))
        self._pause = RETRY
        self.next_try = now

    def forget(self) -> None:
        """In a forked child: what was left behind is the parent's to find."""
        self._open.clear()
        self.next_try = None

    def __len__(self) -> int:
        return len(self._open)

    async def clear(self) -> bool:
        """Look for each once. True if none is left that could keep an orphan alive."""
        for doubt in list(self._open):
            settled = await self._settle(doubt)
            # Two may look at once; the second finds it gone.
            if settled and doubt in self._open:
                self._open.remove(doubt)
            self._cleared(doubt, cleared=settled)
        self.next_try = self._clock.now() + self._pause if self._open else None
        self._pause = min(2 * self._pause, RETRY_MAX)
        return not self._open

    async def _settle(self, doubt: Doubt) -> bool:
        try:
            record = await self._store.load(doubt.key)
            hold = read_hold(record)
            if record is not None and hold is not None and hold.secret == doubt.secret:
                await self._store.swap(doubt.key, record, None, None)
                # Looked for once more: a duplicate of the request may still be under way.
                return False
        except Exception:  # noqa: BLE001  not known to be gone, and told so; the heart goes on
            return False
        return self._clock.now() >= doubt.until
