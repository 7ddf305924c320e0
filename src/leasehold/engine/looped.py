"""The engine on asyncio: coroutines that suspend, run as tasks of one loop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from leasehold.errors import ClientClosed
from leasehold.wires.clock import Clock
from leasehold.wires.looped import Looped

T = TypeVar("T")


class LoopedRuntime(Looped):
    """A runtime whose concurrency is tasks of the running loop."""

    after_fork: str | None = "this asyncio client belongs to the parent process; connect again in the child"

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._spawned: set[asyncio.Task[Any]] = set()
        self._finishing: set[asyncio.Task[Any]] = set()

    def me(self) -> object:
        return asyncio.current_task()

    def check_here(self) -> None:
        if asyncio.get_running_loop() is not self.loop:
            raise ClientClosed("this asyncio client belongs to another event loop; connect once in each loop")

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        _keep(self._spawned, self.loop.create_task(work, name=name))

    async def gather(self, *works: Coroutine[Any, Any, T]) -> list[T | Exception]:
        async def answer(work: Coroutine[Any, Any, T]) -> T | Exception:
            try:
                return await work
            except Exception as error:  # noqa: BLE001  handed to the caller
                return error

        return await asyncio.gather(*map(answer, works))

    async def first_of(self, *works: Coroutine[Any, Any, T]) -> T:
        waiting = {self.loop.create_task(work) for work in works}
        for task in waiting:
            task.add_done_callback(_heard)
        try:
            while True:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                good = [task for task in done if task.exception() is None]
                if good or not waiting:
                    return (good or list(done))[0].result()
        finally:
            for task in waiting:
                task.cancel()

    async def finish(self, work: Coroutine[Any, Any, T]) -> T:
        task, ended = self.loop.create_task(work), self.loop.create_future()
        self._finishing.add(task)

        def end(task: asyncio.Task[T]) -> None:
            self._finishing.discard(task)
            # Its caller may have been cancelled meanwhile: then only the observers are told.
            _heard(task)
            if not ended.done():
                ended.set_result(None)

        # What asyncio.shield does, with one callback in place of three.
        task.add_done_callback(end)
        await ended
        return task.result()

    async def close(self) -> None:
        await asyncio.gather(*self._finishing, return_exceptions=True)
        for task in self._spawned:
            task.cancel()
        await asyncio.gather(*self._spawned, return_exceptions=True)
        self.close_workers()


def _heard(task: asyncio.Task[Any]) -> None:
    # Perhaps nobody asks for its error, and asyncio would complain of that.
    if not task.cancelled():
        task.exception()


def _keep(tasks: set[asyncio.Task[Any]], task: asyncio.Task[T]) -> asyncio.Task[T]:
    # The loop itself holds its tasks only weakly.
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    return task
