"""What the tests of elections share: candidates of either colour on one stage, and workers that note their terms."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import leasehold
from leasehold import aio
from leasehold.testing.conformance.arena import Arena, Client

NAME = "scheduler"


class Runner:
    """One candidate, and the thread or task that runs for it."""

    def __init__(self, arena: Arena, identity: str | None = None, **options: Any) -> None:
        self.arena = arena
        self.client: Client = arena.client(**options)
        self.store = self.client.store
        self.election: Any = election_of(self.client, identity=identity, ttl=arena.ttl)
        self.work = Work()

    def do(self, verb: str, *args: Any, **options: Any) -> Any:
        """What a verb of the election comes to."""
        return self.begin(verb, *args, **options).result(20)

    def begin(self, verb: str, *args: Any, **options: Any) -> Future[Any]:
        """Start a verb and go on."""
        return self.client.person.begin(functools.partial(getattr(self.election, verb), *args, **options))

    def lead(self, worker: Callable[..., Any] | None = None) -> Future[Any]:
        """Start to lead; with no worker given, one that goes on until it is over."""
        blocking, looped = (self.work.blocking, self.work.looped) if worker is None else (worker, later(worker))
        return self.begin("lead", looped if self.arena.loop else blocking)

    def beside(self, verb: str, *args: Any, **options: Any) -> Any:
        """The same election, used by another thread or task."""
        return self.arena.person().do(functools.partial(getattr(self.election, verb), *args, **options))

    def observe(self) -> tuple[list[Any], Future[Any]]:
        """What an observer has seen so far, and when it ends."""
        seen: list[Any] = []

        def blocking() -> None:
            for leader in self.election.observe():
                seen.append(leader)  # noqa: PERF402  seen while it goes on

        async def looped() -> None:
            async for leader in self.election.observe():
                seen.append(leader)  # noqa: PERF401  seen while it goes on

        return seen, self.arena.person().begin(looped if self.arena.loop else blocking)


class Work:
    """A worker that leads until it is over: its terms by token, and what it believed when it ended."""

    def __init__(self) -> None:
        self.terms: list[int] = []
        self.ended: list[tuple[int, bool]] = []

    def blocking(self, leadership: leasehold.Leadership) -> str:
        self.terms.append(leadership.token)
        leadership.wait()
        self.ended.append((leadership.token, leadership.held))
        return "told"

    async def looped(self, leadership: aio.Leadership) -> str:
        self.terms.append(leadership.token)
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.append((leadership.token, leadership.held))
        return "told"


def election_of(client: Client, name: Any = NAME, **options: Any) -> Any:
    """An election of the client's colour."""
    kind: Any = leasehold.Election if isinstance(client.locks, leasehold.Locks) else aio.Election
    return kind(client.locks, name, **options)


def later(worker: Callable[..., Any]) -> Callable[..., Any]:
    """The same worker for asyncio."""

    async def work(leadership: aio.Leadership) -> Any:
        return worker(leadership)

    return work
