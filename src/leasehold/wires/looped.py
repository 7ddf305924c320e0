"""The colour of asyncio. A blocking program never imports this file."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, TypeVar

from leasehold.wires.clock import Clock
from leasehold.wires.colour import Signal

T = TypeVar("T")

# Not the loop's default executor: the user's own to_thread work must not be able
# to starve a renewal.
WORKERS = 16


class Looped:
    """The colour of one running event loop."""

    name: Literal["blocking", "asyncio"] = "asyncio"

    def __init__(self, clock: Clock) -> None:
        self.clock: Clock = clock
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self._workers = ThreadPoolExecutor(WORKERS, thread_name_prefix="leasehold")

    def signal(self) -> Signal:
        return _LoopSignal(self.clock, self.loop)

    async def sleep(self, seconds: float) -> None:
        await self.clock.wait_async(asyncio.Event(), self.clock.now() + seconds)

    async def call(self, function: Callable[[], T]) -> T:
        # A cancelled caller leaves; the function runs to its end in its thread and
        # its result is dropped, so it can never reach somebody else.
        return await asyncio.shield(self.loop.run_in_executor(self._workers, function))

    def close_workers(self) -> None:
        """Let the threads end; work under way finishes first, without being waited for."""
        self._workers.shutdown(wait=False)


class _LoopSignal:
    __slots__ = ("_clock", "_event", "_loop")

    def __init__(self, clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
        self._clock = clock
        self._loop = loop
        self._event = asyncio.Event()

    def set(self) -> None:
        # May come from any thread: a memory store is shared by both colours.
        if _running() is self._loop:
            self._event.set()
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._event.set)

    def clear(self) -> None:
        self._event.clear()

    def is_set(self) -> bool:
        return self._event.is_set()

    async def wait(self, until: float | None = None) -> bool:
        return await self._clock.wait_async(self._event, until)


def _running() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
