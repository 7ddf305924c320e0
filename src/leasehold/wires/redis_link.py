"""How bytes become Redis' commands and replies, by hiredis; and how every connection begins, in both colours."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

import hiredis
import msgspec

from leasehold.errors import StoreError, StoreUnavailable
from leasehold.rules.addresses import Address
from leasehold.wires.link import Link, SocketLink, make_tls
from leasehold.wires.pool import Gate, ThreadGate
from leasehold.wires.redis_errors import reply_error, wire_error
from leasehold.wires.redis_url import RedisConfig

OLDEST = (6, 0)
MISSING: Any = object()

Command = tuple[bytes | str | int, ...]


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


class Replies:
    """Bytes in, whole replies out; an error reply is a `hiredis.ReplyError` among them."""

    trouble: type[Exception] = hiredis.HiredisError

    def __init__(self) -> None:
        self._reader = hiredis.Reader(notEnoughData=MISSING)

    def feed(self, data: bytes) -> list[Any]:
        """The replies that are whole now."""
        self._reader.feed(data)
        return list(iter(self._reader.gets, MISSING))


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
    """The context of all connections, if there is TLS."""
    return make_tls(config.ca, config.cert, config.key) if config.tls else None


class BlockingSide:
    """Threads."""

    def link(self, address: Address, tls: ssl.SSLContext | None, timeout: float) -> Link:
        return SocketLink(address, tls, timeout, Replies())

    def gate(self) -> Gate:
        return ThreadGate()

    async def pause(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251  the colour of threads
