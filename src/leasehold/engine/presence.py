"""Getting a part of something that many share: be there, look who was there before, and wait for whoever is in the way.

One record is one's presence: a place in line while somebody is in the way, and the hold
from then on, with its birth as the token. So two requests when nobody is, and no record to
fight over. It is created before the look: who was born before is seen, and who was
born later sees us (`rules/overlap.py`). While it waits it lives for a ticket's short time.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, cast

from leasehold.engine.attempt import Ask, Asking, Withdrawn
from leasehold.engine.events import Granted
from leasehold.engine.grant import Grant, is_ours, is_revoked, read_hold, write_hold
from leasehold.errors import AcquireTimeout, InvalidInput, StoreUnavailable, StoreWentBack, WouldDeadlock
from leasehold.model import Conflict, Key, Record, Scan, Swap
from leasehold.rules.backoff import Retry
from leasehold.rules.line import ticket_ttl
from leasehold.rules.overlap import Claim, Present, holders, in_the_way, windows, would_wait_for_itself
from leasehold.wires.chance import chance

if TYPE_CHECKING:
    from leasehold.engine.engine import Engine

# Where whoever gives a permit back calls the next one; and how many it calls at most.
CALL = "call/"
CALLS = 8


async def take(engine: Engine, ask: Ask, claim: Claim) -> Grant:
    """The grant, or AcquireTimeout when `wait` is over, or StoreUnavailable, or StoreWentBack."""
    attempt = _Presence(engine, ask, claim)
    try:
        if ask.retry is not None:
            return await attempt.again_and_again(ask.retry)
        return await attempt.in_line()
    except (AcquireTimeout, InvalidInput, StoreWentBack, WouldDeadlock):
        await engine.runtime.finish(attempt.leave())
        raise
    finally:
        attempt.abandon()


def presents(records: Sequence[Record]) -> list[Present]:
    """Everybody who is there. What cannot be read may want anything."""
    found = []
    for record in records:
        if not _is_call(record):
            hold = read_hold(record)
            found.append(Present(record.key.member, record.born, (hold.claim if hold else None) or Claim()))
    return found


class _Presence(Asking):
    """One acquisition of a part of a resource."""

    def __init__(self, engine: Engine, ask: Ask, claim: Claim) -> None:
        super().__init__(engine, ask)
        self.claim = claim
        self.key = ask.key
        self.place: Grant | None = None
        # Whether it is renewed, at a ticket's pace.
        self.waits = False
        # Since when there may be a record of which we do not know.
        self.unsure: float | None = None

    async def in_line(self) -> Grant:
        """Stay until nobody is in the way."""
        while True:
            self.check()
            try:
                found = await self.look()
                ways = self.ways(found)
                grant = await self.granted() if ways == [] else None
                if ways and self.place is not None:
                    self.busy(ways[-1])
                    await self.settle_down(self.place)
            except StoreUnavailable as error:
                await self.pause(error)
                continue
            if ways is None:
                await self.pause(self.vanished())
                continue
            self.failures = 0
            if grant is not None:
                return grant
            if ways:
                await self.wait_for(ways, found)

    async def again_and_again(self, retry: Retry) -> Grant:
        """Come, look, and leave at once if somebody is in the way; again after the pauses of a policy."""
        tries = 0
        while True:
            self.check()
            try:
                ways = self.ways(await self.look())
                grant = await self.granted() if ways == [] else None
                if grant is not None:
                    return grant
                await self.tear()
            except StoreUnavailable as error:
                await self.pause(error)
                continue
            if ways is None:
                await self.pause(self.vanished())
            elif ways:
                tries += 1
                self.busy(ways[-1], out_of_tries=tries == retry.attempts)
                await self.sleep(retry.delay(tries - 1, chance()))

    def vanished(self) -> StoreUnavailable:
        """Our record ended before we looked: we come again, as long as there is patience."""
        self.drop()
        return StoreUnavailable(f"the store's answers come later than a ttl of {self.ask.ttl:g} s allows")

    def check(self) -> None:
        """Whether it is still wanted, by a client that is open."""
        self.engine.check_open()
        if self.ask.withdrawn is not None and self.ask.withdrawn():
            raise Withdrawn

    async def look(self) -> list[Record]:
        """Who is there; comes first, if we are not there ourselves."""
        scan = Scan(self.key.family, () if self.claim.replaces else windows(self.claim))
        if self.place is not None and self.place.loss() is None:
            return await self.engine.store.scan(scan.family, scan.windows)
        self.drop()
        sent = self.engine.clock.now()
        self.unsure = sent if self.unsure is None else self.unsure
        made, found = await self.engine.store.together(
            [Swap(self.key, None, write_hold(self.hold), self.ask.ttl), scan]
        )
        self.keep(cast("Record | Conflict", made), sent)
        return cast("list[Record]", found)

    def keep(self, made: Record | Conflict, sent: float) -> None:
        """Be there: since now, or since a try whose answer was lost."""
        record = made.record if isinstance(made, Conflict) else made
        if record is None or not is_ours(record, self.hold) or is_revoked(record):
            return
        if isinstance(made, Conflict) and self.unsure is not None:
            sent = self.unsure
        self.place = Grant(self.engine.clock, record, self.hold, record.ttl or self.ask.ttl, is_ticket=True)
        self.place.trust(sent, self.engine.heartbeat.chance)

    def ways(self, found: Sequence[Record]) -> list[Record] | None:
        """The records in our way, the first born first; None if our own is not there."""
        everybody = presents(found)
        me = next((one for one in everybody if one.member == self.key.member), None)
        if me is None or self.place is None:
            return None
        self.check_permits(everybody)
        if self.claim.replaces and would_wait_for_itself(everybody, me):
            raise WouldDeadlock(self.ask.scope)
        members = [one.member for one in in_the_way(everybody, me)]
        by_member = {record.key.member: record for record in found}
        return [by_member[member] for member in members]

    def check_permits(self, everybody: Sequence[Present]) -> None:
        """All who use a semaphore must mean the same one."""
        other = next((one.claim.permits for one in everybody if one.claim.permits != self.claim.permits), None)
        if self.claim.permits and other is not None:
            remedy = f"others who use {self.ask.scope!r} now say {other}; agree on one number, or use another name"
            raise InvalidInput("permits", self.claim.permits, remedy)

    async def granted(self) -> Grant | None:
        """Hold it: the place in line becomes the hold."""
        engine, ask, place = self.engine, self.ask, self.place
        if place is None:
            return None
        await engine.heartbeat.claim(place)
        try:
            grant = place.promoted(ask.ttl, ask.max_hold)
        finally:
            engine.heartbeat.unclaim(place)
        if grant.loss() is not None:
            # The answer came too late to be believed.
            raise StoreUnavailable(f"the store's answers come later than a ttl of {place.ttl:g} s allows")
        engine.check_open()
        if grant.token <= self.mark:
            raise StoreWentBack(ask.scope, grant.token, self.mark)
        self.unsure = None
        self.drop()
        engine.keep(grant, engine.runtime.me())
        engine.emit(Granted(ask.scope, ask.holder, grant.token, grant.acquired - self.started))
        return grant

    async def settle_down(self, place: Grant) -> None:
        """Wait, from now on for a ticket's short time without being renewed."""
        if self.waits:
            return
        engine = self.engine
        place.ttl = min(ticket_ttl(engine.store.guarantees), self.ask.ttl)
        sent = engine.clock.now()
        ((renewal, fresh),) = await engine.store.touch([(place.record, place.ttl)])
        if not renewal or fresh is None:
            self.drop()
            return
        place.record = fresh
        place.trust(sent, engine.heartbeat.chance)
        engine.heartbeat.add(place)
        self.waits = True

    async def wait_for(self, ways: Sequence[Record], found: Sequence[Record]) -> None:
        """Sleep until the nearest of those in the way is gone; or, for a permit, until we are called."""
        if not self.claim.permits:
            nearest = ways[-1]
            short = ticket_ttl(self.engine.store.guarantees)
            # One that waits itself may have come so lately that it is not yet as short-lived as those are.
            waits = nearest.left is not None and nearest.key.member not in {
                one.member for one in holders(presents(found))
            }
            await self.watch(nearest.key, nearest, min(nearest.left or short, short) if waits else nearest.left)
            return
        call = Key(self.key.family, CALL + self.key.member)
        seen = next((record for record in found if record.key == call), None)
        # No longer than a ticket lives: whoever should have called may be gone without it.
        left = [ticket_ttl(self.engine.store.guarantees), *(way.left for way in ways if way.left is not None)]
        await self.watch(call, seen, min(left))

    # Leaving.

    async def leave(self) -> None:
        """Give the place back."""
        try:
            await self.tear()
        except StoreUnavailable:
            return  # left in doubt: see `abandon`

    async def tear(self) -> None:
        """Remove our record."""
        place = self.place
        if place is None:
            return
        await self.engine.heartbeat.claim(place)
        self.drop()
        await self.engine.store.swap(place.key, place.record, None, None)
        self.unsure = None

    def abandon(self) -> None:
        """Leave at once: what may be left of us is looked for and removed. Plain code."""
        self.drop()
        if self.unsure is not None:
            self.unsure = None
            self.engine.doubt(self.key, self.hold.secret, self.ask.ttl)

    def drop(self) -> None:
        if self.place is not None:
            self.engine.heartbeat.forget(self.place)
        self.place, self.waits = None, False


# Giving a permit back.


async def call_next(engine: Engine, grant: Grant, claim: Claim) -> Record | Conflict:
    """Give a permit back, and call whoever has one now."""
    family = grant.key.family
    answer, scanned = await engine.store.together([Swap(grant.key, grant.record, None, None), Scan(family)])
    found, short = cast("list[Record]", scanned), ticket_ttl(engine.store.guarantees)
    called = {record.key.member.removeprefix(CALL): record for record in found if _is_call(record)}
    calls = [Swap(Key(family, CALL + member), None, b"called", short) for member in _next(found, called, claim, short)]
    if grant.key.member in called:
        own = called[grant.key.member]
        calls.append(Swap(own.key, own, None, None))
    if calls:
        await engine.store.together(calls)
    return cast("Record | Conflict", answer)


def _next(found: Sequence[Record], called: Container[str], claim: Claim, short: float) -> list[str]:
    """Who has a permit now and may not know it: the last who have one, as far as they still live like those in line.

    More than one, if several gave theirs back at the same moment: each of them saw the others gone.
    """
    there = [record for record in found if not _is_call(record)]
    last = [] if len(there) < claim.permits else there[max(claim.permits - CALLS, 0) : claim.permits]
    unaware = takewhile(lambda one: one.key.member not in called and (one.ttl or 0) <= short, reversed(last))
    return [record.key.member for record in unaware]


def _is_call(record: Record) -> bool:
    return record.key.member.startswith(CALL)
