"""Where the laws are tried: one store, one colour, and as many clients as a law needs.

A law is plain, blocking-looking code. An `Arena` gives it clients of either
colour behind the same face: each `Person` is one thread, or one task of a loop
in a background thread, and does what it is told in order. A `World` is what the
author of a store provides: how to make a store object, and how time passes.
"""

from __future__ import annotations

import asyncio
import functools
import queue
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

from leasehold import aio, client
from leasehold.engine.blocking import BlockingRuntime, drive
from leasehold.engine.engine import Engine
from leasehold.engine.events import Event
from leasehold.engine.looped import LoopedRuntime
from leasehold.engine.runtime import Runtime
from leasehold.rules.names import Names
from leasehold.rules.tokens import PASSES
from leasehold.stores.base import Store
from leasehold.testing.clock import VirtualClock
from leasehold.testing.faults import FaultyStore
from leasehold.wires.clock import Clock
from leasehold.wires.colour import Colour

T = TypeVar("T")
ColourName = Literal["blocking", "asyncio"]
PATIENCE = 20.0


class World(Protocol):
    """A store under test."""

    @property
    def clock(self) -> Clock:
        """The clock its clients live by."""
        ...

    @property
    def ttl(self) -> float:
        """The ttl laws work with. A world whose time is only roughly known needs a long one."""
        ...

    @property
    def url(self) -> str | None:
        """How another process reaches the same data; None declares that none can."""
        ...

    def store(self, colour: Colour) -> Store:
        """A new, unopened store object on the same data."""
        ...

    def elapse(self, seconds: float) -> None:
        """Let time pass."""
        ...

    def close(self) -> None:
        """Remove what was made."""
        ...


class MakeWorld(Protocol):
    """Makes a fresh world whose data may live in a folder."""

    def __call__(self, folder: Path) -> World: ...


class Person:
    """One thread or task that does what it is told, one thing after the other."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None) -> None:
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()
        self.gone: threading.Event = threading.Event()
        if loop is None:
            threading.Thread(target=self._live, daemon=True).start()
        else:
            self._inbox: asyncio.Queue[tuple[Callable[[], Any], Future[Any]] | None] = asyncio.Queue()
            asyncio.run_coroutine_threadsafe(self._live_async(), loop)
        self._loop = loop

    def begin(self, job: Callable[[], Any]) -> Future[Any]:
        """Start a job; the future has its result."""
        done: Future[Any] = Future()
        self._send((job, done))
        return done

    def do(self, job: Callable[[], Any]) -> Any:
        """The result of a job."""
        return self.begin(job).result(PATIENCE)

    def leave(self) -> None:
        """Nothing more to do."""
        self._send(None)

    def _send(self, item: tuple[Callable[[], Any], Future[Any]] | None) -> None:
        if self._loop is None:
            self._jobs.put(item)
        else:
            self._loop.call_soon_threadsafe(self._inbox.put_nowait, item)

    def _live(self) -> None:
        while (item := self._jobs.get()) is not None:
            job, done = item
            try:
                done.set_result(job())
            except BaseException as error:  # noqa: BLE001  the one who asked gets it
                done.set_exception(error)
        self.gone.set()

    async def _live_async(self) -> None:
        while (item := await self._inbox.get()) is not None:
            job, done = item
            try:
                answer = job()
                done.set_result(await answer if isinstance(answer, Awaitable) else answer)
            except BaseException as error:  # noqa: BLE001  the one who asked gets it
                done.set_exception(error)
        self.gone.set()


class LeaseFace:
    """A lease of either colour, for a law to look at and use."""

    def __init__(self, lease: client.Lease | aio.Lease, person: Person, arena: Arena) -> None:
        self.real = lease
        self._person = person
        self._arena = arena

    def __getattr__(self, name: str) -> Any:
        self._arena.used.add(f"Lease.{name}")
        found = getattr(self.real, name)
        if name in {"renew", "release", "downgrade", "upgrade", "release_part"}:
            return lambda *args, **options: self._person.do(functools.partial(found, *args, **options))
        if name == "adopt":
            return lambda by: self._arena.person_of(by).do(found)
        return found

    def lost_within(self, timeout: float) -> bool:
        """`lease.lost.wait(timeout)`, by the person who holds it."""
        self._arena.used |= {"Lease.lost", "Loss.wait"}
        answer: bool = self._person.do(lambda: self.real.lost.wait(timeout))
        return answer


class Client:
    """A client of either colour: verbs are called as in the blocking one."""

    def __init__(self, arena: Arena, locks: client.Locks | aio.Locks, store: FaultyStore, person: Person) -> None:
        self.locks = locks
        self.store = store
        self.person = person
        self.events: list[Event] = []
        self._arena = arena

    def __getattr__(self, verb: str) -> Any:
        found = getattr(self.locks, verb)
        self._arena.used.add(f"Locks.{verb}")
        return functools.partial(self._call, found) if callable(found) else found

    def begin(self, verb: str, *args: Any, **options: Any) -> Future[Any]:
        """Start a verb and go on; the future has its result."""
        self._arena.used.add(f"Locks.{verb}")
        return self.person.begin(functools.partial(getattr(self.locks, verb), *args, **options))

    def beside(self) -> Client:
        """The same client, used by another thread or task."""
        return Client(self._arena, self.locks, self.store, self._arena.person())

    def decorated(self, template: str, function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        """The function under `locked`."""
        self._arena.used.add("Locks.locked")
        wrapped: Callable[..., Any] = self.locks.locked(template, **options)(function)
        return wrapped

    def within(self, scope: str, body: Callable[[LeaseFace], Any], **options: Any) -> Any:
        """What `body` returns inside `hold`. It runs as the holder, so it must not ask anybody to do anything."""
        self._arena.used.add("Locks.hold")
        hold: Any = self.locks.hold(scope, **options)

        def blocking() -> Any:
            with hold as lease:
                return body(self.face(lease))

        async def looped() -> Any:
            async with hold as lease:
                return body(self.face(lease))

        return self.person.do(blocking if isinstance(hold, client.Hold) else looped)

    def within_all(self, scopes: Any, body: Callable[[Any], Any], **options: Any) -> Any:
        """What `body` returns inside `hold_all`. It runs as the holder, as in `within`."""
        self._arena.used.add("Locks.hold_all")
        hold: Any = self.locks.hold_all(scopes, **options)

        def blocking() -> Any:
            with hold as leases:
                return body(leases)

        async def looped() -> Any:
            async with hold as leases:
                return body(leases)

        return self.person.do(blocking if isinstance(hold, client.HoldAll) else looped)

    def face(self, lease: client.Lease | aio.Lease) -> LeaseFace:
        """A lease that came out of a future."""
        return LeaseFace(lease, self.person, self._arena)

    def _call(self, verb: Callable[..., Any], *args: Any, **options: Any) -> Any:
        answer = self.person.do(functools.partial(verb, *args, **options))
        return self.face(answer) if isinstance(answer, client.Lease | aio.Lease) else answer


class StoreFace:
    """A bare store of either colour: verbs return instead of being awaited."""

    def __init__(self, arena: Arena, store: Store, person: Person) -> None:
        self.real = store
        self.person = person
        self._arena = arena

    def __getattr__(self, verb: str) -> Any:
        found = getattr(self.real, verb)
        self._arena.used.add(f"Store.{verb}")
        return functools.partial(self._call, found) if callable(found) else found

    def begin(self, verb: str, *args: Any) -> Future[Any]:
        """Start a verb and go on."""
        self._arena.used.add(f"Store.{verb}")
        work = functools.partial(getattr(self.real, verb), *args)
        return self.person.begin(work if self._arena.loop else lambda: drive(work()))

    def _call(self, verb: Callable[..., Any], *args: Any) -> Any:
        work = functools.partial(verb, *args)
        return self.person.do(work if self._arena.loop else lambda: drive(work()))


class Arena:
    """One store × one colour, for the length of one law."""

    def __init__(self, world: World, colour: ColourName) -> None:
        self.world = world
        self.ttl: float = world.ttl
        self.colour: ColourName = colour
        self.used: set[str] = set()
        self.loop: asyncio.AbstractEventLoop | None = _start_loop() if colour == "asyncio" else None
        self._people: list[Person] = []
        self._clients: list[Client] = []
        self._stores: list[StoreFace] = []

    def client(
        self,
        holder: str | None = None,
        *,
        prefix: str | None = None,
        tenant: str | None = None,
        timeout: float = 5.0,
        local_passes: int = PASSES - 1,
        change: Callable[[FaultyStore], Store] | None = None,
    ) -> Client:
        """A new client of the arena's store, with faults to be had at `client.store`."""
        person = self.person()

        async def build() -> Client:
            runtime = self.runtime()
            store = FaultyStore(self.world.store(runtime), runtime)
            await store.open()
            seen: list[Event] = []
            engine = Engine(
                change(store) if change else store,
                runtime,
                Names(prefix, tenant),
                holder=holder,
                timeout=timeout,
                observers=[seen.append],
                local_passes=local_passes,
            )
            made = Client(self, client.Locks(engine) if self.loop is None else aio.Locks(engine), store, person)
            made.events = seen
            return made

        made: Client = person.do(build if self.loop else lambda: drive(build()))
        self._clients.append(made)
        return made

    def store(self) -> StoreFace:
        """A bare store object on the arena's data."""
        person = self.person()

        async def build() -> StoreFace:
            store = self.world.store(self.runtime())
            await store.open()
            return StoreFace(self, store, person)

        made: StoreFace = person.do(build if self.loop else lambda: drive(build()))
        self._stores.append(made)
        return made

    def runtime(self) -> Runtime:
        """A runtime of the arena's colour, on the world's clock."""
        return BlockingRuntime(self.world.clock) if self.loop is None else LoopedRuntime(self.world.clock)

    def person(self) -> Person:
        """One more thread or task."""
        person = Person(self.loop)
        self._people.append(person)
        return person

    def person_of(self, someone: Client | Person) -> Person:
        return someone.person if isinstance(someone, Client) else someone

    def elapse(self, seconds: float) -> None:
        """Let time pass."""
        self.world.elapse(seconds)

    def eventually(self, true: Callable[[], object], *, standing: bool = False) -> None:
        """Wait for something that needs no more than a moment of the store's time; none, if `standing`."""
        end = time.monotonic() + PATIENCE
        while not true():
            if time.monotonic() > end:
                raise AssertionError(f"still not so after {PATIENCE:g} s")
            if isinstance(self.world.clock, VirtualClock) and not standing:
                # Pollers move only with the clock. No quicker than real time, in which the heartbeat has to keep up.
                self.world.elapse(0.001)
            time.sleep(0.001)

    def live(self, lease: LeaseFace, seconds: float) -> None:
        """Let time pass in small steps, and see at each that the heartbeat keeps up."""
        for _ in range(round(seconds / lease.ttl * 10)):
            self.elapse(lease.ttl / 10)
            self.eventually(lambda: lease.expires_in >= 0.4 * lease.ttl or not lease.held)

    def close(self) -> None:
        """End everybody and everything."""
        for one in self._clients:
            one.store.up()
            # Not by the client's own person, who may still be waiting for a lease.
            self.person().do(one.locks.close)
        for bare in self._stores:
            bare.close()
        for person in self._people:
            person.leave()
        # Whoever was still pausing goes on with the clock, and finds the client closed.
        self.eventually(lambda: all(person.gone.is_set() for person in self._people))
        if self.loop is not None:
            _stop_loop(self.loop)
        self.world.close()


def _start_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    return loop


def _stop_loop(loop: asyncio.AbstractEventLoop) -> None:
    async def finish() -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.wait(others, timeout=PATIENCE) if others else None

    asyncio.run_coroutine_threadsafe(finish(), loop).result(PATIENCE)
    loop.call_soon_threadsafe(loop.stop)
    end = time.monotonic() + PATIENCE
    while loop.is_running() and time.monotonic() < end:
        time.sleep(0.001)
    loop.close()
