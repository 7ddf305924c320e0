"""PostgreSQL behind PgBouncer: every mode works, and where LISTEN is not heard we look instead."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import psycopg
import pytest

import leasehold
from leasehold import aio
from leasehold.errors import StoreUnavailable
from leasehold.testing.servers import PgBouncer
from tests.stores.postgres_support import KEY, LONG, Believers, all_at_once, driven, fresh, postgres, role, schema_of
from tests.support import count

MODES = ("session", "transaction", "statement")


@pytest.fixture(scope="module", params=MODES)
def pooler(request: pytest.FixtureRequest) -> Iterator[PgBouncer]:
    with PgBouncer(postgres(), mode=request.param, config={"default_pool_size": 20}) as server:
        yield server


def test_the_store_says_how_it_is_woken(pooler: PgBouncer) -> None:
    with driven(fresh(pooler.url)) as store:
        assert store.store._wire.pooled
        assert ("LISTEN/NOTIFY" in store.store.guarantees.wake_up) == (pooler.mode == "session")
        assert ("polling" in store.store.guarantees.wake_up) == (pooler.mode != "session")


def test_without_a_pooler_it_listens() -> None:
    """The control of the test above."""
    with driven(fresh(postgres().url)) as store:
        assert not store.store._wire.pooled
        assert "LISTEN/NOTIFY" in store.store.guarantees.wake_up


def test_contenders_take_turns_behind_a_pooler(pooler: PgBouncer) -> None:
    url, believers = fresh(pooler.url), Believers()

    def work() -> None:
        with leasehold.connect(url) as locks:
            for _ in range(count(30)):
                with locks.hold("job", ttl=LONG, wait=45) as lease:
                    believers.enter(lease)
                    believers.leave(lease)

    all_at_once([work] * 3)
    assert believers.grants == 3 * count(30)
    assert (believers.overlaps, believers.inversions) == (0, 0)


def test_a_waiter_is_woken_behind_a_pooler_asyncio(pooler: PgBouncer) -> None:
    async def ask() -> None:
        async with await aio.connect(fresh(pooler.url)) as one, await aio.connect(fresh(pooler.url)) as other:
            held = await one.acquire("job", ttl=LONG)
            waiting = asyncio.create_task(other.acquire("job", ttl=LONG, wait=45))
            assert await held.release()
            assert await waiting

    asyncio.run(ask())


def test_nothing_of_ours_stays_on_a_session_that_others_use(pooler: PgBouncer) -> None:
    """A setting or a prepared statement would be met by the next program the pooler gives that session to."""
    with driven(fresh(pooler.url)) as store:
        store.grant()
        with psycopg.connect(pooler.url, autocommit=True, prepare_threshold=None) as other:
            for setting, usual in (("statement_timeout", "0"), ("enable_seqscan", "on")):
                assert other.execute(f"SHOW {setting}").fetchone() == (usual,)
            assert other.execute("SELECT name FROM pg_prepared_statements").fetchall() == []


def test_a_default_isolation_that_cannot_work_is_told() -> None:
    with PgBouncer(postgres(), mode="transaction") as pooler:
        url = fresh(postgres().url)
        with driven(url):
            name, password = role(postgres(), schema_of(url))
            postgres().execute(f"ALTER ROLE {name} SET default_transaction_isolation = 'repeatable read'")
            with driven(f"{pooler.url_for(name, password)}?schema={schema_of(url)}") as store:
                with pytest.raises(
                    StoreUnavailable, match="default_transaction_isolation = 'read committed'"
                ) as caught:
                    store.load(KEY)
                assert caught.value.applied is False
