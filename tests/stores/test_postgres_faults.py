"""PostgreSQL killed, paused, cut off and out of time: nothing is lost, nobody believes too long."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Any

import psycopg
import pytest

import leasehold
from leasehold import aio
from leasehold.engine.events import Renewed
from leasehold.errors import LeaseholdError, StoreUnavailable
from leasehold.model import Record
from leasehold.rules.urls import split
from leasehold.testing.contender import Contender
from leasehold.testing.proxy import Proxy
from leasehold.testing.servers import PostgresServer, ShiftedClock
from leasehold.wires.postgres_link import Statement, dial
from leasehold.wires.postgres_url import postgres_config
from tests.stores.postgres_support import (
    KEY,
    LONG,
    Believers,
    all_at_once,
    driven,
    fresh,
    nth_key,
    postgres,
    role,
    schema_of,
    through,
)
from tests.support import count, eventually


@pytest.fixture(scope="module")
def own() -> Iterator[PostgresServer]:
    """A server that may be killed and paused; it runs at the beginning of every test."""
    with PostgresServer() as server:
        yield server


# Killed.


def test_a_connection_that_ends_while_statements_are_prepared_is_told_and_not_waited_for(own: PostgresServer) -> None:
    with Proxy(own.host, own.port) as proxy:
        url = own.url.replace(f":{own.port}", f":{proxy.port}")
        link = dial(postgres_config(split(url), 5.0), time.monotonic() + 20)
        proxy.replies.blackhole = True
        with ThreadPoolExecutor(1) as pool:
            preparing = pool.submit(link.prepare, [Statement(b"one", b"SELECT 1", ())], time.monotonic() + 60)
            eventually(lambda: proxy.requests.bytes > 0)
            proxy.cut()
            with pytest.raises(StoreUnavailable):
                preparing.result(20)
        link.close()


def test_a_server_killed_under_load_leaves_no_two_believers_and_no_lower_token(own: PostgresServer) -> None:
    believers, over = Believers(), threading.Event()

    def work(locks: leasehold.Locks) -> None:
        while not over.is_set():
            try:
                with locks.hold("job", ttl=2.0, wait=30) as lease:
                    believers.enter(lease)
                    believers.leave(lease)
            except LeaseholdError:
                continue  # the server is down; what counts is what was believed

    def kill_again_and_again() -> None:
        try:
            for _ in range(count(30)):
                seen = believers.grants
                eventually(lambda seen=seen: believers.grants >= seen + 10, patience=60)  # type: ignore[misc]
                own.kill()
                own.start()
            seen = believers.grants
            eventually(lambda: believers.grants > seen, patience=60)
        finally:
            over.set()

    with ExitStack() as stack:
        clients = [stack.enter_context(leasehold.connect(own.url, timeout=10.0)) for _ in range(3)]
        all_at_once([*(partial(work, locks) for locks in clients), kill_again_and_again])
    assert (believers.overlaps, believers.inversions) == (0, 0)


def test_the_same_check_notices_a_server_that_forgets(own: PostgresServer) -> None:
    """The control: two believe, if the store does not keep its state."""
    believers = Believers()
    with leasehold.connect(own.url) as one, leasehold.connect(own.url) as other:
        believers.enter(one.acquire("forgotten", ttl=LONG))
        own.execute("TRUNCATE leasehold.leases")
        believers.enter(other.acquire("forgotten", ttl=LONG))
        assert believers.overlaps == 1


def test_a_restart_between_two_requests_is_not_noticed(own: PostgresServer) -> None:
    with driven(own.url) as store:
        store.grant(nth_key(1))
        own.restart()
        assert store.refused(nth_key(1)).value == b"mine"


# Paused.


def test_a_holder_is_told_before_the_end_while_the_server_is_paused(own: PostgresServer) -> None:
    with leasehold.connect(own.url, timeout=3.0) as one, leasehold.connect(own.url) as other:
        lease = one.acquire("paused", ttl=2.0)
        own.pause()
        try:
            assert lease.lost.wait(60)
        finally:
            own.go_on()
        heir = other.acquire("paused", ttl=LONG, wait=60)
        assert heir.token > lease.token
        assert not lease.held


def test_a_paused_server_is_told_within_the_timeout_blocking(own: PostgresServer) -> None:
    with leasehold.connect(own.url, timeout=3.0) as locks:
        own.pause()
        try:
            with pytest.raises(StoreUnavailable, match="did not answer within 3 s") as caught:
                locks.try_acquire("stopped")
        finally:
            own.go_on()
        assert caught.value.applied is None
        assert locks.acquire("stopped", wait=60).held


def test_a_paused_server_is_told_within_the_timeout_asyncio(own: PostgresServer) -> None:
    async def ask() -> StoreUnavailable:
        async with await aio.connect(own.url, timeout=3.0) as locks:
            own.pause()
            try:
                with pytest.raises(StoreUnavailable, match="did not answer within 3 s") as caught:
                    await locks.try_acquire("stopped too")
            finally:
                own.go_on()
            await locks.acquire("stopped too", wait=60)
            return caught.value

    assert asyncio.run(ask()).applied is None


# Cut off between request and reply.

VERBS: dict[str, Callable[[Any, Record], object]] = {
    "create": lambda store, _: store.swap(nth_key(1), None, b"new", LONG),
    "rewrite": lambda store, made: store.swap(KEY, made, b"rewritten", LONG),
    "delete": lambda store, made: store.swap(KEY, made, None, None),
    "touch": lambda store, made: store.touch([(made, 2 * LONG)]),
    "load": lambda store, _: store.load(KEY),
    "scan": lambda store, _: store.scan(KEY.family),
    "page": lambda store, _: store.page("app//", None, 10),
    "collect": lambda store, _: store.collect(10),
}
APPLIED: dict[str, Callable[[Any], bool]] = {
    "create": lambda store: store.load(nth_key(1)) is not None,
    "rewrite": lambda store: store.load(KEY).value == b"rewritten",
    "delete": lambda store: store.load(KEY) is None,
    "touch": lambda store: store.load(KEY).ttl == 2 * LONG,
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_connection_cut_between_request_and_reply_leaves_the_fate_unknown(verb: str) -> None:
    server = postgres()
    with Proxy(server.host, server.port) as proxy:
        url = through(proxy, server)
        with driven(url) as store, driven(f"{server.url}?schema={schema_of(url)}") as beside:
            made = store.grant()
            proxy.replies.blackhole = True
            proxy.reset_counters()

            def cut() -> None:
                eventually(lambda: proxy.replies.bytes > 0)
                proxy.cut()

            with pytest.raises(StoreUnavailable) as caught:
                all_at_once([partial(VERBS[verb], store, made), cut])
            assert caught.value.applied is None
            proxy.replies.blackhole = False
            assert APPLIED.get(verb, lambda _: True)(beside)
            # The next call has a connection of its own, and its own answer.
            assert store.load(nth_key(7)) is None


def test_a_reply_later_than_the_ttl_is_not_believed() -> None:
    server = postgres()
    with Proxy(server.host, server.port) as proxy, leasehold.connect(through(proxy, server)) as locks:
        proxy.replies.latency = 0.6
        with pytest.raises(StoreUnavailable, match="later than a ttl"):
            locks.try_acquire("late", ttl=0.5)
        proxy.replies.latency = 0.0
        assert locks.acquire("late", ttl=LONG, wait=60).held


def test_a_cancelled_task_leaves_no_answer_for_the_next(own: PostgresServer) -> None:
    waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name = 'leasehold'"

    async def ask() -> None:
        async with await aio.connect(f"{own.url}?pool=1") as locks:
            with psycopg.connect(own.url) as writer:
                writer.execute("SELECT leasehold.draw('//name/cancelled')")
                task = asyncio.create_task(locks.acquire("cancelled", ttl=LONG))
                await asyncio.to_thread(eventually, lambda: own.execute(waiting))
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            other = await locks.acquire("another", ttl=LONG)
            assert other.scope == "another"
            assert await locks.acquire("cancelled", ttl=LONG, wait=60)

    asyncio.run(ask())


# Clocks.


@pytest.mark.parametrize("offset", [-5.0, 5.0])
def test_a_clock_five_seconds_off_changes_nothing(offset: float) -> None:
    events: list[object] = []
    with (
        PostgresServer(clock=ShiftedClock(offset)) as server,
        leasehold.connect(server.url, observers=[events.append]) as one,
        leasehold.connect(server.url) as other,
    ):
        lease = one.acquire("job", ttl=4.0)
        eventually(lambda: sum(isinstance(event, Renewed) for event in events) >= 2)
        assert lease.held
        assert other.try_acquire("job") is None
        assert lease.release()
        assert other.acquire("job", ttl=LONG, wait=0).token > lease.token


def test_a_clock_stepped_back_frees_nothing_early_and_lowers_no_token() -> None:
    clock = ShiftedClock()
    with PostgresServer(clock=clock) as server, driven(server.url) as store:
        first, second = store.grant(nth_key(1)), store.grant(nth_key(2))
        clock.offset = -5.0
        store.refused(nth_key(1))
        assert store.swap(nth_key(2), second, None, None) == second
        assert store.grant(nth_key(2)).revision > second.revision
        with driven(server.url) as newcomer:
            assert newcomer.grant(nth_key(3)).revision > first.revision


def test_a_clock_stepped_ahead_ends_leases_early_as_the_guarantees_say() -> None:
    clock = ShiftedClock()
    with PostgresServer(clock=clock) as server, driven(server.url) as store:
        store.grant()
        clock.offset = 2 * LONG
        store.grant()
        assert "ends early if it is stepped ahead" in store.store.guarantees.clock


# Forked.


def test_a_forked_child_leaves_its_parents_connections_alone() -> None:
    url = fresh(postgres().url)
    with driven(url):
        name, password = role(postgres(), schema_of(url))

    def sessions() -> set[int]:
        return {pid for (pid,) in postgres().execute("SELECT pid FROM pg_stat_activity WHERE usename = %s", name)}

    with Contender(f"{postgres().url_for(name, password)}?schema={schema_of(url)}") as parent:
        mine = parent.ask("acquire", key="job", ttl=LONG)
        before = sessions()
        child = parent.ask("fork", key="job", ttl=LONG)
        assert child["own"] > mine["token"]
        assert parent.ask("look", key="job")["held"]
        assert parent.ask("release", key="job") is True
        eventually(lambda: sessions() == before)
