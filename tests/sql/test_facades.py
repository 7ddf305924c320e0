"""Both colours of work in a transaction look alike, and do the same."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import leasehold
from leasehold import sql
from leasehold.sql import aio
from tests.sql.support import Ledger
from tests.support import eventually
from tests.test_shape import differences, modules_after

# A connection has a colour, and so has a function.
COLOURED = {"run: parameters", "join: parameters", "inspect: parameters", "forget: parameters", "__init__: parameters"}


@pytest.mark.parametrize("name", aio.__all__)
def test_both_colours_look_alike(name: str) -> None:
    found = set(differences(getattr(sql, name), getattr(aio, name)))
    assert found <= COLOURED | {f"{name}: parameters"}


def test_both_have_the_same_names() -> None:
    assert aio.__all__ == sql.__all__ == sorted(sql.__all__)


def test_importing_it_loads_no_client_and_no_loop() -> None:
    loaded = modules_after("import leasehold.sql")
    assert "leasehold.sql.outbox" in loaded
    assert not {"asyncio", "psycopg", "leasehold.sql.aio"} & loaded
    assert "leasehold.sql" not in modules_after("import leasehold")


@pytest.mark.parametrize("ledger", ["postgres"], indirect=True)
def test_asyncio_does_once_what_many_ask_for(ledger: Ledger) -> None:
    async def main() -> list[int]:
        async with await leasehold.aio.connect("memory://sql-aio") as locks:
            once = aio.Once(locks)

            async def ask() -> int:
                async with await ledger.place.connect_aio() as connection:

                    async def charge(work: aio.Work) -> int:
                        await enter(connection, work)
                        return work.token

                    return await once.run(connection, "order/1", charge)

            answers = await asyncio.gather(*(ask() for _ in range(10)))
            once = aio.Once(locks, on_replay=seen)
            assert await ask() == answers[0]
            return answers

    told: list[tuple[str, int]] = []

    async def seen(key: str, value: int) -> int:
        told.append((key, value))
        return value

    answers = asyncio.run(main())
    assert told == [("order/1", answers[0])]
    assert set(answers) == set(ledger.seen("SELECT token FROM entries"))
    assert len(ledger.seen()) == 1


@pytest.mark.parametrize("ledger", ["postgres"], indirect=True)
def test_a_cancelled_task_leaves_nothing_and_the_next_one_begins_anew(ledger: Ledger) -> None:
    async def main() -> int:
        begun = asyncio.Event()
        async with (
            await leasehold.aio.connect("memory://sql-aio") as locks,
            await ledger.place.connect_aio() as connection,
        ):

            async def hang(work: aio.Work) -> None:
                await enter(connection, work)
                begun.set()
                await asyncio.Event().wait()

            async def charge(work: aio.Work) -> int:
                await enter(connection, work)
                return 2

            task = asyncio.create_task(aio.Once(locks).run(connection, "order/1", hang))
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert ledger.seen() == []
            return await aio.Once(locks).run(connection, "order/1", charge)

    assert asyncio.run(main()) == 2
    assert ledger.seen() == ["order/1"]


@pytest.mark.parametrize("ledger", ["postgres"], indirect=True)
def test_joining_and_publishing_last_with_the_transaction_and_a_relay_publishes(ledger: Ledger) -> None:
    got: list[bytes] = []

    async def main() -> None:
        async with (
            await leasehold.aio.connect("memory://sql-aio") as locks,
            await ledger.place.connect_aio() as connection,
        ):

            async def publish(message: aio.Message) -> None:
                got.append(message.payload)

            async def charge(work: aio.Work) -> int:
                await enter(connection, work)
                return await aio.publish(connection, "charged", b"5", key="a")

            relay = aio.Relay(locks, ledger.place.connect_aio, publish=publish, poll=300)
            task = asyncio.create_task(relay.run())
            await aio.Once(locks).join(connection, "order/1", charge)
            await connection.rollback()
            assert await aio.Once(locks).inspect(connection, "order/1") is None
            await aio.Once(locks).join(connection, "order/1", charge)
            await connection.commit()
            await asyncio.to_thread(eventually, lambda: got == [b"5"])
            relay.stop()
            await task
            assert await relay_of(locks, ledger, publish).drain() == 0
            assert await aio.Once(locks).forget(connection, "order/1")
            assert await aio.collect(connection) == 0
            await aio.add_tables(connection)

    asyncio.run(main())
    assert got == [b"5"]


def relay_of(locks: Any, ledger: Ledger, publish: Any) -> aio.Relay:
    return aio.Relay(locks, ledger.place.connect_aio, publish=publish)


def test_a_connection_of_the_other_colour_is_refused(ledger: Ledger) -> None:
    async def main() -> None:
        async with await leasehold.aio.connect("memory://sql-aio") as locks:
            with pytest.raises(leasehold.InvalidInput, match=r"psycopg\.AsyncConnection"):
                await aio.Once(locks).run(ledger.connect(), "order/1", asyncio.sleep)

    asyncio.run(main())


async def enter(connection: Any, work: aio.Work) -> None:
    await connection.execute("INSERT INTO entries VALUES (%s, %s)", (work.key, work.token))
