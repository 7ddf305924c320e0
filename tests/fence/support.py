"""What tests of fences share: either colour behind blocking verbs, the awaited one on a loop of its own thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

from leasehold.wires.colour import drive


class LoopThread:
    """A loop that runs in a thread until it is closed."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(20)
        self._loop.close()


class Face:
    """Something awaited, called as if it were blocking; what `open` gives has such a face too."""

    def __init__(self, real: Any, loop: LoopThread) -> None:
        self.real = real
        self._loop = loop

    def __getattr__(self, verb: str) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            answer = self._loop.run(getattr(self.real, verb)(*args, **options))
            return Face(answer, self._loop) if verb == "open" and answer is not None else answer

        return call


class Driven:
    """The verbs of a core over something that blocks."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattr__(self, verb: str) -> Any:
        return lambda *given, **options: drive(getattr(self._real, verb)(*given, **options))
