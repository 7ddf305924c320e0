"""How the engine's coroutines run: the parts of concurrency that have a colour.

The engine never imports asyncio or threading. What it needs of either is this
protocol: `blocking.py` answers with threads, `looped.py` with tasks. Under the
blocking one no coroutine may ever suspend, and `drive` raises if one does.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

from leasehold.wires.colour import Colour

T = TypeVar("T")


class Runtime(Colour, Protocol):
    """A colour that can also run several coroutines at once. `after_fork` says why not in a forked child."""

    after_fork: str | None

    def me(self) -> object:
        """Who is asking: the current thread, or the current task."""
        ...

    def check_here(self) -> None:
        """Raise ClientClosed where this runtime cannot run: on another event loop than its own."""
        ...

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Run a coroutine beside everything else until it ends by itself."""
        ...

    async def gather(self, *works: Coroutine[Any, Any, T]) -> list[T | Exception]:
        """Run all at once and return every result or exception, in order."""
        ...

    async def first_of(self, *works: Coroutine[Any, Any, T]) -> T:
        """The first result to come; an exception counts only when nothing else is left.

        The others are cancelled where that is possible, and else run to their end unheard.
        """
        ...

    async def finish(self, work: Coroutine[Any, Any, T]) -> T:
        """Run to the end even if the caller is cancelled meanwhile; the caller still sees its cancellation."""
        ...

    async def close(self) -> None:
        """End what the runtime itself keeps running."""
        ...
