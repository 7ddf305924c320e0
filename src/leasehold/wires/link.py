"""One connection to a server that answers requests in order, for threads; and what both colours share of it.

What the bytes mean is its parser's to know. Nothing here retries, pings on its own
or hides an error: a request is sent once. `link_looped.py` is the same on an event loop.
"""

from __future__ import annotations

import select
import socket
import ssl
import time
from typing import Any, Protocol, cast

from leasehold.errors import InvalidInput
from leasehold.rules.addresses import Address

CHUNK = 65536


class Parser(Protocol):
    """Bytes in, whole messages out. `trouble` is what it raises on bytes that no such server says."""

    trouble: type[Exception]

    def feed(self, data: bytes) -> list[Any]:
        """The messages that are whole now."""
        ...


class Link(Protocol):
    """A connection of either colour, used by one call at a time. Raises what sockets, TLS and its parser raise."""

    address: Address
    # Bounds each step: the dialling, an exchange.
    timeout: float

    async def dial(self) -> None:
        """Connect."""
        ...

    async def exchange(self, packed: bytes, count: int) -> list[Any]:
        """Send, and read so many messages."""
        ...

    def is_stale(self) -> bool:
        """Whether the server has hung up, or said something nobody asked for."""
        ...

    def close(self) -> None:
        """Hang up."""
        ...


def make_tls(ca: str, cert: str, key: str) -> ssl.SSLContext:
    """The context of all connections: names and authorities are always checked. Reads files, so it may block."""
    try:
        context = ssl.create_default_context(cafile=ca or None)
        if cert:
            context.load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as error:
        raise InvalidInput("url", ca or cert, f"ca, cert and key must be readable PEM files: {error}") from error
    return context


class SocketLink:
    """A connection of a thread."""

    def __init__(self, address: Address, tls: ssl.SSLContext | None, timeout: float, parser: Parser) -> None:
        self.address: Address = address
        self.timeout: float = timeout
        self._tls = tls
        self._parser = parser
        self._socket: socket.socket | None = None
        self._readable = select.poll()

    async def dial(self) -> None:
        opened = socket.create_connection(self.address, self.timeout)
        try:
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            self._socket = self._tls.wrap_socket(opened, server_hostname=self.address.host) if self._tls else opened
        except BaseException:
            opened.close()
            raise
        self._readable.register(self._socket, select.POLLIN)

    async def exchange(self, packed: bytes, count: int) -> list[Any]:
        self.send(packed)
        found = self.read()
        if len(found) < count:
            until = time.monotonic() + self.timeout
            while len(found) < count:
                if time.monotonic() > until:
                    # A server that drips: each piece came in time, the whole did not.
                    raise TimeoutError
                found += self.read()
        return found

    def send(self, packed: bytes) -> None:
        """Send without waiting for an answer."""
        self.socket.sendall(packed)

    def read(self) -> list[Any]:
        """The messages that are whole once more bytes have come."""
        data = self.socket.recv(CHUNK)
        if not data:
            raise EOFError("the server closed the connection")
        return self._parser.feed(data)

    def is_stale(self) -> bool:
        return self.is_readable()

    def is_readable(self) -> bool:
        """Whether a read would not wait: also for what TLS has decrypted already, which no poll would show."""
        if self._tls is not None and cast("ssl.SSLSocket", self.socket).pending():
            return True
        return bool(self._readable.poll(0))

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()

    @property
    def socket(self) -> socket.socket:
        """The socket, once dialled."""
        if self._socket is None:
            raise EOFError("not connected")
        return self._socket
