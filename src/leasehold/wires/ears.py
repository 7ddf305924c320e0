"""Hearing what a server says to those who wait: one thread and one connection a client, in both colours.

A store that can tell of changes (Redis pub/sub, PostgreSQL NOTIFY) needs a
connection that stays open. Its wire supplies the `Line`; the thread here owns it,
subscribes for whoever waits and wakes them. When the line dies everybody is
woken, looks again and subscribes anew: a lost message costs a look, and beneath
every wait lies the timer on the end of the record.
"""

from __future__ import annotations

import copy
import os
import select
import socket
import threading
import time
import weakref
from collections.abc import Callable
from typing import Protocol

from leasehold.errors import StoreError, StoreUnavailable
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


class Line(Protocol):
    """A connection that hears. Blocking, bounded by timeouts of its own, used by one thread alone."""

    def connect(self) -> None:
        """Reach the server; raises a StoreError."""
        ...

    def fileno(self) -> int:
        """What becomes readable when something was said."""
        ...

    def listen(self, channel: str) -> None:
        """Subscribe; returns once the server has confirmed."""
        ...

    def unlisten(self, channel: str) -> None:
        """End a subscription."""
        ...

    def drain(self) -> set[str]:
        """The channels on which something was said since the last call. Never blocks."""
        ...

    def ping(self) -> None:
        """Raise a StoreError if nobody is there any more."""
        ...

    def close(self) -> None:
        """Hang up."""
        ...


class Ear:
    """One who waits for one channel."""

    __slots__ = ("_listener", "_woken", "channel", "error", "ready")

    def __init__(self, channel: str, colour: Colour) -> None:
        self.channel: str = channel
        self.ready: Signal = colour.signal()
        self.error: StoreError | None = None
        self._woken = colour.signal()
        self._listener: _Listener | None = None

    async def wait(self, until: float) -> bool:
        """True once something was said, or the line died; False when `until` came first."""
        return await self._woken.wait(until)

    def leave(self) -> None:
        """Wait no more."""
        if self._listener is not None:
            self._listener.remove(self)

    def join(self, listener: _Listener) -> bool:
        self._listener = listener
        return listener.add(self)

    def wake(self) -> None:
        self._woken.set()


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
                self._listener = _Listener(self._make_line(), hurt=self._listener is not None and self._listener.hurt)
                ear.join(self._listener)
                self._listener.start()
        try:
            # Without a limit: the line's own timeouts bound it, and a failure is an answer too.
            await ear.ready.wait()
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
    """The thread of one line, from its connection to its end. It never dials twice."""

    def __init__(self, line: Line, *, hurt: bool) -> None:
        super().__init__(name="leasehold-ears", daemon=True)
        self.line: Line = line
        self.hurt: bool = hurt
        self._lock = threading.Lock()
        self._ears: dict[str, set[Ear]] = {}
        self._listening: set[str] = set()
        self._ended = False
        self._woken, self._waker = socket.socketpair()
        self._waker.setblocking(False)
        self._woken.setblocking(False)

    # From any thread: plain code.

    def add(self, ear: Ear) -> bool:
        """False if this line has ended and another is needed."""
        with self._lock:
            if self._ended:
                return False
            self._ears.setdefault(ear.channel, set()).add(ear)
            if ear.channel in self._listening:
                ear.ready.set()
            else:
                self._poke()
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
                self._poke()
            waiting = [ear for ears in self._ears.values() for ear in ears]
            self._ears.clear()
        for ear in waiting:
            if not ear.ready.is_set():
                ear.error = error or StoreUnavailable("the client was closed; connect again", applied=False)
                ear.ready.set()
            ear.wake()

    def _poke(self) -> None:
        try:
            self._waker.send(b".")
        except BlockingIOError:
            return  # so many pokes are waiting already that one more says nothing

    # The thread.

    def run(self) -> None:
        born = time.monotonic()
        if self.hurt:
            time.sleep(PAUSE)
        self.hurt = False
        try:
            self.line.connect()
            self._hear()
        except StoreError as error:
            self.hurt = time.monotonic() - born < YOUNG
            self.end(error)
        except Exception as error:  # noqa: BLE001  whoever waits must be told, whatever it was
            self.hurt = True
            self.end(StoreUnavailable(f"listening for changes failed: {error!r}", applied=False))
        finally:
            self.line.close()
            # Whoever pokes holds the lock, and does not poke what has ended.
            with self._lock:
                self._ended = True
                self._woken.close()
                self._waker.close()

    def _hear(self) -> None:
        something = select.poll()
        something.register(self.line.fileno(), select.POLLIN)
        something.register(self._woken.fileno(), select.POLLIN)
        idle_since = time.monotonic()
        while not self._ended:
            self._subscribe()
            self._tell(self.line.drain())
            if not something.poll(HEARTBEAT * 1000):
                self.line.ping()
                self._tell(self.line.drain())
            self._swallow_pokes()
            if self._ears:
                idle_since = time.monotonic()
            elif time.monotonic() - idle_since > IDLE:
                self._end_if_idle()

    def _subscribe(self) -> None:
        with self._lock:
            missing = self._ears.keys() - self._listening
            spare = self._listening - self._ears.keys()
            surplus = list(spare)[SPARE:]
            self._listening.difference_update(surplus)
        for channel in surplus:
            self.line.unlisten(channel)
        for channel in missing:
            self.line.listen(channel)
            with self._lock:
                self._listening.add(channel)
                waiting = list(self._ears.get(channel, ()))
            for ear in waiting:
                ear.ready.set()

    def _tell(self, channels: set[str]) -> None:
        if not channels:
            return
        with self._lock:
            waiting = [ear for channel in channels for ear in self._ears.get(channel, ())]
        for ear in waiting:
            ear.wake()

    def _swallow_pokes(self) -> None:
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
