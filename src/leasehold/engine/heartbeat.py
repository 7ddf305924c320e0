"""One heartbeat for all leases of a client.

Two coroutines, so that neither waits for the other: the *beat* renews whatever
is due, in batches, and may hang in a store that does not answer; the *watch*
only looks at the clock and tells a loss when trust ends, whatever the beat is
doing. A grant is claimed before it is renewed or released: the two never race.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from leasehold.engine.doubt import Doubts
from leasehold.engine.events import Event, Lagged, Renewed, Unanswered
from leasehold.engine.grant import Grant, is_ours, read_hold
from leasehold.errors import StoreUnavailable
from leasehold.model import Record, Renewal
from leasehold.rules.timing import is_late, next_try
from leasehold.wires.chance import chance

if TYPE_CHECKING:
    from leasehold.engine.helper import Helper
    from leasehold.engine.runtime import Runtime
    from leasehold.stores.base import Store

GONE = "the store no longer has it"
TAKEN = "somebody else holds it now"


class Heartbeat:
    """Renews, and tells losses. `lose` is the engine's: it marks the grant and tells everybody."""

    def __init__(
        self,
        store: Store,
        runtime: Runtime,
        doubts: Doubts,
        *,
        timeout: float,
        lose: Callable[[Grant, str], None],
        emit: Callable[[Event], None],
    ) -> None:
        self._store = store
        self._runtime = runtime
        self._doubts = doubts
        self._timeout = timeout
        self._lose = lose
        self._emit = emit
        self.lag: float = 0.0
        # One for all that is granted or renewed between two beats: what is renewed together stays together.
        self.chance: float = chance()
        self.reset()

    def reset(self) -> None:
        """Nothing held, nothing running: at the start, and in a forked child."""
        self.helper: Helper | None = None
        self._mutex = threading.Lock()
        self._grants: set[Grant] = set()
        self._beat_at = self._watch_at = math.inf
        self._running = self._closed = False
        self._ring = self._runtime.signal()
        self._alarm = self._runtime.signal()

    # What the engine calls: plain code.

    def add(self, grant: Grant) -> None:
        """Keep this grant alive from now on."""
        if self.helper is not None and not grant.is_ticket:
            self.helper.add(grant)
        due = grant.due if grant.slot is None else math.inf
        with self._mutex:
            self._grants.add(grant)
            beat, watch = due < self._beat_at, grant.deadline < self._watch_at
            self._beat_at = min(self._beat_at, due)
            self._watch_at = min(self._watch_at, grant.deadline)
        self._start()
        if beat:
            self._ring.set()
        if watch:
            self._alarm.set()

    def forget(self, grant: Grant) -> None:
        """No longer renew it and no longer watch it."""
        with self._mutex:
            self._grants.discard(grant)

    def ring(self) -> None:
        """Beat now: there is something in doubt."""
        self._start()
        self._ring.set()

    def held(self) -> list[Grant]:
        """All grants it keeps alive."""
        with self._mutex:
            return list(self._grants)

    def close(self) -> None:
        """Let both coroutines end."""
        self._closed = True
        self._ring.set()
        self._alarm.set()

    # One lease at a time, for renew() and release().

    async def claim(self, grant: Grant) -> None:
        """Wait until nobody else renews or releases this grant, and be the one who may."""
        until = self._runtime.clock.now() + self._timeout
        while True:
            with self._mutex:
                if not grant.busy:
                    grant.busy = True
                    break
                if grant.idle is None:
                    grant.idle = self._runtime.signal()
                idle = grant.idle
            if not await idle.wait(until):
                raise StoreUnavailable(
                    f"a renewal of {grant.scope!r} has been waiting for the store for {self._timeout:g} s",
                    applied=False,
                )
        if grant.slot is not None and self.helper is not None:
            try:
                await self.helper.drop(grant, until)
            except BaseException:
                self.unclaim(grant)
                raise

    def unclaim(self, grant: Grant) -> None:
        """Let the next one."""
        with self._mutex:
            grant.busy = False
            idle, grant.idle = grant.idle, None
            due = grant in self._grants and grant.due < self._beat_at
        if idle is not None:
            idle.set()
        if due:
            self._ring.set()

    async def renew(self, grants: list[Grant]) -> list[Renewal]:
        """Renew claimed grants in one store call, settle each, and let them go."""
        try:
            clear = not self._store.guarantees.shared_expiry or await self._doubts.clear()
            sent = self._runtime.clock.now()
            answers = await self._touch(grants)
            if not clear:
                # An orphan may hang on the same session: this renewal kept it alive, so it must not count.
                answers = [(Renewal.UNKNOWN, None)] * len(grants)
            return [self._settle(grant, *answer, sent) for grant, answer in zip(grants, answers, strict=True)]
        finally:
            for grant in grants:
                self.unclaim(grant)

    async def _touch(self, grants: list[Grant]) -> list[tuple[Renewal, Record | None]]:
        try:
            return await self._store.touch([(grant.record, grant.ttl) for grant in grants])
        except Exception as error:  # noqa: BLE001  told to the observers; not even a store's bug may stop the heart
            for grant in grants:
                if grant.is_ticket:
                    continue
                self._emit(Unanswered(grant.scope, grant.hold.holder, grant.token, f"{type(error).__name__}: {error}"))
            return [(Renewal.UNKNOWN, None)] * len(grants)

    def _settle(self, grant: Grant, answer: Renewal, record: Record | None, sent: float) -> Renewal:
        ours = answer is Renewal.LOST and is_ours(record, grant.hold)
        hold = read_hold(record) if ours else None
        if ours and record is not None:
            grant.record = record
        if hold is not None and hold.revoked is None:
            # Our own write moved the revision and its reply was lost: renew what is there.
            answer = Renewal.HELD
        if answer is Renewal.LOST:
            grant.gone = not ours
            self._lose(grant, f"it was revoked: {hold.revoked}" if hold else TAKEN if record else GONE)
        elif answer is Renewal.RENEWED and record is not None and grant.loss() is None:
            grant.record = record
            grant.trust(sent, self.chance)
            if not grant.is_ticket:
                self._emit(Renewed(grant.scope, grant.hold.holder, grant.token))
        else:
            grant.due = grant.window = next_try(self._runtime.clock.now(), grant.deadline, grant.ttl)
        return answer

    # The two coroutines.

    def _start(self) -> None:
        with self._mutex:
            if self._running or self._closed:
                return
            self._running = True
        self._runtime.spawn(self._beat(), "leasehold-heartbeat")
        self._runtime.spawn(self._watch(), "leasehold-watch")

    async def _beat(self) -> None:
        while not self._closed:
            with self._mutex:
                self._ring.clear()
                due = self._beat_at = self._appointment(self._beat_at, self._next_beat())
            await self._ring.wait(None if due == math.inf else due)
            now = self._runtime.clock.now()
            if now > due:
                self._measure(now - due)
            self.chance = chance()
            if len(self._doubts):
                await self._doubts.clear()
            for batch in self._claim_due(now):
                await self.renew(batch)

    async def _watch(self) -> None:
        while not self._closed:
            with self._mutex:
                self._alarm.clear()
                ends = min((grant.trusted_until() for grant in self._grants), default=math.inf)
                first = self._watch_at = self._appointment(self._watch_at, ends)
            await self._alarm.wait(None if first == math.inf else first)
            for grant in self.held():
                reason = grant.loss()
                if reason is not None:
                    self._lose(grant, reason)

    def _appointment(self, made: float, wanted: float) -> float:
        # One still to come is kept: to wake for nothing now and then costs less than to be
        # woken by every lease that is acquired and released in a row.
        return min(made, wanted) if made > self._runtime.clock.now() else wanted

    def _next_beat(self) -> float:
        doubt = self._doubts.next_try
        mine = (grant.due for grant in self._grants if not grant.busy and grant.slot is None)
        return min(min(mine, default=math.inf), math.inf if doubt is None else doubt)

    def _claim_due(self, now: float) -> list[list[Grant]]:
        """Everything whose window is open, once anything is due: the earliest to end first, in batches."""
        size = self._store.guarantees.batch
        with self._mutex:
            free = [grant for grant in self._grants if not grant.busy and grant.slot is None]
            if not any(grant.due <= now for grant in free):
                return []
            ready = sorted((grant for grant in free if grant.window <= now), key=lambda grant: grant.deadline)
            for grant in ready:
                grant.busy = True
        return [ready[start : start + size] for start in range(0, len(ready), size)]

    def _measure(self, lag: float) -> None:
        self.lag = lag
        for grant in self.held():
            if is_late(lag, grant.ttl):
                self._emit(Lagged(grant.scope, grant.hold.holder, lag, grant.ttl))
                return
