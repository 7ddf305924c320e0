"""What a client says and does when etcd or the way to it fails. Every failure is a real one."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

import leasehold
from leasehold.errors import InvalidInput, PermissionDenied, StoreUnavailable
from leasehold.model import Conflict, Record, Renewal
from leasehold.testing.proxy import Proxy
from leasehold.testing.servers import EtcdServer, ServerFailed
from leasehold.testing.servers.certificates import make_client
from leasehold.testing.servers.process import free_port
from leasehold.testing.servers.shared import shared
from tests.servers import redis
from tests.stores.etcd_support import KEY, Driven, Place, driven, written
from tests.support import eventually

LONG = 30.0


@pytest.fixture(params=["blocking", "asyncio"])
def colour(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def place() -> Place:
    return Place()


@pytest.fixture
def victim() -> Iterator[Place]:
    """One that tests may kill; it runs again afterwards."""
    server = shared("etcd victim", EtcdServer())
    yield Place(server)
    if not server.is_running:
        server.start()
    server.go_on()


@pytest.fixture
def proxy(place: Place) -> Iterator[Proxy]:
    with Proxy(place.server.host, place.server.port) as opened:
        yield opened


@pytest.fixture
def store(place: Place, proxy: Proxy, colour: str) -> Iterator[Driven]:
    with driven(place.behind(proxy), colour, timeout=1.0) as opened:
        # With a lease of etcd's to write on: the request that fails is the write itself.
        opened.swap(KEY, opened.grant(), None, None)
        yield opened


def fails(store: Driven, key=KEY) -> StoreUnavailable:
    """A create that must fail."""
    with pytest.raises(StoreUnavailable) as told:
        store.swap(key, None, b"mine", LONG)
    return told.value


def is_back(store: Driven) -> bool:
    try:
        store.load(KEY)
    except StoreUnavailable:
        return False
    return True


# The server.


def test_a_killed_etcd_is_told_and_forgiven_and_keeps_leases_and_tokens(victim: Place, colour: str) -> None:
    with driven(victim.url, colour) as store:
        mine = store.grant()
        victim.server.kill()
        # Once the connection is known to be gone, certainly nothing was sent.
        eventually(lambda: "nobody listens there" in str(fails(store)))
        assert fails(store).applied is False
        victim.server.start()
        eventually(lambda: is_back(store))
        ((answer, fresh),) = store.touch([(mine, LONG)])
        assert (answer, fresh.born) == (Renewal.RENEWED, mine.born)
        store.swap(KEY, fresh, None, None)
        assert store.grant().revision > mine.revision


def test_a_paused_etcd_is_given_up_on_in_time_and_its_late_work_is_found(victim: Place, colour: str) -> None:
    with driven(victim.url, colour, timeout=0.5) as store:
        warm = store.grant()
        store.swap(KEY, warm, None, None)
        victim.server.pause()
        told = fails(store)
        assert told.applied is None
        assert "no answer in 0.5 s; is it overloaded, paused" in str(told)
        with pytest.raises(StoreUnavailable) as reading:
            store.load(KEY)
        assert reading.value.applied is False
        victim.server.go_on()
        eventually(lambda: is_back(store))
        answer = store.swap(KEY, None, b"mine", LONG)
        # Whether the first one arrived after all or was cancelled before, there is one record, and it is ours.
        found = answer if isinstance(answer, Record) else answer.record
        assert found.value == b"mine"
        assert store.load(KEY).revision == found.revision


def test_a_lease_survives_a_restart_of_etcd(victim: Place) -> None:
    with leasehold.connect(victim.url) as locks, leasehold.connect(victim.url) as others:
        lease = locks.acquire("job", ttl=LONG)
        victim.server.restart()
        eventually(lambda: lease.renew() is Renewal.RENEWED)
        assert others.try_acquire("job") is None
        assert lease.release() is True
        later = others.acquire("job", wait=10)
        assert later.token > lease.token


# The way.


def test_a_write_whose_answer_is_swallowed_is_found_again_by_its_value(store: Driven, proxy: Proxy) -> None:
    proxy.replies.blackhole = True
    assert fails(store).applied is None
    proxy.replies.blackhole = False
    proxy.cut()
    eventually(lambda: is_back(store))
    again = store.swap(KEY, None, b"mine", LONG)
    assert isinstance(again, Conflict)
    assert again.record is not None
    assert again.record.value == b"mine"
    # Trusted no further than from the lease it was written on.
    assert again.record.since is not None


def test_a_write_that_never_arrives_leaves_nothing(store: Driven, proxy: Proxy, place: Place) -> None:
    proxy.requests.blackhole = True
    assert fails(store).applied is None
    proxy.cut()
    proxy.requests.blackhole = False
    eventually(lambda: is_back(store))
    assert place.found() is None
    assert store.grant().value == b"mine"


def test_a_connection_cut_in_the_middle_is_dialled_again(store: Driven, proxy: Proxy) -> None:
    made = store.grant()
    for _ in range(5):
        proxy.cut()
        assert store.load(KEY).revision == made.revision


def test_a_waiter_hears_again_after_its_stream_was_cut(place: Place, proxy: Proxy) -> None:
    with leasehold.connect(place.behind(proxy)) as waiter, leasehold.connect(place.url) as holder:
        lease = holder.acquire("job", ttl=LONG)
        granted: list[leasehold.Lease] = []
        waiting = threading.Thread(target=lambda: granted.append(waiter.acquire("job", ttl=LONG)))
        waiting.start()
        eventually(lambda: proxy.connections)
        proxy.cut()
        eventually(lambda: proxy.connections > 1)
        lease.release()
        waiting.join(20)
        assert granted[0].token > lease.token


def test_of_many_who_wake_at_once_only_one_holds(place: Place) -> None:
    """etcd's own lock once returned from its wait without looking whether it was the owner."""
    with leasehold.connect(place.url) as locks:
        lease = locks.acquire("job", ttl=LONG)
        clients = [leasehold.connect(place.url) for _ in range(4)]
        inside: list[int] = []
        most: list[int] = []

        def work(client: leasehold.Locks) -> None:
            with client.hold("job", ttl=LONG) as mine:
                inside.append(mine.token)
                most.append(len(inside))
                inside.remove(mine.token)

        threads = [threading.Thread(target=work, args=(client,)) for client in clients]
        for thread in threads:
            thread.start()
        lease.release()
        for thread in threads:
            thread.join(20)
        for client in clients:
            client.close()
        assert most == [1] * len(clients)


def test_a_forked_child_begins_with_connections_of_its_own_and_leaves_its_parents_alone(
    place: Place, proxy: Proxy
) -> None:
    with leasehold.connect(place.behind(proxy)) as locks, leasehold.connect(place.url) as others:
        mine = locks.acquire("mine", ttl=LONG)
        busy = others.acquire("busy", ttl=LONG)
        granted: list[leasehold.Lease] = []
        # The parent has a stream open, and a call under way, while it forks.
        waiting = threading.Thread(target=lambda: granted.append(locks.acquire("busy", ttl=LONG)))
        waiting.start()
        eventually(lambda: proxy.flights > 3)
        before = proxy.connections
        child = os.fork()
        if not child:
            _in_child(locks)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert proxy.connections > before
        assert mine.renew() is Renewal.RENEWED
        busy.release()
        waiting.join(20)
        assert granted[0].held


def _in_child(locks: leasehold.Locks) -> None:
    try:
        own = locks.acquire("child", ttl=LONG, wait=0)
        os._exit(0 if own.held and own.release() and locks.try_acquire("mine") is None else 3)
    except BaseException:  # noqa: BLE001  a child of a test must never run on as a second pytest
        os._exit(4)


# What is wrong with what was given.


@pytest.mark.parametrize(
    ("url", "remedy"),
    [
        ("etcd://", "each host must read host, host:port"),
        ("etcd://h:0", "a port must be a whole number"),
        ("etcd://h/path", "must have no path"),
        ("etcd://user@h", "user and password need each other"),
        ("etcd://h?ca=/x", "ca, cert and key need TLS"),
        ("etcds://h?cert=/x", "cert and key need each other"),
        ("etcd://h?pool=3", "option 'pool' is unknown or repeated; this store has: namespace, ca, cert, key"),
        ("etcd://h?namespace=%00", "namespace must be at most"),
        ("etcds://h?ca=/nowhere/ca.pem", "ca= names a file that cannot be read"),
    ],
)
def test_a_url_that_cannot_work_is_refused_before_anything_is_reached(url: str, remedy: str) -> None:
    with pytest.raises(InvalidInput, match="url: ") as told:
        leasehold.connect(url)
    assert remedy in str(told.value)


def test_no_error_shows_a_password(place: Place) -> None:
    dead = free_port()
    with pytest.raises(StoreUnavailable) as told:
        leasehold.connect(f"etcd://app:hush@127.0.0.1:{dead}", timeout=1)
    with pytest.raises(InvalidInput) as refused:
        leasehold.connect("etcd://app:hush@h?pool=1")
    assert "hush" not in f"{told.value} {refused.value}"
    assert (told.value.applied, "nobody listens there" in str(told.value)) == (False, True)


def test_a_host_that_nobody_knows_is_told(colour: str) -> None:
    with (
        pytest.raises(StoreUnavailable, match="this host name is not known"),
        driven("etcd://no-such-host.invalid:1", colour, timeout=4.0),
    ):
        pass


def test_what_is_no_etcd_is_told(colour: str) -> None:
    with (
        pytest.raises(StoreUnavailable, match="check host"),
        driven(f"etcd://127.0.0.1:{redis().port}", colour, timeout=2.0),
    ):
        pass


def test_of_several_hosts_the_dead_are_passed_over(place: Place, colour: str) -> None:
    dead = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    url = place.at(f"etcd://{dead[0]},{place.server.host}:{place.server.port},{dead[1]}")
    for _ in range(4):
        with driven(url, colour) as store:
            made = store.grant()
            assert store.touch([(made, LONG)])[0][0] is Renewal.RENEWED
            assert store.swap(KEY, made, None, None) == made


def test_with_tls_both_sides_prove_who_they_are() -> None:
    with EtcdServer(client_certs=True) as server:
        cert, key = make_client(server.home, "app")
        place = Place(server)
        good = f"{place.url}&cert={cert}&key={key}"
        with leasehold.connect(good) as locks:
            assert locks.acquire("job", ttl=LONG).release() is True
        for url, remedy in (
            (place.url, "check ca=, cert= and key="),
            (good.replace(f"ca={server.ca}", "ca="), "its certificate was made for"),
            (f"etcd://{server.host}:{server.port}", "use etcds:// if the server wants TLS"),
        ):
            with pytest.raises(StoreUnavailable) as told:
                leasehold.connect(url, timeout=2)
            assert remedy in str(told.value), str(told.value)
        assert told.value.applied is False
    with pytest.raises(StoreUnavailable, match="if it speaks none, use etcd://"):
        leasehold.connect(Place().url.replace("etcd:", "etcds:"), timeout=2)


def test_a_full_database_refuses_new_leases_and_lets_those_held_be_renewed_and_released() -> None:
    with EtcdServer(config={"quota-backend-bytes": 2_000_000}) as small:
        place = Place(small)
        with driven(place.url) as store:
            held = store.grant()
            _fill(place)
            told = fails(store, key=KEY._replace(family="app//name/another"))
            assert "compact, defragment, disarm the alarm" in str(told)
            ((answer, fresh),) = store.touch([(held, LONG)])
            assert answer is Renewal.RENEWED
            assert store.swap(KEY, fresh, None, None) == fresh


def _fill(place: Place) -> None:
    def ballast() -> None:
        for n in range(100):
            place.server.request("kv/put", {"key": written(b"ballast%d" % n), "value": written(b"x" * 200_000)})

    with pytest.raises(ServerFailed, match="space exceeded"):
        ballast()


def test_a_right_that_is_taken_away_is_told_with_what_it_takes() -> None:
    with (
        EtcdServer(users={"app": ("secret", "team/")}) as server,
        leasehold.connect(f"{server.url_for('app', 'secret')}?namespace=team/") as locks,
    ):
        assert locks.list() == []
        keys = {"key": written(b"team/"), "range_end": written(b"team/\xff")}
        server.request("auth/role/revoke", {"role": "app", **keys})
        with pytest.raises(PermissionDenied, match="readwrite on the prefix of its keys"):
            locks.try_acquire("job")


def test_closing_hangs_up_and_no_more(place: Place, colour: str) -> None:
    with driven(place.url, colour) as store:
        made = store.grant()
        store.close()
        assert store.load(KEY).revision == made.revision
