"""A network and a server that fail at the worst moment: nothing is lost, nothing is believed too long."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import leasehold
from leasehold.engine.blocking import drive
from leasehold.engine.looped import LoopedRuntime
from leasehold.errors import StoreError, StoreUnavailable
from leasehold.model import Conflict, Key, Record, Renewal
from leasehold.rules.addresses import Address
from leasehold.stores.base import Store
from leasehold.stores.open import open_store
from leasehold.stores.redis import _bucket, _name
from leasehold.testing.clock import VirtualClock
from leasehold.testing.conformance.arena import Arena
from leasehold.testing.proxy import Proxy
from leasehold.testing.servers import RedisServer
from leasehold.testing.servers.shared import shared
from leasehold.wires.clock import system_clock
from leasehold.wires.colour import Colour
from leasehold.wires.redis_finder import bucket_keys
from leasehold.wires.redis_line import RedisLine
from leasehold.wires.redis_url import RedisConfig
from tests.stores.redis_support import (
    FROZEN,
    KEY,
    ROOT_OF_KEYS,
    Driven,
    behind,
    driven,
    frozen_server,
    key,
    server,
    turn,
)
from tests.support import count, eventually

COLOURS = pytest.mark.parametrize("colour", ["blocking", "asyncio"])


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    found = server()
    with Proxy(found.host, found.port) as opened:
        yield opened


# The connection is cut after the request and before the reply.


def created(store: Driven) -> Callable[[], Any]:
    return lambda: store.swap(KEY, None, b"mine", 30.0)


def deleted(store: Driven) -> Callable[[], Any]:
    mine = store.grant()
    return lambda: store.swap(KEY, mine, None, None)


def touched(store: Driven) -> Callable[[], Any]:
    mine = store.grant(ttl=20.0)
    return lambda: store.touch([(mine, 90.0)])


def is_longer(store: Driven) -> bool:
    return bool(store.load(KEY).ttl == 90.0)


VERBS: dict[str, tuple[Callable[[Driven], Callable[[], Any]], Callable[[Driven], bool]]] = {
    "create": (created, lambda store: store.load(KEY) is not None),
    "delete": (deleted, lambda store: store.load(KEY) is None),
    "touch": (touched, is_longer),
    "load": (lambda store: lambda: store.load(KEY), lambda store: True),
    "scan": (lambda store: lambda: store.scan(KEY.family), lambda store: True),
    "page": (lambda store: lambda: store.page(ROOT_OF_KEYS, None, 10), lambda store: True),
    "collect": (lambda store: lambda: store.collect(10), lambda store: True),
}


@COLOURS
@pytest.mark.parametrize("verb", VERBS)
def test_a_cut_before_the_reply_leaves_the_outcome_open_and_the_next_call_works(proxy, verb, colour) -> None:
    prepare, applied = VERBS[verb]
    with driven(behind(proxy), colour) as store, driven(server_again().url) as witness:
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
        assert not isinstance(repeated, StoreError)
        if verb == "create":
            assert isinstance(repeated, Conflict)
            assert repeated.record is not None
            assert repeated.record.value == b"mine"
        if verb == "delete":
            assert repeated == Conflict(None)
        if verb == "touch":
            assert repeated[0][0] is Renewal.RENEWED


def server_again() -> RedisServer:
    """The shared server, as it is."""
    return shared("redis", RedisServer(aof="no"))


def in_thread(call: Callable[[], Any]) -> Future[Any]:
    pool = ThreadPoolExecutor(1)
    try:
        return pool.submit(call)
    finally:
        pool.shutdown(wait=False)


@COLOURS
def test_a_reply_that_comes_after_the_ttl_is_not_believed(proxy, colour) -> None:
    """Every answer takes twice the ttl: there is never a moment at which the lease could be held."""
    locks = Locks(behind(proxy), colour)
    # The control: answers in time are believed.
    assert locks.call("try_acquire", "warm", ttl=30).held
    proxy.replies.latency = 0.4
    with pytest.raises(StoreUnavailable, match="later than a ttl"):
        locks.call("acquire", "job", ttl=0.2, wait=0)
    proxy.replies.latency = 0.0
    locks.close()


class Locks:
    """A client of either colour, called from plain code."""

    def __init__(self, url: str, colour: str) -> None:
        self.loop = asyncio.new_event_loop() if colour == "asyncio" else None
        self.locks: Any = (
            self.loop.run_until_complete(leasehold.aio.connect(url)) if self.loop else leasehold.connect(url)
        )

    def call(self, verb: str, *given: Any, **options: Any) -> Any:
        work = getattr(self.locks, verb)(*given, **options)
        return self.loop.run_until_complete(work) if self.loop else work

    def close(self) -> None:
        self.call("close")
        if self.loop is not None:
            self.loop.close()


# Scripts that the server has forgotten.


def test_forgotten_scripts_are_brought_again_in_the_same_call(proxy) -> None:
    found = server_again()
    with driven(behind(proxy)) as store:
        for forget in range(3):
            mine = store.grant(key(forget))
            found.command("SCRIPT", "FLUSH")
            proxy.reset_counters()
            ((answer, mine),) = store.touch([(mine, 30.0)])
            assert (answer, proxy.flights) == (Renewal.RENEWED, 2)
            ((answer, mine),) = store.touch([(mine, 30.0)])
            assert (answer, proxy.flights) == (Renewal.RENEWED, 3)
            assert store.swap(mine.key, mine, None, None) == mine
            assert proxy.flights == 5
            store.grant(Key(KEY.family, f"m{forget}"))
            assert proxy.flights == 6


@COLOURS
def test_after_a_restart_the_first_call_simply_works(colour) -> None:
    with RedisServer() as restarted, driven(restarted.url, colour) as store:
        mine = store.grant()
        restarted.restart()
        if store.loop:
            store.wait(turn())
        assert store.load(KEY).revision == mine.revision
        ((answer, mine),) = store.touch([(mine, 30.0)])
        assert answer is Renewal.RENEWED
        assert store.swap(KEY, mine, None, None) == mine


def test_one_bad_record_does_not_spoil_the_renewal_of_the_others() -> None:
    found = server_again()
    with driven(found.url) as store:
        made = [store.grant(key(number)) for number in range(20)]
        found.command("HSET", bucket_keys(_bucket(key(3).family))[0], _name(key(3)), "gibberish")
        answers = [answer for answer, _ in store.touch([(record, 30.0) for record in made])]
        assert answers == [Renewal.UNKNOWN if number == 3 else Renewal.RENEWED for number in range(20)]
        found.command("FLUSHALL")


@COLOURS
def test_renewing_nothing_asks_nobody(proxy, colour) -> None:
    with driven(behind(proxy), colour) as store:
        proxy.reset_counters()
        assert store.touch([]) == []
        assert proxy.requests.bytes == 0


# Cancelled calls.


def test_the_late_reply_of_a_cancelled_call_reaches_nobody_else() -> None:
    found = server()

    async def work() -> None:
        store: Store = open_store(f"{found.url}?pool=1", timeout=5.0, colour=LoopedRuntime(system_clock()))
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


# The pool.


@COLOURS
def test_a_full_pool_is_told_with_its_size_and_the_option(colour) -> None:
    with driven(f"{server().url}?pool=2", colour, timeout=0.1) as store:
        pool = store.store._wire._only.pool
        taken = [store.wait(pool.take()) for _ in range(2)]
        with pytest.raises(
            StoreUnavailable, match=r"all 2 connections were in use for 0\.1 s; .* raise pool="
        ) as caught:
            store.load(KEY)
        assert caught.value.applied is False
        for link in taken:
            pool.give(link)
        assert store.load(KEY) is None


@COLOURS
def test_who_waits_for_a_place_gets_it_when_it_is_given_back(colour) -> None:
    """Eight times as many calls at once as there are places, and each is answered."""
    with driven(f"{server().url}?pool=2", colour, timeout=20.0) as store:
        store.grant()
        if store.loop is None:
            with ThreadPoolExecutor(16) as threads:
                found = [threads.submit(store.load, KEY) for _ in range(200)]
                answers = [future.result() for future in found]
        else:

            async def many() -> list[Record]:
                return await asyncio.gather(*(store.store.load(KEY) for _ in range(200)))

            answers = store.wait(many())
        assert [record.value for record in answers] == [b"mine"] * 200
        # Those of other tests may still be leaving.
        eventually(lambda: 1 <= len(clients(server_again())) <= 2)


def test_a_cancelled_waiter_hands_its_place_on() -> None:
    with driven(f"{server().url}?pool=1", "asyncio", timeout=20.0) as store:

        async def work() -> None:
            pool = store.store._wire._only.pool
            for turns in range(4):
                link = await pool.take()
                first, second = (asyncio.create_task(store.store.load(KEY)) for _ in range(2))
                await turn()
                pool.give(link)
                for _ in range(turns):
                    await turn()
                first.cancel()
                assert await second is None
                await asyncio.wait([first])

        store.wait(work())


def clients(found: RedisServer) -> list[str]:
    """The connections to a server, without the one that asks and its own helpers."""
    return [line for line in str(found.command("CLIENT", "LIST")).splitlines() if "user=default" in line]


# Forks.


def test_a_forked_child_has_connections_of_its_own_and_leaves_the_parents_alone() -> None:
    with driven(server().url) as store:
        mine = store.grant()
        before = number(store)
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            found = {"id": number(store), "seen": store.load(KEY).revision, "got": store.grant(key(1)).revision}
            store.close()
            os.write(write, json.dumps(found).encode())
            os._exit(0)
        os.close(write)
        with open(read, encoding="ascii") as pipe:
            theirs = json.loads(pipe.read())
        assert os.waitpid(child, 0)[1] == 0
        assert theirs["id"] != before
        assert theirs["seen"] == mine.revision
        assert store.load(key(1)).revision == theirs["got"]
        assert number(store) == before


def number(store: Driven) -> int:
    """Which of its connections a server sees."""
    (found,) = drive(store.store._wire.command(None, [("CLIENT", "ID")]))
    return int(found)


# Waiting.


@COLOURS
def test_a_waiter_whose_pubsub_connection_is_killed_still_gets_the_lease(colour) -> None:
    found = server()
    with leasehold.connect(found.url) as ada:
        lease = ada.acquire("job", ttl=30)
        bob = Locks(found.url, colour)
        waiting = in_thread(lambda: bob.call("acquire", "job", ttl=30, wait=60))
        for _ in range(2):
            eventually(lambda: found.command("PUBSUB", "CHANNELS", "leasehold:*"))
            assert found.command("CLIENT", "KILL", "TYPE", "pubsub") >= 1
        eventually(lambda: found.command("PUBSUB", "CHANNELS", "leasehold:*"))
        assert not waiting.done()
        lease.release()
        assert waiting.result(20).token > lease.token
        bob.close()


def test_a_line_over_tls_leaves_nothing_unread() -> None:
    secure = shared("redis with TLS", RedisServer(aof="no", tls=True))
    config = RedisConfig("single", (Address(secure.host, secure.port),), tls=True, ca=str(secure.ca))
    line = RedisLine(config, 5.0)
    line.connect()
    try:
        line.ping()
        for channel in ("leasehold:many", "leasehold:last"):
            line.listen(channel)
        heard: set[str] = set()
        for _ in range(20):
            # One burst of more than TLS hands out at once; what matters is said last.
            burst = "for i = 1, 2000 do redis.call('PUBLISH', 'leasehold:many', string.rep('x', 50)) end"
            secure.command("EVAL", f"{burst} redis.call('PUBLISH', 'leasehold:last', '')", 0)
            eventually(lambda: heard.update(line.drain()) or "leasehold:last" in heard)
            assert line.drain() == {}
            heard.clear()
        line.ping()
        line.unlisten(["leasehold:many"])
        secure.command("PUBLISH", "leasehold:many", "")
        line.ping()
        assert line.drain() == {}
    finally:
        line.close()


# Losing.


class World:
    """A server whose clock stands, behind a short patience."""

    ttl = 10.0
    url = None

    def __init__(self, folder: Path | None = None) -> None:
        self.server = frozen_server()
        self.clock = VirtualClock()

    def store(self, colour: Colour) -> Store:
        return open_store(self.server.url, timeout=0.3, colour=colour)

    def elapse(self, seconds: float) -> None:
        self.clock.advance(seconds)

    def close(self) -> None:
        self.server.go_on()


@COLOURS
def test_a_holder_is_told_before_the_end_while_the_server_is_paused(colour) -> None:
    world = World()
    arena = Arena(world, colour)
    ada = arena.client(timeout=0.3)
    told = threading.Event()
    lease = ada.acquire("job", ttl=10, on_lost=lambda lease: told.set())
    world.server.pause()
    for _ in range(9):
        arena.elapse(1.0)
    arena.eventually(told.is_set)
    assert not lease.held
    world.server.go_on()
    # The renewals that waited in front of the server are done when it answers: not later, by a later clock.
    world.server.command("PING")
    # So much time has passed for the holder; by the server's clock the lease has still some to go.
    FROZEN.advance(9.5)
    bob = arena.client()
    assert bob.try_acquire("job", ttl=10) is None
    FROZEN.advance(0.5)
    assert bob.try_acquire("job", ttl=10).token > lease.token
    arena.close()
