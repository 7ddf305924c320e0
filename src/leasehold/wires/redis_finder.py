"""Which Redis server to talk to: the one named, the master that Sentinel names, or the masters of a Cluster."""

from __future__ import annotations

import binascii
import ssl
from collections.abc import Iterable, Sequence
from typing import Any

import hiredis

from leasehold.errors import StoreError, StoreUnavailable
from leasehold.rules.addresses import Address
from leasehold.wires.link import Link
from leasehold.wires.redis_errors import reply_error, wire_error
from leasehold.wires.redis_link import Command, Server, Side, begin, dial, login, pack
from leasehold.wires.redis_url import RedisConfig

# Families are spread over so many hash tags. Fixed for ever: a record is found by it.
BUCKETS = 64
SLOTS = 16384


class Finder:
    """Finds the server to talk to and opens connections, in the colour of its side."""

    def __init__(self, config: RedisConfig, side: Side, tls: ssl.SSLContext | None, timeout: float) -> None:
        self._config = config
        self._side = side
        self._tls = tls
        self._timeout = timeout

    async def dial(self, address: Address | None) -> tuple[Link, Server]:
        """A connection to this node of a Cluster, or to whoever is master now."""
        if address is None and self._config.mode == "sentinel":
            return await self._through_sentinel()
        return await dial(self._side, self._config, address or self._config.hosts[0], self._tls, self._timeout)

    async def dial_any(self) -> Link:
        """A connection to hear messages on: a Cluster passes them to all its nodes."""
        if self._config.mode != "cluster":
            return (await self.dial(None))[0]
        return (await self._first_of(self._config.hosts))[0]

    async def places(self, addresses: Sequence[Address]) -> list[Address]:
        """Which master of the Cluster has which bucket, as the first node says that answers."""
        link, _ = await self._first_of(dict.fromkeys(addresses))
        try:
            (ranges,) = await link.exchange(pack([("CLUSTER", "SLOTS")]), 1)
        except (OSError, EOFError, hiredis.HiredisError) as error:
            raise wire_error(str(link.address), error, self._timeout, sent=False) from error
        finally:
            link.close()
        if isinstance(ranges, hiredis.ReplyError):
            raise reply_error(str(link.address), ranges)
        return [_place(ranges, bucket, link.address) for bucket in range(BUCKETS)]

    async def _first_of(self, addresses: Iterable[Address]) -> tuple[Link, Server]:
        failed: StoreError | None = None
        for address in addresses:
            try:
                return await self.dial(address)
            except StoreUnavailable as error:
                failed = error
        raise failed or StoreUnavailable("the URL names no host", applied=False)

    async def _through_sentinel(self) -> tuple[Link, Server]:
        """Ask one sentinel after the other until one names a server that really is a master."""
        said: list[str] = []
        for sentinel in self._config.hosts:
            try:
                master = await self._master_by(sentinel)
                if master is not None:
                    return await dial(self._side, self._config, master, self._tls, self._timeout)
                said.append(f"the sentinel at {sentinel} knows no master {self._config.master!r}")
            except StoreUnavailable as error:
                said.append(str(error))
        raise StoreUnavailable(f"no sentinel led to a master: {'; '.join(said)}", applied=False)

    async def _master_by(self, sentinel: Address) -> Address | None:
        config = self._config
        # Several have to fit into one request's time.
        timeout = self._timeout / len(config.hosts)
        link = self._side.link(sentinel, self._tls, timeout)
        commands: list[Command] = [*(login(config) if config.sentinel_login else [])]
        answer = (await begin(link, [*commands, ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", config.master)], timeout))[-1]
        link.close()
        return Address(answer[0].decode(), int(answer[1])) if isinstance(answer, list) else None


def bucket_keys(bucket: int) -> tuple[bytes, bytes]:
    """The keys of a bucket. What stands in braces decides about the slot in a Cluster."""
    return b"leasehold:{%d}:records" % bucket, b"leasehold:{%d}:names" % bucket


def _place(ranges: list[Any], bucket: int, told_by: Address) -> Address:
    """The master that has a bucket, from what CLUSTER SLOTS says."""
    slot = binascii.crc_hqx(b"%d" % bucket, 0) % SLOTS
    for first, last, (host, port, *_), *_ in ranges:
        if first <= slot <= last:
            # A node may leave its host out: then it is the one that was asked.
            return Address((host or b"").decode() or told_by.host, port)
    raise StoreUnavailable(
        f"the Redis Cluster of {told_by} serves only a part of its slots; bring the missing masters back", applied=False
    )
