"""The laws of what can be updated optimistically: ours, and yours.

    class TestInvoices(VersionLaws):
        @pytest.fixture
        def reach(self, db):
            return lambda: Invoice(db, 42)                   # one more client of the same; value(0) is there

        def value(self, number):                             # what is written for a number, and back
            return {"total": number}

        def number(self, value):
            return value["total"]

It has `load()` and `replace(value, version)`, blocking or asyncio: see `leasehold.optimistic.Replaceable`.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from leasehold import optimistic
from leasehold.rules.backoff import Backoff

Reach = Callable[[], Any]
RACERS = 4
TURNS = 10
# So many that luck decides nothing: there are RACERS * TURNS updates in all, and each refusal is somebody's success.
ATTEMPTS = 1000
SHORT = Backoff(base=0.001, jitter=1.0, cap=0.004)


class Racer:
    """One client of something versioned, whatever its colour, as the blocking `update` takes it."""

    name = "what the laws update"

    def __init__(self, resource: Any, loop: asyncio.AbstractEventLoop | None) -> None:
        self._resource = resource
        self._loop = loop

    def load(self) -> tuple[Any, Any]:
        found: tuple[Any, Any] = self._done(self._resource.load())
        return found

    def replace(self, value: Any, version: Any) -> Any:
        return self._done(self._resource.replace(value, version))

    def _done(self, answer: Any) -> Any:
        if not inspect.iscoroutine(answer) or self._loop is None:
            return answer
        return asyncio.run_coroutine_threadsafe(answer, self._loop).result(60)


class VersionLaws:
    """Laws of optimistic updates. Give a `reach` fixture, and `value` and `number` if what is written is not bytes."""

    def value(self, number: int) -> Any:
        """What is written for a number."""
        return str(number).encode()

    def number(self, value: Any) -> int:
        """The number that was written."""
        return int(value)

    @pytest.fixture
    def racer(self, reach: Reach) -> Iterator[Callable[[], Racer]]:
        """A function that gives one more client."""
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, daemon=True)
        thread.start()

        async def reached() -> Any:
            return reach()

        yield lambda: Racer(asyncio.run_coroutine_threadsafe(reached(), loop).result(60), loop)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(20)
        loop.close()

    def test_what_one_replaces_the_next_one_loads(self, racer: Callable[[], Racer]) -> None:
        one = racer()
        found, version = one.load()
        assert self.number(found) == 0
        assert one.replace(self.value(1), version) is True
        assert self.number(racer().load()[0]) == 1

    def test_a_version_once_used_is_refused_and_changes_nothing(self, racer: Callable[[], Racer]) -> None:
        one, other = racer(), racer()
        _, mine = one.load()
        _, theirs = other.load()
        assert one.replace(self.value(1), mine) is True
        assert other.replace(self.value(2), theirs) is False
        assert one.replace(self.value(3), mine) is False
        assert self.number(other.load()[0]) == 1

    def test_none_leaves_it_as_it_is(self, racer: Callable[[], Racer]) -> None:
        one, other = racer(), racer()
        _, version = other.load()
        assert self.number(optimistic.update(one, lambda _value: None)) == 0
        # Not even its version changed.
        assert other.replace(self.value(1), version) is True

    def test_no_update_is_lost_however_many_race(self, racer: Callable[[], Racer]) -> None:
        """All have loaded before the first replaces; from then on each goes as fast as it can."""
        together = threading.Barrier(RACERS)
        racers = [racer() for _ in range(RACERS)]

        def turns(mine: Racer) -> None:
            met = False

            def add(value: Any) -> Any:
                nonlocal met
                if not met:
                    met = True
                    together.wait(60)
                return self.value(self.number(value) + 1)

            for _ in range(TURNS):
                optimistic.update(mine, add, attempts=ATTEMPTS, backoff=SHORT)

        with ThreadPoolExecutor(RACERS) as pool:
            list(pool.map(turns, racers))
        assert self.number(racers[0].load()[0]) == RACERS * TURNS
