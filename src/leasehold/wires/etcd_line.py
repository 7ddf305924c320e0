"""Hearing of changes to keys: one watch stream of etcd for all that are waited for, read by a thread of its own.

gRPC shows no file that could be polled: the thread that reads the stream writes
into a socket that can be.
"""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections import deque
from collections.abc import Collection, Iterator
from typing import Any

from leasehold.errors import StoreError
from leasehold.rules import etcd_messages as messages
from leasehold.rules.etcd_messages import Told
from leasehold.wires.ears import HEARTBEAT
from leasehold.wires.etcd import EtcdWire
from leasehold.wires.etcd_errors import DEADLINE, UNAVAILABLE, Said, call_error
from leasehold.wires.etcd_link import grpc


class EtcdLine:
    """A `Line`. Blocking also under asyncio: it has threads of its own."""

    silence: float = HEARTBEAT

    def __init__(self, wire: EtcdWire) -> None:
        self._wire = wire
        self._asks: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._said: deque[Told | Said] = deque()
        self._numbers: dict[str, int] = {}
        self._channels: dict[int, str] = {}
        self._news: set[str] = set()
        self._count = 0
        self._readable, self._writable = socket.socketpair()
        self._readable.setblocking(False)
        self._writable.setblocking(False)
        self._stream: Any = None
        self._where = ""

    def connect(self) -> None:
        self._where, self._stream = self._wire.begin_stream(messages.WATCH, self._all_asks())
        threading.Thread(target=self._hear, name="leasehold-etcd-watch", daemon=True).start()

    def fileno(self) -> int:
        return self._readable.fileno()

    def listen(self, channel: str) -> None:
        self._count += 1
        number = self._count
        self._numbers[channel], self._channels[number] = number, channel
        self._asks.put(messages.watch(channel.encode(), number))
        end = time.monotonic() + self._wire.timeout
        while not self._settle(number):
            left = end - time.monotonic()
            if left <= 0:
                raise self._failed(Said(DEADLINE, "a watch was not confirmed"))
            self._readable.settimeout(left)
            try:
                self._readable.recv(1024)
            except TimeoutError:
                continue
            finally:
                self._readable.setblocking(False)

    def unlisten(self, channels: Collection[str]) -> None:
        for channel in channels:
            number = self._numbers.pop(channel)
            del self._channels[number]
            self._asks.put(messages.unwatch(number))

    def drain(self) -> dict[str, bytes]:
        self._swallow()
        self._settle(0)
        news, self._news = self._news, set()
        return dict.fromkeys(news, b"")

    def ping(self) -> None:
        """Nothing to ask: gRPC itself notices a peer that is gone, and a silent one costs no more than a look."""

    def close(self) -> None:
        self._asks.put(None)
        if self._stream is not None:
            self._stream.cancel()
        self._readable.close()

    def _swallow(self) -> None:
        try:
            while self._readable.recv(1024):
                pass
        except BlockingIOError:
            return  # that was all

    def _settle(self, number: int) -> bool:
        """Take in what was said; True if it confirms the watch of that number."""
        begun = False
        while self._said:
            told = self._said.popleft()
            if isinstance(told, Said):
                raise self._failed(told)
            if told.ended and (told.watch_id in self._channels or told.begun):
                raise self._failed(Said("CANCELLED", told.why or "a watch was ended for no reason that is told"))
            begun |= told.begun and told.watch_id == number
            if told.changed and told.watch_id in self._channels:
                self._news.add(self._channels[told.watch_id])
        return begun

    def _failed(self, said: Said) -> StoreError:
        self._wire.leave(self._where)
        return call_error(self._where, said, self._wire.timeout, changes=False)

    def _all_asks(self) -> Iterator[bytes]:
        while (ask := self._asks.get()) is not None:
            yield ask

    # The thread that reads.

    def _hear(self) -> None:
        try:
            for answer in self._stream:
                self._tell(messages.read_told(answer))
            self._tell(Said(UNAVAILABLE, "the watch stream ended"))
        except grpc.RpcError as error:
            self._tell(Said(error.code().name, error.details() or ""))
        except ValueError as error:
            self._tell(Said(UNAVAILABLE, f"the watch told what is no message of etcd: {error}"))
        finally:
            self._writable.close()

    def _tell(self, told: Told | Said) -> None:
        self._said.append(told)
        try:
            self._writable.send(b".")
        except (BlockingIOError, BrokenPipeError, ConnectionResetError):
            return  # full of such bytes already, or nobody listens any more
