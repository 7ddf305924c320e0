"""Time that passes when the test says so.

Give a `VirtualClock` to a runtime and nothing in Leasehold waits for real: every
waiter is woken when `advance` passes its time. Works for threads and for tasks;
advance from outside an event loop's thread or from inside it.
"""

from __future__ import annotations

import asyncio
import functools
import heapq
import itertools
import select
import threading
import time
from collections.abc import Callable

from leasehold.rules.clocks import ClockDomain

LOOK = 0.001


class VirtualClock:
    """A clock that stands still until it is advanced."""

    def __init__(self, start: float = 1000.0, domain: ClockDomain | None = None) -> None:
        self.domain: ClockDomain = domain or ClockDomain(machine="virtual", boot="virtual", shifted=False)
        self._now = start
        self._lock = threading.Lock()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def now(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass, waking everybody whose time comes, in order."""
        target = self._now + seconds
        while True:
            with self._lock:
                if not self._timers or self._timers[0][0] > target:
                    self._now = target
                    return
                self._now, _, wake = heapq.heappop(self._timers)
            wake()

    def wait(self, event: threading.Event, until: float | None) -> bool:
        # A thread cannot wait for two things at once: it looks at the time every real millisecond.
        while not event.wait(LOOK if until is not None else None):
            if until is not None and self._now >= until:
                return event.is_set()
        return True

    def wait_readable(self, files: select.poll, until: float, longest: float) -> list[tuple[int, int]]:
        last = time.monotonic() + longest
        while not (found := files.poll(LOOK * 1000)):
            if self._now >= until or time.monotonic() >= last:
                break
        return found

    async def wait_async(self, event: asyncio.Event, until: float | None) -> bool:
        if event.is_set():
            return True
        loop = asyncio.get_running_loop()
        woken = asyncio.Event()
        if until is not None:
            self._at(until, functools.partial(_wake, loop, woken))
        waits = [asyncio.ensure_future(event.wait()), asyncio.ensure_future(woken.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        return event.is_set()

    def _at(self, when: float, wake: Callable[[], None]) -> None:
        with self._lock:
            if when > self._now:
                heapq.heappush(self._timers, (when, next(self._order), wake))
                return
        wake()


def _wake(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(event.set)
