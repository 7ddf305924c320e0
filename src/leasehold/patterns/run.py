"""One run of one's own: what it shows without asking the store, and what its verbs mean, once for both colours.

A verb writes over the record that was seen last, so that a late one changes
nothing. What it meets instead is its own if it carries the run's secret.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import msgspec

from leasehold.engine.events import Finished, Lost, Released, log_fields
from leasehold.errors import LeaseLost, StoreError, StoreUnavailable, shown
from leasehold.model import KEEP, Conflict, Keep, Record
from leasehold.rules.cooldown import Phase, RunRecord, finished, read_run, rest_ttl, write_run
from leasehold.rules.tokens import token

if TYPE_CHECKING:
    from leasehold.engine.engine import Engine
    from leasehold.patterns.runs import Runs

# How often one call tries again when others change the record under it.
TRIES = 5
ABANDONED = "it was abandoned"

_log = logging.getLogger("leasehold")


class Found(msgspec.Struct, frozen=True):
    """A run of one's own: its record, what that says, when it was asked for, and whether it was there before."""

    record: Record
    run: RunRecord
    sent: float
    adopted: bool


class BaseRun:
    """A run on a target."""

    def __init__(self, runs: Runs, found: Found) -> None:
        self._runs = runs
        self._record: Record = found.record
        self._run: RunRecord = found.run
        self._ends: float | None = None
        self._take(found.record, found.run, found.sent)
        self._adopted = found.adopted
        self._token = token(found.record.born)
        self._asked = found.sent
        # Why it is no longer the target's run, once that was seen.
        self._gone: str | None = None
        # A deletion got no answer: if there is nothing left, it was ours.
        self._unsure = False

    @property
    def target(self) -> str:
        """What is being worked on."""
        return self._run.scope

    @property
    def owner(self) -> str:
        """Whose run it is."""
        return self._run.holder

    @property
    def name(self) -> str:
        """The short name of the target: the same for every run on it."""
        return self._runs.name_of(self._run.scope)

    @property
    def token(self) -> int:
        """The fencing token: larger than that of every earlier run on this target."""
        return self._token

    @property
    def phase(self) -> Phase:
        """How far it had come when the store was last asked."""
        return self._run.phase

    @property
    def adopted(self) -> bool:
        """Whether it was there already, begun by the same owner before: look for what that one has left."""
        return self._adopted

    @property
    def since(self) -> float:
        """When it was begun, by the wall clock of the one who did."""
        return self._run.since

    @property
    def timeout(self) -> float:
        """How many seconds after its beginning it ends by itself."""
        return self._run.timeout

    @property
    def cooldown(self) -> float:
        """How long the target rests: after the end of the run, or, from `once_per`, after its beginning."""
        return self._run.rest

    def __repr__(self) -> str:
        return f"<Run {self.target!r} by {self.owner!r} token={self.token} {self._gone or self.phase.value}>"

    async def _finish(self, phase: Phase) -> bool:
        """Write down how it ended. True if it ended so, now or before; False if it was over otherwise."""
        engine = self._here()
        if self._gone is not None or self.phase is not Phase.RUNNING:
            return self._gone is None and self.phase is phase
        run = finished(self._run, phase, self._runs.wall())
        # With no rest nothing stays; a rest that counts from the beginning goes on as it is.
        value = None if run.rest == 0 else write_run(run)
        ttl = KEEP if run.per else rest_ttl(run.rest, engine.store.guarantees)
        seen = await self._swapped(value, ttl, while_running=True)
        if seen is None or self.phase is not Phase.RUNNING:
            return seen is not None and self.phase is phase
        self._record, self._run = seen, run
        engine.emit(Finished(self.target, self.owner, self.token, phase.value, run.rest))
        return True

    async def _abandon(self) -> bool:
        """Remove it, in whatever phase. True if it was there."""
        engine = self._here()
        if self._gone is not None:
            return False
        removed: bool | None = None
        try:
            removed = await self._swapped(None, None, while_running=False) is not None
        finally:
            held_for = engine.clock.now() - self._asked
            engine.emit(Released(self.target, self.owner, self.token, removed, held_for))
        if removed:
            self._gone = ABANDONED
        return removed

    async def _check(self) -> None:
        """Ask the store whether it still is the target's run, and goes on; raise LeaseLost if not."""
        engine = self._here()
        if self._gone is None and self.phase is Phase.RUNNING:
            sent = engine.clock.now()
            seen = await engine.store.load(self._record.key)
            run = read_run(seen)
            if seen is not None and run is not None and run.secret == self._run.secret:
                self._take(seen, run, sent)
            else:
                self._note(seen, run)
        if self._gone is not None or self.phase is not Phase.RUNNING:
            raise self._lost()

    async def _leave(self, error: BaseException | None) -> None:
        """The end of a `with` block. A body that said itself how the run ended has the last word."""
        if self._gone == ABANDONED or self.phase is not Phase.RUNNING:
            return
        if error is None:
            if not await self._finish(Phase.COMPLETED):
                raise self._lost()
            return
        try:
            await self._finish(Phase.FAILED)
        except StoreError as failed:
            # What the body raised must not be hidden by this.
            fields = log_fields(self.target, self.owner, self.token)
            text = "the failed run on %s could not be finished and ends by its timeout: %s"
            _log.warning(text, shown(self.target), failed, extra=fields)

    async def _swapped(self, value: bytes | None, ttl: float | Keep | None, *, while_running: bool) -> Record | None:
        """Write over our own record: as written, or as an earlier write of ours left it; None if it is gone."""
        engine, doubtful = self._runs.engine, self._unsure
        for _ in range(TRIES):
            self._unsure, sent = value is None, engine.clock.now()
            answer = await engine.store.swap(self._record.key, self._record, value, ttl)
            self._unsure = False
            if not isinstance(answer, Conflict):
                return answer
            seen, run = answer.record, read_run(answer.record)
            if seen is None and value is None and doubtful:
                return self._record
            if seen is None or run is None or run.secret != self._run.secret:
                self._note(seen, run)
                return None
            # Ours: a write of ours without an answer, another process of this owner, or somebody put a label on it.
            self._take(seen, run, sent)
            if while_running and run.phase is not Phase.RUNNING:
                return seen
        raise restless(self.target)

    def _take(self, record: Record, run: RunRecord, sent: float) -> None:
        """What the store showed when it was asked at `sent`. No earlier than `_ends` does it end the record itself."""
        self._record, self._run = record, run
        self._ends = None if record.left is None else sent + record.left

    def _note(self, seen: Record | None, current: RunRecord | None) -> None:
        """It is no longer the target's run: why, as far as can be told. A run that was not finished is missed."""
        if seen is not None:
            self._gone = f"{current.holder if current else 'somebody'} has begun another run since"
        elif self._ends is not None and self._runs.engine.clock.now() >= self._ends:
            self._gone = f"it was not finished within its timeout of {self.timeout:g} s"
        else:
            self._gone = "its record was deleted"
        if self.phase is Phase.RUNNING:
            self._runs.engine.emit(Lost(self.target, self.owner, self.token, self._gone))

    def _lost(self) -> LeaseLost:
        return LeaseLost(self.target, self.token, self._gone or f"the run is {self.phase.value}")

    def _here(self) -> Engine:
        engine = self._runs.engine
        engine.check_open()
        engine.runtime.check_here()
        return engine


def restless(target: str) -> StoreUnavailable:
    """The error for a record that never stands still."""
    return StoreUnavailable(
        f"the record of {shown(target)} changed {TRIES} times during one call; try again", applied=False
    )
