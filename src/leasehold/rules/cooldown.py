"""What a guard's record says: the name it goes by, its phase, and whether its rest is over.

A *rest* is the time in which no new run may begin: the cooldown, counted from the
end of a run, or the interval of `once_per`, counted from its beginning. It is no
exclusion: where the store cannot say how long ago the record was written, the
times written in it count, and `max_skew` is added to the rest. That a run which is
not finished has ended is for the store alone to say.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

import msgspec

from leasehold.model import Guarantees, Record, Unrenewed
from leasehold.rules.timing import LONGEST, granted_ttl, seconds


class Phase(Enum):
    """How far a run has come."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"


class RunRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the record of a run says. `scope` is the full target, `holder` the owner; times are its writer's wall clock.

    The first five are those of a lock's record: whoever lists locks sees runs, too.
    `per` marks a rest that counts from the beginning. The secret tells one run from another.
    """

    scope: str
    holder: str
    secret: str
    since: float
    metadata: dict[str, str]
    phase: Phase
    timeout: float
    rest: float
    ended: float = 0.0
    per: bool = False

    def __repr__(self) -> str:
        # Not the secret.
        return f"<RunRecord of {self.scope!r} by {self.holder!r}, {self.phase.value}>"

    @property
    def rests_from(self) -> float:
        """When the rest began; of a run that is not finished, when it began itself."""
        return self.since if self.per or self.phase is Phase.RUNNING else self.ended


def checked_rest(field: str, given: object) -> float:
    """A cooldown or an interval: seconds, none at all included."""
    return seconds(field, given, 0, LONGEST)


def checked_timeout(given: object, limits: Guarantees) -> float:
    """How long a run may take: what the store can end by itself."""
    unrenewed = _unrenewed(limits)
    return granted_ttl(seconds("timeout", given, unrenewed.ttl_min, unrenewed.ttl_max), unrenewed)


# Asked at every write of a record, with the same few answers.
@functools.lru_cache(maxsize=64)
def rest_ttl(rest: float, limits: Guarantees) -> Unrenewed | None:
    """The ttl of a record that rests; None, which is lasting, for a rest longer than the store can keep time."""
    unrenewed = _unrenewed(limits)
    return None if rest > unrenewed.ttl_max else Unrenewed(granted_ttl(max(rest, unrenewed.ttl_min), unrenewed))


def _unrenewed(limits: Guarantees) -> Guarantees:
    """The limits of a record that nobody renews, as all of a guard's are."""
    return msgspec.structs.replace(limits, ttl_max=max(limits.ttl_max, limits.unrenewed_max))


# Writing and reading.


write_run: Callable[[RunRecord], bytes] = msgspec.json.Encoder().encode
_read = msgspec.json.Decoder(RunRecord).decode


def read_run(record: Record | None) -> RunRecord | None:
    """What the record says, or None if there is none or no guard wrote it."""
    if record is None:
        return None
    try:
        return _read(record.value)
    except msgspec.MsgspecError:
        return None


def finished(run: RunRecord, phase: Phase, now: float) -> RunRecord:
    """The record of a run that has come to its end."""
    return msgspec.structs.replace(run, phase=phase, ended=now, metadata=notes(run.scope, phase))


def begun_anew(run: RunRecord, now: float) -> RunRecord:
    """The same with its rest beginning now."""
    return msgspec.structs.replace(run, **{"since" if run.per else "ended": now})


def notes(target: str, phase: Phase) -> dict[str, str]:
    """What people see of a run in a list of locks."""
    return {"target": target, "phase": phase.value}


# Judging.


class Standing(Enum):
    """How a target stands at an instant."""

    FREE = "free"
    RUNNING = "running"
    RESTING = "resting"


class Sight(NamedTuple):
    """When a record was looked at: our wall clock, and how long before that it was written by the store's clock.

    `passed` is None where the store cannot say that.
    """

    now: float
    passed: float | None


class Verdict(NamedTuple):
    """How a target stands: for how long it has rested and still will, and whether its times cannot be true."""

    standing: Standing
    ago: float = 0.0
    left: float = 0.0
    ahead: bool = False


def sight(record: Record, now: float, limits: Guarantees) -> Sight:
    """What can be known of a record's age."""
    if record.ttl is None or record.left is None or limits.left_is_bound:
        return Sight(now, None)
    return Sight(now, max(record.ttl - record.left, 0.0))


def judge(run: RunRecord, seen: Sight, asked: float | None, max_skew: float) -> Verdict:
    """How a target stands by its record.

    The rest is the one written down. Who asks for less need not wait for the rest of it; who
    asks for more cannot prolong it. A beginning further
    in the future than `max_skew` cannot be true (`ahead`): the rest counts as just begun.
    """
    if run.phase is Phase.RUNNING and not run.per:
        return Verdict(Standing.RUNNING)
    lasts = run.rest if asked is None else min(run.rest, asked)
    if seen.passed is not None:
        ago, margin, ahead = seen.passed, 0.0, False
    else:
        ago, margin, ahead = seen.now - run.rests_from, max_skew, run.rests_from > seen.now + max_skew
    ago = max(ago, 0.0)
    if lasts == 0 or ago >= lasts + margin:
        return Verdict(Standing.FREE, ago)
    return Verdict(Standing.RESTING, ago, lasts + margin - ago, ahead)
