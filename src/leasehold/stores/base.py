"""The seam: a small versioned record that may expire, behind five verbs.

Rules every store keeps, and the conformance suite checks:

- Revisions of one family grow in the order in which they become visible, also
  across deletion and restart. The granting write's revision makes the token.
- `born` survives `touch` and rewrites; comparisons use `revision`.
- An expired record is absent, to every verb.
- A record is freed no earlier than its ttl after the store applied the write, or after its `since`.
- A swap repeated after a lost reply answers `Conflict` with the caller's own value.
- `scan` and `load` are linearizable: they see every write that was answered before.
- Unreachable is `StoreUnavailable`, refused is `PermissionDenied`, unreadable is
  `StoreDamaged`; never a guess.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from leasehold.model import Conflict, Guarantees, Keep, Key, Record, Renewal, Scan, Swap


class Store(Protocol):
    """Where records live."""

    @property
    def guarantees(self) -> Guarantees:
        """What this store promises and within which limits."""
        ...

    async def open(self) -> None:
        """Reach the store. Called once, before any verb."""
        ...

    async def close(self) -> None:
        """Let go of what was opened. Changes no record."""
        ...

    async def load(self, key: Key) -> Record | None:
        """The live record under a key."""
        ...

    async def swap(
        self, key: Key, expect: Record | None, value: bytes | None, ttl: float | Keep | None
    ) -> Record | Conflict:
        """Write `value` if the live record is still `expect`; None expects none, value None deletes.

        `ttl` None makes the record lasting and `KEEP` leaves its end where it is. Where records share an
        expiry, `Unrenewed` asks for one of its own; any other ttl counts from the `since` that is answered.
        Returns the record as written (as it was, for a deletion), or the Conflict.
        """
        ...

    async def touch(self, holds: Sequence[tuple[Record, float]]) -> list[tuple[Renewal, Record | None]]:
        """Extend each record to its ttl from now, if it is still exactly that record.

        Answers in order, each for itself, with the record as it is now (None where
        there is none). At most `guarantees.batch` records a call.
        """
        ...

    async def watch(self, key: Key, seen: Record | None, until: float) -> Record | None:
        """Return when the live record is no longer `seen`, or at `until` on the client's clock.

        May return early; the caller looks again. Answers the new record that it was told of (`Swap.tells`), where that
        was heard: as it was when it was written, which may be a while ago.
        """
        ...

    async def scan(self, family: str, windows: Sequence[tuple[str, str]] = ()) -> list[Record]:
        """All live records of a family, in the order of `born`; with windows, those whose member lies in one of them.

        A window is half-open, by code points; there are 64 at most. What lies outside costs nothing, where the store
        can look by member. A StoreError where there are more than `guarantees.scan_max`.
        """
        ...

    async def together(self, asks: Sequence[Swap | Scan]) -> list[Record | Conflict | list[Record]]:
        """Several swaps and scans of one family, in this order, as one request where the store can.

        Not one transaction: what another client does may come between. Where it raises,
        any of the swaps may have been done.
        """
        ...

    async def page(self, root: str, after: Key | None, limit: int) -> list[Record]:
        """A page of live records whose family starts with `root`, in the order of keys. For people."""
        ...

    async def collect(self, limit: int) -> int:
        """Delete up to `limit` expired records and say how many. Cannot lower a revision."""
        ...


@runtime_checkable
class Raises(Protocol):
    """A store that keeps its revisions itself, so that one that went back can be repaired. For people."""

    async def raise_revision(self, least: int) -> int:
        """Let every later revision be larger than this, while others use the store; lower none.

        Answers the revision that was reached before. What was there already, a reservation too, keeps its own.
        """
        ...


async def one_by_one(store: Store, asks: Sequence[Swap | Scan]) -> list[Record | Conflict | list[Record]]:
    """`Store.together` for a store that can do one thing at a time."""
    return [
        await store.swap(ask.key, ask.expect, ask.value, ask.ttl) if isinstance(ask, Swap) else await store.scan(*ask)
        for ask in asks
    ]
