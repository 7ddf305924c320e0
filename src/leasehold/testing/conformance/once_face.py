"""`Once` of either colour behind one face, for laws.

What a law gives to be done is an `async def` that never really waits in the blocking colour; a `Gate` is how it is
held up in the middle.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any

from leasehold.engine.blocking import drive
from leasehold.engine.events import Handled
from leasehold.errors import OutcomeUnknown
from leasehold.patterns import once, once_aio
from leasehold.stores.base import Store
from leasehold.testing.conformance.arena import PATIENCE, Arena, Client
from leasehold.testing.faults import Call, FaultyStore

Doing = Callable[["WorkFace"], Awaitable[Any]]
KEY = "order/42"
RECEIPT = {"charged": 100, "to": "é", "lines": [1, 2.5, None, True]}


class WorkFace:
    """Work of either colour: its steps are awaited."""

    def __init__(self, work: once.Work | once_aio.Work, arena: Arena) -> None:
        self.real = work
        self._arena = arena

    def __getattr__(self, name: str) -> Any:
        self._arena.used.add(f"Work.{name}")
        return getattr(self.real, name)

    async def step(self, name: str, function: Callable[[], Any], *, rerun: bool = False) -> Any:
        """A step whose function is a plain one."""
        self._arena.used.add("Work.step")
        if isinstance(self.real, once.Work):
            return self.real.step(name, function, rerun=rerun)

        async def awaited() -> Any:
            return function()

        return await self.real.step(name, awaited, rerun=rerun)


class Gate:
    """Where work waits until the law lets it go on."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self.reached: threading.Event = threading.Event()
        self._open = threading.Event()

    def open(self) -> None:
        """Let it go on."""
        self._open.set()

    async def passed(self) -> None:
        """Wait here."""
        self.reached.set()
        if self._arena.loop is None:
            self._open.wait(PATIENCE)
        while not self._open.is_set():  # noqa: ASYNC110  it is opened by another thread
            await asyncio.sleep(0.001)


class OnceFace:
    """One client's `Once`."""

    def __init__(self, arena: Arena, who: Client, name: str = "once", **options: Any) -> None:
        self.arena = arena
        self.who = who
        kind: Any = once.Once if arena.loop is None else once_aio.Once
        self.real: Any = kind(who.locks, name, **{"ttl": arena.ttl, **options})

    def run(self, key: str, doing: Doing, **options: Any) -> Any:
        """What the run answers, or what it raises."""
        return self.begin(key, doing, **options).result(PATIENCE)

    def begin(self, key: str, doing: Doing, *, beside: bool = False, **options: Any) -> Future[Any]:
        """Start a run and go on; the future has its result. `beside`: by another thread or task of the client."""
        self.arena.used.add("Once.run")

        async def looped(work: once.Work | once_aio.Work) -> Any:
            return await doing(WorkFace(work, self.arena))

        def blocking(work: once.Work) -> Any:
            return drive(looped(work))

        function = blocking if self.arena.loop is None else looped
        person = self.arena.person() if beside else self.who.person
        return person.begin(functools.partial(self.real.run, key, function, **options))

    def __getattr__(self, verb: str) -> Any:
        found = getattr(self.real, verb)
        self.arena.used.add(f"Once.{verb}")
        # Not by the client's own person, who may be in the middle of a run.
        return lambda *args, **options: self.arena.person().do(functools.partial(found, *args, **options))

    @property
    def told(self) -> list[str]:
        """The outcomes the client's observers were told of."""
        return [event.outcome for event in self.who.events if isinstance(event, Handled)]


class Counted:
    """A store that counts the requests made of it: those of the heartbeat are renewals, and not counted."""

    def __init__(self, inner: Store) -> None:
        self.requests: list[str] = []
        self._inner = inner

    def __getattr__(self, verb: str) -> Any:
        found = getattr(self._inner, verb)
        if verb in {"load", "swap", "together", "scan", "page", "watch"}:
            self.requests.append(verb)
        return found


class Declined(Exception):
    """A definite failure."""


class Hiccup(Exception):
    """A failure after which it may be tried again."""


class Ledger:
    """What the work does, and who did it."""

    def __init__(self) -> None:
        self.done: list[int] = []

    async def charge(self, work: WorkFace) -> Any:
        """The effect, and what it comes to."""
        self.done.append(work.token)
        return RECEIPT

    def held_up(self, gate: Gate) -> Doing:
        """The effect, some time after the beginning."""

        async def slow(work: WorkFace) -> Any:
            await gate.passed()
            return await self.charge(work)

        return slow

    def failing(self, error: BaseException) -> Doing:
        """The effect, and an error after it."""

        async def doing(work: WorkFace) -> Any:
            await self.charge(work)
            raise error

        return doing


async def through(_store: FaultyStore, call: Call) -> Any:
    return await call()


def two_of(arena: Arena, **options: Any) -> tuple[OnceFace, OnceFace]:
    return OnceFace(arena, arena.client("ada"), **options), OnceFace(arena, arena.client("bob"), **options)


def counted_of(arena: Arena, name: str) -> tuple[OnceFace, Counted]:
    made: list[Counted] = []

    def count(store: FaultyStore) -> Any:
        made.append(Counted(store))
        return made[0]

    return OnceFace(arena, arena.client(name, change=count)), made[0]


def died(arena: Arena, one: OnceFace, two: OnceFace, doing: Doing) -> Future[Any]:
    """One begins and is cut off from the store; two waits for it, and is told that nobody knows how far it came."""
    running = one.begin(KEY, doing)
    arena.eventually(lambda: one.told == ["begun"])
    one.who.store.down()
    waiting = two.begin(KEY, doing)
    # In small steps: who waits observes a lease for a while, where a store has no clock of its own.
    for _ in range(12):
        arena.elapse(arena.ttl / 10)
    arena.eventually(waiting.done)
    assert isinstance(waiting.exception(), OutcomeUnknown)
    return running


def comes_back(arena: Arena, one: OnceFace, gate: Gate, running: Future[Any]) -> None:
    one.who.store.up()
    gate.open()
    arena.eventually(running.done)


def live(arena: Arena, one: OnceFace, seconds: float) -> None:
    """Let time pass in small steps, and see at each that the heartbeat keeps up."""
    beat = one.who.locks._engine.heartbeat  # noqa: SLF001  nothing public tells it of work
    for _ in range(round(seconds / arena.ttl * 10)):
        arena.elapse(arena.ttl / 10)
        arena.eventually(lambda: all(not each.busy and each.due > arena.world.clock.now() for each in beat.held()))
