"""What each verb costs at the wire: the calls that a real etcd says were begun on it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import pytest

from leasehold.engine import events
from leasehold.model import Key
from leasehold.rules.line import ticket_ttl
from leasehold.stores.base import Store
from leasehold.stores.open import open_store
from leasehold.testing.clock import VirtualClock
from leasehold.testing.conformance.arena import Arena
from leasehold.testing.servers import EtcdServer
from leasehold.testing.servers.shared import shared
from leasehold.wires.colour import Colour
from tests.stores.etcd_support import Place
from tests.support import note

TTL = 30.0
LEASES = 100
STARTED = re.compile(r'grpc_server_started_total\{grpc_method="(\w+)".*\} (\d+)')


class Here:
    """An etcd of these tests alone. Its own clock runs; the clients' is moved by the test."""

    ttl = TTL

    def __init__(self) -> None:
        self.place = Place(shared("etcd that counts", EtcdServer()))
        self.url = self.place.url
        self.clock = VirtualClock()

    def store(self, colour: Colour) -> Store:
        return open_store(self.url, timeout=5.0, colour=colour)

    def elapse(self, seconds: float) -> None:
        self.clock.advance(seconds)

    def close(self) -> None:
        """The server belongs to all tests."""


class Calls:
    """Calls begun since the last look, by method."""

    def __init__(self, server: EtcdServer) -> None:
        self._server = server
        self._seen = self._read()

    def since(self) -> dict[str, int]:
        before, self._seen = self._seen, self._read()
        return dict(self._seen - before)

    def _read(self) -> Counter[str]:
        found = Counter({name: int(number) for name, number in STARTED.findall(self._server.metrics())})
        # The control: whatever counts must have counted how this process came here.
        assert found
        return found


@pytest.fixture(params=["blocking", "asyncio"])
def arena(request: pytest.FixtureRequest) -> Iterator[Arena]:
    opened = Arena(Here(), request.param)
    yield opened
    opened.close()


@pytest.fixture
def calls(arena: Arena) -> Calls:
    return Calls(arena.world.place.server)


def test_a_scan_of_many_windows_is_one_call(arena: Arena, calls: Calls) -> None:
    store, family = arena.store(), "//path/counted"
    for number in range(64):
        store.swap(Key(family, f"r{number:02}"), None, b"x", None)
    calls.since()
    assert len(store.scan(family, [(f"r{number:02}", f"r{number:02}5") for number in range(64)])) == 64
    assert calls.since() == {"Txn": 1}
    assert store.scan(family, [("z", "a")]) == []
    assert calls.since() == {}


def test_acquire_busy_and_release_take_one_call_each_and_the_first_one_more(arena: Arena, calls: Calls) -> None:
    ada, bob = arena.client(), arena.client()
    calls.since()
    lease = ada.acquire("job", ttl=TTL)
    assert calls.since() == {"LeaseGrant": 1, "Txn": 1}
    assert lease.release() is True
    assert calls.since() == {"Txn": 1}
    again = ada.acquire("job", ttl=TTL)
    assert calls.since() == {"Txn": 1}
    assert bob.try_acquire("other", ttl=TTL).release() is True
    calls.since()
    assert bob.try_acquire("job", ttl=TTL) is None
    assert calls.since() == {"Txn": 1}
    assert again.release() is True
    # Another ttl is another lease of etcd's.
    ada.acquire("job", ttl=TTL + 1).release()
    assert calls.since() == {"LeaseGrant": 1, "Txn": 3}


def test_a_hundred_leases_of_a_client_are_renewed_in_two_calls(arena: Arena, calls: Calls) -> None:
    ada = arena.client()
    leases = [ada.acquire(f"job/{n}", ttl=TTL) for n in range(LEASES)]
    calls.since()
    arena.elapse(0.4 * TTL)
    arena.eventually(lambda: all(lease.expires_in > 0.8 * TTL for lease in leases))
    made = calls.since()
    note(f"calls to renew {LEASES} leases: {made}")
    assert made == {"Txn": 1, "LeaseKeepAlive": 1}


def test_a_hundred_leases_move_to_a_fresh_lease_of_etcds_in_three_calls(arena: Arena, calls: Calls) -> None:
    ada, bob = arena.client(), arena.client()
    leases = [ada.acquire(f"job/{n}", ttl=TTL) for n in range(LEASES)]
    bob.break_lease("job/0", reason="count")
    calls.since()
    arena.elapse(0.4 * TTL)
    arena.eventually(lambda: all(lease.expires_in > 0.8 * TTL for lease in leases[1:]))
    assert calls.since() == {"Txn": 2, "LeaseGrant": 1}
    assert not leases[0].held


def test_for_ten_seconds_a_waiter_says_nothing_but_that_it_keeps_its_place(arena: Arena, calls: Calls) -> None:
    ada, bob = arena.client(), arena.client()
    lease = ada.acquire("job", ttl=10 * TTL)
    calls.since()
    waiting = bob.begin("acquire", "job", ttl=TTL)
    arena.eventually(lambda: any(isinstance(event, events.Busy) for event in bob.events))
    made: Counter[str] = Counter()
    # Two leases of etcd's, a try that found it busy, a ticket, a look at the line, and one after the subscription.
    arena.eventually(lambda: made.update(calls.since()) or made == {"LeaseGrant": 2, "Txn": 4})
    (ticket,) = bob.locks._engine.heartbeat.held()
    for _ in range(20):
        arena.elapse(0.5)
        arena.eventually(lambda: ticket.loss() is None and ticket.due > arena.world.clock.now())
    said = calls.since()
    assert said.keys() == {"Txn", "LeaseKeepAlive"}
    assert said["Txn"] == said["LeaseKeepAlive"]
    often = 3 * 10 / ticket_ttl(bob.store.guarantees)
    assert 0.5 * often <= said["Txn"] <= 1.5 * often
    assert not waiting.done()
    lease.release()
    arena.eventually(waiting.done)
    assert bob.face(waiting.result()).held
    # The control: it would have been counted.
    assert calls.since()["Txn"] >= 2
