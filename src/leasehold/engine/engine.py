"""The engine of one client: everything its facade can ask for, in either colour.

It owns the heartbeat, the doubt list and the list of who holds what in this
process. State changes are plain code; the store call comes after.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import socket
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, cast

from leasehold.engine.acquire import acquire
from leasehold.engine.attempt import Ask
from leasehold.engine.doubt import Doubt, Doubts
from leasehold.engine.events import Doubted, Event, Lost, Observer, Released, log_fields
from leasehold.engine.fork import survive
from leasehold.engine.grant import FORKED, Grant, is_ours, reservation
from leasehold.engine.heartbeat import Heartbeat
from leasehold.engine.line import Crowds
from leasehold.engine.local import Local
from leasehold.engine.marks import Marks
from leasehold.engine.presence import call_next, take
from leasehold.errors import AlreadyHeld, ClientClosed, StoreError, StoreUnavailable
from leasehold.model import Conflict, Key, Record, Renewal, Swap
from leasehold.rules.arguments import flag
from leasehold.rules.line import TICKET, lock_of, ticket_ttl, tickets_of
from leasehold.rules.names import Names
from leasehold.rules.overlap import conflicts
from leasehold.rules.tokens import PASSES

if TYPE_CHECKING:
    from leasehold.engine.runtime import Runtime
    from leasehold.stores.base import Store
    from leasehold.wires.clock import Clock

HOLDER_MAX = 256
LOOK_UP = 2.0

_log = logging.getLogger("leasehold")


class Engine:
    """What holding means, for one client."""

    def __init__(
        self,
        store: Store,
        runtime: Runtime,
        names: Names,
        *,
        holder: str | None,
        timeout: float,
        observers: Iterable[Observer],
        local_passes: int = PASSES - 1,
    ) -> None:
        self.store: Store = store
        self.runtime: Runtime = runtime
        self.clock: Clock = runtime.clock
        self.names: Names = names
        self._named = holder
        self.holder: str = holder or default_holder()
        self._observers = tuple(observers)
        # Who holds what, by key; and which parts of a resource, by family.
        self._kept: dict[tuple[Key, object], Grant] = {}
        self._parts: dict[tuple[str, object], set[Grant]] = {}
        self._mutex = threading.Lock()
        self.closed: str | None = None
        self.doubts: Doubts = Doubts(store, self.clock, self._doubted)
        self.heartbeat: Heartbeat = Heartbeat(
            store, runtime, self.doubts, timeout=timeout, lose=self.lose, emit=self.emit
        )
        self.crowds: Crowds = Crowds()
        self.marks: Marks = Marks()
        self.local: Local = Local(self, local_passes)
        survive(self)

    # Holding.

    async def acquire(self, ask: Ask, *, reentrant: bool) -> Grant:
        """A grant for what is asked; see `acquire.py` and `presence.py`. No thread or task waits for itself."""
        flag("reentrant", reentrant)
        mine = self._mine(ask)
        if mine is None:
            if ask.claim is not None:
                return await take(self, ask, ask.claim)
            if ask.fair or not ask.lines_up or ask.retry is not None:
                return await acquire(self, ask)
            return await self.local.acquire(ask)
        if not reentrant or (ask.claim is not None and mine.hold.claim != ask.claim):
            raise AlreadyHeld(ask.scope, mine.token)
        mine.depth += 1
        return mine

    def _mine(self, ask: Ask) -> Grant | None:
        """What the calling thread or task holds already, and would wait for in vain."""
        me = self.runtime.me()
        if ask.claim is None:
            kept = self._kept.get((ask.key, me))
            return kept if kept is not None and kept.loss() is None else None
        # Two of its permits are not in each other's way, unless it takes the last one from itself.
        held = set[Grant]() if ask.claim.permits else self._parts.get((ask.key.family, me), set())
        claims = ((grant, grant.hold.claim) for grant in held if grant.loss() is None)
        return next((grant for grant, claim in claims if claim is not None and conflicts(claim, ask.claim)), None)

    async def renew(self, grant: Grant) -> Renewal:
        """Extend trust now instead of at the next beat."""
        self.check_open()
        self.runtime.check_here()
        if grant.loss() is not None:
            return Renewal.LOST
        await self.heartbeat.claim(grant)
        if grant.loss() is not None:
            # A beat under way had it, and met its end: what that left us with is revoked, and must not be prolonged.
            self.heartbeat.unclaim(grant)
            return Renewal.LOST
        answer = (await self.heartbeat.renew([grant]))[0]
        if grant.loss() is None:
            self.heartbeat.add(grant)
        return answer

    async def release(self, grant: Grant) -> bool:
        """Let go. True if our record was removed, False if it was gone already.

        Belief ends before the store is asked; if the store does not answer, the
        record is in doubt, and a second call asks again. A closed client has let go of
        everything it could.
        """
        if grant.gone or self.closed is not None or grant.loss() == FORKED:
            return False
        self.runtime.check_here()
        if grant.depth > 1:
            grant.depth -= 1
            return True
        # Whatever happens to the caller from here on, the store is asked.
        return await self.runtime.finish(self._let_go(grant))

    async def release_after(self, grant: Grant, last: Swap) -> Record | Conflict:
        """Write another record of the family, then let go: one request, where the store can. The answer is the other's.

        A lost lease is no reason not to write: whether the record is still what we made of it, the swap tells. If the
        store does not answer, the lease is kept, so that nobody comes in between: ask again, or give it back.
        The caller sees to it that this is run to its end: another task for that would cost as much as the request.
        """
        self.check_open()
        self.runtime.check_here()
        if grant.loss() is not None:
            answer = await self.store.swap(last.key, last.expect, last.value, last.ttl)
            await self.give_back(grant)
            return answer
        return await self._release_after(grant, last)

    async def _release_after(self, grant: Grant, last: Swap) -> Record | Conflict:
        await self.heartbeat.claim(grant)
        try:
            # The other first: whoever finds the lease gone must find what it was for.
            asks = [last, Swap(grant.key, grant.record, None, None)]
            said, left = cast("list[Record | Conflict]", await self.store.together(asks))
            if not isinstance(left, Conflict):
                grant.released = grant.gone = True
                self._drop(grant)
                self._end(grant)
        finally:
            self.heartbeat.unclaim(grant)
        if grant.gone:
            self.emit(Released(grant.scope, grant.hold.holder, grant.token, True, self.clock.now() - grant.acquired))
        else:
            # Revoked in place, moved by a write whose reply was lost, or not there any more.
            await self.give_back(grant)
        return said

    async def _let_go(self, grant: Grant) -> bool:
        removed: bool | None = None
        try:
            passed = await self.local.pass_on(grant)
            if passed:
                self._drop(grant)
                self._end(grant)
            removed = passed or await self._release(grant)
        finally:
            self.local.ended(grant)
            held_for = self.clock.now() - grant.acquired
            self.emit(Released(grant.scope, grant.hold.holder, grant.token, removed, held_for))
        return removed

    async def _release(self, grant: Grant) -> bool:
        grant.released = True
        self._drop(grant)
        self._end(grant)
        try:
            if self.local.is_worn(grant):
                grant.awaited = await self._is_awaited(grant)
            removed = await self._remove(grant)
            grant.gone = True
        except StoreUnavailable:
            self.doubt(grant.key, grant.hold.secret, grant.ttl)
            raise
        return removed

    async def _is_awaited(self, grant: Grant) -> bool:
        """Whether others stand in line; True where the store itself sees to that."""
        return self.store.guarantees.bequeaths or bool(tickets_of(await self.store.scan(grant.key.family)))

    async def give_back(self, grant: Grant) -> None:
        """Release what came too late for whoever wanted it."""
        # Told to the observers; the lease ends by its ttl.
        with contextlib.suppress(StoreError):
            await self.release(grant)

    async def _remove(self, grant: Grant) -> bool:
        await self.heartbeat.claim(grant)
        try:
            answer = await self._give_up(grant)
            if isinstance(answer, Conflict) and answer.record is not None and is_ours(answer.record, grant.hold):
                # Ours, at a later revision: revoked in place, or moved by a write whose reply was lost.
                answer = await self.store.swap(grant.key, answer.record, None, None)
        finally:
            self.heartbeat.unclaim(grant)
        return not isinstance(answer, Conflict)

    async def _give_up(self, grant: Grant) -> Record | Conflict:
        """Delete the record; or, if others stand in line, keep the lock for the first of them."""
        limits, ticket, claim = self.store.guarantees, grant.ticket, grant.hold.claim
        if claim is not None and claim.permits:
            return await call_next(self, grant, claim)
        left = Swap(grant.key, grant.record, None, None)
        if limits.bequeaths and (ticket is not None or grant.awaited):
            return await self._bequeath(left, ticket)
        if grant.awaited:
            left = left._replace(value=reservation(grant.hold), ttl=ticket_ttl(limits))
        if ticket is None:
            return await self.store.swap(left.key, left.expect, left.value, left.ttl)
        # The lock first: who is next is called by the end of the ticket, and must find it free.
        await self.heartbeat.claim(ticket)
        answer, _ = await self.store.together([left, Swap(ticket.key, ticket.record, None, None)])
        return cast("Record | Conflict", answer)

    async def _bequeath(self, left: Swap, ticket: Grant | None) -> Record | Conflict:
        """Delete the record and our ticket; the store sees to it that the first in line has it at the same moment."""
        if ticket is not None:
            await self.heartbeat.claim(ticket)
            left = left._replace(tells=ticket.key)
        (answer,) = await self.store.together([left._replace(heirs=TICKET)])
        return cast("Record | Conflict", answer)

    async def tear(self, ticket: Grant) -> None:
        """Remove a ticket."""
        await self.heartbeat.claim(ticket)
        await self.store.swap(ticket.key, ticket.record, None, None)

    # Looking and repairing.

    async def watch(
        self, key: Key, seen: Record | None, until: float, withdrawn: Callable[[], bool] | None = None
    ) -> Record | None:
        """The store's watch. Who may withdraw looks up from it now and then, and returns once it has withdrawn."""
        if withdrawn is None:
            return await self.store.watch(key, seen, until)
        while not withdrawn():
            look_up = min(until, self.clock.now() + LOOK_UP)
            await self.store.watch(key, seen, look_up)
            if look_up >= until or self.clock.now() < look_up:
                break
        return None

    # Keeping and losing: plain code.

    def keep(self, grant: Grant, keeper: object) -> None:
        """A grant begins: the heartbeat keeps it, and its keeper may not wait for it."""
        self.marks.note(grant.key.family, grant.token)
        self._keep(grant, keeper)
        self.heartbeat.add(grant)

    def adopt(self, grant: Grant) -> None:
        """The calling thread or task becomes the keeper of a lease another one acquired."""
        self.check_open()
        if grant.loss() is None:
            self._unkeep(grant)
            self._keep(grant, self.runtime.me())

    def exchange(self, grant: Grant, fresh: Grant) -> None:
        """A grant goes on as another one, which its keeper was given for it."""
        keeper = grant.keeper
        self._drop(grant)
        self._drop(fresh)
        grant.become(fresh)
        self.keep(grant, keeper)

    def _keep(self, grant: Grant, keeper: object) -> None:
        grant.keeper = keeper
        with self._mutex:
            self._kept[grant.key, keeper] = grant
            if grant.hold.claim is not None:
                self._parts.setdefault((grant.key.family, keeper), set()).add(grant)

    def _unkeep(self, grant: Grant) -> None:
        place = (grant.key.family, grant.keeper)
        with self._mutex:
            if self._kept.get((grant.key, grant.keeper)) is grant:
                del self._kept[grant.key, grant.keeper]
            if place in self._parts:
                self._parts[place].discard(grant)
                if not self._parts[place]:
                    del self._parts[place]

    def lose(self, grant: Grant, reason: str) -> None:
        """A grant ends against our will: mark it, then tell everybody, once."""
        # The beat and the watch may both have noticed.
        with self._mutex:
            if grant.lost is not None or grant.released:
                return
            grant.lost = reason
        self._drop(grant)
        if grant.is_ticket:
            return
        self.emit(Lost(grant.scope, grant.hold.holder, grant.token, reason))
        self._end(grant)
        self.local.ended(grant)

    def doubt(self, key: Key, secret: str, ttl: float) -> None:
        """A write of unknown outcome: have the heartbeat look for it now."""
        self.doubts.add(key, secret, ttl)
        self.heartbeat.ring()

    def emit(self, event: Event) -> None:
        """Tell the observers. One that fails is reported and does not disturb anybody."""
        for observer in self._observers:
            try:
                observer(event)
            except Exception:  # noqa: BLE001  reported; a bad observer must not cost anybody a lease
                fields = log_fields(event.scope, event.holder, getattr(event, "token", None))
                _log.exception("an observer failed on %r", event, extra=fields)

    def _drop(self, grant: Grant) -> None:
        self.heartbeat.forget(grant)
        self._unkeep(grant)

    def _end(self, grant: Grant) -> None:
        for tell in list(grant.on_end):
            tell()

    def _doubted(self, doubt: Doubt, *, cleared: bool) -> None:
        self.emit(Doubted(self.names.text(doubt.key), self.holder, cleared))

    # Beginning and end.

    async def close(self) -> None:
        """Release what is held, look once for what is in doubt, and let go of the store."""
        if self.closed is not None:
            return
        self.runtime.check_here()
        # First: whoever is still acquiring is told, and leaves nothing that would have to be released.
        self.closed = "the client was closed; connect again"
        self.local.close()
        await self._release_all()
        if len(self.doubts):
            await self.doubts.clear()
        self.heartbeat.close()
        if self.heartbeat.helper is not None:
            self.heartbeat.helper.close()
        await self.store.close()
        await self.runtime.close()

    async def _release_all(self) -> None:
        answers = True
        held = self.heartbeat.held()
        for grant in held:
            if grant.is_ticket:
                self.heartbeat.forget(grant)
                self.doubts.add(grant.key, grant.hold.secret, grant.ttl)
                if self.store.guarantees.bequeaths:
                    self.doubts.add(lock_of(grant.key), grant.hold.secret, grant.ttl)
        for grant in held:
            if grant.is_ticket:
                continue
            if not answers:
                # One timeout is enough: the rest ends by its ttl.
                self.lose(grant, "the client was closed while the store did not answer")
                continue
            try:
                await self.runtime.finish(self._let_go(grant))
            except StoreError:
                answers = False  # told to the observers as a release without an answer

    def after_fork_in_child(self) -> None:
        """Nothing is held here; threads and their locks stayed behind."""
        self.closed = self.closed or self.runtime.after_fork
        self._kept, self._parts = {}, {}
        self._mutex = threading.Lock()
        self.doubts.forget()
        self.heartbeat.reset()
        self.local.reset()
        self.marks.reset()
        self.holder = self._named or default_holder()

    def check_open(self) -> None:
        """Raise ClientClosed once the client was closed."""
        if self.closed is not None:
            raise ClientClosed(self.closed)


def default_holder() -> str:
    """Who we are, for people: the pod where there is one, else host and process; and a random part."""
    pod, namespace = os.environ.get("POD_NAME"), os.environ.get("POD_NAMESPACE")
    if pod:
        return f"{namespace}/{pod}" if namespace else pod
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"
