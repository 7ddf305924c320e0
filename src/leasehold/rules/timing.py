"""When a lease may be trusted, when it is renewed, and which lengths can work.

Every instant is a reading of the holder's own boot clock, taken before the
request was sent. Trust ends at `sent + 0.9 ttl`; the store frees the record no
earlier than `sent + ttl` on its own clock. So two clients cannot both trust
while clock rates differ by less than 1 / 0.9, and a loss is told at least a
tenth of the ttl before anybody else is granted.
"""

from __future__ import annotations

import math

from leasehold.errors import InvalidInput
from leasehold.model import Guarantees

DEFAULT_TTL = 30.0
TRUST = 0.9
RENEW = 1 / 3
SPREAD = 0.1
LAG_NOTED = 0.1
TIMEOUT_MAX = 3600.0
# Thirty years. Where there is no other limit: whole numbers can outgrow what a clock can add.
LONGEST = 1e9


def seconds(field: str, given: object, least: float, most: float) -> float:
    """A finite number of seconds within limits; never a bool, which is an int by accident."""
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise InvalidInput(field, given, f"must be a number of seconds, not {type(given).__name__}")
    highest = min(most, LONGEST)
    if not least <= given <= highest:
        raise InvalidInput(field, given, f"must be from {least:g} to {highest:g} seconds")
    return float(given)


def granted_ttl(given: object, limits: Guarantees) -> float:
    """The length a store really grants: within its limits, rounded up to its step."""
    ttl = seconds("ttl", given, limits.ttl_min, limits.ttl_max)
    if limits.ttl_step == 0:
        return ttl
    # A division of floats may come out a trifle short, and a step may overshoot the limit.
    return min(max(math.ceil(ttl / limits.ttl_step) * limits.ttl_step, ttl), limits.ttl_max)


def checked_wait(given: object) -> float | None:
    """`None` as long as it takes, `0` one try, else seconds."""
    return None if given is None else seconds("wait", given, 0, math.inf)


def checked_hold(given: object, ttl: float) -> float | None:
    """The longest hold, if there is one: at least one ttl, or the lease could not even start."""
    return None if given is None else seconds("max_hold", given, ttl, math.inf)


def trust_ends(sent: float, ttl: float) -> float:
    """The instant at which belief in a grant or renewal sent at `sent` has ended."""
    return sent + TRUST * ttl


def renewal_window(sent: float, ttl: float, chance: float) -> tuple[float, float]:
    """When renewal becomes possible and when it is due: within ttl/3 less a tenth and plus a tenth.

    `chance` in [0, 1) spreads clients. A beat takes along every lease whose window
    is open, and a window opens a good while before its lease is due, so that a
    thousand leases make a few batches.
    """
    period = RENEW * ttl
    return sent + (1 - SPREAD) * period, sent + (1 + SPREAD * chance) * period


def next_try(now: float, deadline: float, ttl: float) -> float:
    """When to renew again after an answer that extended nothing: soon, and never after trust has ended."""
    return min(now + ttl / 20, max(deadline, now))


def is_late(lag: float, ttl: float) -> bool:
    """Whether a beat came so late that people should know: a tenth of its period."""
    return lag > LAG_NOTED * RENEW * ttl
