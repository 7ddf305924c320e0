"""A Redis store driven from plain tests, and the servers several of them share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from leasehold.engine.blocking import BlockingRuntime, drive
from leasehold.engine.looped import LoopedRuntime
from leasehold.model import Conflict, Key, Record
from leasehold.stores.open import open_store
from leasehold.testing.proxy import Proxy
from leasehold.testing.servers import RedisServer, ServerClock
from leasehold.testing.servers.shared import shared
from leasehold.wires.clock import Clock, system_clock

KEY = Key("app//name/job", "lock")
ROOT_OF_KEYS = "app//"
FROZEN = ServerClock()


def server() -> RedisServer:
    """One Redis in real time, without persistence, emptied."""
    found = shared("redis", RedisServer(aof="no"))
    found.command("FLUSHALL")
    return found


def frozen_server() -> RedisServer:
    """One whose clock stands until FROZEN is advanced, emptied."""
    found = shared("redis with a standing clock", RedisServer(aof="no", clock=FROZEN))
    found.command("FLUSHALL")
    return found


def behind(proxy: Proxy, options: str = "") -> str:
    """The URL of what a proxy leads to."""
    return f"redis://127.0.0.1:{proxy.port}{options}"


class Driven:
    """The verbs of a store as plain calls, in either colour."""

    def __init__(self, url: str, colour: str = "blocking", clock: Clock | None = None, timeout: float = 5.0) -> None:
        self.loop = asyncio.new_event_loop() if colour == "asyncio" else None
        self.given = (url, clock or system_clock(), timeout)
        self.store: Any = None

    def begin(self) -> None:
        self.store = self.wait(self._made(*self.given))
        self.open()

    async def _made(self, url: str, clock: Clock, patience: float) -> Any:
        runtime = LoopedRuntime(clock) if self.loop else BlockingRuntime(clock)
        return open_store(url, timeout=patience, colour=runtime)

    def wait(self, work: Any) -> Any:
        return self.loop.run_until_complete(work) if self.loop else drive(work)

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        return lambda *given: self.wait(getattr(self.store, verb)(*given))

    def grant(self, key: Key = KEY, ttl: float | None = 30.0, value: bytes = b"mine") -> Record:
        """A swap that must succeed."""
        record = self.swap(key, None, value, ttl)
        assert isinstance(record, Record), record
        return record

    def refused(self, key: Key = KEY) -> Record:
        """A swap that must find somebody else; returns what it found."""
        answer = self.swap(key, None, b"theirs", 30.0)
        assert isinstance(answer, Conflict), answer
        assert answer.record is not None
        return answer.record

    def end(self) -> None:
        if self.store is not None:
            self.close()
        if self.loop is not None:
            # Connections that were hung up on tell the loop once more.
            self.wait(turn())
            self.loop.close()


@contextmanager
def driven(url: str, colour: str = "blocking", clock: Clock | None = None, timeout: float = 5.0) -> Iterator[Driven]:
    """An open store, closed at the end."""
    store = Driven(url, colour, clock, timeout)
    try:
        store.begin()
        yield store
    finally:
        store.end()


async def turn() -> None:
    """Let everybody else on the loop go on once."""
    await asyncio.sleep(0)


def key(number: int) -> Key:
    """One of many keys, each in a family of its own."""
    return Key(f"app//name/job-{number:05}", "lock")
