"""One member of an etcd cluster, reached over gRPC; and how a blocking program waits for its answers.

The calls are etcd's methods by name, with bytes in and bytes out: what is in them
is written and read in `rules/etcd_messages.py`.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from leasehold.extras import require
from leasehold.rules.addresses import Address
from leasehold.wires.etcd_errors import CANCELLED, UNAVAILABLE, Said, file_error
from leasehold.wires.etcd_url import EtcdConfig

# What failed is told by our errors; gRPC would write it to the program's standard error, too.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
grpc: Any = require("grpc", feature="the store etcd://", extra="etcd")

OPTIONS = (
    # Our own connections, not one shared with everybody in the process who happens to dial the same host.
    ("grpc.use_local_subchannel_pool", 1),
    # What is repeated, and when, is decided above.
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 2000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # A peer that is gone without a word. etcd hangs up on whoever asks more often than every 5 s.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
)


class CallFailed(Exception):
    """A call that was not answered, or by an error."""

    def __init__(self, said: Said) -> None:
        super().__init__(said.words)
        self.said = said


class Call(NamedTuple):
    """One question: the method's name, the message, how long to wait for the answer, and what goes along."""

    method: str
    message: bytes
    timeout: float
    metadata: tuple[tuple[str, str], ...]


class Endpoint:
    """The way to one member. Nothing is dialled before the first call."""

    def __init__(self, address: Address, credentials: Any) -> None:
        self.address: Address = address
        self.credentials: Any = credentials
        self._channel: Any = None
        self._stubs: dict[str, Any] = {}

    @property
    def channel(self) -> Any:
        """The channel of threads: made when first needed, as an event loop has another one."""
        if self._channel is None:
            target, credentials = str(self.address), self.credentials
            self._channel = (
                grpc.insecure_channel(target, options=OPTIONS)
                if credentials is None
                else grpc.secure_channel(target, credentials, options=OPTIONS)
            )
        return self._channel

    def stub(self, method: str) -> Any:
        """The method, ready to be called."""
        found = self._stubs.get(method)
        if found is None:
            found = self._stubs[method] = self.channel.unary_unary(method)
        return found

    def close(self) -> None:
        """Hang up. What is under way fails."""
        if self._channel is not None:
            self._channel.close()


class Side(Protocol):
    """Who waits for answers: a thread, or a task."""

    async def ask(self, endpoint: Endpoint, call: Call) -> bytes:
        """The answer, or CallFailed."""
        ...

    async def ask_all(self, endpoint: Endpoint, calls: Sequence[Call]) -> list[bytes | CallFailed]:
        """The answers to questions that are asked all at once."""
        ...

    async def pause(self, seconds: float) -> None:
        """Let real time pass."""
        ...

    async def close(self, endpoint: Endpoint) -> None:
        """Hang up."""
        ...


class BlockingSide:
    """A thread waits."""

    async def ask(self, endpoint: Endpoint, call: Call) -> bytes:
        with translated():
            answer: bytes = endpoint.stub(call.method)(call.message, timeout=limit(call), metadata=call.metadata)
        return answer

    async def ask_all(self, endpoint: Endpoint, calls: Sequence[Call]) -> list[bytes | CallFailed]:
        with translated():
            begun = [
                endpoint.stub(call.method).future(call.message, timeout=limit(call), metadata=call.metadata)
                for call in calls
            ]
        answers: list[bytes | CallFailed] = []
        for one in begun:
            try:
                with translated():
                    answers.append(one.result())
            except CallFailed as failed:
                answers.append(failed)
        return answers

    async def pause(self, seconds: float) -> None:
        threading.Event().wait(seconds)

    async def close(self, endpoint: Endpoint) -> None:
        endpoint.close()


def limit(call: Call) -> float:
    """The timeout to give to gRPC, which adds it to `time.time()`: what a program has made of that must not matter."""
    return call.timeout + time.clock_gettime(time.CLOCK_REALTIME) - time.time()


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """What gRPC raises, as CallFailed."""
    try:
        yield
    except grpc.RpcError as error:
        raise CallFailed(Said(error.code().name, error.details() or "")) from error
    except grpc.FutureCancelledError as error:
        raise CallFailed(Said(CANCELLED, "the call was cancelled")) from error
    except ValueError as error:
        raise CallFailed(Said(UNAVAILABLE, f"the channel is closed: {error}")) from error


def credentials_of(config: EtcdConfig) -> Any:
    """What TLS needs; None without it."""
    if not config.tls:
        return None
    ca, cert, key = (_file(name, getattr(config, name)) for name in ("ca", "cert", "key"))
    return grpc.ssl_channel_credentials(ca, key, cert)


def _file(option: str, path: str) -> bytes | None:
    if not path:
        return None
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise file_error(option, path, error) from error
