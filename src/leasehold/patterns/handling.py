"""Handling a key once: what `Once` means, for both colours.

    load the record      it is completed or failed: replay it. That is all a duplicate costs
    take the lease       somebody has it: wait for the record to change, raise, or skip
    write the record     running; if it was running already, its worker is gone, and the outcome unknown
    …the work…           under the lease's token, which the heartbeat keeps
    write the record     completed, and let go of the lease, in one request

The lease comes before the record and goes after it, so a running record without a lease is one whose worker is gone.
Every write names the state it is made of: a worker that was overtaken changes nothing.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from leasehold.engine.attempt import Ask
from leasehold.engine.events import Handled
from leasehold.engine.grant import FORKED, Grant
from leasehold.errors import (
    AcquireTimeout,
    ClientClosed,
    FinishedLate,
    InvalidInput,
    OutcomeUnknown,
    ResultNotKept,
    RunFailed,
    StillRunning,
    StoreError,
    StoreUnavailable,
)
from leasehold.model import KEEP as KEEP_END
from leasehold.model import Conflict, Key, Record, Swap, Unrenewed
from leasehold.patterns.work import BaseBegun, Kept, Policy
from leasehold.rules.arguments import choice, flag, function, whole
from leasehold.rules.backoff import Backoff, retry_after
from leasehold.rules.cooldown import rest_ttl
from leasehold.rules.names import LABEL_MAX, LOCK, check_text
from leasehold.rules.once import (
    ENDED,
    NOTHING,
    ONCE,
    OnceRecord,
    State,
    check_same,
    checked_fingerprint,
    failure_of,
    following,
    freed,
    is_declared,
    is_of,
    read_once,
    write_once,
)
from leasehold.rules.timing import LONGEST, checked_wait, granted_ttl, seconds
from leasehold.wires.chance import chance, secret

if TYPE_CHECKING:
    from leasehold.engine.engine import Engine

# A store that does not answer while the end of a run is to be written is asked again, for as long as a lease lasts.
AGAIN = Backoff(base=0.05, cap=1.0)
LOOK_AGAIN = 1.0

T = TypeVar("T")


class Begun(BaseBegun):
    """Work that this client has begun, with the record as it was last written."""

    __slots__ = ("record", "step")

    def __init__(self, grant: Grant, record: Record, said: OnceRecord, policy: Policy) -> None:
        super().__init__(grant, said, policy)
        self.record: Record = record
        # The step that is being done.
        self.step: str | None = None


class Handling:
    """Everything that one `Once` handles."""

    def __init__(self, engine: Engine, name: str, policy: Policy) -> None:
        self.engine: Engine = engine
        # Names and keys that run into each other when they are put together must not meet.
        name = check_text("name", name, LABEL_MAX).replace("%", "%25").replace("/", "%2F")
        self._kind = f"once/{name}"
        self.policy: Policy = self.checked(policy)
        self.wall: Callable[[], float] = time.time

    def checked(self, policy: Policy) -> Policy:
        """Every option, before anything is asked of the store."""
        limits = self.engine.store.guarantees
        flag("rerun", policy.rerun)
        choice("duplicates", policy.duplicates, "wait", "raise", "skip")
        for field, errors in (("definite", policy.definite), ("retry", policy.retry)):
            _check_errors(field, errors)
        whole("limit", policy.limit, 1)
        if policy.on_replay is not None:
            function("on_replay", policy.on_replay)
        return msgspec.structs.replace(
            policy,
            ttl=granted_ttl(policy.ttl, limits),
            keep=seconds("keep", policy.keep, limits.ttl_min, LONGEST),
            wait=checked_wait(policy.wait),
        )

    def changed(self, changes: dict[str, Any]) -> Policy:
        """The options of one run."""
        try:
            policy = msgspec.structs.replace(self.policy, **changes)
        except TypeError as error:
            raise InvalidInput("options", sorted(changes), f"must be options of Once: {error}") from error
        return self.checked(policy) if changes else policy

    def key_of(self, key: str) -> Key:
        """Where the record of a key lives."""
        return Key(self.engine.names.family(self._kind, check_text("key", key)), ONCE)

    # Beginning.

    async def begin(self, key: str, fingerprint: str | None, policy: Policy) -> Begun | Kept:
        """Work to be done now, or what it came to when it was done; raises what `run` raises."""
        self.engine.check_open()
        place, print_ = self.key_of(key), checked_fingerprint(fingerprint)
        started = self.engine.clock.now()
        while True:
            found = await self.engine.store.load(place)
            said = read_once(found)
            if said is not None:
                check_same(said, key, print_)
                if said.state in ENDED:
                    self.tell(said, "replayed")
                    return replay(said, policy)
            grant = await self.alone(place, key, policy)
            if isinstance(grant, AcquireTimeout):
                if policy.duplicates == "skip":
                    return Kept(None)
                await self.wait(place, found, grant, policy, started)
                continue
            begun = await self._begin(grant, place, found, self._fresh(key, print_, grant), policy)
            if begun is not None:
                return begun

    async def alone(self, place: Key, key: str, policy: Policy) -> Grant | AcquireTimeout:
        """The lease of whoever does the work, or who has it."""
        engine = self.engine
        lease = Key(place.family, LOCK)
        ask = Ask(key, engine.holder, lease, policy.ttl, 0.0, {}, None, lines_up=False)
        try:
            return await engine.acquire(ask, reentrant=False)
        except AcquireTimeout as busy:
            return busy

    async def wait(
        self, place: Key, found: Record | None, busy: AcquireTimeout, policy: Policy, started: float
    ) -> None:
        """Sleep until the record changes, or the lease of whoever works on it may have ended."""
        engine = self.engine
        now = engine.clock.now()
        left = None if policy.wait is None else started + policy.wait - now
        if policy.duplicates == "raise" or (left is not None and left <= 0):
            raise StillRunning(busy.scope, retry_after(busy.expires_in, chance()))
        # Not for longer: of a lease that goes without a word about the work nobody tells.
        longest = LOOK_AGAIN if busy.expires_in is None else min(busy.expires_in, LOOK_AGAIN)
        until = now + (longest if left is None else min(longest, left))
        await engine.store.watch(place, found, until)

    def _fresh(self, key: str, print_: str, grant: Grant) -> OnceRecord:
        since = self.wall()
        return OnceRecord(key, self.engine.holder, secret(), since, State.RUNNING, grant.token, fingerprint=print_)

    async def _begin(
        self, grant: Grant, place: Key, found: Record | None, fresh: OnceRecord, policy: Policy
    ) -> Begun | None:
        """The work, once its record says that it runs; None if that changed before we had the lease."""
        engine, said = self.engine, following(read_once(found), fresh)
        if said.attempt > 1 and not policy.rerun:
            await self._refuse(grant, place, found, fresh.key)
            return None
        try:
            answer = await engine.store.swap(place, found, write_once(said), self.life(policy))
        except BaseException:
            await engine.runtime.finish(self._withdraw(grant, place, found, said))
            raise
        if isinstance(answer, Conflict):
            await engine.give_back(grant)
            return None
        if grant.loss() is not None:
            # It took so long that somebody else may have the lease by now; nothing was run.
            await engine.runtime.finish(self._withdraw(grant, place, found, said))
            return None
        self.tell(said, "begun")
        return Begun(grant, answer, said, policy)

    async def _refuse(self, grant: Grant, place: Key, found: Record | None, key: str) -> None:
        """Raise OutcomeUnknown, unless whoever worked on it was done between our look at it and our grant."""
        engine = self.engine
        try:
            later = await engine.store.load(place)
        finally:
            await engine.runtime.finish(engine.give_back(grant))
        if found is not None and later is not None and later.revision == found.revision:
            raise OutcomeUnknown(key)

    async def _withdraw(self, grant: Grant, place: Key, found: Record | None, said: OnceRecord) -> None:
        """Nothing was run: whatever a write without an answer may have left is taken back, then the lease."""
        # A store that does not even answer this keeps what it may have: a run that nobody knows the outcome of.
        with contextlib.suppress(StoreError):
            there = await self.engine.store.load(place)
            if is_of(there, said):
                before = (None, None) if found is None else (found.value, KEEP_END)
                await self.engine.store.swap(place, there, *before)
        await self.engine.give_back(grant)

    # Ending.

    async def completed(self, begun: Begun, value: Any) -> Any:
        """Keep the result. Whatever becomes of that, the work is done: who did it is told so, and has its value."""
        begun.over = True
        result, unkept = encoded(value, begun.policy.limit)
        ended = self.wall()
        said = msgspec.structs.replace(begun.said, state=State.COMPLETED, ended=ended, result=result, unkept=unkept)
        record, unkept = self._fitted(said)
        try:
            await self._finish(begun, State.COMPLETED, record, begun.policy.ttl)
        except (StoreError, ClientClosed) as error:
            await self._leave(begun)
            raise ResultNotKept(said.key, f"the store did not take it: {error}", value) from error
        if unkept:
            raise ResultNotKept(said.key, unkept, value)
        return value

    def _fitted(self, said: OnceRecord) -> tuple[bytes, str]:
        """The record as the store takes it; and why it is without its result, if it is."""
        record, most = write_once(said), self.engine.store.guarantees.value_max
        if len(record) <= most:
            return record, said.unkept
        unkept = f"with it the record has {len(record)} bytes, more than the {most} that the store takes"
        return write_once(msgspec.structs.replace(said, result=NOTHING, unkept=unkept, steps=())), unkept

    async def failed(self, begun: Begun, error: BaseException) -> None:
        """Keep a definite failure, free what may be tried again, and leave everything else unknown.

        Once the outcome of any run of the key is unknown, a later one that may be tried again does not make it known.
        """
        begun.over = True
        policy, said = begun.policy, begun.said
        ended = msgspec.structs.replace(said, state=State.UNKNOWN, ended=self.wall(), failure=failure_of(error))
        final: OnceRecord | None = ended
        patience = 0.0
        if is_declared(error, policy.definite):
            final, patience = msgspec.structs.replace(ended, state=State.FAILED), policy.ttl
        elif is_declared(error, policy.retry) and said.attempt == 1:
            final, patience = freed(said), policy.ttl
        try:
            state = State.RETRY if final is None else final.state
            await self._finish(begun, state, None if final is None else write_once(final), patience)
        except (StoreError, ClientClosed):
            # Who called gets the error of the work. A record that says running, and no lease, is unknown as well.
            await self._leave(begun)
        except FinishedLate:
            # What changes nothing need not be told twice.
            if final is None or final.state is not State.UNKNOWN:
                raise

    async def _leave(self, begun: Begun) -> None:
        self.tell(begun.said, "unknown")
        await self.engine.give_back(begun.grant)

    async def _finish(self, begun: Begun, state: State, value: bytes | None, patience: float) -> None:
        """Write the end of the work, and let go of the lease."""
        answer = await self.again_and_again(lambda: self._end(begun, value), patience)
        if isinstance(answer, Conflict) and (answer.record.value if answer.record else None) != value:
            self.tell(begun.said, "late")
            raise FinishedLate(begun.said.key, begun.grant.token)
        self.tell(begun.said, "retried" if state is State.RETRY else state.value)

    async def _end(self, begun: Begun, value: bytes | None) -> Record | Conflict:
        """One try to write the end, and to let go in the same request."""
        key, life = begun.record.key, None if value is None else self.life(begun.policy)
        loss = begun.grant.loss()
        if loss == FORKED:
            # It is the parent's work.
            raise FinishedLate(begun.said.key, begun.grant.token)
        answer = await self.engine.release_after(begun.grant, Swap(key, begun.record, value, life))
        if isinstance(answer, Conflict) and answer.record is None and loss is None:
            # It took longer than a record is kept, and nobody else can have been here.
            return answer if value is None else await self.engine.store.swap(key, None, value, life)
        return await self.over_ours(begun, answer, value)

    async def over_ours(self, begun: Begun, answer: Record | Conflict, value: bytes | None) -> Record | Conflict:
        """Write it over what we wrote ourselves, by a request whose answer was lost."""
        there = answer.record if isinstance(answer, Conflict) else None
        if there is None or there.value == value or not is_of(there, begun.said):
            return answer
        return await self.engine.store.swap(there.key, there, value, None if value is None else self.life(begun.policy))

    async def again_and_again(self, ask: Callable[[], Coroutine[Any, Any, T]], patience: float) -> T:
        """The work is done: what it came to is worth asking again for, as long as a lease lasts."""
        engine, tries = self.engine, 0
        until = engine.clock.now() + patience
        while True:
            try:
                return await ask()
            except StoreUnavailable:
                if engine.clock.now() >= until:
                    raise
            await engine.runtime.sleep(AGAIN.delay(tries, chance()))
            tries += 1

    def life(self, policy: Policy) -> Unrenewed | None:
        """Of the record, as its store counts it."""
        return rest_ttl(policy.keep, self.engine.store.guarantees)

    def tell(self, said: OnceRecord, outcome: str) -> None:
        self.engine.emit(Handled(said.key, self.engine.holder, said.token, outcome))


def _check_errors(field: str, given: object) -> None:
    kinds = given if isinstance(given, tuple) else (None,)
    if not all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds):
        raise InvalidInput(field, given, "must be a tuple of classes of errors")


def encoded(value: Any, limit: int) -> tuple[msgspec.Raw, str]:
    """The result as it is kept; or why it is not."""
    try:
        encoded = msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        return NOTHING, f"it cannot be encoded as JSON: {error}"
    if len(encoded) > limit:
        return NOTHING, f"it has {len(encoded)} bytes, more than limit={limit}"
    return msgspec.Raw(encoded), ""


def replay(said: OnceRecord, policy: Policy) -> Kept:
    """What a record that is done says, for somebody else; raises the error it stands for."""
    hook = None if policy.on_replay is None else functools.partial(policy.on_replay, said.key)
    return Kept(_result(said, policy), hook)


def _result(said: OnceRecord, policy: Policy) -> Any:
    if said.state is State.FAILED and said.failure is not None:
        raise RunFailed(said.key, said.failure.kind, said.failure.message)
    if said.result == NOTHING:
        raise ResultNotKept(said.key, said.unkept or "it was not written")
    try:
        return msgspec.json.decode(said.result, type=policy.result)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise ResultNotKept(said.key, f"it is no {policy.result!r}: {error}") from error
