"""HTTP/1.1 over one connection to an API server, for threads; and what both colours share of it.

The requests are few and small, so they are written and read by h11, which does no
input or output itself: one source for both colours and for watches. A client
library would cost more than the request (lightkube three to five times the
processor time of a bare one), and repeat requests on its own (aiohttp a DELETE)
or hide whether one was sent, which is what `applied` must know.
"""

from __future__ import annotations

import select
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import h11

from leasehold.wires.colour import drive
from leasehold.wires.pool import Gate, ThreadGate

CHUNK = 65536
# A connection whose other end has vanished without a word is noticed in half a minute.
_KEEPALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
# How many requests of one call are under way at once: fewer than there are connections, others need some.
ABREAST = 8

T = TypeVar("T")


class Place(NamedTuple):
    """Where an API server is. `name` is what its certificate must be made out to."""

    host: str
    port: int
    tls: ssl.SSLContext | None
    name: str

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Answer(NamedTuple):
    """What came back."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes


class Link(Protocol):
    """A connection of either colour, used by one call at a time. Raises what sockets, TLS and h11 raise."""

    async def dial(self) -> None:
        """Connect."""
        ...

    async def exchange(self, request: h11.Request, body: bytes) -> Answer:
        """Send one request and read the whole answer."""
        ...

    def is_stale(self) -> bool:
        """Whether the server has hung up, said it would, or said something nobody asked for."""
        ...

    def close(self) -> None:
        """Hang up."""
        ...


class Side(Protocol):
    """What of the wire has a colour."""

    def link(self, place: Place, timeout: float) -> Link:
        """A connection, not yet dialled."""
        ...

    def gate(self) -> Gate:
        """Where calls wait when the pool is full."""
        ...

    async def pause(self, seconds: float) -> None:
        """Let real time pass."""
        ...

    async def abreast(self, works: Sequence[Callable[[], Coroutine[Any, Any, T]]]) -> list[T]:
        """Do all of it, several at once. What is done must not raise."""
        ...


class Talk:
    """One connection's requests and answers as bytes, one after the other."""

    def __init__(self) -> None:
        self._connection = h11.Connection(h11.CLIENT)
        self._status = 0
        self._headers: dict[bytes, bytes] = {}
        self._body: list[bytes] = []

    def say(self, request: h11.Request, body: bytes) -> bytes:
        """The request as it travels."""
        said = self._connection.send(request) or b""
        said += (self._connection.send(h11.Data(body)) or b"") if body else b""
        return said + (self._connection.send(h11.EndOfMessage()) or b"")

    def hear(self, data: bytes) -> None:
        """What came in. No data means that the server hung up."""
        if not data and self._connection.their_state is not h11.SEND_BODY:
            raise EOFError("the server closed the connection")
        self._connection.receive_data(data)

    def answer(self) -> Answer | None:
        """The answer once it is whole; the connection is then ready for the next request, or not `is_fit`."""
        while True:
            event = self._connection.next_event()
            match event:
                case h11.Response():
                    self._status, self._headers, self._body = event.status_code, dict(event.headers), []
                case h11.Data():
                    self._body.append(bytes(event.data))
                case h11.EndOfMessage():
                    if self._connection.our_state is self._connection.their_state is h11.DONE:
                        self._connection.start_next_cycle()
                    return Answer(self._status, self._headers, b"".join(self._body))
                case h11.InformationalResponse():
                    continue
                case _:
                    return None

    def status(self) -> int:
        """The status of an answer that is still coming, 0 before it has begun. For watches."""
        event = None
        while not self._status and event is not h11.NEED_DATA:
            event = self._connection.next_event()
            if isinstance(event, h11.Response):
                self._status = event.status_code
        return self._status

    def more(self) -> tuple[bytes, bool]:
        """What has come of the body since, and whether that was the end. For watches."""
        found = b""
        while isinstance(event := self._connection.next_event(), h11.Data):
            found += bytes(event.data)
        return found, event is not h11.NEED_DATA

    @property
    def is_fit(self) -> bool:
        """Whether another request may follow."""
        return self._connection.our_state is h11.IDLE


def tune(opened: socket.socket) -> None:
    """What every connection is set to."""
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):
            opened.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class SocketLink:
    """A connection of a thread."""

    def __init__(self, place: Place, timeout: float) -> None:
        self.place: Place = place
        self.talk: Talk = Talk()
        self._timeout = timeout
        self._socket: socket.socket | None = None
        self._readable = select.poll()

    async def dial(self) -> None:
        self.connect()

    def connect(self) -> None:
        place = self.place
        opened = socket.create_connection((place.host, place.port), self._timeout)
        try:
            tune(opened)
            self._socket = place.tls.wrap_socket(opened, server_hostname=place.name) if place.tls else opened
        except BaseException:
            opened.close()
            raise
        self._readable.register(self._socket, select.POLLIN)

    async def exchange(self, request: h11.Request, body: bytes) -> Answer:
        until = time.monotonic() + self._timeout
        self.socket.sendall(self.talk.say(request, body))
        while True:
            self.talk.hear(self.socket.recv(CHUNK))
            answer = self.talk.answer()
            if answer is not None:
                return answer
            if time.monotonic() > until:
                # A server that drips: each piece came in time, the whole did not.
                raise TimeoutError

    def is_stale(self) -> bool:
        return not self.talk.is_fit or bool(self._readable.poll(0))

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

    def link(self, place: Place, timeout: float) -> Link:
        return SocketLink(place, timeout)

    def gate(self) -> Gate:
        return ThreadGate()

    async def pause(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251  the colour of threads

    async def abreast(self, works: Sequence[Callable[[], Coroutine[Any, Any, T]]]) -> list[T]:
        """By a few threads that live no longer than this call; the caller's is one of them."""
        done: dict[int, T] = {}
        waiting = deque(enumerate(works))

        def work_off() -> None:
            while True:
                try:
                    place, work = waiting.popleft()
                except IndexError:
                    return
                done[place] = drive(work())

        helpers = [
            threading.Thread(target=work_off, name="leasehold-kubernetes", daemon=True)
            for _ in range(min(len(works), ABREAST) - 1)
        ]
        for helper in helpers:
            helper.start()
        work_off()
        for helper in helpers:
            helper.join()
        return [done[place] for place in range(len(works))]
