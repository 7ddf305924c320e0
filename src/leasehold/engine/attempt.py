"""What everybody remembers who asks for a lease of any kind: since when, how often in vain, and for how long yet.

`acquire.py` asks for a name, which one record stands for; `presence.py` for a part of something that many share.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from leasehold.engine.events import Attempt, Busy
from leasehold.engine.grant import Hold, read_hold
from leasehold.errors import AcquireTimeout, StoreUnavailable
from leasehold.model import Key, Record
from leasehold.rules.backoff import Backoff, Retry, retry_after
from leasehold.rules.overlap import Claim
from leasehold.wires.chance import chance, secret

if TYPE_CHECKING:
    from leasehold.engine.engine import Engine

BACKOFF = Backoff()


class Withdrawn(Exception):
    """The caller no longer wants what it asked for."""


class Ask(msgspec.Struct, frozen=True):
    """What a caller wants, checked, and the name it is to be held under. `wait` None: as long as it takes.

    `withdrawn`, where there is one, is asked now and then; once it says True the attempt ends with Withdrawn.
    `lines_up`: who finds it busy stands in line, else all watch the lock. `fair`: not even a free one is taken
    past those who wait. `retry`: who finds it busy neither waits in line nor watches, but asks again after a pause.
    `claim`: which part of a resource is wanted; None for a plain name.
    """

    scope: str
    holder: str
    key: Key
    ttl: float
    wait: float | None
    metadata: dict[str, str]
    max_hold: float | None
    withdrawn: Callable[[], bool] | None = None
    lines_up: bool = True
    fair: bool = False
    retry: Retry | None = None
    claim: Claim | None = None


class Asking:
    """One acquisition and what it has to remember between tries."""

    def __init__(self, engine: Engine, ask: Ask, started: float | None = None) -> None:
        self.engine: Engine = engine
        self.ask: Ask = ask
        # Display data for people; no deadline is ever computed from it.
        wall = time.time()
        self.hold: Hold = Hold(ask.scope, ask.holder, secret(), wall, ask.metadata, claim=ask.claim)
        self.started: float = engine.clock.now() if started is None else started
        self.failures: int = 0
        self.failing_since: float = 0.0
        self.told_busy: bool = False
        # What was granted before we asked, so that ours must be larger.
        self.mark: int = engine.marks.of(ask.key.family)
        if started is None:
            engine.emit(Attempt(ask.scope, ask.holder))

    def busy(self, seen: Record, *, out_of_tries: bool = False) -> None:
        """Tell that somebody else has it, once; raise when our time is over."""
        engine, ask = self.engine, self.ask
        gave_up = out_of_tries or (ask.wait is not None and engine.clock.now() - self.started >= ask.wait)
        if not self.told_busy or gave_up:
            self.told_busy = True
            holder = read_hold(seen)
            engine.emit(Busy(ask.scope, ask.holder, holder.holder if holder else None, gave_up))
        if gave_up:
            raise turned_away(ask.scope, seen)

    async def wait_for_change(self, seen: Record) -> Record | None:
        """Sleep until the record ahead of us changes, or time is over; what its owner told us of, if it did."""
        return await self.watch(seen.key, seen, seen.left)

    async def watch(self, key: Key, seen: Record | None, left: float | None) -> Record | None:
        """Sleep until there is something else than what was seen, or time is over, or the time that is left of it."""
        engine, ask = self.engine, self.ask
        # Beneath every watch lies a poll bounded by the ttl, in case a wake-up is lost.
        until = engine.clock.now() + (ask.ttl if left is None else max(left, 0.0))
        if ask.wait is not None:
            until = min(until, self.started + ask.wait)
        try:
            return await engine.watch(key, seen, until, ask.withdrawn)
        except StoreUnavailable as error:
            await self.pause(error)
            return None

    async def sleep(self, seconds: float) -> None:
        """Let time pass, but not more than we have."""
        left = math.inf if self.ask.wait is None else self.started + self.ask.wait - self.engine.clock.now()
        await self.engine.runtime.sleep(max(min(seconds, left), 0.0))

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


def turned_away(scope: str, seen: Record | None) -> AcquireTimeout:
    """The error that says who holds it, for how long, and when to ask again."""
    hold, left = read_hold(seen), seen.left if seen else None
    return AcquireTimeout(
        scope,
        holder=hold.holder if hold else None,
        expires_in=left,
        retry_after=retry_after(left, chance()),
    )
