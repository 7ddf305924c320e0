"""What a once-record says, and what follows from it for whoever comes with the same key. Pure.

The record lasts; that somebody works on it is a short lease beside it, which is taken before the record is written.
So a record that says *running* while nobody holds that lease has an unknown outcome: its worker is gone, and nobody
can tell how far it came.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

import msgspec

from leasehold.errors import InvalidInput, KeyReused, LeaseholdError, StoreDamaged, shown
from leasehold.model import Record

# The member of a family that is the record; the lease beside it is its lock.
ONCE = "once"
FINGERPRINT_MAX = 256
STEPS_MAX = 100
REASON_MAX = 500
# In place of a result, where there is none: no JSON is this short.
NOTHING = msgspec.Raw(b"")


class State(Enum):
    """How far the work on a key has come, as its record says. Running without a lease is *unknown*.

    *Retry* has failed in a way after which it may be begun anew, and is kept for the steps it had finished.
    """

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    UNKNOWN = "unknown"
    RETRY = "retry"


# What is replayed.
ENDED = frozenset({State.COMPLETED, State.FAILED})


class Step(msgspec.Struct, frozen=True, omit_defaults=True):
    """A part of the work that is not done twice; without a result it was begun and not finished."""

    name: str
    result: msgspec.Raw = NOTHING


class Failure(msgspec.Struct, frozen=True):
    """A definite failure: the name of the error's class, and what it said."""

    kind: str
    message: str


class OnceRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the record says. `since` and `ended` are its writer's wall clock, for people. The secret tells runs apart.

    `unkept` says why a completed one has no result to replay.
    """

    key: str
    holder: str
    secret: str
    since: float
    state: State
    token: int
    attempt: int = 1
    fingerprint: str = ""
    ended: float = 0.0
    result: msgspec.Raw = NOTHING
    failure: Failure | None = None
    unkept: str = ""
    steps: tuple[Step, ...] = ()

    def __repr__(self) -> str:
        # Neither the secret nor the result.
        return f"<OnceRecord of {self.key!r} by {self.holder!r}, {self.state.value}>"


write_once: Callable[[OnceRecord], bytes] = msgspec.json.Encoder().encode
decode_once: Callable[[bytes | str], OnceRecord] = msgspec.json.Decoder(OnceRecord).decode


def read_once(record: Record | None) -> OnceRecord | None:
    """What the record says; None if there is none."""
    if record is None:
        return None
    try:
        return decode_once(record.value)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise StoreDamaged(f"the once-record of {shown(record.key.family)} cannot be read: {error}") from error


def checked_fingerprint(given: object) -> str:
    """What tells one payload from another; empty if the key alone does."""
    if given is None:
        return ""
    if not isinstance(given, str) or not 0 < len(given) <= FINGERPRINT_MAX:
        remedy = f"must be text of 1 to {FINGERPRINT_MAX} characters, as leasehold.fingerprint(body) is, or None"
        raise InvalidInput("fingerprint", given, remedy)
    return given


def check_same(found: OnceRecord, key: str, fingerprint: str) -> None:
    """The same key must come with the same payload, whether the work on it goes on or is done."""
    if found.fingerprint != fingerprint:
        raise KeyReused(key)


def following(found: OnceRecord | None, fresh: OnceRecord) -> OnceRecord:
    """The record of a run that begins: what the steps of those before it came to is kept.

    Its attempt is larger than 1 if the outcome of any of them is unknown.
    """
    if found is None:
        return fresh
    attempt = found.attempt if found.state is State.RETRY else found.attempt + 1
    return msgspec.structs.replace(fresh, attempt=attempt, steps=found.steps)


def freed(record: OnceRecord) -> OnceRecord | None:
    """What is left of a run after which the next may begin anew; None if there is nothing to go on with."""
    return msgspec.structs.replace(record, state=State.RETRY) if record.steps else None


def is_of(record: Record | None, said: OnceRecord) -> bool:
    """Whether the run that wrote `said` wrote this, and it is not over: then it may write there again."""
    found = read_once(record)
    return found is not None and found.secret == said.secret and found.state is State.RUNNING


def with_step(record: OnceRecord, step: Step) -> OnceRecord:
    """The record after a step was begun, or finished."""
    others = tuple(one for one in record.steps if one.name != step.name)
    if len(others) >= STEPS_MAX:
        raise InvalidInput("step", step.name, f"must be one of at most {STEPS_MAX}; put several into one")
    return msgspec.structs.replace(record, steps=(*others, step))


def without_step(record: OnceRecord, name: str) -> OnceRecord:
    """The record as if a step had not been begun."""
    return msgspec.structs.replace(record, steps=tuple(one for one in record.steps if one.name != name))


def failure_of(error: BaseException) -> Failure:
    """What is kept of an error: no traceback, no arguments, not more than a few lines."""
    # Whatever it says must be possible to write down.
    return Failure(type(error).__qualname__, str(error)[:REASON_MAX].encode(errors="replace").decode())


def is_declared(error: BaseException, kinds: tuple[type[BaseException], ...]) -> bool:
    """Whether an error is one of these. Our own say how a lease or a step stands: a wider class does not mean them."""
    if isinstance(error, LeaseholdError):
        kinds = tuple(kind for kind in kinds if issubclass(kind, LeaseholdError))
    return isinstance(error, kinds)
