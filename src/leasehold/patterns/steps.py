"""Steps: parts of work that is handled once, which are not done twice although the rest of it is done again.

Each is noted in the record before it is done and after. Noted before and not after, nobody knows how far it came.
"""

from __future__ import annotations

from typing import Any

import msgspec

from leasehold.errors import FinishedLate, InvalidInput, OutcomeUnknown, ResultNotKept
from leasehold.model import Conflict
from leasehold.patterns.handling import Begun, Handling, encoded
from leasehold.patterns.work import BaseWork, Kept
from leasehold.rules.arguments import flag
from leasehold.rules.names import LABEL_MAX, check_text
from leasehold.rules.once import NOTHING, Step, is_declared, with_step, without_step, write_once

# What a record needs beside its steps, at most: the store must be able to take its end.
ROOM = 16 * 1024


class SteppedWork(BaseWork):
    """Work whose steps are kept."""

    _begun: Begun

    def __init__(self, handling: Handling, begun: Begun) -> None:
        super().__init__(begun)
        self._handling = handling

    @property
    def attempt(self) -> int:
        """1 for the first run; more if it follows runs of unknown outcome."""
        return self._begun.said.attempt


async def step(handling: Handling, begun: Begun, name: str, *, rerun: bool) -> Kept | None:
    """What a step came to before; None if it is to be done now, which is noted first."""
    flag("rerun", rerun)
    check_text("step", name, LABEL_MAX)
    begun.check()
    known = next((one for one in begun.said.steps if one.name == name), None)
    if known is not None and known.result != NOTHING:
        return Kept(msgspec.json.decode(known.result))
    if begun.step is not None:
        # Each is written over the one before.
        raise InvalidInput("step", name, f"must wait for the end of step {begun.step!r}: one at a time")
    if known is not None and not rerun:
        raise OutcomeUnknown(begun.said.key, name)
    begun.step = name
    try:
        if known is None:
            await _note(handling, begun, Step(name))
    except BaseException:
        begun.step = None
        raise
    return None


async def stepped(handling: Handling, begun: Begun, name: str, value: Any) -> None:
    """Keep what a step came to."""
    begun.step = None
    result, unkept = encoded(value, begun.policy.limit)
    fresh = Step(name, result)
    size, most = len(write_once(with_step(begun.said, fresh))), handling.engine.store.guarantees.value_max - ROOM
    if not unkept and size > most:
        unkept = f"with it the record has {size} bytes, more than the {most} that the store has room for"
    if unkept:
        raise ResultNotKept(begun.said.key, f"step {name!r}: {unkept}", value)
    await handling.again_and_again(lambda: _note(handling, begun, fresh), begun.policy.ttl)


def unstepped(begun: Begun, name: str, error: BaseException) -> None:
    """A step failed. After an error that may be retried it is as if it had not been begun."""
    begun.step = None
    if is_declared(error, begun.policy.retry):
        begun.said = without_step(begun.said, name)


async def _note(handling: Handling, begun: Begun, fresh: Step) -> None:
    if begun.over:
        begun.check()
    said = with_step(begun.said, fresh)
    value, life = write_once(said), handling.life(begun.policy)
    answer = await handling.engine.store.swap(begun.record.key, begun.record, value, life)
    answer = await handling.over_ours(begun, answer, value)
    if isinstance(answer, Conflict):
        if answer.record is None or answer.record.value != value:
            handling.tell(begun.said, "late")
            raise FinishedLate(begun.said.key, begun.grant.token)
        answer = answer.record
    begun.record, begun.said = answer, said
