"""What each verb costs on ZooKeeper, counted by a proxy between the client and a real server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import leasehold
from leasehold.engine import events
from leasehold.rules.line import ticket_ttl
from leasehold.testing.conformance.arena import Arena
from leasehold.testing.proxy import Proxy
from leasehold.wires.zookeeper_line import ZooKeeperLine
from tests.servers import zookeeper
from tests.stores.zookeeper_support import behind, chroot_of
from tests.support import note
from tests.test_round_trips import LEASES, TTL, Behind, _quiet, warm


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with Proxy(zookeeper().host, zookeeper().port) as opened:
        yield opened


@pytest.fixture(params=["blocking", "asyncio"])
def arena(request: pytest.FixtureRequest, proxy: Proxy) -> Iterator[Arena]:
    opened = Arena(Behind(behind(proxy)), request.param)
    yield opened
    opened.close()


def test_acquire_and_release_take_one_flight_and_finding_it_busy_two(arena: Arena, proxy: Proxy) -> None:
    ada, bob = warm(arena, "job"), warm(arena, "job")
    proxy.reset_counters()
    lease = ada.acquire("job", ttl=TTL)
    assert proxy.flights == 1
    assert lease.release() is True
    assert proxy.flights == 2
    ada.acquire("job", ttl=TTL)
    assert bob.try_acquire("job", ttl=TTL) is None
    assert (proxy.flights, proxy.connections) == (5, 0)


def test_a_hundred_leases_of_a_client_are_renewed_in_two_flights(arena: Arena, proxy: Proxy) -> None:
    """One that looks at every record, and one that keeps their session."""
    ada = warm(arena, "job")
    leases = [ada.acquire(f"job/{n}", ttl=TTL) for n in range(LEASES)]
    proxy.reset_counters()
    arena.elapse(0.4 * TTL)
    arena.eventually(lambda: all(lease.expires_in > 0.8 * TTL for lease in leases))
    note(f"flights to renew {LEASES} leases: {proxy.flights}")
    assert proxy.flights == 2


def test_for_ten_seconds_a_waiter_says_nothing_but_that_it_keeps_its_place(
    arena: Arena, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The heartbeat of its connection comes in real time, which nobody knows how much of passes here.
    monkeypatch.setattr(ZooKeeperLine, "silence", 600.0)
    bob = warm(arena, "job")
    # The holder comes by another way, so that the proxy sees the waiter alone.
    with leasehold.connect(f"{zookeeper().url}{chroot_of(arena.world.url or '')}") as locks:
        lease = locks.acquire("job", ttl=TTL)
        waiting = bob.begin("acquire", "job", ttl=TTL)
        arena.eventually(lambda: any(isinstance(event, events.Busy) for event in bob.events))
        _quiet(proxy)
        proxy.reset_counters()
        for _ in range(20):
            arena.elapse(0.5)
            _quiet(proxy)
        # Its ticket is looked at and its session renewed, three times in each of its short lives; nothing else is said.
        often = 2 * 3 * 10 / ticket_ttl(bob.store.guarantees)
        assert 0.5 * often <= proxy.flights <= 1.5 * often
        assert not waiting.done()
        lease.release()
        arena.eventually(waiting.done)
    assert bob.face(waiting.result()).held
    # The control: the proxy would have seen it.
    assert proxy.flights > 0
