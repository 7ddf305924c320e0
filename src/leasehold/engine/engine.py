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
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

import msgspec

from leasehold.engine.acquire import Ask, acquire
from leasehold.engine.doubt import Doubt, Doubts
from leasehold.engine.events import Doubted, Event, Lost, Observer, Released, log_fields
from leasehold.engine.fork import survive
from leasehold.engine.grant import FORKED, Grant, is_ours, reservation
from leasehold.engine.heartbeat import Heartbeat
from leasehold.engine.line import Crowds
from leasehold.engine.local import Local
from leasehold.errors import AlreadyHeld, ClientClosed, StoreError, StoreUnavailable
from leasehold.model import Conflict, Key, Name, Record, Renewal, Swap
from leasehold.rules.arguments import flag, policy, whole
from leasehold.rules.backoff import Retry
from leasehold.rules.line import TICKET, lock_of, ticket_ttl, tickets_of
from leasehold.rules.names import Names, check_metadata, check_text, scope_of
from leasehold.rules.timing import TIMEOUT_MAX, checked_hold, checked_wait, granted_ttl, seconds
from leasehold.rules.tokens import PASSES
from leasehold.stores.open import open_store

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
        self._kept: dict[tuple[Key, object], Grant] = {}
        self._mutex = threading.Lock()
        self.closed: str | None = None
        self.doubts: Doubts = Doubts(store, self.clock, self._doubted)
        self.heartbeat: Heartbeat = Heartbeat(
            store, runtime, self.doubts, timeout=timeout, lose=self.lose, emit=self.emit
        )
        self.crowds: Crowds = Crowds()
        self.local: Local = Local(self, local_passes)
        survive(self)

    # Asking.

    def ask(
        self,
        scope: str | Name,
        ttl: float,
        wait: float | None,
        metadata: Mapping[str, str] | None,
        max_hold: float | None,
        *,
        fair: bool = False,
        retry: Retry | None = None,
    ) -> Ask:
        """What a caller wants, with every argument checked. Nothing is written before this."""
        self.check_open()
        flag("fair", fair)
        policy("retry", retry, fair=fair)
        named = scope_of(scope)
        length = granted_ttl(ttl, self.store.guarantees)
        return Ask(
            named.text,
            self.holder,
            self.names.lock(named),
            length,
            checked_wait(wait),
            check_metadata(metadata),
            checked_hold(max_hold, length),
            fair=fair,
            retry=retry,
        )

    def candidacy(self, name: str, identity: str, ttl: float, wait: float | None, withdrawn: Callable[[], bool]) -> Ask:
        """What a candidate in an election wants: the record that says who leads, under the candidate's name."""
        self.check_open()
        key = self.names.election(name)
        return Ask(self.names.text(key), identity, key, ttl, checked_wait(wait), {}, None, withdrawn, lines_up=False)

    async def acquire(self, ask: Ask, *, reentrant: bool) -> Grant:
        """A grant for what is asked; see `acquire.py`. The same thread or task never waits for itself."""
        flag("reentrant", reentrant)
        mine = self._kept.get((ask.key, self.runtime.me()))
        if mine is None or mine.loss() is not None:
            if ask.fair or not ask.lines_up or ask.retry is not None:
                return await acquire(self, ask)
            return await self.local.acquire(ask)
        if not reentrant:
            raise AlreadyHeld(ask.scope, mine.token)
        mine.depth += 1
        return mine

    async def acquire_all(self, asks: Sequence[Ask]) -> list[Grant]:
        """All of them or none, each once, in the one order that everybody keeps: so no two wait for each other."""
        started, grants = self.clock.now(), list[Grant]()
        try:
            for ask in sorted({ask.key: ask for ask in asks}.values(), key=lambda ask: ask.key):
                left = None if ask.wait is None else max(ask.wait - (self.clock.now() - started), 0.0)
                grants.append(await self.acquire(msgspec.structs.replace(ask, wait=left), reentrant=False))
        except BaseException:
            for grant in reversed(grants):
                await self.runtime.finish(self.give_back(grant))
            raise
        return grants

    async def release_all(self, grants: Sequence[Grant]) -> bool:
        """Let go of all of them, the last one first; what the store does not answer for is raised at the end."""
        answers: list[bool] = []
        failed: list[StoreError] = []
        for grant in reversed(grants):
            try:
                answers.append(await self.release(grant))
            except StoreError as error:
                failed.append(error)
        if failed:
            raise failed[0]
        return all(answers)

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
        limits, ticket = self.store.guarantees, grant.ticket
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

    def key_of(self, scope: str | Name) -> Key:
        """Where the record of a scope lives, for those who only look."""
        self.check_open()
        return self.names.lock(scope_of(scope))

    # Keeping and losing: plain code.

    def keep(self, grant: Grant, keeper: object) -> None:
        """A grant begins: the heartbeat keeps it, and its keeper may not wait for it."""
        grant.keeper = keeper
        self._kept[grant.key, grant.keeper] = grant
        self.heartbeat.add(grant)

    def adopt(self, grant: Grant) -> None:
        """The calling thread or task becomes the keeper of a lease another one acquired."""
        self.check_open()
        if grant.loss() is None:
            self._kept.pop((grant.key, grant.keeper), None)
            grant.keeper = self.runtime.me()
            self._kept[grant.key, grant.keeper] = grant

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
        if self._kept.get((grant.key, grant.keeper)) is grant:
            del self._kept[grant.key, grant.keeper]

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
        self._kept = {}
        self._mutex = threading.Lock()
        self.doubts.forget()
        self.heartbeat.reset()
        self.local.reset()
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


async def open_engine(
    url: str,
    runtime: Runtime,
    *,
    holder: str | None,
    prefix: str | None,
    tenant: str | None,
    timeout: float,  # noqa: ASYNC109  bounds each request to the store, not this call
    helper: bool,
    local_passes: int,
    observers: Iterable[Observer],
) -> Engine:
    """Check every argument, then reach the store."""
    names = Names(prefix, tenant)
    flag("helper", helper)
    whole("local_passes", local_passes, 0, PASSES - 1)
    patience = seconds("timeout", timeout, 0.01, TIMEOUT_MAX)
    if holder is not None:
        holder = check_text("holder", holder, HOLDER_MAX)
    store = open_store(url, timeout=patience, colour=runtime)
    engine = Engine(
        store, runtime, names, holder=holder, timeout=patience, observers=observers, local_passes=local_passes
    )
    await store.open()
    if helper:
        from leasehold.engine.helper import start_helper  # noqa: PLC0415  brings subprocess along; few need it

        try:
            engine.heartbeat.helper = await start_helper(url, patience, runtime, engine)
        except BaseException:
            await store.close()
            raise
    return engine
