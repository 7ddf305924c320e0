"""What each verb costs, as the API server's audit log counts it, and that nothing else is ever asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from leasehold.engine import events
from leasehold.errors import AcquireTimeout
from leasehold.model import Renewal
from leasehold.stores.base import Store
from leasehold.stores.open import open_store
from leasehold.testing.clock import VirtualClock
from leasehold.testing.conformance.arena import Arena
from leasehold.wires.colour import Colour
from tests.stores.kubernetes_support import KEY, ORDINARY, Place, counted, driven, election, job
from tests.support import eventually

TTL = 60.0
LEASES = 20


class Here:
    """A namespace whose clients live in virtual time."""

    ttl = TTL
    url = None

    def __init__(self, place: Place) -> None:
        self.place = place
        self.clock = VirtualClock()
        self._url = place.url()

    def store(self, colour: Colour) -> Store:
        return open_store(self._url, timeout=5.0, colour=colour)

    def elapse(self, seconds: float) -> None:
        self.clock.advance(seconds)

    def close(self) -> None:
        """The server belongs to all tests."""


@pytest.fixture
def place() -> Place:
    return Place()


@pytest.fixture(params=["blocking", "asyncio"])
def arena(request: pytest.FixtureRequest, place: Place) -> Iterator[Arena]:
    opened = Arena(Here(place), request.param)
    yield opened
    opened.close()


def test_acquire_one_busy_two_release_one(arena: Arena, place: Place) -> None:
    ada, bob = arena.client("ada"), arena.client("bob")
    with counted(place) as asked:
        lease = ada.acquire("job", ttl=TTL)
    assert asked == ["create"]
    with counted(place) as asked:
        assert bob.try_acquire("job", ttl=TTL) is None
    assert asked == ["create", "get"]
    with counted(place) as asked:
        assert lease.renew() is Renewal.RENEWED
    assert asked == ["patch"]
    with counted(place) as asked:
        assert lease.release() is True
    assert asked == ["delete"]


def test_taking_over_a_dead_holder_is_three(arena: Arena, place: Place) -> None:
    ada, bob = arena.client("ada"), arena.client("bob")
    ada.acquire("job", ttl=TTL)
    ada.store.down()
    arena.elapse(1.1 * TTL)
    with counted(place) as asked:
        assert bob.try_acquire("job", ttl=TTL).held
    assert asked == ["create", "get", "patch"]


def test_renewals_are_one_each(arena: Arena, place: Place) -> None:
    ada = arena.client("ada")
    leases = [ada.acquire(f"job-{number}", ttl=TTL) for number in range(LEASES)]
    with counted(place) as asked:
        arena.elapse(0.4 * TTL)
        arena.eventually(lambda: all(lease.expires_in > 0.8 * TTL for lease in leases))
    assert asked == ["patch"] * LEASES


def test_a_waiter_is_silent_until_the_lease_is_released(arena: Arena, place: Place) -> None:
    ada, bob = arena.client("ada"), arena.client("bob")
    with counted(place) as asked:
        lease = ada.acquire("job", ttl=TTL)
        waiting = bob.begin("acquire", "job", ttl=TTL)
        arena.eventually(lambda: any(isinstance(event, events.Busy) for event in bob.events))
        eventually(lambda: [verb for verb, _ in place.asked()].count("get") == 2)
        # Short enough for nothing to be due.
        arena.elapse(0.01 * TTL)
        assert not waiting.done()
        lease.release()
        arena.eventually(waiting.done)
    # Both try, the second takes a ticket and looks at the line; called, it looks again and creates the Lease.
    assert Counter(asked) == {"create": 4, "get": 2, "list": 2, "watch": 1, "delete": 1}


def test_the_next_wait_for_the_same_name_needs_no_new_watch(arena: Arena, place: Place) -> None:
    ada, bob = arena.client("ada"), arena.client("bob")
    with counted(place) as asked:
        for _ in range(4):
            lease = ada.acquire("job", ttl=TTL)
            waiting = bob.begin("acquire", "job", ttl=TTL)
            arena.eventually(lambda: sum(isinstance(event, events.Busy) for event in bob.events))
            bob.events.clear()
            lease.release()
            arena.eventually(waiting.done)
            bob.face(waiting.result()).release()
    assert asked.count("watch") == 1


def test_looking_and_listing_are_one_request_a_page(place: Place) -> None:
    with driven(place.url()) as store:
        for number in range(7):
            store.grant(job(f"job-{number}"))
        with counted(place) as asked:
            assert len(store.page("//", None, 3)) == 3
            assert len(store.page("//", job("job-2"), 3)) == 3
            assert len(store.page("//", job("job-5"), 3)) == 1
        assert asked == ["list"]
        with counted(place) as asked:
            assert len(store.scan("//name/job-3")) == 1
        assert asked == ["list"]


def test_an_election_needs_no_right_but_get_and_update_where_the_lease_exists() -> None:
    place = Place(verbs=("get", "update"))
    place.put("leader")
    with driven(place.url()) as store, counted(place) as asked:
        for _ in range(2):
            made = store.grant(election("leader"))
            ((answer, held),) = store.touch([(made, 30.0)])
            assert answer is Renewal.RENEWED
            assert store.swap(election("leader"), held, None, None) == held
    assert asked == ["get", "update", "update", "update"] * 2


@pytest.mark.parametrize("colour", ["blocking", "asyncio"])
def test_without_the_right_to_watch_it_polls_and_says_so(colour: str) -> None:
    place = Place(verbs=tuple(verb for verb in ORDINARY if verb != "watch"))
    with driven(place.url(), colour) as store, driven(place.url()) as other:
        made = other.grant(KEY)
        now = store.store._clock.now()
        assert store.store.guarantees.wake_up.startswith("watch")
        # It looks at once, after the pause, and at the end.
        store.watch(KEY, made, now + 1.0)
        assert "does not allow `watch`" in store.store.guarantees.wake_up
        with counted(place) as asked:
            other.swap(KEY, made, None, None)
            store.watch(KEY, made, now + 3600.0)
        assert asked == ["delete", "get"]


def test_who_waits_behind_what_others_wrote_looks_no_more_often_than_it_must(arena: Arena, place: Place) -> None:
    """A Lease without our labels is in no line that could be listed."""
    place.put("job", {"holderIdentity": "node-1", "leaseDurationSeconds": 3600})
    bob = arena.client("bob")
    waiting = bob.begin("acquire", "job", ttl=TTL, wait=0.05 * TTL)
    with counted(place) as asked:
        eventually(lambda: "watch" in [verb for verb, _ in place.asked()])
        arena.elapse(0.01 * TTL)
        arena.elapse(0.05 * TTL)
        arena.eventually(waiting.done)
    assert isinstance(waiting.exception(), AcquireTimeout)
    assert len(asked) <= 12
