"""Getting a lease: one swap when it is free; else watch, and try again.

A try whose reply is lost is repeated with the same secret, and finds its own
hold. Whoever leaves without a grant (by timeout, error or cancellation) leaves
a note in the doubt list if a record may have been left behind. A grant is
believed only if its trust, counted from the *send*, has not ended meanwhile.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from leasehold.engine.events import Attempt, Busy, Granted
from leasehold.engine.grant import Grant, Hold, is_ours, is_revoked, read_hold, write_hold
from leasehold.errors import AcquireTimeout, StoreUnavailable
from leasehold.model import Conflict, Key, Record
from leasehold.rules.backoff import Backoff, retry_after
from leasehold.wires.chance import chance

if TYPE_CHECKING:
    from leasehold.engine.engine import Engine

BACKOFF = Backoff()


class Withdrawn(Exception):
    """The caller no longer wants what it asked for."""


class Ask(msgspec.Struct, frozen=True):
    """What a caller wants, checked, and the name it is to be held under. `wait` None: as long as it takes.

    `withdrawn`, where there is one, is asked now and then; once it says True the attempt ends with Withdrawn.
    """

    scope: str
    holder: str
    key: Key
    ttl: float
    wait: float | None
    metadata: dict[str, str]
    max_hold: float | None
    withdrawn: Callable[[], bool] | None = None


async def acquire(engine: Engine, ask: Ask) -> Grant:
    """The grant, or AcquireTimeout when `wait` is over, or StoreUnavailable."""
    attempt = _Attempt(engine, ask)
    try:
        while True:
            seen = await attempt.once()
            if isinstance(seen, Grant):
                return seen
            if seen is not None:
                await attempt.wait_for_change(seen)
    except BaseException:
        attempt.doubt()
        raise


class _Attempt:
    """One acquisition and what it has to remember between tries."""

    def __init__(self, engine: Engine, ask: Ask) -> None:
        self.engine = engine
        self.ask = ask
        # Display data for people; no deadline is ever computed from it.
        wall = time.time()
        self.hold = Hold(ask.scope, ask.holder, secrets.token_hex(16), wall, ask.metadata)
        self.value = write_hold(self.hold)
        self.started = engine.clock.now()
        # When the first write was sent of which we do not know whether it was applied.
        self.unsure: float | None = None
        self.failures = 0
        self.failing_since = 0.0
        self.told_busy = False
        engine.emit(Attempt(ask.scope, ask.holder))

    async def once(self) -> Grant | Record | None:
        """One try: the grant, or the record in the way, or None after a pause because the store failed."""
        self.engine.check_open()
        if self.ask.withdrawn is not None and self.ask.withdrawn():
            raise Withdrawn
        sent = self.engine.clock.now()
        sure = self.unsure is None
        first = self.unsure = sent if self.unsure is None else self.unsure
        try:
            answer = await self.engine.store.swap(self.ask.key, None, self.value, self.ask.ttl)
        except StoreUnavailable as error:
            if sure and error.applied is False:
                self.unsure = None
            await self.pause(error)
            return None
        self.failures = 0
        if not isinstance(answer, Conflict):
            return await self.granted(answer, sent)
        if answer.record is not None and is_ours(answer.record, self.hold) and not is_revoked(answer.record):
            return await self.granted(answer.record, first)
        if sure:
            self.unsure = None
        return answer.record

    async def granted(self, record: Record, sent: float) -> Grant | None:
        """Believe it, or have it renewed first if the reply came too late to be believed."""
        engine, ask = self.engine, self.ask
        grant = self.believe(record, sent)
        if grant is None:
            sent = engine.clock.now()
            try:
                ((renewal, fresh),) = await engine.store.touch([(record, ask.ttl)])
            except StoreUnavailable as error:
                await self.pause(error)
                return None
            grant = self.believe(fresh, sent) if renewal and fresh is not None else None
        if grant is None:
            await self.pause(StoreUnavailable(f"the store's answers come later than a ttl of {ask.ttl:g} s allows"))
            return None
        # Closed while we waited for the answer: nobody would renew it.
        engine.check_open()
        engine.keep(grant)
        engine.emit(Granted(ask.scope, ask.holder, grant.token, grant.acquired - self.started))
        return grant

    def believe(self, record: Record, sent: float) -> Grant | None:
        """The grant, unless trust in an answer to a request sent at `sent` has ended already."""
        grant = Grant(self.engine.clock, record, self.hold, record.ttl or self.ask.ttl, self.ask.max_hold)
        grant.trust(sent, self.engine.heartbeat.chance)
        return grant if grant.loss() is None else None

    async def wait_for_change(self, seen: Record) -> None:
        """Sleep until the record in the way changes, its time is over, or ours is."""
        engine, ask = self.engine, self.ask
        now = engine.clock.now()
        gave_up = ask.wait is not None and now - self.started >= ask.wait
        if not self.told_busy or gave_up:
            self.told_busy = True
            holder = read_hold(seen)
            engine.emit(Busy(ask.scope, ask.holder, holder.holder if holder else None, gave_up))
        if gave_up:
            raise turned_away(ask.scope, seen)
        # Beneath every watch lies a poll bounded by the ttl, in case a wake-up is lost.
        until = now + (ask.ttl if seen.left is None else max(seen.left, 0.0))
        if ask.wait is not None:
            until = min(until, self.started + ask.wait)
        try:
            await engine.watch(ask.key, seen, until, ask.withdrawn)
        except StoreUnavailable as error:
            await self.pause(error)

    async def pause(self, error: StoreUnavailable) -> None:
        """Back off while the store is down; raise once patience (`wait`, or one ttl) is over."""
        engine, ask = self.engine, self.ask
        now = engine.clock.now()
        if not self.failures:
            self.failing_since = self.started if ask.wait is not None else now
        left = self.failing_since + (ask.ttl if ask.wait is None else ask.wait) - now
        if left <= 0:
            raise error
        self.failures += 1
        await engine.runtime.sleep(min(BACKOFF.delay(self.failures - 1, chance()), left))

    def doubt(self) -> None:
        """Leaving without a grant: have whatever we may have left behind removed."""
        if self.unsure is not None:
            self.engine.doubt(self.ask.key, self.hold.secret, self.ask.ttl)


def turned_away(scope: str, seen: Record) -> AcquireTimeout:
    """The error that says who holds it, for how long, and when to ask again."""
    hold = read_hold(seen)
    return AcquireTimeout(
        scope,
        holder=hold.holder if hold else None,
        expires_in=seen.left,
        retry_after=retry_after(seen.left, chance()),
    )
