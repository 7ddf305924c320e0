"""A connection to a server that answers requests in order, on an event loop. A blocking program never imports this."""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import Any, cast

from leasehold.rules.addresses import Address
from leasehold.wires.link import Parser


class LoopLink(asyncio.Protocol):
    """A connection of a task. Whoever is cancelled while waiting must close it: its reply is still to come."""

    def __init__(self, address: Address, tls: ssl.SSLContext | None, timeout: float, parser: Parser) -> None:
        self.address: Address = address
        self._tls = tls
        self.timeout: float = timeout
        self._loop = asyncio.get_running_loop()
        self._parser = parser
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[list[Any]] | None = None
        self._found: list[Any] = []
        self._wanted = 0
        self._until = 0.0
        self._alarm: asyncio.TimerHandle | None = None
        self._gone = False

    async def dial(self) -> None:
        name = self.address.host if self._tls else None
        async with asyncio.timeout(self.timeout):
            await self._loop.create_connection(lambda: self, *self.address, ssl=self._tls, server_hostname=name)

    async def exchange(self, packed: bytes, count: int) -> list[Any]:
        if self._transport is None or self._gone:
            raise EOFError("the server closed the connection")
        waiter: asyncio.Future[list[Any]] = self._loop.create_future()
        self._waiter = waiter
        self._wanted = count
        self._until = self._loop.time() + self.timeout
        if self._alarm is None:
            # One that goes on ringing while requests come is cheaper than one for each, made and cancelled.
            self._alarm = self._loop.call_at(self._until, self._ring)
        self._transport.write(packed)
        return await waiter

    def is_stale(self) -> bool:
        return self._gone or bool(self._found)

    def close(self) -> None:
        self._gone = True
        if self._alarm is not None:
            self._alarm.cancel()
        # Not a goodbye that waits for the other side: what is unsent must not arrive later.
        if self._transport is not None and not self._loop.is_closed():
            self._transport.abort()

    # What the loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        opened = transport.get_extra_info("socket")
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def data_received(self, data: bytes) -> None:
        try:
            self._found += self._parser.feed(data)
        except self._parser.trouble as error:
            self._fail(error)
            return
        if self._waiter is not None and len(self._found) >= self._wanted:
            waiter, self._waiter = self._waiter, None
            found, self._found = self._found, []
            if not waiter.done():
                waiter.set_result(found)

    def connection_lost(self, exc: Exception | None) -> None:
        self._gone = True
        self._fail(exc or EOFError("the server closed the connection"))

    def _ring(self) -> None:
        self._alarm = None
        if self._waiter is None:
            return
        if self._loop.time() < self._until:
            self._alarm = self._loop.call_at(self._until, self._ring)
        else:
            self._fail(TimeoutError())

    def _fail(self, error: Exception) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_exception(error)
