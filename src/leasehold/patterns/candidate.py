"""One candidate in an election: what `Election` means, once, for both colours.

Leading is holding one lease, under a name of the candidate's own. So everything
said of leases holds of leaders: no two believe to lead at one instant, belief
ends 0.9 ttl after the last renewal that was answered was *sent* (a renewal that
hangs cannot prolong it), and each term has a larger token than those before.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

import msgspec

from leasehold.engine.asks import candidacy
from leasehold.engine.attempt import BACKOFF, Withdrawn
from leasehold.engine.engine import HOLDER_MAX
from leasehold.engine.events import log_fields
from leasehold.engine.grant import Grant, describe, read_hold
from leasehold.errors import AlreadyHeld, ClientClosed, LeaseLost, StoreError, StoreUnavailable, StoreWentBack
from leasehold.model import Key, Record
from leasehold.rules.names import check_text
from leasehold.rules.timing import granted_ttl, seconds
from leasehold.wires.chance import chance

if TYPE_CHECKING:
    from leasehold.engine.engine import Engine

R = TypeVar("R")

# What the leader elections of Kubernetes use.
DEFAULT_TTL = 15.0
GLANCE = 0.2

_log = logging.getLogger("leasehold")


class Leader(msgspec.Struct, frozen=True):
    """Who leads, as the store shows it. `since` is the leader's own wall clock and decides nothing.

    `token` is None for a leader that has none: on Kubernetes a program that is not Leasehold may lead.
    """

    identity: str
    token: int | None
    since: float
    expires_in: float | None


class Candidate:
    """A name in an election, and the leadership it may have won."""

    def __init__(self, engine: Engine, name: str, identity: str | None, ttl: float) -> None:
        self.engine: Engine = engine
        self.name: str = check_text("name", name)
        self._identity = None if identity is None else check_text("identity", identity, HOLDER_MAX)
        self.ttl: float = granted_ttl(ttl, engine.store.guarantees)
        self.grant: Grant | None = None
        self.stopped: bool = False
        # Called when it is told to stop: from any thread and from signal handlers, so they may wait for no lock.
        self.on_stop: list[Callable[[], None]] = []

    @property
    def identity(self) -> str:
        """The name it leads under."""
        # The client's changes in a forked child.
        return self._identity or self.engine.holder

    @property
    def key(self) -> Key:
        """Where the record lives that says who leads."""
        return self.engine.names.election(self.name)

    def leads(self) -> bool:
        """Whether it may believe, at this instant, that it leads."""
        return self.grant is not None and self.grant.loss() is None

    def stop(self) -> None:
        """No further campaign. Plain code: a signal handler may call it."""
        self.stopped = True
        for tell in list(self.on_stop):
            tell()

    # Leading.

    async def campaign(self, wait: float | None) -> Grant:
        """Win, or raise: AcquireTimeout when `wait` is over, ClientClosed when it was stopped."""
        try:
            return await self._campaign(wait)
        except Withdrawn:
            raise ClientClosed(f"the election {self.name!r} was stopped; make a new one to campaign again") from None

    async def lead(self, run: Callable[[Grant], Awaitable[R]]) -> R | None:
        """Win and run, again and again, until `run` comes to its end while we lead, or until stopped."""
        while (grant := await self._elected()) is not None:
            result, over = None, False
            try:
                result = await run(grant)
            except LeaseLost as error:
                # Of another lease: the worker's own affair.
                if error.token != grant.token or error.scope != grant.scope:
                    raise
                over = True
            finally:
                lost = not grant.released and grant.loss() is not None
                # Told to the observers already; the leadership ends by its ttl.
                with contextlib.suppress(StoreError):
                    await self.engine.release(grant)
            if not lost:
                return None if over else result
        return None

    async def resign(self) -> bool:
        """Let go: True if we led and our record was removed."""
        return False if self.grant is None else await self.engine.release(self.grant)

    async def _elected(self) -> Grant | None:
        """Campaign, through outages of the store; None once stopped."""
        tries = 0
        while True:
            try:
                return await self._campaign(None)
            except Withdrawn:
                return None
            except StoreUnavailable as error:
                self.warn(error)
            except StoreWentBack as error:
                # Leading with such a token would be in vain; once the store was repaired, somebody must lead again.
                self.warn(error)
                await self.engine.runtime.sleep(BACKOFF.delay(tries, chance()))
                tries += 1

    async def _campaign(self, wait: float | None) -> Grant:
        if self.grant is not None and self.grant.loss() is None:
            raise AlreadyHeld(
                self.grant.scope, self.grant.token, "it leads already; use that leadership, or resign() first"
            )
        ask = candidacy(self.engine, self.name, self.identity, ttl=self.ttl, wait=wait, withdrawn=lambda: self.stopped)
        self.grant = await self.engine.acquire(ask, reentrant=False)
        return self.grant

    # Being told.

    def is_over(self, grant: Grant) -> bool:
        """Whether whoever works for this leadership should end: it was lost or given up, or we were stopped."""
        return self.stopped or grant.loss() is not None

    async def over_within(self, grant: Grant, patience: float | None) -> bool:
        """Wait until it is over, for so many seconds at most."""
        runtime = self.engine.runtime
        runtime.check_here()
        until = None if patience is None else runtime.clock.now() + seconds("timeout", patience, 0, math.inf)
        signal = runtime.signal()
        grant.on_end.append(signal.set)
        try:
            while not self.is_over(grant) and (until is None or runtime.clock.now() < until):
                # `stop` wakes nobody: it may come from a signal handler, in the middle of this very wait.
                glance = runtime.clock.now() + GLANCE
                await signal.wait(glance if until is None else min(glance, until))
        finally:
            grant.on_end.remove(signal.set)
        return self.is_over(grant)

    @contextlib.contextmanager
    def telling(self, grant: Grant, tell: Callable[[], None]) -> Iterator[None]:
        """Within the block, have `tell` called when the leadership is over. It may be called twice."""
        grant.on_end.append(tell)
        self.on_stop.append(tell)
        try:
            yield
        finally:
            grant.on_end.remove(tell)
            self.on_stop.remove(tell)

    # Looking.

    async def leader(self) -> Leader | None:
        """Who leads now."""
        self.engine.check_open()
        return self.read(await self.engine.store.load(self.key))

    def read(self, record: Record | None) -> Leader | None:
        """Who leads by what the store shows."""
        if record is None:
            return None
        info, hold = describe(record, self.name), read_hold(record)
        # Who keeps no secret has written no token down either; each renewal would show another.
        token = None if hold is not None and not hold.secret else info.token
        return Leader(info.holder, token, info.since, info.expires_in)

    def warn(self, error: StoreError) -> None:
        """Say what is wrong with the store; those who go on nevertheless must not do so in silence."""
        fields = log_fields(self.engine.names.text(self.key), self.identity, None)
        _log.warning("the election %r goes on without its store: %s", self.name, error, extra=fields)


class Changes:
    """The leaders of an election, one after the other, as one observer sees them."""

    def __init__(self, candidate: Candidate) -> None:
        self._candidate = candidate
        self._begun = False
        self._failures = 0
        self.leader: Leader | None = None

    async def advance(self) -> bool:
        """Wait until there is something new to see in `leader`; False once there is nobody left to tell it to."""
        while not self._over():
            try:
                if await self._look():
                    return True
                self._failures = 0
            except Exception as error:  # noqa: BLE001  raised again, unless the client was closed under the request
                if self._over():
                    return False
                await self._bear(error)
        return False

    async def _look(self) -> bool:
        candidate, engine = self._candidate, self._candidate.engine
        record = await engine.store.load(candidate.key)
        leader = candidate.read(record)
        if not self._begun or _term(leader) != _term(self.leader):
            self._begun, self.leader = True, leader
            return True
        left = candidate.ttl if leader is None or leader.expires_in is None else max(leader.expires_in, 0.0)
        await engine.watch(candidate.key, record, engine.clock.now() + left, self._over)
        return False

    async def _bear(self, error: Exception) -> None:
        """An outage ends; nobody can say meanwhile who leads. Anything else is the caller's to know."""
        if not isinstance(error, StoreUnavailable):
            raise error
        if not self._failures:
            self._candidate.warn(error)
        await self._candidate.engine.runtime.sleep(BACKOFF.delay(self._failures, chance()))
        self._failures += 1

    def _over(self) -> bool:
        return self._candidate.stopped or self._candidate.engine.closed is not None


def _term(leader: Leader | None) -> tuple[str, int | None, float] | None:
    """What stays the same from a leader's election to its end, and is another one's at the next."""
    return None if leader is None else (leader.identity, leader.token, leader.since)
