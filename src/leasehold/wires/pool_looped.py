"""Where tasks wait for a place in a pool. A blocking program never imports this file."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class TaskGate:
    """For tasks."""

    def __init__(self) -> None:
        self.waiting: int = 0
        self._turns: deque[asyncio.Future[None]] = deque()

    async def until(self, ready: Callable[[], bool], seconds: float) -> bool:
        self.waiting += 1
        try:
            async with asyncio.timeout(seconds):
                while not ready():
                    await self._turn()
        except TimeoutError:
            return False
        finally:
            self.waiting -= 1
        return True

    def knock(self) -> None:
        while self._turns:
            turn = self._turns.popleft()
            if not turn.done():
                turn.set_result(None)
                return

    async def _turn(self) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._turns.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            # Called and cancelled at once: the place is for the next.
            if turn.done() and not turn.cancelled():
                self.knock()
            raise
