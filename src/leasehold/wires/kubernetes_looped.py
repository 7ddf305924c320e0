"""A connection to an API server on an event loop. A blocking program never imports this file."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar, cast

import h11

from leasehold.wires.kubernetes_http import ABREAST, Answer, Link, Place, Talk, tune
from leasehold.wires.pool import Gate
from leasehold.wires.pool_looped import TaskGate

T = TypeVar("T")


class LoopLink(asyncio.Protocol):
    """A connection of a task. Whoever is cancelled while waiting must close it: its answer is still to come."""

    def __init__(self, place: Place, timeout: float) -> None:
        self._place = place
        self._timeout = timeout
        self._loop = asyncio.get_running_loop()
        self._talk = Talk()
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[Answer] | None = None
        self._gone = False

    async def dial(self) -> None:
        place = self._place
        name = place.name if place.tls else None
        async with asyncio.timeout(self._timeout):
            await self._loop.create_connection(
                lambda: self, place.host, place.port, ssl=place.tls, server_hostname=name
            )

    async def exchange(self, request: h11.Request, body: bytes) -> Answer:
        if self._transport is None or self._gone:
            raise EOFError("the server closed the connection")
        waiter: asyncio.Future[Answer] = self._loop.create_future()
        self._waiter = waiter
        self._transport.write(self._talk.say(request, body))
        async with asyncio.timeout(self._timeout):
            return await waiter

    def is_stale(self) -> bool:
        return self._gone or not self._talk.is_fit

    def close(self) -> None:
        self._gone = True
        # Not a goodbye that waits for the other side: what is unsent must not arrive later.
        if self._transport is not None and not self._loop.is_closed():
            self._transport.abort()

    # What the loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        tune(transport.get_extra_info("socket"))

    def data_received(self, data: bytes) -> None:
        if self._waiter is None:
            # Nobody asked: whatever it is, the next answer could not be told from it.
            self._gone = True
            return
        self._hear(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._gone = True
        if exc is not None:
            self._fail(exc)
        elif self._waiter is not None:
            self._hear(b"")

    def _hear(self, data: bytes) -> None:
        try:
            self._talk.hear(data)
            answer = self._talk.answer()
        except (h11.RemoteProtocolError, EOFError) as error:
            self._fail(error)
            return
        if answer is not None:
            waiter, self._waiter = self._waiter, None
            if waiter is not None and not waiter.done():
                waiter.set_result(answer)

    def _fail(self, error: Exception) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_exception(error)


class LoopedSide:
    """Tasks of one loop."""

    def link(self, place: Place, timeout: float) -> Link:
        return LoopLink(place, timeout)

    def gate(self) -> Gate:
        return TaskGate()

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def abreast(self, works: Sequence[Callable[[], Coroutine[Any, Any, T]]]) -> list[T]:
        room = asyncio.Semaphore(ABREAST)

        async def one(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
            async with room:
                return await work()

        return await asyncio.gather(*map(one, works))
