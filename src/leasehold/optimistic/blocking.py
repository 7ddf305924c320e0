"""Optimistic updates, blocking. `aio.py` has the same name, awaited."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from leasehold.fence.blocking import Fenced
from leasehold.optimistic.racing import ATTEMPTS, PAUSES, race
from leasehold.rules.backoff import Backoff
from leasehold.wires.clock import system_clock
from leasehold.wires.colour import Blocking, drive

T = TypeVar("T")


class Replaceable(Protocol[T]):
    """Something of your own that can be replaced if it is still what was read.

    `leasehold.testing.versions` checks it. A `replace` that cannot tell whether it wrote must raise: False says that
    nothing was written, and the change is made again.
    """

    @property
    def name(self) -> str:
        """What people call it."""
        ...

    def load(self) -> tuple[T, Any]:
        """What is there, and what tells whether it still is."""
        ...

    def replace(self, value: T, version: Any) -> bool:
        """Replace it, if nobody has since it was loaded, in one step."""
        ...


def update(
    resource: Fenced[T] | Replaceable[T],
    change: Callable[[T], T | None],
    *,
    attempts: int = ATTEMPTS,
    backoff: Backoff = PAUSES,
) -> T:
    """Replace a value by `change(value)` if nobody changed it meanwhile, else read it and try again. Answers the value.

    `change` may be run several times, so it does nothing but compute the new value; None leaves the old one.
    Raises TooContended after the last attempt, with nothing written. StoreUnavailable is not tried again: if its
    `applied` is None the change may have been made or not, and only a look at the value tells. An optimistic update
    and a lease do not see each other: protect one resource in one way.
    """
    reached = resource._fence.resource if isinstance(resource, Fenced) else resource  # noqa: SLF001  one library
    return drive(race(reached, change, attempts, backoff, Blocking(system_clock()).sleep))
