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
from types import TracebackType
from typing import Self

CHUNK = 65536


class Direction:
    """What happens to bytes on their way in one direction."""

    def __init__(self) -> None:
        self.bytes = 0
        self.blackhole = False
        self.latency = 0.0
        self.slice = CHUNK


class Proxy:
    """Forwards a port of this machine to a server, until it is closed."""

    def __init__(self, host: str, port: int) -> None:
        self._upstream = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.requests = Direction()
        self.replies = Direction()
        self.connections = 0
        self.flights = 0
        self.refusing = False
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, name="leasehold-proxy", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()
        self.cut()

    def cut(self) -> None:
        """Reset every connection, in the middle of whatever passes."""
        with self._lock:
            doomed, self._open = self._open, set()
        for end in doomed:
            _reset(end)

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
            _reset(client)
            return
        with self._lock:
            self.connections += 1
            self._open |= {client, server}
        talk = _Talk()
        for source, target, way in ((client, server, self.requests), (server, client, self.replies)):
            threading.Thread(target=self._pump, args=(source, target, way, talk), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, way: Direction, talk: _Talk) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(way.slice):
                self._count(way, talk, len(data))
                if way.latency:
                    time.sleep(way.latency)
                if not way.blackhole:
                    target.sendall(data)
        with self._lock:
            self._open -= {source, target}
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _count(self, way: Direction, talk: _Talk, size: int) -> None:
        with self._lock:
            way.bytes += size
            if way is self.requests:
                self.flights += talk.answered
            talk.answered = way is self.replies


class _Talk:
    """Whose turn it is on one connection."""

    answered = True


def _reset(end: socket.socket) -> None:
    # SO_LINGER with zero seconds: close sends RST, as a crashed peer would.
    with contextlib.suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    end.close()
