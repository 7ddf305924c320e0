"""Three members that vote: followers and leaders killed and paused, a network cut one way. In real time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

import leasehold
from leasehold.errors import StoreError, StoreUnavailable
from leasehold.model import Renewal
from leasehold.testing.proxy import Proxy
from leasehold.testing.servers import EtcdCluster, EtcdServer
from leasehold.testing.servers.shared import shared
from tests.stores.etcd_support import KEY, Driven, Place, driven
from tests.support import eventually

# Longer than a vote takes, and than this machine may be busy with something else.
TTL = 20.0


@pytest.fixture
def cluster() -> Iterator[EtcdCluster]:
    """All members up; whatever a test does to them is undone after it."""
    found = shared("etcd cluster", EtcdCluster())
    yield found
    for member in found.members:
        if member.is_running:
            member.go_on()
        else:
            member.start()
    assert found.leader.is_running


@pytest.fixture
def place(cluster: EtcdCluster) -> Place:
    return Place(cluster.members[0])


@pytest.fixture(params=["blocking", "asyncio"])
def colour(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def only(place: Place, member: EtcdServer) -> str:
    """The URL of one member."""
    return place.at(member.url)


def at(store: Driven, member: EtcdServer) -> Driven:
    """Let a store ask this member first."""
    ports = [host.port for host in store.store._wire.config.hosts]
    store.store._wire._at = ports.index(member.port)
    return store


@pytest.mark.parametrize("how", ["kill", "pause"])
@pytest.mark.parametrize("who", ["leader", "follower"])
def test_whoever_is_lost_nothing_is_freed_early_and_no_token_falls(
    cluster: EtcdCluster, place: Place, who: str, how: str
) -> None:
    url = place.at(cluster.url)
    with leasehold.connect(url, timeout=3) as locks, leasehold.connect(url, timeout=3) as rival:
        lease = locks.acquire("job", ttl=TTL)
        lost = cluster.leader if who == "leader" else cluster.followers[0]
        for one in (locks, rival):
            wire = one._engine.store._wire
            wire._at = [host.port for host in wire.config.hosts].index(lost.port)
        getattr(lost, how)()
        tried: list[object] = []

        def is_settled() -> bool:
            tried.append(_attempt(rival))
            return lease.renew() is Renewal.RENEWED

        eventually(is_settled)
        # Busy, or no answer; never granted.
        assert set(tried) <= {None, "no answer"}
        assert lease.held
        assert rival.try_acquire("job", ttl=TTL) is None
        assert lease.release() is True
        assert rival.acquire("job", ttl=TTL, wait=10).token > lease.token


def _attempt(rival: leasehold.Locks) -> object:
    try:
        return rival.try_acquire("job", ttl=TTL)
    except StoreUnavailable:
        return "no answer"


def test_an_acquire_pauses_while_there_is_no_leader_and_goes_on_after(cluster: EtcdCluster, place: Place) -> None:
    with leasehold.connect(place.at(cluster.url), timeout=2) as locks:
        before = locks.acquire("job", ttl=TTL)
        before.release()
        cluster.leader.kill()
        after = locks.acquire("job", ttl=TTL, wait=30)
        assert after.token > before.token


def test_without_a_majority_nothing_is_granted_and_with_it_all_goes_on(
    cluster: EtcdCluster, place: Place, colour: str
) -> None:
    leader, followers = cluster.leader, cluster.followers
    with driven(place.at(cluster.url), colour, timeout=1.0) as store:
        store.swap(KEY, at(store, leader).grant(), None, None)
        for follower in followers:
            follower.pause()
        with pytest.raises(StoreUnavailable):
            store.swap(KEY, None, b"mine", TTL)
        with pytest.raises(StoreUnavailable):
            at(store, leader).load(KEY)
        for follower in followers:
            follower.go_on()
        eventually(lambda: _holds(store))


def _holds(store: Driven) -> bool:
    try:
        answer = store.swap(KEY, None, b"mine", TTL)
    except StoreError:
        return False
    return getattr(answer, "record", answer).value == b"mine"


def test_a_member_that_was_paused_shows_nothing_of_the_past(cluster: EtcdCluster, place: Place, colour: str) -> None:
    """A read is confirmed by a majority, through the log."""
    slept = cluster.followers[0]
    with driven(place.at(cluster.url), colour) as awake, driven(only(place, slept), colour, timeout=20.0) as behind:
        at(awake, cluster.leader)
        made = awake.grant()
        assert behind.load(KEY).revision == made.revision
        slept.pause()
        changed = awake.swap(KEY, made, b"changed", None)
        slept.go_on()
        assert behind.load(KEY).revision == changed.revision
        assert behind.touch([(made, TTL)])[0][0] is Renewal.LOST
        assert [record.revision for record in behind.scan(KEY.family)] == [changed.revision]


def test_a_leader_that_was_paused_and_replaced_renews_nothing(cluster: EtcdCluster, place: Place) -> None:
    """For a moment it takes itself for the leader still, and answers keepalives."""
    old = cluster.leader
    with driven(only(place, old), timeout=20.0) as behind, driven(place.at(cluster.url), timeout=20.0) as awake:
        held = behind.grant()
        old.pause()
        assert cluster.leader is not old
        found = at(awake, cluster.leader).load(KEY)
        assert found.revision == held.revision
        # Freed by force: the old leader does not know.
        assert awake.swap(KEY, found, None, None) == found
        theirs = awake.grant(value=b"theirs")
        answers: list[list[object]] = []

        def ask() -> None:
            try:
                answers.append(behind.touch([(held, TTL)]))
            except StoreUnavailable:
                # It was told of its successor while it answered. Then nothing was renewed either.
                answers.append(behind.touch([(held, TTL)]))

        asking = threading.Thread(target=ask)
        asking.start()
        old.go_on()
        asking.join(30)
        ((answer, seen),) = answers[0]
        assert answer is Renewal.LOST
        assert seen.revision == theirs.revision


@pytest.mark.parametrize("way", ["requests", "replies"])
def test_a_network_cut_one_way_is_got_around(cluster: EtcdCluster, place: Place, colour: str, way: str) -> None:
    with ExitStack() as stack:
        proxies = [stack.enter_context(Proxy(member.host, member.port)) for member in cluster.members]
        url = place.at("etcd://" + ",".join(f"127.0.0.1:{proxy.port}" for proxy in proxies))
        store = stack.enter_context(driven(url, colour, timeout=3.0))
        made = store.grant()
        for proxy in proxies:
            getattr(proxy, way).blackhole = proxy.connections > 0
        assert [getattr(proxy, way).blackhole for proxy in proxies].count(True) == 1
        # One share of the time for the member that is cut off, and the next one answers.
        ((answer, fresh),) = store.touch([(made, TTL)])
        assert answer is Renewal.RENEWED
        assert store.swap(KEY, fresh, None, None) == fresh
        assert store.grant().revision > made.revision


def test_a_waiter_hears_of_a_release_through_another_member_when_its_own_is_killed(
    cluster: EtcdCluster, place: Place
) -> None:
    url = place.at(cluster.url)
    with leasehold.connect(url) as locks, leasehold.connect(url) as waiter:
        lease = locks.acquire("job", ttl=TTL)
        wire = waiter._engine.store._wire
        wire._at = [host.port for host in wire.config.hosts].index(cluster.followers[0].port)
        granted: list[leasehold.Lease] = []
        waiting = threading.Thread(target=lambda: granted.append(waiter.acquire("job", ttl=TTL, wait=60)))
        waiting.start()
        eventually(lambda: waiter._engine.store._ears._listener is not None)
        cluster.followers[0].kill()
        eventually(lambda: lease.renew() is Renewal.RENEWED)
        lease.release()
        waiting.join(60)
        assert granted[0].token > lease.token
