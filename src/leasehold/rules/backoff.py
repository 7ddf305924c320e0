"""How long to wait before asking again: 50 to 100 ms at first, doubled each time, ±20 %, capped."""

from __future__ import annotations

from typing import Protocol

import msgspec

from leasehold.errors import InvalidInput

SOONEST = 0.05
LATEST = 5.0


class Retry(Protocol):
    """How to ask again: how often at most (None: as long as the caller waits), and after which pauses."""

    @property
    def attempts(self) -> int | None:
        """How many tries there are in all."""
        ...

    def delay(self, attempt: int, chance: float, /) -> float:
        """The seconds to pause after try number `attempt`, the first being 0. `chance` is in [0, 1)."""
        ...


class Backoff(msgspec.Struct, frozen=True):
    """The usual policy. `delay` is pure: the caller brings the chance. The jitter goes around the cap, too."""

    base: float = 0.075
    factor: float = 2.0
    jitter: float = 0.2
    cap: float = 2.0
    attempts: int | None = None

    def __post_init__(self) -> None:
        for field, least in (("base", 0.001), ("factor", 1.0), ("jitter", 0.0), ("cap", 0.001), ("attempts", 1)):
            given = getattr(self, field)
            if given is not None and not given >= least:
                raise InvalidInput(field, given, f"must be {least:g} or more")
        if self.jitter > 1:
            raise InvalidInput("jitter", self.jitter, "must be from 0 to 1: a part of the pause")

    def delay(self, attempt: int, chance: float, /) -> float:
        """The pause before try number `attempt` + 1, where the first try is number 0."""
        # An exponent that large would overflow long after the cap decided.
        grown: float = min(self.base * self.factor ** min(attempt, 64), self.cap)
        return grown * (1 + self.jitter * (2 * chance - 1))


def retry_after(left: float | None, chance: float) -> float:
    """What to suggest to somebody turned away: about when it may be free, within reason, spread by ±20 %."""
    wait = LATEST if left is None else min(max(left, SOONEST), LATEST)
    return wait * (0.8 + 0.4 * chance)
