"""One who stands in line for a lock, from taking a ticket to giving it back.

A ticket is a record of its own with a short ttl, kept alive by the heartbeat.
Taking it and looking at the line is one request where the store can, in this
order: whatever happened before the look is seen, and what happens after it changes
what is watched. So no wake-up is lost. Whoever gets the lock keeps the ticket until
it lets go: who is next watches the ticket, and is called at that moment.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, cast

import msgspec

from leasehold.engine.grant import Grant, Hold, is_ours, write_hold
from leasehold.errors import StoreUnavailable
from leasehold.model import Conflict, Key, Record, Scan, Swap
from leasehold.rules.line import TICKET, View, read_line, ticket_key, ticket_ttl

if TYPE_CHECKING:
    from leasehold.engine.engine import Engine


CROWDS = 1024


class Crowds:
    """Where we lately met others: whoever asks there takes a ticket with the first request. Forgetting is safe."""

    def __init__(self) -> None:
        self._keys: dict[Key, None] = {}

    def __contains__(self, key: Key) -> bool:
        return key in self._keys

    def add(self, key: Key) -> None:
        """Somebody else was there."""
        self._keys[key] = None
        if len(self._keys) > CROWDS:
            # Another thread may have been quicker.
            self._keys.pop(next(iter(self._keys)), None)

    def discard(self, key: Key) -> None:
        """Nobody else was there."""
        self._keys.pop(key, None)


class Place:
    """A place in the line of one lock."""

    def __init__(self, engine: Engine, lock: Key, hold: Hold, ttl: float) -> None:
        self._engine = engine
        self._family = lock.family
        self._lock = lock
        self._key = ticket_key(lock, secrets.token_hex(8))
        # The same in the ticket as in the lock: where the store bequeaths, the one becomes the other.
        self.hold: Hold = msgspec.structs.replace(hold, ticket=self._key.member)
        self._ttl = ticket_ttl(engine.store.guarantees)
        if self._inherits:
            self._ttl = min(self._ttl, ttl)
        # Since when the lock may have become ours without our doing.
        self.since: float | None = None
        self._ticket: Grant | None = None
        # Whether a ticket may have been left of which we do not know.
        self._unsure = False

    async def look(self) -> View:
        """The line as it is now; takes a ticket if there is none.

        A ticket that ended, because we could not renew it, is taken anew, at the end of the line.
        """
        if self.is_kept:
            view = read_line(await self._engine.store.scan(self._family), self._key)
            if view.mine is not None:
                return view
        return (await self.enter())[0]

    async def enter(self, first: Swap | None = None) -> tuple[View, Record | Conflict | None]:
        """Take a ticket and look, in one request where the store can. `first` is tried before that, and answered."""
        self._drop()
        sent = self._engine.clock.now()
        self._unsure = True
        if self.since is None and self._inherits:
            self.since = sent
        asks: list[Swap | Scan] = [Swap(self._key, None, write_hold(self.hold), self._ttl), Scan(self._family)]
        *tried, made, found = await self._engine.store.together([first, *asks] if first else asks)
        record = made.record if isinstance(made, Conflict) else made
        if isinstance(record, Record) and is_ours(record, self.hold):
            self._keep(record, sent)
        view = read_line(cast("list[Record]", found), self._key)
        return view, cast("Record | Conflict", tried[0]) if tried else None

    @property
    def is_kept(self) -> bool:
        """Whether the place is still ours."""
        return self._ticket is not None and self._ticket.loss() is None

    def won(self, grant: Grant, view: View) -> None:
        """The lock is ours: the ticket is no longer renewed, and goes with the lock."""
        grant.ticket, grant.awaited = self._ticket, bool(view.ahead or view.behind)
        self._unsure = False
        self._drop()

    async def leave(self) -> None:
        """Give the ticket back."""
        if self._ticket is not None:
            try:
                await self._engine.tear(self._ticket)
                if self._inherits:
                    await self._renounce()
                self._unsure = False
            except StoreUnavailable:
                self._unsure = True
        self.abandon()

    def abandon(self) -> None:
        """Leave at once: what may be left of us is looked for and removed. Plain code."""
        self._drop()
        if self._unsure:
            self._unsure = False
            self._engine.doubt(self._key, self.hold.secret, self._ttl)
            if self._inherits:
                # Looked for second: without the ticket it cannot become ours any more.
                self._engine.doubt(self._lock, self.hold.secret, self._ttl)

    @property
    def _inherits(self) -> bool:
        return self._engine.store.guarantees.bequeaths

    async def _renounce(self) -> None:
        """Give up the lock, if it has become ours: without the ticket it cannot any more."""
        found = await self._engine.store.load(self._lock)
        if found is not None and is_ours(found, self.hold):
            await self._engine.store.together([Swap(self._lock, found, None, None, heirs=TICKET)])

    def _keep(self, record: Record, sent: float) -> None:
        engine = self._engine
        self._ticket = Grant(engine.clock, record, self.hold, record.ttl or self._ttl, is_ticket=True)
        self._ticket.trust(sent, engine.heartbeat.chance)
        engine.heartbeat.add(self._ticket)

    def _drop(self) -> None:
        if self._ticket is not None:
            self._engine.heartbeat.forget(self._ticket)
            self._ticket = None
