"""The engine of one client: everything its facade can ask for, in either colour.

It owns the heartbeat, the doubt list and the list of who holds what in this
process. State changes are plain code; the store call comes after.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec

from leasehold.engine.acquire import Ask, acquire
from leasehold.engine.doubt import Doubt, Doubts
from leasehold.engine.events import Doubted, Event, Lost, Observer, Released, Revoked, log_fields
from leasehold.engine.fork import survive
from leasehold.engine.grant import FORKED, Grant, describe, is_ours, read_hold, write_hold
from leasehold.engine.heartbeat import Heartbeat
from leasehold.errors import AlreadyHeld, ClientClosed, StoreDamaged, StoreError, StoreUnavailable
from leasehold.model import KEEP, Conflict, Key, LeaseInfo, Name, Record, Renewal
from leasehold.rules.arguments import flag, whole
from leasehold.rules.names import Names, check_metadata, check_text, scope_of
from leasehold.rules.timing import TIMEOUT_MAX, checked_hold, checked_wait, granted_ttl, seconds
from leasehold.stores.open import open_store

if TYPE_CHECKING:
    from leasehold.engine.runtime import Runtime
    from leasehold.stores.base import Store
    from leasehold.wires.clock import Clock

PAGE = 500
HOLDER_MAX = 256
BREAK_TRIES = 5
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
        survive(self)

    # Asking.

    def ask(
        self,
        scope: str | Name,
        ttl: float,
        wait: float | None,
        metadata: Mapping[str, str] | None,
        max_hold: float | None,
    ) -> Ask:
        """What a caller wants, with every argument checked. Nothing is written before this."""
        self.check_open()
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
        )

    def candidacy(self, name: str, identity: str, ttl: float, wait: float | None, withdrawn: Callable[[], bool]) -> Ask:
        """What a candidate in an election wants: the record that says who leads, under the candidate's name."""
        self.check_open()
        key = self.names.election(name)
        return Ask(self.names.text(key), identity, key, ttl, checked_wait(wait), {}, None, withdrawn)

    async def acquire(self, ask: Ask, *, reentrant: bool) -> Grant:
        """A grant for what is asked; see `acquire.py`. The same thread or task never waits for itself."""
        flag("reentrant", reentrant)
        mine = self._kept.get((ask.key, self.runtime.me()))
        if mine is None or mine.loss() is not None:
            return await acquire(self, ask)
        if not reentrant:
            raise AlreadyHeld(ask.scope, mine.token)
        mine.depth += 1
        return mine

    async def renew(self, grant: Grant) -> Renewal:
        """Extend trust now instead of at the next beat."""
        self.check_open()
        self.runtime.check_here()
        if grant.loss() is not None:
            return Renewal.LOST
        await self.heartbeat.claim(grant)
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
        grant.released = True
        self._drop(grant)
        self._end(grant)
        removed: bool | None = None
        try:
            removed = await self._remove(grant)
            grant.gone = True
        except StoreUnavailable:
            self.doubt(grant.key, grant.hold.secret, grant.ttl)
            raise
        finally:
            held_for = self.clock.now() - grant.acquired
            self.emit(Released(grant.scope, grant.hold.holder, grant.token, removed, held_for))
        return removed

    async def _remove(self, grant: Grant) -> bool:
        await self.heartbeat.claim(grant)
        try:
            answer = await self.store.swap(grant.key, grant.record, None, None)
            if isinstance(answer, Conflict) and answer.record is not None and is_ours(answer.record, grant.hold):
                # Ours, at a later revision: revoked in place, or moved by a write whose reply was lost.
                answer = await self.store.swap(grant.key, answer.record, None, None)
        finally:
            self.heartbeat.unclaim(grant)
        return not isinstance(answer, Conflict)

    # Looking and repairing.

    async def watch(
        self, key: Key, seen: Record | None, until: float, withdrawn: Callable[[], bool] | None = None
    ) -> None:
        """The store's watch. Who may withdraw looks up from it now and then, and returns once it has withdrawn."""
        if withdrawn is None:
            await self.store.watch(key, seen, until)
            return
        while not withdrawn():
            look_up = min(until, self.clock.now() + LOOK_UP)
            await self.store.watch(key, seen, look_up)
            if look_up >= until or self.clock.now() < look_up:
                return

    def key_of(self, scope: str | Name) -> Key:
        """Where the record of a scope lives, for those who only look."""
        self.check_open()
        return self.names.lock(scope_of(scope))

    async def inspect(self, key: Key) -> LeaseInfo | None:
        """What the store says of one key."""
        record = await self.store.load(key)
        return describe(record, self.names.text(key)) if record else None

    async def list(self) -> list[LeaseInfo]:
        """Everything held under this client's prefix and tenant."""
        self.check_open()
        found: list[LeaseInfo] = []
        last: Key | None = None
        while True:
            page = await self.store.page(self.names.root, last, PAGE)
            found += [describe(record, self.names.text(record.key)) for record in page]
            if len(page) < PAGE:
                return found
            last = page[-1].key

    async def break_lease(self, key: Key, reason: str, *, force: bool) -> LeaseInfo | None:
        """Revoke in place, or free at once. Returns what was broken, or None if nothing is held."""
        flag("force", force)
        for _ in range(BREAK_TRIES):
            record = await self.store.load(key)
            if record is None:
                return None
            answer = await self._break(record, reason, force=force)
            if not isinstance(answer, Conflict):
                told = describe(record, self.names.text(key))
                self.emit(Revoked(told.scope, told.holder, told.token, reason, force))
                return told
        raise StoreUnavailable(f"{key.family!r} changed {BREAK_TRIES} times while it was being broken; try again")

    async def _break(self, record: Record, reason: str, *, force: bool) -> Record | Conflict:
        if force:
            return await self.store.swap(record.key, record, None, None)
        hold = read_hold(record)
        if hold is None:
            raise StoreDamaged(
                f"the record of {record.key.family!r} was not written by Leasehold; use force=True to free it"
            )
        revoked = write_hold(msgspec.structs.replace(hold, revoked=reason))
        return await self.store.swap(record.key, record, revoked, KEEP)

    async def collect(self, limit: int) -> int:
        """Delete expired records, a page at a time."""
        self.check_open()
        whole("limit", limit, 0)
        gone = 0
        while gone < limit:
            some = await self.store.collect(min(PAGE, limit - gone))
            gone += some
            if some < PAGE:
                break
        return gone

    # Keeping and losing: plain code.

    def keep(self, grant: Grant) -> None:
        """A grant begins: the heartbeat keeps it, and its keeper may not wait for it."""
        grant.keeper = self.runtime.me()
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
        self.emit(Lost(grant.scope, grant.hold.holder, grant.token, reason))
        self._end(grant)

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
        for grant in self.heartbeat.held():
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
    observers: Iterable[Observer],
) -> Engine:
    """Check every argument, then reach the store."""
    names = Names(prefix, tenant)
    flag("helper", helper)
    patience = seconds("timeout", timeout, 0.01, TIMEOUT_MAX)
    if holder is not None:
        holder = check_text("holder", holder, HOLDER_MAX)
    store = open_store(url, timeout=patience, colour=runtime)
    engine = Engine(store, runtime, names, holder=holder, timeout=patience, observers=observers)
    await store.open()
    if helper:
        from leasehold.engine.helper import start_helper  # noqa: PLC0415  brings subprocess along; few need it

        try:
            engine.heartbeat.helper = await start_helper(url, patience, runtime, engine)
        except BaseException:
            await store.close()
            raise
    return engine
