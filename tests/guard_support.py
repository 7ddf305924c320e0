"""What the tests of guards share: a guard of either colour on one stage, with a wall clock that goes with its time."""

from __future__ import annotations

import functools
from concurrent.futures import Future
from typing import Any

import leasehold
from leasehold import aio
from leasehold.testing.conformance.arena import Arena, Client

TARGET = "production/deployment/payment-api"
NAME = "wfe-fbb8266ac354e9c2"
COOLDOWN = 300.0
TIMEOUT = 3600.0
# Some wall clock time; clients may be made to see another.
WALL = 1_800_000_000.0


class Executor:
    """One client with one guard, and the thread or task that uses it."""

    def __init__(self, arena: Arena, *, ahead: float = 0.0, client: Client | None = None, **options: Any) -> None:
        self.arena = arena
        self.client: Client = client or arena.client()
        self.store = self.client.store
        self.events = self.client.events
        self.guard: Any = guard_of(self.client, **{"cooldown": COOLDOWN, "timeout": TIMEOUT, **options})
        self.guard._runs.wall = lambda: WALL + ahead + arena.world.clock.now()

    def do(self, verb: str, *args: Any, **options: Any) -> Any:
        """What a verb of the guard comes to."""
        return self.start(verb, *args, **options).result(20)

    def start(self, verb: str, *args: Any, **options: Any) -> Future[Any]:
        """Start a verb and go on."""
        return self.client.person.begin(functools.partial(getattr(self.guard, verb), *args, **options))

    def begin(self, owner: str, target: str = TARGET, **options: Any) -> Any:
        return self.do("begin", target, owner=owner, **options)

    def run(self, run: Any, verb: str) -> Any:
        """What a verb of a run comes to."""
        return self.client.person.do(getattr(run, verb))

    def within(self, run: Any, body: Any) -> Any:
        """What `body` returns inside the run's block."""

        def blocking() -> Any:
            with run as entered:
                return body(entered)

        async def looped() -> Any:
            async with run as entered:
                return body(entered)

        return self.client.person.do(looped if self.arena.loop else blocking)

    def heard(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


def guard_of(client: Client, **options: Any) -> Any:
    """A guard of the client's colour."""
    kind: Any = leasehold.Guard if isinstance(client.locks, leasehold.Locks) else aio.Guard
    return kind(client.locks, **options)
