"""What each verb costs at the wire, counted by a proxy between the client and a real server."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

import leasehold
from leasehold.engine import events
from leasehold.model import Key, Scan, Swap
from leasehold.rules.line import ticket_ttl
from leasehold.stores.base import Store
from leasehold.stores.open import open_store
from leasehold.testing.clock import VirtualClock
from leasehold.testing.conformance.arena import Arena, Client
from leasehold.testing.proxy import Proxy
from leasehold.testing.servers import RedisCluster, ServerClock
from leasehold.wires.colour import Colour
from leasehold.wires.postgres import PostgresLine
from leasehold.wires.redis_line import RedisLine
from tests.servers import postgres, redis
from tests.support import eventually, note

TTL = 30.0
LEASES = 100


class Behind:
    """A server reached through a proxy. Its own clock runs; the clients' is moved by the test."""

    ttl = TTL

    def __init__(self, url: str) -> None:
        self.url = url
        self.clock = VirtualClock()

    def store(self, colour: Colour) -> Store:
        return open_store(self.url, timeout=5.0, colour=colour)

    def elapse(self, seconds: float) -> None:
        self.clock.advance(seconds)

    def close(self) -> None:
        """The server belongs to all tests."""


SERVERS = {"redis": redis, "postgresql": postgres}


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest):
    return SERVERS[request.param]()


@pytest.fixture
def proxy(server) -> Iterator[Proxy]:
    with Proxy(server.host, server.port) as opened:
        yield opened


@pytest.fixture(params=["blocking", "asyncio"])
def arena(request: pytest.FixtureRequest, server, proxy: Proxy) -> Iterator[Arena]:
    opened = Arena(Behind(server.url.replace(f":{server.port}", f":{proxy.port}")), request.param)
    yield opened
    opened.close()


@pytest.fixture
def scope(request: pytest.FixtureRequest) -> str:
    return request.node.name


def warm(arena: Arena, scope: str) -> Client:
    """A client whose connection is open, scripts loaded and statements prepared."""
    client = arena.client()
    for _ in range(8):
        client.acquire(f"{scope}-warm", ttl=TTL).release()
    return client


def test_acquire_busy_and_release_take_one_request_each(arena: Arena, proxy: Proxy, scope: str) -> None:
    ada, bob = warm(arena, scope), warm(arena, scope)
    proxy.reset_counters()
    lease = ada.acquire(scope, ttl=TTL)
    assert proxy.flights == 1
    assert bob.try_acquire(scope, ttl=TTL) is None
    assert proxy.flights == 2
    assert lease.release() is True
    assert (proxy.flights, proxy.connections) == (3, 0)


def test_a_part_takes_one_request_whatever_else_is_held_of_the_resource(arena: Arena, proxy: Proxy, scope: str) -> None:
    store, family = arena.store(), f"//path/{scope}"
    for number in range(20):
        store.swap(Key(family, f"r{number:02}"), None, b"x", TTL)
    windows = [(f"r{number:02}", f"r{number:02}5") for number in range(0, 20, 2)]
    store.scan(family, windows)
    proxy.reset_counters()
    assert len(store.scan(family, windows)) == 10
    assert proxy.flights == 1
    _, found = store.together([Swap(Key(family, "r000"), None, b"x", TTL), Scan(family, windows)])
    assert len(found) == 11
    assert (proxy.flights, proxy.connections) == (2, 0)


def test_a_hundred_leases_of_a_client_are_renewed_in_four_flights(arena: Arena, proxy: Proxy, scope: str) -> None:
    ada = warm(arena, scope)
    leases = [ada.acquire(f"{scope}/{n}", ttl=TTL) for n in range(LEASES)]
    proxy.reset_counters()
    arena.elapse(0.4 * TTL)
    arena.eventually(lambda: all(lease.expires_in > 0.8 * TTL for lease in leases))
    note(f"flights to renew {LEASES} leases: {proxy.flights}")
    assert 1 <= proxy.flights <= 4


def test_for_ten_seconds_a_waiter_says_nothing_but_that_it_keeps_its_place(
    arena: Arena, proxy: Proxy, server, scope: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The heartbeat of its connection comes in real time, which nobody knows how much of passes here.
    for line in (RedisLine, PostgresLine):
        monkeypatch.setattr(line, "silence", 600.0)
    bob = warm(arena, scope)
    # The holder comes by another way, so that the proxy sees the waiter alone.
    with leasehold.connect(server.url) as locks:
        lease = locks.acquire(scope, ttl=TTL)
        waiting = bob.begin("acquire", scope, ttl=TTL)
        # A busy answer, a ticket, the subscription, and one look after it; then nothing has been said for a while.
        arena.eventually(lambda: any(isinstance(event, events.Busy) for event in bob.events))
        _quiet(proxy)
        proxy.reset_counters()
        for _ in range(20):
            arena.elapse(0.5)
            _quiet(proxy)
        # Its ticket is renewed three times in each of its short lives, and nothing else is said.
        often = 3 * 10 / ticket_ttl(bob.store.guarantees)
        assert 0.5 * often <= proxy.flights <= 1.5 * often
        assert not waiting.done()
        lease.release()
        arena.eventually(waiting.done)
    assert bob.face(waiting.result()).held
    # The control: the proxy would have seen it.
    assert proxy.flights > 0


@pytest.mark.parametrize("server", ["redis"], indirect=True)
def test_the_next_in_line_is_told_that_it_is_its_turn_and_asks_nobody(
    proxy: Proxy, server, scope: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RedisLine, "silence", 600.0)
    with ExitStack() as stack:
        # The proxy sees the one who is next alone.
        urls = [server.url, server.url, server.url.replace(f":{server.port}", f":{proxy.port}")]
        first, second, third = (stack.enter_context(leasehold.connect(url)) for url in urls)
        pool = stack.enter_context(ThreadPoolExecutor(2))
        held = first.acquire(scope, ttl=TTL)
        waiting = []
        for number, locks in enumerate((second, third), 1):
            waiting.append(pool.submit(locks.acquire, scope, ttl=TTL, fair=True))
            eventually(lambda number=number: len(first.inspect(scope).waiters) == number)
        held.release()
        held = waiting[0].result(20)
        _quiet(proxy)
        proxy.reset_counters()
        held.release()
        assert waiting[1].result(20).held
        assert proxy.flights == 0


@pytest.mark.parametrize("colour", ["blocking", "asyncio"])
def test_in_a_cluster_a_hundred_leases_are_renewed_in_one_flight_to_each_master(colour: str) -> None:
    with RedisCluster(aof="no", clock=ServerClock()) as cluster, ExitStack() as stack:
        proxies = [stack.enter_context(Proxy(node.host, node.port)) for node in cluster.nodes]
        for node, between in zip(cluster.nodes, proxies, strict=True):
            node.command("CONFIG", "SET", "cluster-announce-port", between.port)
        eventually(lambda: _told(cluster) == {between.port for between in proxies})
        arena = Arena(Behind(f"redis+cluster://127.0.0.1:{proxies[0].port}"), colour)
        stack.callback(arena.close)
        ada = warm(arena, "cluster")
        leases = [ada.acquire(f"cluster/{n}", ttl=TTL) for n in range(LEASES)]
        for between in proxies:
            between.reset_counters()
        arena.elapse(0.4 * TTL)
        arena.eventually(lambda: all(lease.expires_in > 0.8 * TTL for lease in leases))
        assert [between.flights for between in proxies] == [1, 1, 1]


def _told(cluster: RedisCluster) -> set[int]:
    """The ports that clients of the cluster are sent to, as every node tells it."""
    told = [{int(master[1]) for _, _, master, *_ in node.command("CLUSTER", "SLOTS")} for node in cluster.nodes]
    return told[0] if all(ports == told[0] for ports in told) else set()


def _quiet(proxy: Proxy) -> None:
    """Wait until nothing has passed for a moment that is long on loopback."""
    last = [-1, 0]

    def unchanged() -> bool:
        now = proxy.requests.bytes + proxy.replies.bytes
        last[1] = last[1] + 1 if now == last[0] else 0
        last[0] = now
        return last[1] > 40

    eventually(unchanged)
