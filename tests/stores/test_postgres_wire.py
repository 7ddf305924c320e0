"""What travels to PostgreSQL and what does not: requests counted, connections lent, wake-ups told."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from functools import partial

import psycopg
import pytest

import leasehold
from leasehold import aio
from leasehold.errors import StoreUnavailable
from leasehold.stores.postgres import channel_of
from leasehold.testing.proxy import Proxy
from tests.stores.postgres_support import (
    KEY,
    LONG,
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


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with Proxy(postgres().host, postgres().port) as between:
        yield between


# Requests.


def test_each_verb_is_one_request(proxy: Proxy) -> None:
    with driven(through(proxy, postgres())) as store:
        made = store.grant(nth_key(0))
        hundred = [store.grant(nth_key(number)) for number in range(1, 101)]
        for call in (
            store.grant,
            store.refused,
            lambda: store.load(KEY),
            lambda: store.scan(KEY.family),
            lambda: store.page("app//", None, 500),
            lambda: store.touch([(record, LONG) for record in hundred]),
            lambda: store.swap(made.key, made, b"rewritten", LONG),
            lambda: store.swap(hundred[0].key, hundred[0], None, None),
            lambda: store.collect(10),
        ):
            proxy.reset_counters()
            call()
            assert (proxy.flights, proxy.connections) == (1, 0)


def test_the_client_acquires_and_releases_with_one_request_each(proxy: Proxy) -> None:
    url = through(proxy, postgres())
    with leasehold.connect(url) as locks, leasehold.connect(url) as other:
        proxy.reset_counters()
        lease = locks.acquire("job", ttl=LONG)
        assert proxy.flights == 1
        assert other.try_acquire("job") is None
        assert proxy.flights == 2
        assert lease.release()
        assert proxy.flights == 3


def test_a_large_value_passes_through_a_narrow_line(proxy: Proxy) -> None:
    """The socket fills up: what cannot be sent at once is sent when there is room."""
    proxy.requests.slice = 4096
    with driven(through(proxy, postgres())) as store:
        value = bytes(range(256)) * 4096
        store.grant(value=value)
        assert store.load(KEY).value == value

    async def ask() -> None:
        async with await aio.connect(through(proxy, postgres())) as locks:
            lease = await locks.acquire("job", metadata={"note": "x" * 4000})
            assert await lease.release()

    asyncio.run(ask())


# Connections.


def test_a_full_pool_is_told_with_the_option_to_raise() -> None:
    url = f"{fresh(postgres().url)}&pool=1"
    told: list[StoreUnavailable] = []

    def ask() -> None:
        with pytest.raises(StoreUnavailable) as caught:
            store.swap(KEY, None, b"x", LONG)
        told.append(caught.value)

    with driven(url, timeout=2.0) as store, psycopg.connect(postgres().url) as writer:
        writer.execute(f"SELECT {schema_of(url)}.draw(%s)", (KEY.family,))
        all_at_once([ask] * 4)
    full = [error for error in told if "raise pool= in the URL" in str(error)]
    assert full
    assert {error.applied for error in full} == {False}


def test_a_pool_of_two_serves_many_threads_and_many_tasks() -> None:
    url = f"{fresh(postgres().url)}&pool=2"
    rounds = count(100)
    with driven(url) as store:
        all_at_once([lambda: [store.load(KEY) for _ in range(rounds)]] * 12)

    async def ask() -> list[object]:
        async with await aio.connect(url) as locks:
            return list(await asyncio.gather(*(locks.try_acquire(f"job-{number}") for number in range(12))))

    assert all(asyncio.run(ask()))


def test_a_closed_client_leaves_no_session_behind() -> None:
    url = fresh(postgres().url).replace("?", "?application_name=counted&")
    sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'counted'"
    with leasehold.connect(url) as locks, leasehold.connect(url) as other:
        held = locks.acquire("job", ttl=LONG)
        waiting = threading.Thread(target=lambda: other.acquire("job", wait=60))
        waiting.start()
        eventually(lambda: postgres().execute(sessions)[0][0] >= 3)
        held.release()
        waiting.join()
    eventually(lambda: postgres().execute(sessions)[0][0] == 0)


# Wake-ups.


def test_hundreds_of_hand_overs_miss_no_wake_up() -> None:
    """One missed would cost the rest of a ttl of a minute."""
    url = fresh(postgres().url)
    turns: list[int] = []

    def work() -> None:
        with leasehold.connect(url) as locks:
            for _ in range(count(300)):
                with locks.hold("job", ttl=LONG, wait=45) as lease:
                    turns.append(lease.token)

    all_at_once([work] * 4)
    assert turns == sorted(turns)


def test_only_what_is_watched_is_told() -> None:
    """A NOTIFY for nobody would make all writers of the server stand in one line."""
    url = fresh(postgres().url)
    channel = channel_of(schema_of(url), KEY)
    with driven(url) as store, psycopg.connect(postgres().url, autocommit=True) as listener:
        listener.execute(f'LISTEN "{channel}"')
        made = store.grant()
        store.swap(KEY, made, None, None)
        assert list(listener.notifies(timeout=0)) == []
        listener.execute(f"SELECT {schema_of(url)}.hear({int(channel.split('_')[1], 16)})")
        made = store.grant()
        store.swap(KEY, made, None, None)
        assert {said.channel for said in listener.notifies(timeout=20, stop_after=2)} == {channel}


def test_whoever_begins_to_watch_waits_for_a_write_under_way() -> None:
    """Else a writer that saw nobody could become visible after the look, untold."""
    url = fresh(postgres().url)
    with driven(url) as store, psycopg.connect(postgres().url) as writer:
        made = store.grant(ttl=None)
        sql = f"SELECT (l).done FROM (SELECT {schema_of(url)}.remove(%s, digest, revision, NULL) AS l "  # noqa: S608
        sql += f"FROM {schema_of(url)}.leases) AS removed"
        assert writer.execute(sql, (KEY.family,)).fetchone() == (True,)
        watching = threading.Thread(target=partial(store.watch, KEY, made, store.store._clock.now() + LONG))
        watching.start()
        eventually(lambda: postgres().execute("SELECT 1 FROM pg_locks WHERE NOT granted AND locktype = 'advisory'"))
        writer.commit()
        watching.join(45)
        assert not watching.is_alive()


def test_a_watcher_looks_by_itself_when_there_is_no_connection_to_listen_on() -> None:
    url = fresh(postgres().url)
    with driven(url):
        name, password = role(postgres(), schema_of(url))
        postgres().execute(f"ALTER ROLE {name} CONNECTION LIMIT 2")
        theirs = f"{postgres().url_for(name, password)}?schema={schema_of(url)}&pool=1"
        with leasehold.connect(theirs) as one, leasehold.connect(theirs) as other:
            held = one.acquire("job", ttl=LONG)
            waiting = threading.Thread(target=lambda: other.acquire("job", wait=60))
            waiting.start()
            held.release()
            waiting.join(45)
            assert not waiting.is_alive()
