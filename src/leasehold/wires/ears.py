"""Hearing what a server says to those who wait: one thread and one connection a client, in both colours.

A store that can tell of changes (Redis pub/sub, PostgreSQL NOTIFY) needs a
connection that stays open. Its wire supplies the `Line`; the thread here owns it,
subscribes for whoever waits and wakes them. A thread that waits alone hears for
itself: to be called by another would cost it more than all the rest. When the line
dies everybody is woken, looks again and subscribes anew: a lost message costs a
look, and beneath every wait lies the timer on the end of the record.
"""

from __future__ import annotations

import copy
import math
import os
import select
import socket
import threading
import time
import weakref
from collections.abc import Callable, Collection, Mapping
from typing import Protocol, cast

from leasehold.errors import StoreError, StoreUnavailable
from leasehold.wires.clock import Clock
from leasehold.wires.colour import Colour, Signal

# How often a silent line is asked whether it is still there.
HEARTBEAT = 5.0
# Whoever waited for a key mostly waits for it again: so many channels stay subscribed without a listener.
SPARE = 32
# A line nobody has listened to for so long is closed.
IDLE = 60.0
# A line that dies young must not be dialled in a circle.
YOUNG = 1.0
PAUSE = 0.1
# How often the thread looks after a line on which nobody needs it.
REST = 1.0


class Line(Protocol):
    """A connection that hears. Blocking, bounded by timeouts of its own, used by one thread at a time."""

    def connect(self) -> None:
        """Reach the server; raises a StoreError."""
        ...

    def fileno(self) -> int:
        """What becomes readable when something was said."""
        ...

    def listen(self, channel: str) -> None:
        """Subscribe; returns once the server has confirmed."""
        ...

    def unlisten(self, channels: Collection[str]) -> None:
        """End subscriptions, in one request where that takes one."""
        ...

    def drain(self) -> Mapping[str, bytes]:
        """The channels on which something was said since the last call, each with the last words. Never blocks."""
        ...

    @property
    def silence(self) -> float:
        """How long it may say nothing before it is asked."""
        ...

    def ping(self) -> None:
        """Raise a StoreError if nobody is there any more."""
        ...

    def close(self) -> None:
        """Hang up."""
        ...


class Ear:
    """One who waits for one channel."""

    __slots__ = ("_listener", "_woken", "channel", "error", "ready", "relies", "said")

    def __init__(self, channel: str, colour: Colour) -> None:
        self.channel: str = channel
        self.ready: Signal = colour.signal()
        self.error: StoreError | None = None
        # The words that woke it; empty for most, and where the line died.
        self.said: bytes = b""
        # Whether somebody else has to hear for it.
        self.relies: bool = colour.name == "asyncio"
        self._woken = colour.signal()
        self._listener: _Listener | None = None

    async def prepare(self) -> None:
        """Wait for the subscription, or for the error that prevents it. The line's own timeouts bound it."""
        self._hear_alone(self.ready, math.inf)
        await self.ready.wait()

    async def wait(self, until: float) -> bool:
        """True once something was said, or the line died; False when `until` came first."""
        self._hear_alone(self._woken, until)
        return await self._woken.wait(until)

    def leave(self) -> None:
        """Wait no more."""
        if self._listener is not None:
            self._listener.remove(self)

    def join(self, listener: _Listener) -> bool:
        self._listener = listener
        return listener.add(self)

    def wake(self, said: bytes = b"") -> None:
        self.said = said
        self._woken.set()

    def _hear_alone(self, sign: Signal, until: float) -> None:
        if self._listener is not None and not self.relies and not sign.is_set():
            self._listener.hear_for(self, sign, until)


class Ears:
    """All who wait through one client."""

    def __init__(self, make_line: Callable[[], Line], colour: Colour) -> None:
        self._make_line = make_line
        self._colour = colour
        self._lock = threading.Lock()
        self._listener: _Listener | None = None
        _ALIVE.add(self)

    async def listen(self, channel: str) -> Ear:
        """An ear whose subscription the server has confirmed, or the StoreError that prevented it."""
        ear = Ear(channel, self._colour)
        with self._lock:
            if self._listener is None or not ear.join(self._listener):
                hurt = self._listener is not None and self._listener.hurt
                self._listener = _Listener(self._make_line(), self._colour.clock, hurt=hurt)
                ear.join(self._listener)
                self._listener.start()
        try:
            await ear.prepare()
        except BaseException:
            ear.leave()
            raise
        if ear.error is not None:
            raise copy.copy(ear.error) from ear.error
        return ear

    async def close(self) -> None:
        """Wake everybody and hang up. A later `listen` begins anew."""
        with self._lock:
            listener, self._listener = self._listener, None
        if listener is not None:
            listener.end()
            await self._colour.call(listener.join)

    def after_fork_in_child(self) -> None:
        """The thread stayed behind, and the parent's connection is not ours to close."""
        self._lock = threading.Lock()
        if self._listener is not None:
            _LEFT_BEHIND.append(self._listener)
            self._listener = None


class _Listener(threading.Thread):
    """The thread of one line, from its connection to its end. It never dials twice.

    Whoever has `_reading` uses the line: the thread while somebody relies on it, or one who waits and hears for itself.
    """

    def __init__(self, line: Line, clock: Clock, *, hurt: bool) -> None:
        super().__init__(name="leasehold-ears", daemon=True)
        self.line: Line = line
        self.hurt: bool = hurt
        self._clock = clock
        self._lock = threading.Lock()
        # The thread's, until it has connected.
        self._reading = threading.Lock()
        self._reading.acquire()
        self._needed = threading.Event()
        self._ears: dict[str, set[Ear]] = {}
        self._listening: set[str] = set()
        self._ended = False
        self._born = self._used = time.monotonic()
        self._woken, self._waker = socket.socketpair()
        self._waker.setblocking(False)
        self._woken.setblocking(False)
        self._something = select.poll()
        self._something.register(self._woken.fileno(), select.POLLIN)

    # From any thread: plain code.

    def add(self, ear: Ear) -> bool:
        """False if this line has ended and another is needed."""
        with self._lock:
            if self._ended:
                return False
            self._used = time.monotonic()
            # A line that has to be asked is not, while nobody waits.
            ear.relies |= self.line.silence < REST
            is_first = not self._ears
            self._ears.setdefault(ear.channel, set()).add(ear)
            if ear.channel in self._listening:
                ear.ready.set()
            if ear.relies and (is_first or ear.channel not in self._listening):
                self._call()
        return True

    def remove(self, ear: Ear) -> None:
        with self._lock:
            waiting = self._ears.get(ear.channel)
            if waiting is not None:
                waiting.discard(ear)
                if not waiting:
                    del self._ears[ear.channel]

    def end(self, error: StoreError | None = None) -> None:
        """Wake everybody; those who were not yet subscribed learn why."""
        with self._lock:
            if not self._ended:
                self._ended = True
                self._call()
            waiting = [ear for ears in self._ears.values() for ear in ears]
            self._ears.clear()
        for ear in waiting:
            if not ear.ready.is_set():
                ear.error = error or StoreUnavailable("the client was closed; connect again", applied=False)
                ear.ready.set()
            ear.wake()

    def hear_for(self, ear: Ear, sign: Signal, until: float) -> None:
        """In the thread of one who waits: hear, until its sign is given, or `until`, or others rely on being called.

        Whoever cannot relies on the thread from now on.
        """
        alone = self._reading.acquire(blocking=False)
        if alone:
            try:
                self._hear_alone(sign, until)
            except BaseException as error:
                # In the middle of a request, perhaps: nobody knows what the line would say next.
                self._fail(error)
                if not isinstance(error, Exception):
                    raise
            finally:
                self._reading.release()
        with self._lock:
            if not (sign.is_set() or self._ended) and self._clock.now() < until:
                ear.relies = True
                self._call()

    def _hear_alone(self, sign: Signal, until: float) -> None:
        self._catch_up()
        while not (sign.is_set() or self._ended or self._is_needed()) and self._clock.now() < until:
            self._await(until)

    def _is_needed(self) -> bool:
        with self._lock:
            return any(ear.relies for ears in self._ears.values() for ear in ears)

    def _call(self) -> None:
        """Have whoever hears look up. The caller has the lock."""
        self._needed.set()
        try:
            self._waker.send(b".")
        except BlockingIOError:
            return  # so many calls are waiting already that one more says nothing

    # The thread.

    def run(self) -> None:
        if self.hurt:
            time.sleep(PAUSE)
        self.hurt = False
        try:
            try:
                self.line.connect()
                self._something.register(self.line.fileno(), select.POLLIN)
            finally:
                self._reading.release()
            self._serve()
        except BaseException as error:  # noqa: BLE001  whoever waits must be told, whatever it was
            self._fail(error)
        finally:
            with self._reading:
                self.line.close()
            # Whoever calls holds the lock, and does not call what has ended.
            with self._lock:
                self._ended = True
                self._woken.close()
                self._waker.close()

    def _fail(self, error: BaseException) -> None:
        known = isinstance(error, StoreError)
        self.hurt = not known or time.monotonic() - self._born < YOUNG
        told = StoreUnavailable(f"listening for changes failed: {error!r}", applied=False)
        self.end(cast("StoreError", error) if known else told)

    def _serve(self) -> None:
        while not self._ended:
            self._needed.clear()
            if self._is_needed():
                with self._reading:
                    self._catch_up()
                    if self._is_needed():
                        self._await(math.inf)
            elif not self._needed.wait(REST) and self._reading.acquire(blocking=False):
                try:
                    # What nobody waits for must not pile up.
                    self._catch_up()
                finally:
                    self._reading.release()
            if not self._ears and time.monotonic() - self._used > IDLE:
                self._end_if_idle()

    # The line: by whoever has `_reading`.

    def _await(self, until: float) -> None:
        """Sleep until something is said, somebody comes, or at `until`; pass on what was said."""
        ready = self._clock.wait_readable(self._something, until, self.line.silence)
        if any(file == self._woken.fileno() for file, _ in ready):
            self._swallow_calls()
        if not ready and self._clock.now() < until:
            self.line.ping()
        self._tell(self.line.drain())

    def _catch_up(self) -> None:
        """Subscribe to what is wanted, and pass on what was said meanwhile."""
        self._subscribe()
        self._tell(self.line.drain())

    def _subscribe(self) -> None:
        with self._lock:
            missing = self._ears.keys() - self._listening
            spare = len(self._listening) - len(self._ears) + len(missing)
            # Many at a time: each would be a request.
            surplus = list(self._listening - self._ears.keys())[SPARE:] if spare > 2 * SPARE else []
            self._listening.difference_update(surplus)
        if surplus:
            self.line.unlisten(surplus)
        for channel in missing:
            self.line.listen(channel)
            with self._lock:
                self._listening.add(channel)
                waiting = list(self._ears.get(channel, ()))
            for ear in waiting:
                ear.ready.set()

    def _tell(self, news: Mapping[str, bytes]) -> None:
        if not news:
            return
        with self._lock:
            # Each is woken once: from here on nobody has to hear for it.
            waiting = [(ear, said) for channel, said in news.items() for ear in self._ears.pop(channel, ())]
        for ear, said in waiting:
            ear.wake(said)

    def _swallow_calls(self) -> None:
        try:
            while self._woken.recv(1024):
                pass
        except BlockingIOError:
            return  # that were all

    def _end_if_idle(self) -> None:
        with self._lock:
            self._ended = not self._ears


_ALIVE: weakref.WeakSet[Ears] = weakref.WeakSet()
# A parent's connections, kept so that the child never closes them: closing would say goodbye in the parent's name.
_LEFT_BEHIND: list[_Listener] = []


def _after_fork_in_child() -> None:
    for ears in _ALIVE:
        ears.after_fork_in_child()


os.register_at_fork(after_in_child=_after_fork_in_child)
