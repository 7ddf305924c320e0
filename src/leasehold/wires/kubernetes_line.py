"""Hearing of changes to Leases: one watch for each name somebody waits for, all read by one thread.

A watch begins at the newest revision we know of and goes on from what it heard
last, bookmarks included; where the server has forgotten that (410), it begins
anew, and whoever waits is woken to look.
"""

from __future__ import annotations

import select
import ssl
from collections.abc import Callable, Collection
from typing import Any, TypeVar

import h11
import msgspec

from leasehold.errors import StoreUnavailable
from leasehold.wires.ears import HEARTBEAT
from leasehold.wires.kubernetes import OK, KubernetesWire, place_of, request_of, target
from leasehold.wires.kubernetes_errors import GONE, UNAUTHORIZED, wire_error
from leasehold.wires.kubernetes_http import CHUNK, Answer, SocketLink

# The server ends each after so many seconds, and it is begun again.
WATCH_SECONDS = 600
# What a server says that has not got as far as the revision we named.
TOO_LARGE = 504

T = TypeVar("T")


class KubernetesLine:
    """A `Line`. Blocking also under asyncio: it has a thread of its own. `newest` is a revision to begin at."""

    silence: float = HEARTBEAT

    def __init__(self, wire: KubernetesWire, newest: Callable[[], int]) -> None:
        self._wire = wire
        self._newest = newest
        self._ready = select.epoll()
        self._watches: dict[int, _Watch] = {}

    def connect(self) -> None:
        """Each watch has a connection of its own."""

    def fileno(self) -> int:
        return self._ready.fileno()

    def listen(self, channel: str) -> None:
        self._begin(channel, self._newest())

    def unlisten(self, channels: Collection[str]) -> None:
        for watch in [watch for watch in self._watches.values() if watch.name in channels]:
            self._end(watch)

    def drain(self) -> dict[str, bytes]:
        said: dict[str, bytes] = {}
        while self._watches and (ready := self._ready.poll(0)):
            for number, _ in ready:
                watch = self._watches[number]
                if self._bounded(watch.hear):
                    said[watch.name] = b""
                if watch.is_over:
                    self._end(watch)
                    self._begin(watch.name, watch.since)
        return said

    def ping(self) -> None:
        """Nothing to ask: the kernel notices a peer that is gone, and a silent one costs no more than a look."""

    def close(self) -> None:
        for watch in list(self._watches.values()):
            self._end(watch)
        self._ready.close()

    def _begin(self, name: str, since: int) -> None:
        """Returns once the server has confirmed. From `since` on, or from now where that is 0 or forgotten."""
        answer = self._try(name, since)
        if answer is not None and answer.status == UNAUTHORIZED and self._wire.access.credentials.forget():
            answer = self._try(name, since)
        if answer is not None and answer.status in {GONE, TOO_LARGE}:
            answer = self._try(name, 0)
        if answer is not None:
            raise self._wire.refused("WATCH", name, answer)
        self._wire.allowed("WATCH")

    def _try(self, name: str, since: int) -> Answer | None:
        """None if the watch has begun, else what was answered instead."""
        access = self._wire.access
        query = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "fieldSelector": f"metadata.name={name}",
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        if since:
            query["resourceVersion"] = str(since)
        header = access.credentials.ready()
        header = access.credentials.fetch() if header is None else header
        request = request_of("GET", target(access, self._wire.kind, None, query), access, header)
        watch = _Watch(name, since, SocketLink(place_of(access), self._wire.timeout))
        answer = self._bounded(lambda: watch.begin(request))
        if answer is None:
            self._watches[watch.link.socket.fileno()] = watch
            self._ready.register(watch.link.socket.fileno(), select.EPOLLIN)
        return answer

    def _end(self, watch: _Watch) -> None:
        number = watch.link.socket.fileno()
        del self._watches[number]
        self._ready.unregister(number)
        watch.link.close()

    def _bounded(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except (OSError, EOFError, h11.ProtocolError) as error:
            raise wire_error(self._wire.where, error, self._wire.timeout, sent=False, reads=True) from error


class _Watch:
    """One watch: a request whose answer goes on and on, a line of JSON for each change."""

    def __init__(self, name: str, since: int, link: SocketLink) -> None:
        self.name = name
        self.since = since
        self.link = link
        self.is_over = False
        self._rest = b""

    def begin(self, request: h11.Request) -> Answer | None:
        """Send it and wait for the first words of the answer: None if they are good, else the answer."""
        begun = False
        try:
            self.link.connect()
            self.link.socket.sendall(self.link.talk.say(request, b""))
            while not (status := self.link.talk.status()):
                self.link.talk.hear(self.link.socket.recv(CHUNK))
            if status == OK:
                self.link.socket.setblocking(False)
                begun = True
                return None
            while (answer := self.link.talk.answer()) is None:
                self.link.talk.hear(self.link.socket.recv(CHUNK))
            return answer._replace(status=status)
        finally:
            if not begun:
                self.link.close()

    def hear(self) -> bool:
        """Read what is there. True if it tells of a change, or that changes may have been missed."""
        while True:
            try:
                data = self.link.socket.recv(CHUNK)
            except (BlockingIOError, ssl.SSLWantReadError):
                break
            self.link.talk.hear(data)
            if not data:
                break
        found, self.is_over = self.link.talk.more()
        *lines, self._rest = (self._rest + found).split(b"\n")
        news = [self._is_news(line) for line in lines if line]
        return any(news)

    def _is_news(self, line: bytes) -> bool:
        try:
            event: dict[str, Any] = msgspec.json.decode(line)
            kind, said = event["type"], event["object"]
            if kind == "ERROR":
                # Forgotten, most likely: begin anew, and look.
                self.since, self.is_over = 0, True
                return True
            self.since = int(said["metadata"]["resourceVersion"])
        except (msgspec.MsgspecError, KeyError, TypeError, ValueError) as error:
            raise StoreUnavailable(f"a watch on {self.name} told what is no event", applied=False) from error
        return bool(kind != "BOOKMARK")
