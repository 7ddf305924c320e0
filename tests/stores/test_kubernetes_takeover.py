"""When a dead holder's Lease may be taken over: by what we ourselves saw, whatever any wall clock says."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from leasehold.model import Record, Renewal
from leasehold.stores.kubernetes import BURST, REST
from leasehold.stores.kubernetes_sight import Sights
from leasehold.testing.clock import VirtualClock
from tests.stores.kubernetes_support import KEY, Driven, Place, driven, job

HOUR = 3600.0


@pytest.fixture
def place() -> Place:
    return Place()


class Machine:
    """A client on a machine of its own: its boot clock and its wall clock are nobody else's."""

    def __init__(self, place: Place, stack: ExitStack, off: float, **options: object) -> None:
        self.clock = VirtualClock(start=5000.0 + off)
        self.store: Driven = stack.enter_context(driven(place.url(**options), "blocking", self.clock))
        self.store.store._wall = lambda: time.time() + off

    def try_it(self, ttl: float = 30.0) -> Record | None:
        answer = self.store.swap(KEY, None, b"mine", ttl)
        return answer if isinstance(answer, Record) else None


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


@pytest.mark.parametrize(("holder", "heir"), [(0.0, HOUR), (0.0, -HOUR), (HOUR, 0.0), (-HOUR, 0.0)])
def test_clocks_an_hour_off_neither_hasten_nor_delay_a_takeover(
    place: Place, stack: ExitStack, holder: float, heir: float
) -> None:
    dead, next_one = Machine(place, stack, holder), Machine(place, stack, heir)
    first = dead.try_it(ttl=30.0)
    assert first is not None
    assert next_one.try_it() is None
    next_one.clock.advance(29.9)
    assert next_one.try_it() is None
    next_one.clock.advance(0.2)
    second = next_one.try_it()
    assert second is not None
    assert second.revision > first.revision
    assert dead.store.touch([(first, 30.0)])[0][0] is Renewal.LOST


def test_a_renewal_begins_the_wait_anew(place: Place, stack: ExitStack) -> None:
    holder, other = Machine(place, stack, 0.0), Machine(place, stack, 0.0)
    held = holder.try_it(ttl=30.0)
    for _ in range(5):
        assert other.try_it() is None
        other.clock.advance(20.0)
        ((answer, held),) = holder.store.touch([(held, 30.0)])
        assert answer is Renewal.RENEWED


def test_what_was_not_looked_at_does_not_count_as_seen(place: Place, stack: ExitStack) -> None:
    """A newcomer waits for a whole ttl, however long the holder has been dead."""
    dead, late = Machine(place, stack, 0.0), Machine(place, stack, 0.0)
    dead.try_it(ttl=30.0)
    late.clock.advance(10_000.0)
    assert late.try_it() is None
    late.clock.advance(30.0)
    assert late.try_it() is not None


def test_clients_of_one_process_share_what_they_saw(place: Place) -> None:
    clock = VirtualClock()
    with driven(place.url(), "blocking", clock) as dead, driven(place.url(), "asyncio", clock) as other:
        dead.grant(KEY)
        clock.advance(30.1)
        assert other.load(KEY) is None


def test_an_answer_that_took_long_does_not_make_a_record_old(place: Place, stack: ExitStack) -> None:
    """Seen is what the server showed some time between the request and its answer: only the request counts."""
    dead, slow = Machine(place, stack, 0.0), Machine(place, stack, 0.0)
    dead.try_it(ttl=30.0)
    assert slow.store.load(KEY) is not None
    wire = slow.store.store._wire
    ask = wire.ask

    async def dawdle(asked: object) -> object:
        answer = await ask(asked)
        slow.clock.advance(40.0)
        return answer

    wire.ask = dawdle
    assert slow.store.load(KEY) is not None
    wire.ask = ask
    assert slow.store.load(KEY) is None


@pytest.mark.parametrize("off", [0.0, 50.0])
def test_max_skew_takes_over_at_once_by_the_records_own_times(place: Place, stack: ExitStack, off: float) -> None:
    dead = Machine(place, stack, -200.0)
    assert dead.try_it(ttl=30.0) is not None
    cron = Machine(place, stack, off, max_skew=60)
    assert cron.try_it() is not None


@pytest.mark.parametrize("ago", [0.0, 29.0, 80.0])
def test_max_skew_waits_for_the_duration_and_the_skew(place: Place, stack: ExitStack, ago: float) -> None:
    holder, cron = Machine(place, stack, -ago), Machine(place, stack, 0.0, max_skew=60)
    holder.try_it(ttl=30.0)
    assert cron.try_it() is None
    cron.clock.advance(30.1)
    assert cron.try_it() is not None


def test_forgetting_what_was_seen_only_delays() -> None:
    sights = Sights(most=2)
    assert sights.first("a", 1, 10.0) == 10.0
    assert sights.first("a", 1, 20.0) == 10.0
    assert sights.first("a", 2, 21.0) == 21.0
    sights.first("b", 1, 22.0)
    sights.first("c", 1, 23.0)
    assert sights.first("a", 2, 24.0) == 24.0
    assert sights.known("a", 1) is None


# Garbage.


def test_collecting_deletes_what_has_ended_and_nothing_else(place: Place, stack: ExitStack) -> None:
    keeper = Machine(place, stack, 0.0)
    place.put("theirs", {"holderIdentity": "node-1", "leaseDurationSeconds": 1})
    for number in range(25):
        keeper.store.grant(job(f"dead-{number}"), ttl=10.0)
    keeper.store.grant(job("lasting"), ttl=None)
    alive = keeper.store.grant(job("alive"), ttl=30.0)
    keeper.store.grant(job("leader")._replace(family="//election/leader"), ttl=10.0)
    keeper.clock.advance(10.1)
    assert keeper.store.collect(3) == 3
    assert keeper.store.collect(100) == 22
    assert keeper.store.collect(100) == 0
    assert sorted(place.names()) == ["alive", "lasting", "leader", "theirs"]
    assert keeper.store.touch([(alive, 30.0)])[0][0] is Renewal.RENEWED


def test_collecting_rests_after_every_few_so_that_the_server_has_time_for_others(
    place: Place, stack: ExitStack
) -> None:
    keeper = Machine(place, stack, 0.0)
    for number in range(2 * BURST + 1):
        keeper.store.grant(job(f"dead-{number}"), ttl=10.0)
    keeper.clock.advance(10.1)
    rests: list[tuple[float, int]] = []

    async def rest(seconds: float) -> None:
        rests.append((seconds, len(place.names())))

    keeper.store.store._wire.side.pause = rest
    assert keeper.store.collect(100) == 2 * BURST + 1
    assert rests == [(REST, BURST + 1), (REST, 1)]


def test_collecting_removes_nothing_that_was_renewed_meanwhile(place: Place, stack: ExitStack) -> None:
    holder, keeper = Machine(place, stack, 0.0), Machine(place, stack, 0.0)
    held = holder.try_it(ttl=30.0)
    assert keeper.store.load(KEY) is not None
    keeper.clock.advance(31.0)
    wire = keeper.store.store._wire
    ask_all = wire.ask_all

    async def renewed_first(asks: object) -> object:
        assert holder.store.touch([(held, 30.0)])[0][0] is Renewal.RENEWED
        return await ask_all(asks)

    wire.ask_all = renewed_first
    assert keeper.store.collect(100) == 0
    assert place.names() == ["job"]


def test_a_short_lived_collector_finds_the_dead_with_max_skew_alone(place: Place, stack: ExitStack) -> None:
    dead = Machine(place, stack, -500.0)
    dead.try_it(ttl=30.0)
    assert Machine(place, stack, 0.0).store.collect(100) == 0
    assert Machine(place, stack, 0.0, max_skew=60).store.collect(100) == 1
    assert place.names() == []
