"""Waiting for a change where the server tells of changes: written once for every such store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from leasehold.model import Record
from leasehold.wires.clock import Clock
from leasehold.wires.ears import Ears


def is_still(found: Record | None, seen: Record | None) -> bool:
    """Whether what is there now is what was seen."""
    return (found.revision if found else None) == (seen.revision if seen else None)


def next_look(found: Record | None, until: float, now: float) -> float:
    """When to look at the latest: no server tells that a record has ended by itself."""
    return until if found is None or found.left is None else min(until, now + found.left)


async def watch_by_ear(
    ears: Ears,
    channel: str,
    load: Callable[[], Awaitable[Record | None]],
    *,
    seen: Record | None,
    until: float,
    clock: Clock,
) -> bytes:
    """Return when the live record is no longer `seen`, or at `until`; may return early. The words that woke us, if any.

    Subscribed first, looked second: a change between the two is seen, one after them is heard.
    """
    ear = await ears.listen(channel)
    try:
        found = await load()
        if is_still(found, seen):
            await ear.wait(next_look(found, until, clock.now()))
    finally:
        ear.leave()
    return ear.said
