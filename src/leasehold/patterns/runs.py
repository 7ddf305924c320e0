"""A guard's runs: what `Guard` means, once, for both colours.

The record of a run is the lock, and it belongs to its owner, not to a process:
nobody renews it. While the run goes on its ttl is the run's timeout; when it
ends, the same record is rewritten and its ttl is the cooldown. So the store ends
both by its own clock, and whoever comes, after whatever crash, reads from the
record how things stand. Only where the store cannot do that for a rest do the times
in the record count (`rules/cooldown.py`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from leasehold.engine.engine import HOLDER_MAX
from leasehold.engine.events import Attempt, Busy, Granted, Revoked, log_fields
from leasehold.errors import (
    NotAcquired,
    RecentlyRemediated,
    ResourceBusy,
    StoreError,
    StoreUnavailable,
    StoreWentBack,
)
from leasehold.model import Conflict, Key, Record, Unrenewed
from leasehold.patterns.run import TRIES, Found, restless
from leasehold.rules.backoff import retry_after
from leasehold.rules.cooldown import (
    Phase,
    RunRecord,
    Standing,
    Verdict,
    begun_anew,
    checked_rest,
    checked_timeout,
    judge,
    notes,
    read_run,
    rest_ttl,
    sight,
    write_run,
)
from leasehold.rules.names import LABEL_MAX, check_text, short_name
from leasehold.rules.timing import LONGEST, seconds
from leasehold.rules.tokens import token
from leasehold.wires.chance import chance, secret

if TYPE_CHECKING:
    from leasehold.engine.engine import Engine

# Five minutes of rest, an hour for a run, clocks that some time service looks after.
COOLDOWN = 300.0
TIMEOUT = 3600.0
MAX_SKEW = 5.0
NAME = "wfe"
# How long to look for what a request without an answer may have left.
DOUBT = 60.0

_log = logging.getLogger("leasehold")


class RunInfo(msgspec.Struct, frozen=True):
    """A target's run as the store shows it. `since` and `ended` are its owner's wall clock.

    `expires_in` is when the target will be free at the latest: by the timeout, or by the end of the cooldown.
    """

    target: str
    name: str
    owner: str
    phase: Phase
    token: int
    since: float
    ended: float | None
    cooldown: float
    expires_in: float | None


class Runs:
    """The runs of all targets of one guard."""

    def __init__(self, engine: Engine, name: str, cooldown: float, timeout: float, max_skew: float) -> None:
        self.engine: Engine = engine
        self.name: str = check_text("name", name, LABEL_MAX)
        self.cooldown: float = checked_rest("cooldown", cooldown)
        self.timeout: float = checked_timeout(timeout, engine.store.guarantees)
        self.max_skew: float = checked_rest("max_skew", max_skew)
        self.wall: Callable[[], float] = time.time

    def name_of(self, target: str) -> str:
        """The name of a target's record."""
        return short_name(f"{self.name}-", _target(target))

    # Beginning: the atomic create. Never guesses.

    async def begin(self, target: str, owner: str, cooldown: float | None, timeout: float | None) -> Found:  # noqa: ASYNC109  how long the run may take, not this call
        """A run for the owner, its own if it has one already; or ResourceBusy, or RecentlyRemediated."""
        self.engine.check_open()
        key, target = self.engine.names.guard(self.name_of(target)), _target(target)
        length = self.timeout if timeout is None else checked_timeout(timeout, self.engine.store.guarantees)
        asked = _asked(cooldown)
        fresh = self._fresh(target, _owner(owner), length, self.cooldown if asked is None else asked)
        return await self._create(key, fresh, Unrenewed(length), asked, adopts=True)

    async def once_per(self, target: str, interval: float, owner: str | None) -> Found | None:
        """A run, if none of this target began within the interval. Without an owner nobody adopts it."""
        self.engine.check_open()
        limits = self.engine.store.guarantees
        rest = seconds("interval", interval, limits.ttl_min, LONGEST)
        key = self.engine.names.interval(self.name_of(target))
        who = self.engine.holder if owner is None else _owner(owner)
        fresh = msgspec.structs.replace(self._fresh(_target(target), who, rest, rest), per=True)
        try:
            return await self._create(key, fresh, rest_ttl(rest, limits), rest, adopts=owner is not None)
        except RecentlyRemediated:
            return None

    async def _create(
        self, key: Key, fresh: RunRecord, ttl: Unrenewed | None, asked: float | None, *, adopts: bool
    ) -> Found:
        engine = self.engine
        engine.emit(Attempt(fresh.scope, fresh.holder))
        mark = engine.marks.of(key.family)
        for _ in range(TRIES):
            sent = engine.clock.now()
            answer = await self._write(key, fresh, ttl, adopts=adopts)
            if not isinstance(answer, Conflict):
                if token(answer.born) <= mark:
                    await engine.runtime.finish(self._give_back(answer, fresh))
                    raise StoreWentBack(fresh.scope, token(answer.born), mark)
                return self._granted(Found(answer, fresh, sent, adopted=False))
            seen, run = answer.record, read_run(answer.record)
            if seen is None:
                continue
            verdict = self._judged(seen, run, fresh.scope, asked)
            if verdict.standing is Standing.FREE:
                # Over, and not yet gone. Rewritten in place it would keep its token.
                await engine.store.swap(key, seen, None, None)
            elif run is not None and _is_own(run, fresh, adopts=adopts):
                return self._granted(Found(seen, run, sent, adopted=True))
            else:
                await self._correct(seen, run, verdict)
                raise self._refusal(fresh.scope, fresh.holder, seen, run, verdict)
        raise self._refusal(fresh.scope, fresh.holder, None, None, Verdict(Standing.RUNNING))

    async def _write(self, key: Key, fresh: RunRecord, ttl: Unrenewed | None, *, adopts: bool) -> Record | Conflict:
        try:
            return await self.engine.store.swap(key, None, write_run(fresh), ttl)
        except BaseException as error:
            # Who has an owner's name asks again and finds it. Nobody else would: have it looked for and removed.
            if not adopts and _may_be_applied(error):
                self.engine.doubt(key, fresh.secret, DOUBT)
            raise

    async def _give_back(self, made: Record, fresh: RunRecord) -> None:
        """Remove what nobody was told of. Its owner must not find and adopt it."""
        try:
            await self.engine.store.swap(made.key, made, None, None)
        except StoreUnavailable:
            self.engine.doubt(made.key, fresh.secret, DOUBT)

    async def _correct(self, seen: Record, run: RunRecord | None, verdict: Verdict) -> None:
        """A rest that begins in the future would last until then: let it begin now. Where this fails, the next does."""
        if run is not None and verdict.ahead:
            right = begun_anew(run, self.wall())
            await self.engine.store.swap(
                seen.key, seen, write_run(right), rest_ttl(run.rest, self.engine.store.guarantees)
            )

    def _fresh(self, target: str, owner: str, length: float, rest: float) -> RunRecord:
        about = notes(target, Phase.RUNNING)
        return RunRecord(target, owner, secret(), self.wall(), about, Phase.RUNNING, length, rest)

    def _granted(self, found: Found) -> Found:
        waited, given = self.engine.clock.now() - found.sent, token(found.record.born)
        self.engine.marks.note(found.record.key.family, given)
        self.engine.emit(Granted(found.run.scope, found.run.holder, given, waited))
        return found

    # Looking.

    async def check(self, target: str, owner: str | None, cooldown: float | None) -> None:
        """Raise if the target is taken or rests; a store that does not answer is no reason to raise."""
        self.engine.check_open()
        key = self.engine.names.guard(self.name_of(target))
        target, who, asked = _target(target), None if owner is None else _owner(owner), _asked(cooldown)
        try:
            seen = await self.engine.store.load(key)
        except StoreError as error:
            fields = log_fields(target, who or self.engine.holder, None)
            _log.warning("nobody could say whether %r is free, so it passes the check: %s", target, error, extra=fields)
            return
        run = read_run(seen)
        if seen is None or (run is not None and run.holder == who and run.scope == target):
            return
        verdict = self._judged(seen, run, target, asked)
        if verdict.standing is not Standing.FREE:
            raise self._refusal(target, who or self.engine.holder, seen, run, verdict, active=True)

    async def resume(self, target: str, owner: str) -> Found | None:
        """The run that the owner has on the target, in whatever phase."""
        self.engine.check_open()
        key, who, sent = self.engine.names.guard(self.name_of(target)), _owner(owner), self.engine.clock.now()
        seen = await self.engine.store.load(key)
        run = read_run(seen)
        if seen is None or run is None or (run.scope, run.holder) != (target, who):
            return None
        over = self._judged(seen, run, target, None).standing is Standing.FREE
        return None if over else Found(seen, run, sent, adopted=True)

    async def inspect(self, target: str) -> RunInfo | None:
        """What the store says of a target's run."""
        self.engine.check_open()
        name = self.name_of(target)
        seen = await self.engine.store.load(self.engine.names.guard(name))
        if seen is None:
            return None
        run = read_run(seen)
        verdict = self._judged(seen, run, target, None)
        return None if verdict.standing is Standing.FREE else _info(name, target, seen, run, verdict)

    async def free(self, target: str, reason: str) -> bool:
        """Remove whatever run the target has."""
        self.engine.check_open()
        name, why = self.name_of(target), check_text("reason", reason)
        names = self.engine.names
        freed = [await self._free(key, name, target, why) for key in (names.guard(name), names.interval(name))]
        return any(freed)

    async def _free(self, key: Key, name: str, target: str, reason: str) -> bool:
        for _ in range(TRIES):
            seen = await self.engine.store.load(key)
            if seen is None:
                return False
            run = read_run(seen)
            if run is not None and run.scope != target:
                raise self._refusal(target, self.engine.holder, seen, run, Verdict(Standing.RUNNING))
            if not isinstance(await self.engine.store.swap(key, seen, None, None), Conflict):
                told = _info(name, target, seen, run, Verdict(Standing.RUNNING))
                self.engine.emit(Revoked(target, told.owner, told.token, reason, forced=True))
                return True
        raise restless(target)

    # Judging.

    def _judged(self, seen: Record, run: RunRecord | None, target: str, asked: float | None) -> Verdict:
        """How the target stands. What cannot be read, or is another target's, is in the way while it is there."""
        if run is None or run.scope != target:
            return Verdict(Standing.RUNNING)
        return judge(run, sight(seen, self.wall(), self.engine.store.guarantees), asked, self.max_skew)

    def _refusal(
        self,
        target: str,
        asker: str,
        seen: Record | None,
        run: RunRecord | None,
        verdict: Verdict,
        *,
        active: bool = False,
    ) -> NotAcquired:
        holder = run.holder if run else None
        self.engine.emit(Busy(target, asker, holder, gave_up=True))
        if run is not None and verdict.standing is Standing.RESTING:
            return RecentlyRemediated(target, holder=run.holder, ago=verdict.ago, retry_after=verdict.left)
        left = seen.left if seen else None
        other = run.scope if run is not None and run.scope != target else None
        return ResourceBusy(
            target,
            holder=holder,
            expires_in=left,
            retry_after=retry_after(left, chance()),
            active=active,
            other=other,
        )


def _target(given: str) -> str:
    return check_text("target", given)


def _asked(given: float | None) -> float | None:
    return None if given is None else checked_rest("cooldown", given)


def _owner(given: str) -> str:
    return check_text("owner", given, HOLDER_MAX)


def _may_be_applied(error: BaseException) -> bool:
    """Whether a request that ended so, or was cancelled, may have reached the store."""
    return error.applied is not False if isinstance(error, StoreUnavailable) else not isinstance(error, Exception)


def _is_own(run: RunRecord, fresh: RunRecord, *, adopts: bool) -> bool:
    """Whether a record in the way is what the asker began itself, on this very target, and has not finished."""
    same = run.secret == fresh.secret or (adopts and run.holder == fresh.holder)
    return same and run.scope == fresh.scope and run.phase is Phase.RUNNING


def _info(name: str, target: str, seen: Record, run: RunRecord | None, verdict: Verdict) -> RunInfo:
    if run is None:
        return RunInfo(target, name, "(unreadable)", Phase.RUNNING, token(seen.born), 0.0, None, 0.0, seen.left)
    ended = None if run.phase is Phase.RUNNING else run.ended
    left = verdict.left if verdict.standing is Standing.RESTING else seen.left
    return RunInfo(run.scope, name, run.holder, run.phase, token(seen.born), run.since, ended, run.rest, left)
