"""How asyncio waits for PostgreSQL. A blocking program never imports this file."""

from __future__ import annotations

import asyncio
import select
import time

from psycopg import pq

from leasehold.wires.pool import Gate
from leasehold.wires.pool_looped import TaskGate
from leasehold.wires.postgres_link import Exchange


class PostgresLooped:
    """Waiting for a socket, on the running loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    def make_gate(self) -> Gate:
        """Where tasks wait for a connection."""
        return TaskGate()

    async def drive(self, exchange: Exchange, fileno: int, until: float) -> list[pq.abc.PGresult]:
        """The answers, until `until` at most: then a TimeoutError."""
        try:
            wanted = next(exchange)
            while True:
                wanted = exchange.send(await self._wait(fileno, wanted, until))
        except StopIteration as done:
            answers: list[pq.abc.PGresult] = done.value
            return answers

    async def _wait(self, fileno: int, wanted: int, until: float) -> int:
        ready: asyncio.Future[int] = self._loop.create_future()
        late = self._loop.call_later(max(until - time.monotonic(), 0.0), _settle, ready, 0)
        self._loop.add_reader(fileno, _settle, ready, select.POLLIN)
        if wanted & select.POLLOUT:
            self._loop.add_writer(fileno, _settle, ready, select.POLLOUT)
        try:
            found = await ready
        finally:
            late.cancel()
            self._loop.remove_reader(fileno)
            if wanted & select.POLLOUT:
                self._loop.remove_writer(fileno)
        if not found:
            raise TimeoutError
        return found


def _settle(ready: asyncio.Future[int], what: int) -> None:
    if not ready.done():
        ready.set_result(what)
