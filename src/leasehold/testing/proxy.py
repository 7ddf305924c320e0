"""A TCP proxy on loopback that counts what passes and breaks it on purpose.

Put it between a client and a server:

    with Proxy("127.0.0.1", 6379) as proxy:
        client = connect(f"redis://127.0.0.1:{proxy.port}")
        proxy.replies.blackhole = True      # requests arrive, replies vanish
        proxy.cut()                         # every connection is reset

`flights` counts round trips: how often a client spoke after having been silent
or answered. Faults act on each direction by itself.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

CHUNK = 65536
# With no linger a close sends RST, as a crashed peer would.
NO_LINGER = struct.pack("ii", 1, 0)


class Direction:
    """What happens to bytes on their way in one direction."""

    def __init__(self) -> None:
        self.bytes: int = 0
        self.blackhole: bool = False
        self.latency: float = 0.0
        # What passes instead of what came: one piece at a time, as the network cut it.
        self.alter: Callable[[bytes], bytes] | None = None
        self.slice: int = CHUNK


class Proxy:
    """Forwards a port of this machine to a server, until it is closed."""

    def __init__(self, host: str, port: int) -> None:
        self._upstream = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.requests: Direction = Direction()
        self.replies: Direction = Direction()
        self.connections: int = 0
        self.flights: int = 0
        self.refusing = False
        self._talks: set[_Talk] = set()
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, name="leasehold-proxy", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # To close it is not enough: whoever waits in accept() would wait for ever.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def cut(self) -> None:
        """Reset every connection, in the middle of whatever passes."""
        with self._lock:
            talks = list(self._talks)
        for talk in talks:
            talk.cut()

    def reset_counters(self) -> None:
        """Count from zero again."""
        with self._lock:
            self.flights = self.connections = self.requests.bytes = self.replies.bytes = 0

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._join(client)

    def _join(self, client: socket.socket) -> None:
        try:
            if self.refusing:
                raise ConnectionRefusedError
            server = socket.create_connection(self._upstream)
        except OSError:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
            client.close()
            return
        talk = _Talk(client, server)
        with self._lock:
            self.connections += 1
            self._talks.add(talk)
        for source, target, way in ((client, server, self.requests), (server, client, self.replies)):
            threading.Thread(target=self._pump, args=(source, target, way, talk), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, way: Direction, talk: _Talk) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(way.slice):
                self._count(way, talk, len(data))
                if way.alter is not None:
                    data = way.alter(data)
                if way.latency:
                    time.sleep(way.latency)
                if not way.blackhole:
                    target.sendall(data)
        with self._lock:
            talk.pumps -= 1
            if not talk.pumps:
                self._talks.discard(talk)
        talk.end(target)

    def _count(self, way: Direction, talk: _Talk, size: int) -> None:
        with self._lock:
            way.bytes += size
            if way is self.requests:
                self.flights += talk.answered
            talk.answered = way is self.replies


class _Talk:
    """One connection: its two ends, whose turn it is, and how many directions are still open."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.ends = (client, server)
        self.answered = True
        self.pumps = 2
        self.is_cut = False

    def cut(self) -> None:
        self.is_cut = True
        for end in self.ends:
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
                end.shutdown(socket.SHUT_RD)

    def end(self, target: socket.socket) -> None:
        """One direction is over: pass that on, or close both ends after the second."""
        if not self.pumps:
            for end in self.ends:
                end.close()
        elif not self.is_cut:
            with contextlib.suppress(OSError):
                target.shutdown(socket.SHUT_WR)
