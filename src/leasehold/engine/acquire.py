"""Getting a lease: one swap when it is free; else stand in line until it is our turn.

A try whose reply is lost is repeated with the same secret, and finds its own
hold. Whoever leaves without a grant (by timeout, error or cancellation) leaves
a note in the doubt list if a record may have been left behind. A grant is
believed only if its trust, counted from the *send*, has not ended meanwhile.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, cast

import msgspec

from leasehold.engine.attempt import Ask, Asking, Withdrawn
from leasehold.engine.events import Granted
from leasehold.engine.grant import Grant, Hold, is_ours, is_reserved, is_revoked, read_hold, write_hold
from leasehold.engine.line import Place
from leasehold.errors import AcquireTimeout, StoreUnavailable, StoreWentBack
from leasehold.model import Conflict, Record, Swap
from leasehold.rules.backoff import Retry
from leasehold.rules.line import View
from leasehold.wires.chance import chance

if TYPE_CHECKING:
    from leasehold.engine.engine import Engine

# The line as one sees it who did not look.
NOBODY = View(None, None, (), 0)


async def acquire(engine: Engine, ask: Ask, started: float | None = None) -> Grant:
    """The grant, or AcquireTimeout when `wait` is over, or StoreUnavailable, or StoreWentBack.

    `started` is when it began to wait, if it did so already.
    """
    attempt = _Attempt(engine, ask, started)
    try:
        if ask.retry is not None:
            return await attempt.again_and_again(ask.retry)
        return await (attempt.in_line() if ask.fair else attempt.first_come())
    except (AcquireTimeout, StoreWentBack):
        await attempt.leave_line()
        raise
    finally:
        attempt.doubt()


class _Attempt(Asking):
    """One acquisition of a name."""

    def __init__(self, engine: Engine, ask: Ask, started: float | None) -> None:
        super().__init__(engine, ask, started)
        # When the first write was sent of which we do not know whether it was applied.
        self.unsure: float | None = None
        self.wrote: tuple[bytes, Hold] = (b"", self.hold)
        self.place: Place | None = None

    async def first_come(self) -> Grant:
        """Take it if it is free; else stand in line, or watch it where there is no line."""
        if self.ask.lines_up and self.ask.wait != 0 and self.ask.key in self.engine.crowds:
            return await self.in_line(trying=True)
        while True:
            seen = await self.once(None)
            if isinstance(seen, Grant):
                return seen
            if seen is None:
                continue
            self.busy(seen)
            if self.ask.lines_up:
                return await self.in_line()
            await self.wait_for_change(seen)

    async def again_and_again(self, retry: Retry) -> Grant:
        """Ask, and ask again after the pauses of a policy, as often as it says."""
        tries = 0
        while True:
            seen = await self.once(None)
            if isinstance(seen, Grant):
                return seen
            if seen is None:
                continue
            tries += 1
            self.busy(seen, out_of_tries=tries == retry.attempts)
            await self.sleep(retry.delay(tries - 1, chance()))

    async def in_line(self, *, trying: bool = False) -> Grant:
        """Take a ticket, and the lock when it is our turn; with `trying` also at once, if it is free."""
        place = self.place = Place(self.engine, self.ask.key, self.hold, self.ask.ttl)
        self.hold = place.hold
        left_to_us: Record | None = None
        while True:
            self.engine.check_open()
            try:
                if left_to_us is not None:
                    grant, view = await self.granted(left_to_us, _Write(self).first), NOBODY
                else:
                    grant, view = await self.enter(place) if trying else (None, await place.look())
            except StoreUnavailable as error:
                await self.pause(error)
                continue
            trying, left_to_us = False, None
            self.failures = 0
            if grant is None and view.mine is not None:
                grant, left_to_us = await self.step(view)
            if grant is not None:
                place.won(grant, view)
                self.note_crowd(view)
                return grant

    async def step(self, view: View) -> tuple[Grant | None, Record | None]:
        """Take it, if it is our turn; else wait for whoever is ahead, and for what it leaves to us."""
        if not self.is_our_turn(view):
            return None, await self.wait_behind(view)
        seen = await self.once(view.lock)
        if isinstance(seen, Grant) or seen is None:
            return seen, None
        if not is_reserved(seen):
            # Somebody was quicker, or wrote it by other means, and it is not to be seen in the line.
            self.busy(seen)
            await self.wait_for_change(seen)
        return None, None

    def is_our_turn(self, view: View) -> bool:
        """Whether nobody is ahead and it is free or kept for the first in line; or it is ours, and we did not know."""
        lock = read_hold(view.lock)
        if lock is not None and lock.secret == self.hold.secret:
            return lock.revoked is None
        return not view.ahead and (view.lock is None or (lock is not None and lock.reserved))

    async def wait_behind(self, view: View) -> Record | None:
        """Sleep until whoever is directly ahead of us is through. What it left to us, if we were told."""
        ahead = view.ahead[-1] if view.ahead else view.lock
        if ahead is None:
            return None
        self.busy(view.lock or ahead)
        told = await self.wait_for_change(ahead)
        return told if told is not None and told.key == self.ask.key and is_ours(told, self.hold) else None

    def note_crowd(self, view: View) -> None:
        """Remember whether others are about: the next of us then takes a ticket at once."""
        if view.behind or view.ahead or self.told_busy:
            self.engine.crowds.add(self.ask.key)
        else:
            self.engine.crowds.discard(self.ask.key)

    async def enter(self, place: Place) -> tuple[Grant | None, View]:
        """Try and take a ticket in one request. The grant, if it was free, and the line."""
        attempt = _Write(self)
        try:
            view, answer = await place.enter(Swap(self.ask.key, None, write_hold(self.hold), self.ask.ttl))
        except StoreUnavailable as error:
            attempt.failed(error)
            raise
        seen = await attempt.settled(cast("Record | Conflict", answer))
        return seen if isinstance(seen, Grant) else None, view

    async def once(self, over: Record | None) -> Grant | Record | None:
        """One try, over nothing or a reservation.

        The grant, or the record in the way, or None: it is gone by now, or the store failed and we have paused.
        """
        self.engine.check_open()
        if self.ask.withdrawn is not None and self.ask.withdrawn():
            raise Withdrawn
        write = _Write(self)
        if over is not None and is_ours(over, self.hold):
            return await self.granted(over, write.first)
        hold = self.hold if over is None else msgspec.structs.replace(self.hold, granted=over.revision)
        self.wrote = (write_hold(hold), hold)
        try:
            answer = await self.engine.store.swap(self.ask.key, over, self.wrote[0], self.ask.ttl)
        except StoreUnavailable as error:
            write.failed(error)
            await self.pause(error)
            return None
        self.failures = 0
        return await write.settled(answer)

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
        if grant.token <= self.mark:
            await engine.runtime.finish(self.give_back(grant))
            raise StoreWentBack(ask.scope, grant.token, self.mark)
        self.unsure = None
        engine.keep(grant, engine.runtime.me())
        engine.emit(Granted(ask.scope, ask.holder, grant.token, grant.acquired - self.started))
        return grant

    def believe(self, record: Record, sent: float) -> Grant | None:
        """The grant, unless trust in an answer to a request sent at `sent` has ended already."""
        # As it was written, mostly by our last try: it says by which reservation it was granted.
        hold = self.wrote[1] if record.value == self.wrote[0] else read_hold(record) or self.hold
        # What was bequeathed is short, and is renewed to what was asked for.
        ttl = None if self.engine.store.guarantees.bequeaths else record.ttl
        grant = Grant(self.engine.clock, record, hold, ttl or self.ask.ttl, self.ask.max_hold)
        grant.trust(sent, self.engine.heartbeat.chance)
        return grant if grant.loss() is None else None

    async def give_back(self, grant: Grant) -> None:
        """Nobody was told that it is held. Where the store does not answer, it stays in doubt."""
        with contextlib.suppress(StoreUnavailable):
            await self.engine.store.swap(grant.key, grant.record, None, None)
            self.unsure = None

    async def leave_line(self) -> None:
        """Whoever comes behind need not wait for our ticket to end."""
        if self.place is not None:
            await self.engine.runtime.finish(self.place.leave())

    def doubt(self) -> None:
        """At the end, without a grant: have whatever we may have left behind removed."""
        if self.place is not None:
            self.place.abandon()
        if self.unsure is not None:
            self.engine.doubt(self.ask.key, self.hold.secret, self.ask.ttl)


class _Write:
    """One write of the lock that is about to be sent, and what is known of its fate."""

    def __init__(self, attempt: _Attempt) -> None:
        self._attempt = attempt
        self._sent = attempt.engine.clock.now()
        self._sure = attempt.unsure is None
        self.first: float = self._sent if attempt.unsure is None else attempt.unsure
        attempt.unsure = self.first
        if attempt.place is not None and attempt.place.since is not None:
            self.first = min(self.first, attempt.place.since)

    def failed(self, error: StoreUnavailable) -> None:
        """No answer: unless it certainly did nothing, it may have been done."""
        if self._sure and error.applied is False:
            self._attempt.unsure = None

    async def settled(self, answer: Record | Conflict) -> Grant | Record | None:
        """The grant, or what is in the way: which may be our own, of a try whose answer was lost."""
        attempt = self._attempt
        if not isinstance(answer, Conflict):
            return await attempt.granted(answer, self._sent)
        found = answer.record
        if found is not None and is_ours(found, attempt.hold) and not is_revoked(found):
            return await attempt.granted(found, self.first)
        if self._sure:
            attempt.unsure = None
        return found
