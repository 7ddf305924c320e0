"""ZooKeeper killed, paused, cut off, out of places and out of quorum: nothing is lost, nobody believes too long."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import leasehold
from leasehold.engine.events import Granted
from leasehold.engine.looking import key_of
from leasehold.engine.looped import LoopedRuntime
from leasehold.errors import LeaseholdError, StoreUnavailable
from leasehold.model import Conflict, Record, Renewal
from leasehold.stores.base import Store
from leasehold.stores.open import open_store
from leasehold.testing.conformance.arena import Arena
from leasehold.testing.contender import Contender
from leasehold.testing.proxy import Proxy
from leasehold.testing.servers import ZooKeeperEnsemble, ZooKeeperServer
from leasehold.wires.clock import system_clock
from tests.servers import zookeeper
from tests.stores.postgres_support import Believers, all_at_once
from tests.stores.redis_support import KEY, ROOT_OF_KEYS, Driven, driven, key, turn
from tests.stores.zookeeper_support import (
    behind,
    chroot_of,
    ensemble,
    fresh,
    fresh_chroot,
    in_thread,
    with_tls,
)
from tests.support import count, eventually
from tests.test_round_trips import Behind

COLOURS = pytest.mark.parametrize("colour", ["blocking", "asyncio"])


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with Proxy(zookeeper().host, zookeeper().port) as opened:
        yield opened


@pytest.fixture(scope="module")
def own() -> Iterator[ZooKeeperServer]:
    """A server that may be killed and paused; it runs at the beginning of every test."""
    with ZooKeeperServer() as server:
        yield server


@pytest.fixture
def three() -> Iterator[ZooKeeperEnsemble]:
    """Three servers, all of which serve at the beginning and, for the next, at the end."""
    found = ensemble()
    yield found
    for node in found.nodes:
        if not node.is_running:
            node.start()
        node.go_on()
    found.await_agreement()


# The connection is cut after the request and before the reply.


def created(store: Driven) -> Callable[[], Any]:
    return lambda: store.swap(KEY, None, b"mine", 30.0)


def deleted(store: Driven) -> Callable[[], Any]:
    mine = store.grant()
    return lambda: store.swap(KEY, mine, None, None)


def touched(store: Driven) -> Callable[[], Any]:
    mine = store.grant()
    return lambda: store.touch([(mine, 30.0)])


VERBS: dict[str, tuple[Callable[[Driven], Callable[[], Any]], Callable[[Driven], bool]]] = {
    "create": (created, lambda store: store.load(KEY) is not None),
    "delete": (deleted, lambda store: store.load(KEY) is None),
    "touch": (touched, lambda store: True),
    "load": (lambda store: lambda: store.load(KEY), lambda store: True),
    "scan": (lambda store: lambda: store.scan(KEY.family), lambda store: True),
    "page": (lambda store: lambda: store.page(ROOT_OF_KEYS, None, 10), lambda store: True),
    "collect": (lambda store: lambda: store.collect(10), lambda store: True),
}


@COLOURS
@pytest.mark.parametrize("verb", VERBS)
def test_a_cut_before_the_reply_leaves_the_outcome_open_and_the_next_call_works(proxy, verb, colour) -> None:
    prepare, applied = VERBS[verb]
    url = behind(proxy)
    with driven(url, colour) as store, driven(f"{zookeeper().url}{chroot_of(url)}") as witness:
        store.swap(key(9), store.grant(key(9)), None, None)
        call = prepare(store)
        proxy.replies.blackhole = True
        proxy.reset_counters()
        calling = in_thread(call)
        eventually(lambda: proxy.requests.bytes and applied(witness))
        proxy.cut()
        with pytest.raises(StoreUnavailable) as caught:
            calling.result(20)
        assert caught.value.applied is None
        proxy.replies.blackhole = False
        repeated = prepare(store)() if verb not in {"create", "delete", "touch"} else call()
        if verb == "create":
            assert isinstance(repeated, Conflict)
            assert repeated.record is not None
            assert repeated.record.value == b"mine"
            # The session was taken up again: it is renewed as if nothing had been.
            assert store.touch([(repeated.record, 30.0)])[0][0] is Renewal.RENEWED
        if verb == "delete":
            assert repeated == Conflict(None)
        if verb == "touch":
            assert repeated[0][0] is Renewal.RENEWED


@COLOURS
def test_who_cannot_connect_knows_that_nothing_was_applied(proxy, colour) -> None:
    with driven(behind(proxy), colour) as store:
        proxy.refusing = True
        proxy.cut()
        if store.loop:
            eventually(lambda: store.wait(turn()) or store.store._looks._link.is_stale())
        else:
            eventually(store.store._looks._link.is_stale)
        with pytest.raises(StoreUnavailable, match="hung up before it answered") as told:
            store.swap(KEY, None, b"x", 30.0)
        assert told.value.applied is False
        proxy.refusing = False
        assert store.grant().revision


@COLOURS
def test_renewing_nothing_asks_nobody(proxy, colour) -> None:
    with driven(behind(proxy), colour) as store:
        proxy.reset_counters()
        assert store.touch([]) == []
        assert proxy.requests.bytes == 0


def test_the_late_reply_of_a_cancelled_call_reaches_nobody_else() -> None:
    url = fresh()

    async def work() -> None:
        store: Store = open_store(url, timeout=5.0, colour=LoopedRuntime(system_clock()))
        await store.open()
        for number in range(5):
            made = await store.swap(key(number), None, b"value of %d" % number, 30.0)
            assert isinstance(made, Record)
        cancelled = 0
        for round_ in range(count(500)):
            wrong = asyncio.create_task(store.load(key(0)))
            for _ in range(round_ % 4):
                await turn()
            wrong.cancel()
            right = key(1 + round_ % 4)
            record = await store.load(right)
            assert record is not None
            assert (record.key, record.value) == (right, b"value of %d" % (1 + round_ % 4))
            await asyncio.wait([wrong])
            cancelled += wrong.cancelled()
        assert cancelled
        await store.close()

    asyncio.run(work())


@COLOURS
def test_many_calls_at_once_take_turns_on_one_connection(proxy, colour) -> None:
    with driven(behind(proxy), colour, timeout=20.0) as store:
        store.grant()
        proxy.reset_counters()
        if store.loop is None:
            found: list[Record] = []
            all_at_once([lambda: found.append(store.load(KEY))] * 40)
        else:

            async def many() -> list[Record]:
                return await asyncio.gather(*(store.store.load(KEY) for _ in range(40)))

            found = store.wait(many())
        assert [record.value for record in found] == [b"mine"] * 40
        assert proxy.connections == 0


# Cut off, in one direction or both.


@COLOURS
def test_a_lost_connection_renews_nothing_and_belief_ends_at_our_own_deadline(proxy, colour) -> None:
    """What kazoo calls SUSPENDED: the server may keep the session, and nobody here may count on it."""
    world = Behind(behind(proxy))
    arena = Arena(world, colour)
    ada = arena.client(timeout=1.0)
    told = threading.Event()
    lease = ada.acquire("job", ttl=30, on_lost=lambda _lease: told.set())
    proxy.refusing = True
    proxy.cut()
    before = lease.expires_in
    assert lease.renew() is Renewal.UNKNOWN
    assert lease.expires_in <= before
    arena.elapse(26.0)
    assert lease.held
    arena.elapse(1.0)
    assert not lease.held
    arena.eventually(told.is_set)
    # The control: the server still has it, so nobody was granted it early.
    with driven(f"{zookeeper().url}{chroot_of(world.url)}") as other:
        assert other.load(key_of(ada.locks._engine, "job")) is not None
    proxy.refusing = False
    arena.close()


@COLOURS
def test_a_connection_that_comes_back_in_time_goes_on_with_the_same_session(proxy, colour) -> None:
    with driven(behind(proxy), colour) as store:
        made = store.grant()
        for _ in range(3):
            proxy.cut()
            proxy.reset_counters()
            eventually(lambda: _again(lambda: store.touch([(made, 30.0)])[0][0] is Renewal.RENEWED))
            assert proxy.connections >= 1
            assert store.load(KEY).tag.owner == made.tag.owner


def _again(call: Callable[[], bool]) -> bool:
    try:
        return call()
    except StoreUnavailable:
        return False


@COLOURS
@pytest.mark.parametrize("way", ["requests", "replies"])
def test_a_network_cut_one_way_is_told_within_the_timeout_and_extends_nothing(proxy, colour, way) -> None:
    url = behind(proxy)
    with driven(url, colour, timeout=0.5) as store, driven(f"{zookeeper().url}{chroot_of(url)}") as other:
        made = store.grant(key(1))
        getattr(proxy, way).blackhole = True
        with pytest.raises(StoreUnavailable, match=r"no answer in 0\.5 s") as told:
            store.swap(KEY, None, b"mine", 30.0)
        assert told.value.applied is None
        with pytest.raises(StoreUnavailable):
            store.touch([(made, 30.0)])
        assert (other.load(KEY) is not None) is (way == "replies")
        getattr(proxy, way).blackhole = False
        assert store.touch([(made, 30.0)])[0][0] is Renewal.RENEWED


# Killed and paused.


def test_a_server_killed_under_load_leaves_no_two_believers_and_no_lower_token(own: ZooKeeperServer) -> None:
    believers, over = Believers(), threading.Event()
    url = fresh(own)

    def work(locks: leasehold.Locks) -> None:
        while not over.is_set():
            try:
                with locks.hold("job", ttl=1.0, wait=30) as lease:
                    believers.enter(lease)
                    believers.leave(lease)
            except LeaseholdError:
                continue  # the server is down; what counts is what was believed

    def kill_again_and_again() -> None:
        try:
            for _ in range(count(20)):
                seen = believers.grants
                eventually(lambda seen=seen: believers.grants >= seen + 10, patience=60)  # type: ignore[misc]
                own.kill()
                own.start()
            seen = believers.grants
            eventually(lambda: believers.grants > seen, patience=60)
        finally:
            over.set()

    with ExitStack() as stack:
        clients = [stack.enter_context(leasehold.connect(url, timeout=10.0)) for _ in range(3)]
        all_at_once([*(partial(work, locks) for locks in clients), kill_again_and_again])
    assert (believers.overlaps, believers.inversions) == (0, 0)


@COLOURS
def test_a_holder_is_told_before_the_end_while_the_server_is_paused(own: ZooKeeperServer, colour: str) -> None:
    arena = Arena(Behind(fresh(own)), colour)
    ada = arena.client(timeout=1.0)
    told = threading.Event()
    lease = ada.acquire("job", ttl=30, on_lost=lambda _lease: told.set())
    own.pause()
    try:
        arena.elapse(27.0)
        arena.eventually(told.is_set)
        assert not lease.held
    finally:
        own.go_on()
    arena.close()


@COLOURS
def test_a_paused_server_is_told_within_the_timeout(own: ZooKeeperServer, colour: str) -> None:
    with driven(fresh(own), colour, timeout=0.5) as store:
        store.grant(key(1))
        own.pause()
        try:
            for call in (lambda: store.load(KEY), lambda: store.load(KEY)):
                with pytest.raises(StoreUnavailable, match=r"no answer in 0\.5 s"):
                    call()
        finally:
            own.go_on()
        assert store.grant().revision


def test_a_session_that_expired_under_a_paused_holder_is_not_believed_on_waking() -> None:
    url = fresh()
    with Contender(url, "blocking") as sleeper, leasehold.connect(url) as heir:
        first = sleeper.ask("acquire", key="job", ttl=1.0)
        sleeper.stop()
        lease = heir.acquire("job", ttl=30, wait=30)
        assert lease.token > first["token"]
        sleeper.go_on()
        assert sleeper.ask("look", key="job")["held"] is False
        assert sleeper.ask("release", key="job") is False
        assert lease.held
        # And it can hold again, in a session that is alive.
        assert sleeper.ask("acquire", key="other", ttl=5.0)["token"] > lease.token


# Three servers.


def test_a_killed_leader_frees_nothing_early_lowers_no_token_and_acquires_go_on(three: ZooKeeperEnsemble) -> None:
    url = three.url + fresh_chroot(three.leader)
    granted: list[Granted] = []
    with (
        leasehold.connect(
            url, timeout=3.0, observers=[lambda e: granted.append(e) if isinstance(e, Granted) else None]
        ) as ada,
        leasehold.connect(url, timeout=3.0) as bob,
    ):
        held = ada.acquire("held", ttl=20)
        before = ada.acquire("job", ttl=20)
        assert before.release() is True
        three.leader.kill()
        after = ada.acquire("job", ttl=20, wait=60)
        assert after.token > before.token
        assert held.held
        eventually(lambda: held.renew() is Renewal.RENEWED)
        with pytest.raises(leasehold.AcquireTimeout):
            bob.acquire("held", ttl=20, wait=1.0)
        assert held.release() is True
        assert bob.acquire("held", ttl=20, wait=20).token > after.token
        assert [event.token for event in granted] == sorted(event.token for event in granted)


@pytest.mark.parametrize("fault", ["kill", "pause"])
def test_a_follower_that_goes_takes_no_lease_along(three: ZooKeeperEnsemble, fault: str) -> None:
    follower = three.followers[0]
    others = [node for node in three.nodes if node is not follower]
    # The follower first: the client is to be there.
    hosts = ",".join(f"{node.host}:{node.port}" for node in (follower, *others))
    url = f"zookeeper://{hosts}{fresh_chroot(three.leader)}"
    with driven(url, timeout=6.0) as store:
        made = store.grant()
        (session,) = store.store.sessions()

        def is_there() -> bool:
            # One that has not caught up with what we have seen turns us away, and we go on to the next.
            store.store._wire._turn = 0
            session._hang_up()
            assert store.touch([(made, 30.0)])[0][0] is Renewal.RENEWED
            return session.where == f"{follower.host}:{follower.port}"

        eventually(is_there)
        getattr(follower, fault)()
        eventually(lambda: _again(lambda: store.touch([(made, 30.0)])[0][0] is Renewal.RENEWED))
        assert session.where != f"{follower.host}:{follower.port}"
        assert store.load(KEY).tag.owner == made.tag.owner


def test_a_paused_leader_is_replaced_and_acquires_go_on(three: ZooKeeperEnsemble) -> None:
    url = three.url + fresh_chroot(three.leader)
    with leasehold.connect(url, timeout=3.0) as ada:
        before = ada.acquire("job", ttl=30)
        paused = three.leader
        paused.pause()
        eventually(lambda: any(node.mode == "leader" for node in three.nodes if node is not paused), patience=60)
        eventually(lambda: before.renew() is Renewal.RENEWED, patience=60)
        assert before.release() is True
        assert ada.acquire("job", ttl=30, wait=60).token > before.token


def test_without_a_quorum_nothing_is_granted_and_the_remedy_is_told(three: ZooKeeperEnsemble) -> None:
    url = three.url + fresh_chroot(three.leader)
    with driven(url, timeout=3.0) as store:
        store.grant()
        for follower in three.followers:
            follower.kill()
        with pytest.raises(StoreUnavailable):
            eventually(lambda: store.grant(key(1)) is None, patience=60)
        with pytest.raises(StoreUnavailable, match=r"no quorum|nobody listens|no answer") as told:
            leasehold.connect(url, timeout=3.0)
        assert told.value.applied is False


def test_what_was_answered_by_one_server_is_seen_through_every_other(three: ZooKeeperEnsemble) -> None:
    """Without `sync` a follower may show what was."""
    chroot = fresh_chroot(three.leader)
    with ExitStack() as stack:
        stores = [stack.enter_context(driven(f"{node.url}{chroot}")) for node in three.nodes]
        for round_ in range(count(200)):
            writer = stores[round_ % 3]
            made = writer.grant()
            assert [store.load(KEY).revision for store in stores] == [made.revision] * 3
            writer.swap(KEY, made, None, None)
            assert [store.load(KEY) for store in stores] == [None] * 3


# What a server refuses.


@COLOURS
def test_tls_that_does_not_fit_is_told_with_its_remedy(colour: str, own: ZooKeeperServer, tmp_path: Path) -> None:
    secure = with_tls()
    stranger = tmp_path / "stranger.pem"
    stranger.write_text("no certificate")
    wrong = {
        f"zookeepers://localhost:{secure.port}": "give its authority as ca=",
        f"zookeepers://127.0.0.2:{secure.port}?ca={secure.ca}": "nobody listens|name its certificate",
        f"zookeepers://127.0.0.1:{own.port}?ca={secure.ca}": "speaks no TLS|hung up|no answer|secureClientPort",
        f"zookeeper://127.0.0.1:{secure.port}": "wants TLS",
        f"zookeepers://localhost:{secure.port}?ca={stranger}": "must be readable PEM files",
    }
    for url, remedy in wrong.items():
        with pytest.raises(LeaseholdError, match=remedy), driven(url, colour, timeout=2.0):
            pass
    good = f"zookeepers://localhost:{secure.port}{fresh_chroot(secure)}?ca={secure.ca}"
    with driven(good, colour) as store:
        assert store.grant().revision


def test_too_many_connections_from_one_address_are_told() -> None:
    with ZooKeeperServer(config={"maxClientCnxns": 3}) as server, ExitStack() as stack:
        chroot = fresh_chroot(server)

        def is_let_in() -> bool:
            # The server takes a moment to notice that the administrator has hung up.
            try:
                stack.enter_context(driven(f"{server.url}{chroot}"))
            except StoreUnavailable:
                return False
            return True

        for _ in range(3):
            eventually(is_let_in)
        with pytest.raises(StoreUnavailable, match="maxClientCnxns") as told:
            leasehold.connect(f"{server.url}{chroot}")
        assert told.value.applied is False


def test_a_server_that_only_reads_grants_nothing() -> None:
    config = {"syncLimit": 5}
    with ZooKeeperEnsemble(config=config, java=("-Dreadonlymode.enabled=true",)) as group:
        url = group.url + fresh_chroot(group.leader)
        with driven(url, timeout=3.0) as store:
            made = store.grant()
            kept = group.followers[0]
            for node in group.nodes:
                if node is not kept:
                    node.kill()
            eventually(lambda: kept.mode == "read-only", patience=60)
            with pytest.raises(StoreUnavailable):
                store.touch([(made, 30.0)])
            with pytest.raises(StoreUnavailable, match="only reads") as told:
                leasehold.connect(f"{kept.url}{chroot_of(url)}", timeout=3.0)
            assert told.value.applied is False


def test_what_is_no_zookeeper_is_told(tmp_path: Path) -> None:
    class Chatty(Proxy):
        pass

    with Chatty(zookeeper().host, zookeeper().port) as proxy:
        proxy.replies.alter = lambda data: b"HTTP/1.1 400 Bad Request\r\n\r\n" + data
        with pytest.raises(StoreUnavailable, match="this is no ZooKeeper server; check host and port") as told:
            leasehold.connect(f"zookeeper://127.0.0.1:{proxy.port}")
        assert told.value.applied is False


# Waiting.


@COLOURS
def test_a_waiter_whose_line_is_cut_still_gets_the_lease(proxy, colour) -> None:
    url = behind(proxy)
    with leasehold.connect(f"{zookeeper().url}{chroot_of(url)}") as ada:
        lease = ada.acquire("job", ttl=30)
        arena = Arena(Behind(url), colour)
        bob = arena.client()
        waiting = bob.begin("acquire", "job", ttl=30)
        for _ in range(2):
            arena.eventually(lambda: watched(url))
            before = proxy.connections
            proxy.cut()
            arena.eventually(lambda before=before: proxy.connections > before)
        arena.eventually(lambda: watched(url))
        assert not waiting.done()
        lease.release()
        arena.eventually(waiting.done)
        assert bob.face(waiting.result()).token > lease.token
        arena.close()


def watched(url: str) -> bool:
    """Whether somebody watches a node of a place."""
    return chroot_of(url) + "/" in zookeeper().word("wchp")


@COLOURS
def test_after_a_wait_only_the_swap_says_who_owns_it(colour: str) -> None:
    """Three wait for one lease: each wake-up is followed by a write that one of them wins."""
    url, held = fresh(), 0
    with leasehold.connect(url) as ada, ExitStack() as stack:
        first = ada.acquire("job", ttl=30)
        arena = Arena(Behind(url), colour)
        stack.callback(arena.close)
        clients = [arena.client() for _ in range(3)]
        waiting = [client.begin("acquire", "job", ttl=30) for client in clients]
        eventually(lambda: watched(url))
        first.release()
        tokens = []
        while len(tokens) < 3:
            arena.eventually(lambda: any(future.done() for future in waiting))
            done = [n for n, future in enumerate(waiting) if future.done()]
            held = max(held, len(done))
            lease = clients[done[0]].face(waiting[done[0]].result())
            tokens.append(lease.token)
            del waiting[done[0]], clients[done[0]]
            assert lease.release() is True
        assert held == 1
        assert tokens == sorted(set(tokens))
