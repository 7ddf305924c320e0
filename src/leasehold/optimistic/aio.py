"""Optimistic updates for asyncio: `leasehold.optimistic.update`, awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from leasehold.client_aio import like
from leasehold.fence.aio import Fenced
from leasehold.fence.base import Versioned
from leasehold.optimistic import blocking
from leasehold.optimistic.racing import ATTEMPTS, PAUSES, race
from leasehold.rules.backoff import Backoff

__all__ = ["update"]

T = TypeVar("T")


@like(blocking.update)
async def update(
    resource: Fenced[T] | Versioned[T],
    change: Callable[[T], T | None],
    *,
    attempts: int = ATTEMPTS,
    backoff: Backoff = PAUSES,
) -> T:
    reached = resource._fence.resource if isinstance(resource, Fenced) else resource  # noqa: SLF001  one library
    return await race(reached, change, attempts, backoff, asyncio.sleep)
