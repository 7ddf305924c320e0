"""One heartbeat for all leases: batches, lag, and what it does with odd answers."""

from __future__ import annotations

import random
from collections.abc import Iterator

import msgspec
import pytest

from leasehold import Renewal, events
from leasehold.client import Locks
from leasehold.engine.blocking import BlockingRuntime, drive
from leasehold.engine.engine import Engine
from leasehold.engine.grant import read_hold, write_hold
from leasehold.model import KEEP, Record
from leasehold.rules.names import Names
from leasehold.stores.memory import Memory, MemoryStore
from leasehold.testing.clock import VirtualClock
from leasehold.testing.faults import Call, FaultyStore, drop, hang
from tests.support import eventually, note

TTL = 30.0


class Scene:
    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.runtime = BlockingRuntime(self.clock)
        self.store = FaultyStore(MemoryStore(Memory(self.clock), self.runtime), self.runtime)
        self.events: list[events.Event] = []
        engine = Engine(
            self.store, self.runtime, Names(None, None), holder="me", timeout=5.0, observers=[self.events.append]
        )
        self.engine = engine
        self.locks = Locks(engine)

    def heard(self, kind: type[events.Event]) -> int:
        return sum(isinstance(event, kind) for event in self.events)


@pytest.fixture
def scene() -> Iterator[Scene]:
    made = Scene()
    yield made
    made.store.up()
    made.locks.close()


@pytest.mark.parametrize("spread", [0.0, 10.0], ids=["acquired at once", "spread over a whole period"])
def test_a_thousand_leases_are_renewed_in_a_few_calls(scene: Scene, spread: float) -> None:
    for number in range(1000):
        scene.locks.acquire(f"job/{number}", ttl=TTL)
        scene.clock.advance(spread / 1000)
    # A beat may have come while they were being acquired; count one whole cycle from here.
    scene.clock.advance(0.001)
    begun, before = scene.heard(events.Renewed), scene.store.calls["touch"]
    eventually(
        lambda: scene.heard(events.Renewed) - begun >= 1000, patience=60, nudge=lambda: scene.clock.advance(0.05)
    )
    calls = scene.store.calls["touch"] - before
    note(f"1,000 leases renewed in {calls} store calls")
    assert calls <= 20
    scene.locks.close()


def test_the_heartbeat_measures_its_own_lag(scene: Scene) -> None:
    lease = scene.locks.acquire("job", ttl=TTL)
    scene.clock.advance(TTL / 2)
    eventually(lambda: scene.heard(events.Lagged))
    assert scene.locks.lag > 0.1 * TTL / 3
    (late,) = [event for event in scene.events if isinstance(event, events.Lagged)]
    assert late.ttl == TTL
    assert lease.held


def test_a_beat_in_time_is_no_lag(scene: Scene) -> None:
    """The control of the test above."""
    scene.locks.acquire("job", ttl=TTL)
    for _ in range(60):
        scene.clock.advance(TTL / 100)
        due = scene.clock.now()
        eventually(lambda due=due: min(g.due for g in scene.engine.heartbeat.held()) > due)
    assert scene.heard(events.Lagged) == 0
    assert scene.heard(events.Renewed) >= 1


def test_a_renewal_and_a_release_of_one_lease_never_race(scene: Scene) -> None:
    lease = scene.locks.acquire("job", ttl=TTL)
    thaw = scene.runtime.signal()
    scene.store.plan("touch", hang(thaw))
    scene.clock.advance(TTL / 2)
    eventually(lambda: scene.store.calls["touch"])
    swaps = scene.store.calls["swap"]
    done: list[bool] = []

    async def release() -> None:
        done.append(await scene.engine.release(lease._grant))

    scene.runtime.spawn(release(), "release")
    eventually(lambda: not lease.held)
    assert scene.store.calls["swap"] == swaps
    thaw.set()
    eventually(lambda: done == [True])


def test_a_renewal_that_waited_for_a_beat_that_met_a_revocation_prolongs_nothing(scene: Scene) -> None:
    lease = scene.locks.acquire("job", ttl=TTL)
    thaw = scene.runtime.signal()

    async def late(_store: FaultyStore, call: Call) -> object:
        await thaw.wait()
        return await call()

    scene.store.plan("touch", late)
    scene.clock.advance(TTL / 2)
    eventually(lambda: scene.store.calls["touch"])
    answers: list[Renewal] = []

    async def renew() -> None:
        answers.append(await scene.engine.renew(lease._grant))

    scene.runtime.spawn(renew(), "renew")
    eventually(lambda: lease._grant.idle is not None)
    scene.locks.break_lease("job", reason="stuck")
    thaw.set()
    eventually(lambda: answers == [Renewal.LOST])
    left = drive(scene.store.load(lease._grant.key)).left
    assert left == TTL / 2
    assert "stuck" in lease.why_lost()


def test_our_own_write_whose_reply_was_lost_is_found_again(scene: Scene) -> None:
    """On stores where a renewal moves the revision: the next touch answers LOST with our own secret."""
    lease = scene.locks.acquire("job", ttl=TTL)
    record = lease._grant.record
    hold = read_hold(record)
    assert hold is not None
    moved = drive(scene.store.inner.swap(record.key, record, write_hold(hold), KEEP))
    assert isinstance(moved, Record)
    assert lease.renew() is Renewal.HELD
    assert lease.renew() is Renewal.RENEWED
    assert lease.token == record.born * 256
    assert lease.release() is True


def test_an_answer_held_extends_nothing(scene: Scene) -> None:
    async def held(store: FaultyStore, call: Call) -> list[tuple[Renewal, Record | None]]:
        return [(Renewal.HELD, record) for _, record in await call()]

    lease = scene.locks.acquire("job", ttl=TTL)
    scene.clock.advance(1)
    before = lease.expires_in
    scene.store.plan("touch", held)
    assert lease.renew() is Renewal.HELD
    assert lease.expires_in == before
    assert lease.held


def test_a_batch_larger_than_the_store_takes_is_split(scene: Scene) -> None:
    class Small(FaultyStore):
        @property
        def guarantees(self):
            return msgspec.structs.replace(self.inner.guarantees, batch=10)

    small = Small(scene.store, scene.runtime)
    engine = Engine(small, scene.runtime, Names(None, None), holder=None, timeout=5.0, observers=())
    locks = Locks(engine)
    leases = [locks.acquire(f"job/{n}", ttl=TTL) for n in range(35)]
    scene.clock.advance(TTL / 2)
    eventually(lambda: all(lease.expires_in > 0.8 * TTL for lease in leases))
    assert 4 <= small.calls["touch"] <= 5
    locks.close()


def test_short_leases_are_renewed_while_long_ones_wait(scene: Scene) -> None:
    short, long = scene.locks.acquire("short", ttl=1.0), scene.locks.acquire("long", ttl=1000.0)
    for _ in range(60):
        scene.clock.advance(0.1)
        eventually(lambda: short.expires_in > 0.4)
    assert long.held
    assert scene.heard(events.Lost) == 0


def test_trust_ends_by_the_clock_even_if_no_thread_ever_runs_again(scene: Scene) -> None:
    scene.store.down(drop)
    scene.store.up()
    lease = scene.locks.acquire("job", ttl=TTL)
    scene.engine.heartbeat.close()
    scene.clock.advance(0.89 * TTL)
    assert lease.held
    scene.clock.advance(0.02 * TTL)
    assert not lease.held
    assert lease.lost.is_set()


def test_the_order_of_renewal_is_by_what_ends_first(scene: Scene) -> None:
    asked: list[list[str]] = []

    async def note(store: FaultyStore, call: Call) -> object:
        answers = await call()
        asked.append([record.key.family for _, record in answers])
        return answers

    names = [f"job/{n}" for n in range(20)]
    random.shuffle(names)
    for name in names:
        scene.locks.acquire(name, ttl=TTL)
        scene.clock.advance(0.01)
    scene.store.plan("touch", note)
    scene.clock.advance(TTL / 2)
    eventually(lambda: asked)
    assert [family.rsplit("name/")[1] for family in asked[0]] == names
