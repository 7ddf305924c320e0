"""A store that fails on purpose, one call at a time.

    store = FaultyStore(inner, colour)
    store.plan("swap", cut)              # the next swap is applied, its reply lost
    store.down()                         # nothing gets through until up()

Each fault sees the call that was meant to be made and decides what becomes of
it. `calls` counts what the client asked for, verb by verb.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from leasehold.errors import StoreUnavailable
from leasehold.model import Conflict, Guarantees, Keep, Key, Record, Renewal, Scan, Swap
from leasehold.stores.base import Store
from leasehold.wires.colour import Colour, Signal

T = TypeVar("T")
Call = Callable[[], Awaitable[Any]]
Fault = Callable[["FaultyStore", Call], Awaitable[Any]]


async def drop(_store: FaultyStore, _call: Call) -> Any:
    """The request never arrives. The client cannot tell."""
    raise StoreUnavailable("injected: the request was dropped")


async def cut(_store: FaultyStore, call: Call) -> Any:
    """The request is applied and its reply lost. The client cannot tell."""
    await call()
    raise StoreUnavailable("injected: the reply was cut off")


async def refuse(_store: FaultyStore, _call: Call) -> Any:
    """The connection is refused: certainly nothing was applied."""
    raise StoreUnavailable("injected: connection refused", applied=False)


async def duplicate(_store: FaultyStore, call: Call) -> Any:
    """The request arrives twice; the client sees the second reply."""
    await call()
    return await call()


async def hold_back(store: FaultyStore, call: Call) -> Any:
    """The request is overtaken: the client gives up on it, and it arrives at `deliver()`."""
    store.held_back.append(call)
    raise StoreUnavailable("injected: the request is still under way")


def delay(seconds: float) -> Fault:
    """The request arrives late."""

    async def delayed(store: FaultyStore, call: Call) -> Any:
        await store.colour.sleep(seconds)
        return await call()

    return delayed


def delay_reply(seconds: float) -> Fault:
    """The request is applied at once, and its reply comes so long after it was sent."""

    async def delayed(store: FaultyStore, call: Call) -> Any:
        due = store.colour.clock.now() + seconds
        answer = await call()
        await store.colour.sleep(max(due - store.colour.clock.now(), 0.0))
        return answer

    return delayed


def hang(signal: Signal) -> Fault:
    """The store accepts the request and does not answer until the signal is set; then it was dropped."""

    async def hung(store: FaultyStore, call: Call) -> Any:
        await signal.wait()
        return await drop(store, call)

    return hung


class FaultyStore:
    """Any store, with faults in front of it."""

    def __init__(self, inner: Store, colour: Colour) -> None:
        self.inner = inner
        self.colour = colour
        self.calls: Counter[str] = Counter()
        self.held_back: list[Call] = []
        self._plans: dict[str, deque[Fault]] = {}
        self._always: Fault | None = None

    @property
    def guarantees(self) -> Guarantees:
        return self.inner.guarantees

    def plan(self, verb: str, *faults: Fault) -> None:
        """Let these faults happen to the next calls of a verb, one each."""
        self._plans.setdefault(verb, deque()).extend(faults)

    def forget_plans(self) -> None:
        """Let nothing happen that was planned and has not."""
        self._plans.clear()

    def down(self, fault: Fault = drop) -> None:
        """Let every call fail this way until `up`."""
        self._always = fault

    def up(self) -> None:
        """Work again."""
        self._always = None

    async def deliver(self) -> list[Any]:
        """Let the requests held back arrive now; returns the answers nobody hears."""
        late, self.held_back = self.held_back, []
        return [await call() for call in late]

    async def open(self) -> None:
        await self.inner.open()

    async def close(self) -> None:
        await self.inner.close()

    async def load(self, key: Key) -> Record | None:
        return await self._through("load", lambda: self.inner.load(key))

    async def swap(
        self, key: Key, expect: Record | None, value: bytes | None, ttl: float | Keep | None
    ) -> Record | Conflict:
        return await self._through("swap", lambda: self.inner.swap(key, expect, value, ttl))

    async def touch(self, holds: Sequence[tuple[Record, float]]) -> list[tuple[Renewal, Record | None]]:
        return await self._through("touch", lambda: self.inner.touch(holds))

    async def watch(self, key: Key, seen: Record | None, until: float) -> Record | None:
        return await self._through("watch", lambda: self.inner.watch(key, seen, until))

    async def scan(self, family: str, windows: Sequence[tuple[str, str]] = ()) -> list[Record]:
        return await self._through("scan", lambda: self.inner.scan(family, windows))

    async def together(self, asks: Sequence[Swap | Scan]) -> list[Record | Conflict | list[Record]]:
        """One after the other, so that each can have its own fault."""
        found: list[Record | Conflict | list[Record]] = []
        for ask in asks:
            verb = "swap" if isinstance(ask, Swap) else "scan"
            found += await self._through(verb, partial(self.inner.together, [ask]))
        return found

    async def page(self, root: str, after: Key | None, limit: int) -> list[Record]:
        return await self._through("page", lambda: self.inner.page(root, after, limit))

    async def collect(self, limit: int) -> int:
        return await self._through("collect", lambda: self.inner.collect(limit))

    async def _through(self, verb: str, call: Callable[[], Awaitable[T]]) -> T:
        self.calls[verb] += 1
        planned = self._plans.get(verb)
        fault = planned.popleft() if planned else self._always
        if fault is None:
            return await call()
        answer: T = await fault(self, call)
        return answer
