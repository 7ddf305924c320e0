"""An executor in a process of its own, to be killed: `python guard_player.py URL COLOUR`.

It reads one JSON order a line and answers each with one. `die` in an order says at
which request to the store it ends by SIGKILL: before it is sent, or after it was
applied and before anybody here has heard of it.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import signal
import sys
from typing import Any

import leasehold
from leasehold import aio


class DyingStore:
    """A store in whose `swap` this process ends."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.die: str | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def swap(self, *args: Any) -> Any:
        self._end("before")
        answer = await self.inner.swap(*args)
        self._end("after")
        return answer

    def _end(self, moment: str) -> None:
        if self.die == moment:
            os.kill(os.getpid(), signal.SIGKILL)


class Player:
    """What is done with each order, in either colour."""

    def __init__(self, locks: Any) -> None:
        self.locks = locks
        self.store = locks._engine.store = DyingStore(locks._engine.store)
        self.run: Any = None

    async def obey(self, order: dict[str, Any]) -> dict[str, Any]:
        verb, words = order["verb"], order.get("words", {})
        self.store.die = order.get("die")
        kind = aio.Guard if isinstance(self.locks, aio.Locks) else leasehold.Guard
        guard: Any = kind(self.locks, **order.get("guard", {}))
        try:
            if verb == "race":
                return {"won": [target for target in words["targets"] if await self.wins(guard, target, words)]}
            if verb == "begin":
                self.run = await answer(guard.begin(**words))
                return {"token": self.run.token, "adopted": self.run.adopted, "phase": self.run.phase.value}
            return {"answer": await answer(getattr(self.run, verb)())}
        except leasehold.NotAcquired as error:
            return {"refused": error.reason}

    async def wins(self, guard: Any, target: str, words: dict[str, Any]) -> bool:
        try:
            verb = getattr(guard, words["by"])
            await answer(verb(target, owner=words["owner"]))
        except leasehold.NotAcquired:
            return False
        return True


async def answer(given: Any) -> Any:
    return await given if inspect.isawaitable(given) else given


async def main(url: str, colour: str) -> None:
    locks = await aio.connect(url, timeout=20) if colour == "asyncio" else leasehold.connect(url, timeout=20)
    player = Player(locks)
    for line in sys.stdin:
        print(json.dumps(await player.obey(json.loads(line))), flush=True)  # noqa: T201  the test reads it


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
