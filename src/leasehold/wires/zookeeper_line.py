"""Hearing of changes in ZooKeeper: a session of its own, with a watch on each node that somebody waits for.

A watch tells once. It is set again as soon as it told, and whoever waits is woken
once more when that is done: what happened in between is seen by looking again.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection

from leasehold.errors import StoreUnavailable
from leasehold.wires.colour import drive
from leasehold.wires.ears import HEARTBEAT
from leasehold.wires.link import SocketLink
from leasehold.wires.zookeeper import TROUBLE, ZooKeeperWire
from leasehold.wires.zookeeper_errors import reply_error, wire_error
from leasehold.wires.zookeeper_frames import (
    EVENT,
    NO_NODE,
    OK,
    PING,
    Exists,
    Reply,
    pack,
    pack_connect,
    pack_login,
    pack_ping,
    read_connect,
    read_event,
    read_reply,
)

# Longer than the pause between two pings of a silent line; the server may grant less.
TIMEOUT = 30.0


class ZooKeeperLine:
    """A connection that hears, used by the one thread of the ears in both colours."""

    silence: float = HEARTBEAT

    def __init__(self, wire: ZooKeeperWire) -> None:
        self._wire = wire
        self._link: SocketLink | None = None
        self._wanted: set[str] = set()
        # The nodes whose watch was asked for and not yet confirmed, in the order of the answers to come.
        self._asked: deque[str] = deque()
        self._said: set[str] = set()
        self._pinged = False

    def connect(self) -> None:
        failed: StoreUnavailable | None = None
        for _ in self._wire.config.hosts:
            link = self._wire.line()
            try:
                self._begin(link)
            except StoreUnavailable as error:
                link.close()
                self._wire.turn_away()
                failed = error
            else:
                self._link = link
                return
        raise failed or StoreUnavailable("no server is named", applied=False)

    def fileno(self) -> int:
        return self._open.socket.fileno()

    def listen(self, channel: str) -> None:
        self._wanted.add(channel)
        self._watch(channel)
        self._read_until(lambda: channel not in self._asked)

    def unlisten(self, channels: Collection[str]) -> None:
        self._wanted.difference_update(channels)

    def drain(self) -> dict[str, bytes]:
        while self._open.is_readable():
            self._read()
        said, self._said = self._said, set()
        return dict.fromkeys(said, b"")

    def ping(self) -> None:
        self._pinged = False
        self._send(pack_ping())
        self._read_until(lambda: self._pinged)

    def close(self) -> None:
        if self._link is not None:
            self._link.close()

    @property
    def _open(self) -> SocketLink:
        if self._link is None:
            raise StoreUnavailable("the line to ZooKeeper is not connected", applied=False)
        return self._link

    def _begin(self, link: SocketLink) -> None:
        config = self._wire.config
        try:
            drive(link.dial())
            (frame, *_) = drive(link.exchange(pack_connect(0, TIMEOUT, 0, b""), 1))
            if not read_connect(frame).session:
                raise EOFError("the server granted no session")
            if config.user:
                (frame, *_) = drive(link.exchange(pack_login(config.user, config.password), 1))
                code = read_reply(frame).code
                if code:
                    raise reply_error(str(link.address), code, config.chroot or "/")
        except TROUBLE as error:
            raise wire_error(str(link.address), error, link.timeout, sent=False) from error

    def _watch(self, channel: str) -> None:
        self._asked.append(channel)
        self._send(pack([Exists(channel, True)]))

    def _send(self, packed: bytes) -> None:
        try:
            self._open.send(packed)
        except TROUBLE as error:
            raise self._lost(error) from error

    def _read_until(self, true: Callable[[], bool]) -> None:
        until = time.monotonic() + self._wire.timeout
        while not true():
            if time.monotonic() > until:
                raise self._lost(TimeoutError())
            self._read()

    def _read(self) -> None:
        try:
            for frame in self._open.read():
                self._hear(read_reply(frame))
        except TROUBLE as error:
            raise self._lost(error) from error

    def _hear(self, reply: Reply) -> None:
        if reply.xid == PING:
            self._pinged = True
        elif reply.xid == EVENT:
            path = read_event(reply)
            self._said.add(path)
            if path in self._wanted:
                self._watch(path)
        else:
            path = self._asked.popleft()
            if reply.code not in {OK, NO_NODE}:
                raise reply_error(str(self._open.address), reply.code, path)
            self._said.add(path)

    def _lost(self, error: Exception) -> StoreUnavailable:
        return wire_error(str(self._open.address), error, self._wire.timeout, sent=False)
