"""The threads or tasks of one client, in line before they reach the store.

One of them at a time contends for a key. When it lets go and others of its own
wait, the hold passes on without a request: the next gets the next token, up to a
bound, and then the store is asked again, so that other processes get their turn.
Plain code under one mutex decides who is next; nobody waits for anything with it.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

from leasehold.engine.acquire import acquire
from leasehold.engine.attempt import Ask, turned_away
from leasehold.engine.events import Attempt, Busy, Granted
from leasehold.engine.grant import Grant
from leasehold.model import Key

if TYPE_CHECKING:
    from leasehold.engine.engine import Engine


class _Waiter:
    """One who waits to be called: with `grant`, if it was passed one, else to ask the store."""

    __slots__ = ("ask", "called", "grant", "me", "started")

    def __init__(self, engine: Engine, ask: Ask) -> None:
        self.ask = ask
        self.me = engine.runtime.me()
        self.started = engine.clock.now()
        self.called = engine.runtime.signal()
        self.grant: Grant | None = None


class _Queue:
    """All of this client who want one key. There is one while somebody holds it (`holder`) or asks the store."""

    __slots__ = ("holder", "waiting")

    def __init__(self) -> None:
        self.holder: Grant | None = None
        self.waiting: deque[_Waiter] = deque()


class Local:
    """Who of this client holds what, and who of it waits."""

    def __init__(self, engine: Engine, passes: int) -> None:
        self._engine = engine
        self._passes = passes
        self.reset()

    def reset(self) -> None:
        """Nobody here: at the start, and in a forked child."""
        self._mutex = threading.Lock()
        self._queues: dict[Key, _Queue] = {}

    def __len__(self) -> int:
        return len(self._queues)

    async def acquire(self, ask: Ask) -> Grant:
        """A grant: passed on by another of this client, or from the store."""
        waiter: _Waiter | None = None
        with self._mutex:
            queue = self._queues.get(ask.key)
            if queue is None:
                self._queues[ask.key] = _Queue()
            elif ask.wait != 0:
                waiter = _Waiter(self._engine, ask)
                queue.waiting.append(waiter)
        if queue is not None and waiter is None:
            return await self._one_try(ask, queue.holder)
        passed = await self._called(waiter) if waiter is not None else None
        if passed is not None:
            return passed
        try:
            grant = await acquire(self._engine, ask, None if waiter is None else waiter.started)
        except BaseException:
            self._call_next(ask.key)
            raise
        with self._mutex:
            self._queues[ask.key].holder = grant
        if grant.loss() is not None:
            self.ended(grant)
        return grant

    async def pass_on(self, grant: Grant) -> bool:
        """Give the hold to the next of this client. False if nobody can have it without the store."""
        engine, queue = self._engine, self._queues.get(grant.key)
        if queue is None or not self._has_heir(queue, grant):
            return False
        await engine.heartbeat.claim(grant)
        try:
            with self._mutex:
                if not self._has_heir(queue, grant):
                    return False
                heir = queue.waiting.popleft()
                passed = heir.grant = queue.holder = grant.passed_on(heir.ask.max_hold)
                grant.released = grant.gone = True
        finally:
            engine.heartbeat.unclaim(grant)
        engine.keep(passed, heir.me)
        engine.emit(Granted(heir.ask.scope, heir.ask.holder, passed.token, passed.acquired - heir.started))
        heir.called.set()
        return True

    def is_worn(self, grant: Grant) -> bool:
        """Whether more of ours want it than it may be passed on to: others come first now, if there are any."""
        queue = self._queues.get(grant.key)
        return queue is not None and bool(queue.waiting) and grant.passes >= self._passes

    def ended(self, grant: Grant) -> None:
        """The hold is no longer ours: the next of this client asks the store."""
        with self._mutex:
            queue = self._queues.get(grant.key)
            if queue is None or queue.holder is not grant:
                return
            queue.holder = None
        self._call_next(grant.key)

    def close(self) -> None:
        """Everybody is called, and finds the client closed."""
        with self._mutex:
            waiting = [waiter for queue in self._queues.values() for waiter in queue.waiting]
        for waiter in waiting:
            waiter.called.set()

    def _has_heir(self, queue: _Queue, grant: Grant) -> bool:
        if queue.holder is not grant or not queue.waiting or grant.passes >= self._passes or grant.loss() is not None:
            return False
        # What the store shows of the hold must be true of the next one, too.
        ask = queue.waiting[0].ask
        return (ask.ttl, ask.holder, ask.metadata) == (grant.ttl, grant.hold.holder, grant.hold.metadata)

    # One who waits.

    async def _one_try(self, ask: Ask, holder: Grant | None) -> Grant:
        """For who does not wait: what one of ours holds is not free, and the store need not be asked."""
        if holder is None or holder.loss() is not None:
            return await acquire(self._engine, ask)
        self._engine.emit(Attempt(ask.scope, ask.holder))
        self._engine.emit(Busy(ask.scope, ask.holder, holder.hold.holder, gave_up=True))
        raise turned_away(ask.scope, holder.record)

    async def _called(self, waiter: _Waiter) -> Grant | None:
        """Wait to be called: with a grant, or with None to ask the store."""
        engine, ask = self._engine, waiter.ask
        engine.emit(Attempt(ask.scope, ask.holder))
        try:
            await waiter.called.wait(None if ask.wait is None else waiter.started + ask.wait)
            engine.check_open()
        except BaseException:
            self._withdraw(waiter)
            raise
        with self._mutex:
            queue = self._queues[ask.key]
            is_late = waiter in queue.waiting
            if is_late:
                queue.waiting.remove(waiter)
        if is_late:
            raise self._gave_up(ask, queue.holder)
        return waiter.grant

    def _gave_up(self, ask: Ask, holder: Grant | None) -> Exception:
        self._engine.emit(Busy(ask.scope, ask.holder, holder.hold.holder if holder else None, gave_up=True))
        return turned_away(ask.scope, holder.record if holder else None)

    def _withdraw(self, waiter: _Waiter) -> None:
        """It leaves without being served: what it was given, or called for, is the next one's."""
        key = waiter.ask.key
        with self._mutex:
            queue = self._queues.get(key)
            if queue is not None and waiter in queue.waiting:
                queue.waiting.remove(waiter)
                return
        if waiter.grant is not None:
            self._engine.runtime.spawn(self._engine.give_back(waiter.grant), "leasehold-give-back")
        else:
            self._call_next(key)

    def _call_next(self, key: Key) -> None:
        """Whoever asked the store for us is through: the next one asks, or nobody is left."""
        with self._mutex:
            queue = self._queues.get(key)
            if queue is None:
                return
            waiter = queue.waiting.popleft() if queue.waiting else None
            if waiter is None:
                del self._queues[key]
        if waiter is not None:
            waiter.called.set()
