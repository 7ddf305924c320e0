"""How long to wait before asking again: 50 to 100 ms at first, doubled each time, ±20 %, capped."""

from __future__ import annotations

import msgspec

SOONEST = 0.05
LATEST = 5.0


class Backoff(msgspec.Struct, frozen=True):
    """A policy. `delay` is pure: the caller brings the chance in [0, 1). The jitter goes around the cap, too."""

    base: float = 0.075
    factor: float = 2.0
    jitter: float = 0.2
    cap: float = 2.0

    def delay(self, attempt: int, chance: float) -> float:
        """The pause before try number `attempt` + 1, where the first try is number 0."""
        # An exponent that large would overflow long after the cap decided.
        grown: float = min(self.base * self.factor ** min(attempt, 64), self.cap)
        return grown * (1 + self.jitter * (2 * chance - 1))


def retry_after(left: float | None, chance: float) -> float:
    """What to suggest to somebody turned away: about when it may be free, within reason, spread by ±20 %."""
    wait = LATEST if left is None else min(max(left, SOONEST), LATEST)
    return wait * (0.8 + 0.4 * chance)
