"""What has a colour: waiting, and calling something that blocks.

Stores and engine are `async def`, written once, and reach the outside through a
`Colour`. Under `Blocking` nothing ever suspends and the caller's thread does the
waiting; under `Looped` (its own file) an event loop does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine
from typing import Any, Literal, Protocol, TypeVar

from leasehold.wires.clock import Clock

T = TypeVar("T")


class Signal(Protocol):
    """A flag one side sets, from any thread, and the other awaits."""

    def set(self) -> None:
        """Raise the flag and wake whoever waits."""
        ...

    def clear(self) -> None:
        """Lower the flag; only the one who awaits it does this."""
        ...

    def is_set(self) -> bool:
        """Whether the flag is up."""
        ...

    async def wait(self, until: float | None = None) -> bool:
        """True once the flag is up, False when `until` came first."""
        ...


class Colour(Protocol):
    """Blocking or asyncio, as far as a store needs to know."""

    name: Literal["blocking", "asyncio"]
    clock: Clock

    def signal(self) -> Signal:
        """A new signal of this colour."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Let time pass."""
        ...

    async def call(self, function: Callable[[], T]) -> T:
        """The result of a function that blocks, without blocking anybody else."""
        ...


def drive(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that blocks instead of suspending."""
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    work.close()
    raise RuntimeError("a coroutine of the blocking client suspended: it awaited something of asyncio's colour")


class Blocking:
    """The colour of threads: every await returns at once or blocks its own thread."""

    name: Literal["blocking", "asyncio"] = "blocking"

    def __init__(self, clock: Clock) -> None:
        self.clock: Clock = clock

    def signal(self) -> Signal:
        return _ThreadSignal(self.clock)

    async def sleep(self, seconds: float) -> None:
        self.clock.wait(threading.Event(), self.clock.now() + seconds)

    async def call(self, function: Callable[[], T]) -> T:
        return function()


class _ThreadSignal:
    __slots__ = ("_clock", "_event", "clear", "is_set", "set")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._event = threading.Event()
        self.set = self._event.set
        self.clear = self._event.clear
        self.is_set = self._event.is_set

    async def wait(self, until: float | None = None) -> bool:
        return self._clock.wait(self._event, until)
