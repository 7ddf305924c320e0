"""The race of an optimistic update: one source for both colours. It holds nothing, and looks at no mark."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from leasehold.errors import InvalidInput, TooContended
from leasehold.rules.arguments import function, whole
from leasehold.rules.backoff import Backoff
from leasehold.wires.chance import chance

T = TypeVar("T")

ATTEMPTS = 10
# Full jitter: from nothing to twice the pause. Racers that met once would meet again if they came back in step.
PAUSES = Backoff(base=0.005, jitter=1.0, cap=0.5)


async def race(
    resource: Any,
    change: Callable[[T], T | None],
    attempts: int,
    backoff: Backoff,
    sleep: Callable[[float], Awaitable[None]],
) -> T:
    """What `update` promises."""
    check(resource, change, attempts, backoff)
    most = attempts if backoff.attempts is None else min(attempts, backoff.attempts)
    for attempt in range(most):
        if attempt:
            await sleep(backoff.delay(attempt - 1, chance()))
        value, version = await _answer(resource.load())
        fresh = change(value)
        if fresh is None:
            found: T = value
            return found
        # Whatever this raises goes to the caller: a second try could apply the change to itself.
        if await _answer(resource.replace(fresh, version)):
            return fresh
    raise TooContended(resource.name, most)


def check(resource: object, change: object, attempts: object, backoff: object) -> None:
    """Every argument, before anything is read."""
    if not all(callable(getattr(resource, verb, None)) for verb in ("load", "replace")):
        remedy = "must have load() and replace(value, version), or be a fence of this colour over something that has"
        raise InvalidInput("resource", resource, remedy)
    function("change", change)
    if inspect.iscoroutinefunction(change):
        raise InvalidInput("change", change, "must be a plain function of the value: it is run while nothing is held")
    whole("attempts", attempts, 1)
    if not isinstance(backoff, Backoff):
        raise InvalidInput("backoff", backoff, "must be a leasehold.Backoff")


async def _answer(given: Any) -> Any:
    """What a verb comes to: a user's own resource may be of either colour."""
    return await given if inspect.isawaitable(given) else given
