"""The connection on which Redis tells of changes: pub/sub, for the one thread that listens (`ears.py`)."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, TypeVar, cast

import hiredis

from leasehold.errors import StoreUnavailable
from leasehold.wires.colour import drive
from leasehold.wires.ears import HEARTBEAT
from leasehold.wires.link import SocketLink
from leasehold.wires.redis_errors import reply_error, wire_error
from leasehold.wires.redis_finder import Finder
from leasehold.wires.redis_link import BlockingSide, Command, pack, tls_context
from leasehold.wires.redis_url import RedisConfig

T = TypeVar("T")


class RedisLine:
    """A `Line`. Blocking also under asyncio: it has a thread of its own."""

    silence: float = HEARTBEAT

    def __init__(self, config: RedisConfig, timeout: float) -> None:
        self._config = config
        self._timeout = timeout
        self._link: SocketLink | None = None
        self._said: dict[str, bytes] = {}

    def connect(self) -> None:
        finder = Finder(self._config, BlockingSide(), tls_context(self._config), self._timeout)
        self._link = cast("SocketLink", drive(finder.dial_any()))

    def fileno(self) -> int:
        return self._talking.socket.fileno()

    def listen(self, channel: str) -> None:
        self._ask(("SUBSCRIBE", channel), b"subscribe")

    def unlisten(self, channels: Collection[str]) -> None:
        self._ask(("UNSUBSCRIBE", *channels), b"unsubscribe", len(channels))

    def ping(self) -> None:
        self._ask(("PING",), b"pong")

    def drain(self) -> dict[str, bytes]:
        # TLS may have decrypted more than the socket shows: read until nothing is ready.
        link = self._talking
        while link.is_readable():
            for reply in self._bounded(link.read):
                self._hear(reply)
        said, self._said = self._said, {}
        return said

    def close(self) -> None:
        if self._link is not None:
            self._link.close()

    @property
    def _talking(self) -> SocketLink:
        if self._link is None:
            raise StoreUnavailable("the connection for messages is not open", applied=False)
        return self._link

    def _ask(self, command: Command, answer: bytes, times: int = 1) -> None:
        """Send, and read until the answer has come so many times; what is said before it is kept."""
        link = self._talking
        self._bounded(lambda: link.send(pack([command])))
        while times > 0:
            for reply in self._bounded(link.read):
                self._hear(reply)
                # Without a subscription, PING is answered as usual: by a word.
                times -= (reply[0] if isinstance(reply, list) else reply.lower()) == answer

    def _hear(self, reply: Any) -> None:
        if isinstance(reply, hiredis.ReplyError):
            raise reply_error(str(self._talking.address), reply)
        if reply[0] == b"message":
            channel = reply[1].decode()
            # Most say nothing but that something has changed; what was said before that still counts.
            self._said[channel] = reply[2] or self._said.get(channel, b"")

    def _bounded(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except (OSError, EOFError, hiredis.HiredisError) as error:
            raise wire_error(str(self._talking.address), error, self._timeout, sent=False) from error
