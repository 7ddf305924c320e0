"""One connection to a Redis server, for threads; and how every connection begins, in both colours.

Bytes are packed and read by hiredis. Nothing here retries, checks health on its
own or hides an error: a request is sent once.
"""

from __future__ import annotations

import select
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

import hiredis
import msgspec

from leasehold.errors import InvalidInput, StoreError, StoreUnavailable
from leasehold.rules.addresses import Address
from leasehold.wires.pool import Gate, ThreadGate
from leasehold.wires.redis_errors import reply_error, wire_error
from leasehold.wires.redis_url import RedisConfig

CHUNK = 65536
OLDEST = (6, 0)
MISSING: Any = object()

Command = tuple[bytes | str | int, ...]


class Link(Protocol):
    """A connection of either colour, used by one call at a time. Raises what sockets, TLS and hiredis raise."""

    address: Address

    async def dial(self) -> None:
        """Connect."""
        ...

    async def exchange(self, packed: bytes, count: int) -> list[Any]:
        """Send, and read so many replies; an error reply is a `hiredis.ReplyError` among them."""
        ...

    def is_stale(self) -> bool:
        """Whether the server has hung up, or said something nobody asked for."""
        ...

    def close(self) -> None:
        """Hang up."""
        ...


class Side(Protocol):
    """What of the wire has a colour."""

    def link(self, address: Address, tls: ssl.SSLContext | None, timeout: float) -> Link:
        """A connection, not yet dialled."""
        ...

    def gate(self) -> Gate:
        """Where calls wait when the pool is full."""
        ...

    async def pause(self, seconds: float) -> None:
        """Let real time pass."""
        ...


# hiredis declares a tuple of one.
pack_one: Callable[[Command], bytes] = cast("Callable[[Command], bytes]", hiredis.pack_command)


def pack(commands: Sequence[Command]) -> bytes:
    """Commands as they travel, one after the other."""
    return b"".join(map(pack_one, commands))


def reader() -> hiredis.Reader:
    """A parser whose error replies come as values."""
    return hiredis.Reader(notEnoughData=MISSING)


class Server(msgspec.Struct, frozen=True):
    """What a server says of itself. `mode` is standalone, sentinel or cluster."""

    version: str = ""
    mode: str = "standalone"
    role: str = "master"
    aof: bool = False


async def dial(
    side: Side,
    config: RedisConfig,
    address: Address,
    tls: ssl.SSLContext | None,
    timeout: float,  # noqa: ASYNC109  bounds each step, not the whole
) -> tuple[Link, Server]:
    """A connection that is logged in, on its database, with a server we can work with behind it."""
    link = side.link(address, tls, timeout)
    select: list[Command] = [("SELECT", config.db)] if config.db else []
    replies = await begin(link, [*login(config), *select, ("INFO",)], timeout)
    try:
        server = _server(str(address), replies[-1])
        _check_fits(server, config, address)
    except StoreError:
        link.close()
        raise
    return link, server


def login(config: RedisConfig) -> list[Command]:
    """What to say first, where the URL holds a user or a password."""
    if config.user:
        return [("AUTH", config.user, config.password)]
    return [("AUTH", config.password)] if config.password else []


async def begin(
    link: Link,
    commands: Sequence[Command],
    timeout: float,  # noqa: ASYNC109  only for the message
) -> list[Any]:
    """Connect and ask for the first things. An error reply is raised; nothing of ours was applied."""
    keep = False
    try:
        await link.dial()
        replies = await link.exchange(pack(commands), len(commands))
        keep = True
    except (OSError, EOFError, hiredis.HiredisError) as error:
        raise wire_error(str(link.address), error, timeout, sent=False) from error
    finally:
        if not keep:
            link.close()
    for reply in replies:
        if isinstance(reply, hiredis.ReplyError):
            link.close()
            raise reply_error(str(link.address), reply)
    return replies


def _server(where: str, info: object) -> Server:
    """What INFO says, if it is a server that Leasehold can use."""
    lines = info.decode("utf-8", "replace").splitlines() if isinstance(info, bytes) else []
    said = dict(line.split(":", 1) for line in lines if ":" in line)
    version = said.get("redis_version", "")
    numbers = version.split(".")[:2]
    if not all(number.isdecimal() for number in numbers):
        raise StoreUnavailable(f"{where} does not answer as Redis does; check host and port", applied=False)
    if tuple(map(int, numbers)) < OLDEST:
        raise StoreUnavailable(f"Redis at {where} is version {version}; Leasehold needs 6.0 or newer", applied=False)
    if said.get("loading") == "1":
        raise StoreUnavailable(
            f"Redis at {where} is still reading its data after a start; try again when it has", applied=False
        )
    return Server(
        version=version,
        mode=said.get("redis_mode", "standalone"),
        role=said.get("role", "master"),
        aof=said.get("aof_enabled") == "1",
    )


def _check_fits(server: Server, config: RedisConfig, address: Address) -> None:
    """Refuse a server that is something else than the URL says."""
    clustered = config.mode == "cluster"
    if server.mode == "sentinel":
        wrong = "is a sentinel; use redis+sentinel://HOST,HOST/MASTER"
    elif clustered is not (server.mode == "cluster"):
        wrong = "is no Redis Cluster; use redis://" if clustered else "is a Redis Cluster; use redis+cluster://"
    elif server.role != "master" and not clustered:
        wrong = "is a replica; give the master's address, or let Sentinel find it with redis+sentinel://"
    else:
        return
    raise StoreUnavailable(f"Redis at {address} {wrong}", applied=False)


def tls_context(config: RedisConfig) -> ssl.SSLContext | None:
    """The context of all connections: names and authorities are always checked. Reads files, so it may block."""
    if not config.tls:
        return None
    try:
        context = ssl.create_default_context(cafile=config.ca or None)
        if config.cert:
            context.load_cert_chain(config.cert, config.key)
    except (OSError, ssl.SSLError) as error:
        raise InvalidInput(
            "url", config.ca or config.cert, f"ca, cert and key must be readable PEM files: {error}"
        ) from error
    return context


class SocketLink:
    """A connection of a thread."""

    def __init__(self, address: Address, tls: ssl.SSLContext | None, timeout: float) -> None:
        self.address: Address = address
        self._tls = tls
        self._timeout = timeout
        self._reader = reader()
        self._socket: socket.socket | None = None
        self._readable = select.poll()

    async def dial(self) -> None:
        opened = socket.create_connection(self.address, self._timeout)
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
        return self.read(count)

    def send(self, packed: bytes) -> None:
        """Send without waiting for an answer."""
        self.socket.sendall(packed)

    def read(self, count: int) -> list[Any]:
        """So many replies, once they have come. There is nothing to parse before the first bytes are in."""
        self.feed()
        found = self.parsed()
        if len(found) < count:
            until = time.monotonic() + self._timeout
            while len(found) < count:
                if time.monotonic() > until:
                    # A server that drips: each piece came in time, the whole did not.
                    raise TimeoutError
                self.feed()
                found += self.parsed()
        return found

    def feed(self) -> None:
        """Wait for more bytes and hand them to the parser."""
        data = self.socket.recv(CHUNK)
        if not data:
            raise EOFError("the server closed the connection")
        self._reader.feed(data)

    def parsed(self) -> list[Any]:
        """The replies that have come in whole."""
        return list(iter(self._reader.gets, MISSING))

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


class BlockingSide:
    """Threads."""

    def link(self, address: Address, tls: ssl.SSLContext | None, timeout: float) -> Link:
        return SocketLink(address, tls, timeout)

    def gate(self) -> Gate:
        return ThreadGate()

    async def pause(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251  the colour of threads
