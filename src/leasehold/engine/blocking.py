"""The engine on threads: coroutines that never suspend, driven by the thread that asks."""

from __future__ import annotations

import queue
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from leasehold.wires.colour import Blocking, drive

__all__ = ["BlockingRuntime", "drive"]

T = TypeVar("T")


class BlockingRuntime(Blocking):
    """A runtime whose concurrency is daemon threads."""

    after_fork: str | None = None

    _thread = threading.local()

    def me(self) -> object:
        # Not the thread's id: ids come back after a thread has ended.
        try:
            return self._thread.identity
        except AttributeError:
            self._thread.identity = object()
            return self._thread.identity

    def check_here(self) -> None:
        """Every thread will do."""

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        threading.Thread(target=drive, args=(work,), name=name, daemon=True).start()

    async def gather(self, *works: Coroutine[Any, Any, T]) -> list[T | Exception]:
        answers = self._answers(works)
        found = dict(answers.get() for _ in works)
        return [found[place] for place in range(len(works))]

    async def first_of(self, *works: Coroutine[Any, Any, T]) -> T:
        answers = self._answers(works)
        for left in range(len(works) - 1, -1, -1):
            _, answer = answers.get()
            if not isinstance(answer, Exception):
                return answer
            if not left:
                raise answer
        raise ValueError("first_of needs at least one coroutine")

    async def finish(self, work: Coroutine[Any, Any, T]) -> T:
        return drive(work)

    async def close(self) -> None:
        """Daemon threads end with the work they run."""

    def _answers(self, works: tuple[Coroutine[Any, Any, T], ...]) -> queue.SimpleQueue[tuple[int, T | Exception]]:
        answers: queue.SimpleQueue[tuple[int, T | Exception]] = queue.SimpleQueue()

        def answer(place: int, work: Coroutine[Any, Any, T]) -> None:
            try:
                answers.put((place, drive(work)))
            except Exception as error:  # noqa: BLE001  handed to the caller, who raises or returns it
                answers.put((place, error))

        for place, work in enumerate(works):
            threading.Thread(target=answer, args=(place, work), name="leasehold-gather", daemon=True).start()
        return answers
