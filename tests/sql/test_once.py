"""Work that is done once in the caller's own transaction: what it changed and its record last together, or neither."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

import leasehold
from leasehold import sql, web
from leasehold.sql.handling import SqlHandling
from leasehold.testing.servers import RedisServer
from leasehold.wires.colour import drive
from tests.sql.support import Ledger, enter
from tests.support import eventually


@pytest.fixture
def locks(request: pytest.FixtureRequest) -> Iterator[leasehold.Locks]:
    with leasehold.connect(url(request)) as client:
        yield client


def url(request: pytest.FixtureRequest) -> str:
    return f"memory://{request.node.name}"


class Declined(Exception):
    """What a gateway says for good."""


def test_the_work_is_done_once_and_its_result_replayed(ledger: Ledger, locks: leasehold.Locks) -> None:
    once, connection = sql.Once(locks, "payments"), ledger.connect()

    def charge(work: sql.Work) -> dict[str, int]:
        enter(connection, work)
        return {"charged": 5}

    assert [once.run(connection, "order/1", charge) for _ in range(3)] == [{"charged": 5}] * 3
    seen = once.run(connection, "order/1", charge, on_replay=lambda key, value: (key, value))
    assert seen == ("order/1", {"charged": 5})
    assert ledger.seen() == ["order/1"]
    found = once.inspect(connection, "order/1")
    assert found is not None
    assert (found.state, found.token) == (leasehold.State.COMPLETED, ledger.marks()[0])
    assert 86000 < found.expires_in <= 86400


def test_the_work_gives_the_calls_it_makes_a_key(ledger: Ledger, locks: leasehold.Locks) -> None:
    def charge(work: sql.Work) -> dict[str, str]:
        return web.key_for(work, "gateway")

    assert sql.Once(locks).run(ledger.connect(), "order/1", charge) == web.key_for("order/1", "gateway")


def test_nothing_is_there_before_the_commit_and_everything_after(ledger: Ledger, locks: leasehold.Locks) -> None:
    seen = []
    connection = ledger.connect()

    def charge(work: sql.Work) -> int:
        enter(connection, work)
        seen.append((ledger.seen(), ledger.records(), ledger.marks() == [work.token]))
        return 1

    sql.Once(locks).run(connection, "order/1", charge)
    # The mark was raised before the work could read anything.
    assert seen == [([], [], True)]
    assert (len(ledger.seen()), len(ledger.records())) == (1, 1)


def test_an_error_undoes_the_work_and_the_next_one_begins_anew(ledger: Ledger, locks: leasehold.Locks) -> None:
    once, connection = sql.Once(locks), ledger.connect()

    def fail(work: sql.Work) -> None:
        enter(connection, work)
        raise OSError("the gateway does not answer")

    with pytest.raises(OSError, match="does not answer"):
        once.run(connection, "order/1", fail, fingerprint="a")
    assert (ledger.seen(), ledger.records(), once.inspect(connection, "order/1")) == ([], [], None)
    connection.rollback()
    # Nothing was done with the other payload either.
    assert once.run(connection, "order/1", lambda work: enter(connection, work) or 2, fingerprint="b") == 2
    assert ledger.seen() == ["order/1"]


def test_a_definite_failure_is_kept_though_the_work_is_undone(ledger: Ledger, locks: leasehold.Locks) -> None:
    once, connection = sql.Once(locks, definite=(Declined,)), ledger.connect()

    def decline(work: sql.Work) -> None:
        enter(connection, work)
        raise Declined("no money")

    with pytest.raises(Declined):
        once.run(connection, "order/1", decline)
    with pytest.raises(leasehold.RunFailed, match="Declined: no money"):
        once.run(connection, "order/1", lambda work: enter(connection, work))
    assert ledger.seen() == []


def test_a_key_with_another_payload_is_refused_afterwards_and_meanwhile(ledger: Ledger, locks: leasehold.Locks) -> None:
    once, connection, other = sql.Once(locks), ledger.connect(), ledger.connect()

    def charge(work: sql.Work) -> int:
        with pytest.raises(leasehold.KeyReused):
            in_a_thread(lambda: once.run(other, "order/1", lambda _: 2, fingerprint="b", wait=5))
        return 1

    assert once.run(connection, "order/1", charge, fingerprint="a") == 1
    with pytest.raises(leasehold.KeyReused):
        once.run(connection, "order/1", charge, fingerprint="b")


def test_a_duplicate_that_does_not_wait_is_told_so_or_skipped(ledger: Ledger, locks: leasehold.Locks) -> None:
    once, connection, other = sql.Once(locks), ledger.connect(), ledger.connect()
    answers: list[object] = []

    def charge(work: sql.Work) -> int:
        answers.append(in_a_thread(lambda: once.run(other, "order/1", lambda _: 2, duplicates="skip")))
        with pytest.raises(leasehold.StillRunning) as caught:
            in_a_thread(lambda: once.run(other, "order/1", lambda _: 2, duplicates="raise"))
        answers.append(caught.value.retry_after > 0)
        with pytest.raises(leasehold.StillRunning):
            in_a_thread(lambda: once.run(other, "order/1", lambda _: 2, wait=0.1))
        return 1

    assert once.run(connection, "order/1", charge) == 1
    assert answers == [None, True]


def test_twenty_at_once_charge_once_and_all_get_the_result(ledger: Ledger, locks: leasehold.Locks) -> None:
    once, start = sql.Once(locks), threading.Barrier(20)

    def ask(_: int) -> Any:
        connection = ledger.connect()
        start.wait()
        return once.run(connection, "order/1", lambda work: enter(connection, work) or work.token)

    with ThreadPoolExecutor(20) as threads:
        answers = list(threads.map(ask, range(20)))
    assert len(set(answers)) == 1
    assert ledger.seen("SELECT token FROM entries") == answers[:1]


@pytest.mark.parametrize("checked", [True, False], ids=["with the mark", "without it"])
def test_whoever_was_overtaken_is_undone(
    ledger: Ledger,
    locks: leasehold.Locks,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    *,
    checked: bool,
) -> None:
    """The control: if the record is written whatever the mark says, both effects last."""
    once, connection, other = sql.Once(locks), ledger.connect(), ledger.connect()
    if not checked:
        monkeypatch.setattr(SqlHandling, "_writing", unchecked(SqlHandling._writing))

    def overtaken(work: sql.Work) -> int:
        if ledger.postgres:
            enter(connection, work)
        else:
            # Its write lock would keep everybody out: as if it had been stopped just before it had that.
            connection.rollback()
        with rival(locks, work, url(request)) as later:
            answer = sql.Once(later).run(other, "order/1", lambda second: enter(other, second) or 2)
        assert answer == 2
        if not ledger.postgres:
            connection.execute("BEGIN IMMEDIATE")
            enter(connection, work)
        return 1

    if not checked:
        assert once.run(connection, "order/1", overtaken) == 1
        assert ledger.seen() == ["order/1", "order/1"]
        return
    with pytest.raises(leasehold.FinishedLate):
        once.run(connection, "order/1", overtaken)
    assert ledger.seen() == ["order/1"]
    assert once.run(connection, "order/1", overtaken) == 2


def unchecked(writing: Any) -> Any:
    def without_mark(*args: Any) -> Any:
        text, given = writing(*args)
        mark = " AND mark = "
        assert mark in text
        return text.partition(mark)[0], given[:-1]

    return without_mark


@contextlib.contextmanager
def rival(locks: leasehold.Locks, work: sql.Work, url: str) -> Iterator[leasehold.Locks]:
    """Another client, after the lease of the first has ended unnoticed, as when its process is stopped."""
    engine, grant = locks._engine, work._begun.grant
    drive(engine.store.swap(grant.key, grant.record, None, None))
    with leasehold.connect(url) as other:
        yield other


def test_a_result_that_cannot_be_kept_is_told_after_the_commit(ledger: Ledger, locks: leasehold.Locks) -> None:
    once, connection = sql.Once(locks, limit=10), ledger.connect()
    with pytest.raises(leasehold.ResultNotKept) as caught:
        once.run(connection, "order/1", lambda work: enter(connection, work) or "far too long for that")
    assert caught.value.value == "far too long for that"
    with pytest.raises(leasehold.ResultNotKept):
        once.run(connection, "order/1", lambda work: enter(connection, work))
    assert ledger.seen() == ["order/1"]


def test_a_record_whose_time_is_over_is_no_record_and_can_be_collected(ledger: Ledger, locks: leasehold.Locks) -> None:
    once, connection = sql.Once(locks, keep=0.1), ledger.connect()
    once.run(connection, "order/1", lambda work: 1)
    once.run(connection, "order/2", lambda work: 1, keep=60)

    def is_over() -> bool:
        found = once.inspect(connection, "order/1")
        connection.rollback()
        return found is None

    eventually(is_over)
    assert once.run(connection, "order/1", lambda work: 2, keep=60) == 2
    once.run(connection, "order/3", lambda work: 1)
    eventually(lambda: (sql.collect(connection), connection.commit())[0] == 1)
    assert len(ledger.records()) == 2


def test_what_is_forgotten_is_done_again(ledger: Ledger, locks: leasehold.Locks) -> None:
    once, connection = sql.Once(locks), ledger.connect()
    once.run(connection, "order/1", lambda work: 1)
    assert once.forget(connection, "order/1") is True
    connection.rollback()
    assert once.run(connection, "order/1", lambda work: 2) == 1
    assert [once.forget(connection, "order/1"), once.forget(connection, "order/1")] == [True, False]
    connection.commit()
    assert once.run(connection, "order/1", lambda work: 2) == 2


# What PostgreSQL says.


@pytest.mark.parametrize("ledger", ["postgres"], indirect=True)
def test_a_repeatable_read_that_was_overtaken_is_undone_by_the_database(
    ledger: Ledger, locks: leasehold.Locks, request: pytest.FixtureRequest
) -> None:
    connection, other = ledger.connect(), ledger.connect()
    connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ

    def overtaken(work: sql.Work) -> int:
        enter(connection, work)
        with rival(locks, work, url(request)) as later:
            return sql.Once(later).run(other, "order/1", lambda second: enter(other, second) or 2)

    with pytest.raises(psycopg.errors.SerializationFailure):
        sql.Once(locks).run(connection, "order/1", overtaken)
    assert ledger.seen() == ["order/1"]
    assert sql.Once(locks).run(connection, "order/1", overtaken) == 2


@pytest.mark.parametrize("ledger", ["postgres"], indirect=True)
def test_a_commit_that_the_database_refuses_keeps_no_record(ledger: Ledger, locks: leasehold.Locks) -> None:
    connection = ledger.connect()
    connection.execute("ALTER TABLE entries ADD CONSTRAINT lone UNIQUE (key) DEFERRABLE INITIALLY DEFERRED")
    connection.commit()

    def twice(work: sql.Work) -> None:
        enter(connection, work)
        enter(connection, work)

    with pytest.raises(psycopg.errors.UniqueViolation):
        sql.Once(locks).run(connection, "order/1", twice)
    assert (ledger.seen(), ledger.records(), locks.list()) == ([], [], [])
    assert sql.Once(locks).run(connection, "order/1", lambda work: enter(connection, work) or 2) == 2


@pytest.mark.parametrize("ledger", ["postgres"], indirect=True)
def test_a_connection_that_breaks_leaves_nothing_and_another_one_begins_anew(
    ledger: Ledger, locks: leasehold.Locks
) -> None:
    connection, other = ledger.connect(), ledger.connect()

    def broken(work: sql.Work) -> None:
        enter(connection, work)
        other.execute("SELECT pg_terminate_backend(%s)", (connection.info.backend_pid,))
        other.commit()

    with pytest.raises(psycopg.OperationalError):
        sql.Once(locks).run(connection, "order/1", broken)
    assert (ledger.seen(), locks.list()) == ([], [])
    assert sql.Once(locks).run(other, "order/1", lambda work: enter(other, work) or 2) == 2


# In a transaction of the caller's.


def test_work_that_joins_a_transaction_lasts_with_it(ledger: Ledger, locks: leasehold.Locks) -> None:
    once, connection = sql.Once(locks), ledger.connect()
    assert once.join(connection, "order/1", lambda work: enter(connection, work) or 1) == 1
    assert (ledger.seen(), ledger.records()) == ([], [])
    connection.rollback()
    assert (ledger.seen(), ledger.marks()) == ([], [])
    assert once.join(connection, "order/1", lambda work: enter(connection, work) or 2) == 2
    connection.commit()
    assert (ledger.seen(), len(ledger.records())) == (["order/1"], 1)
    assert once.join(connection, "order/1", lambda work: enter(connection, work) or 3) == 2


def test_a_duplicate_of_a_joined_transaction_waits_for_its_end(ledger: Ledger, locks: leasehold.Locks) -> None:
    once, connection, other = sql.Once(locks), ledger.connect(), ledger.connect()
    once.join(connection, "order/1", lambda work: enter(connection, work) or 1)
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(once.run, other, "order/1", lambda work: enter(other, work) or 2)
        eventually(locks.list)  # the other has the lease, and waits for the database
        assert not asked.done()
        connection.commit()
        assert asked.result(20) == 1
    assert ledger.seen() == ["order/1"]


def test_a_store_that_went_back_is_told_before_the_work(ledger: Ledger, locks: leasehold.Locks) -> None:
    once, connection = sql.Once(locks), ledger.connect()
    with pytest.raises(OSError, match="gone"):
        once.run(connection, "order/1", lambda work: fail())
    connection.execute("UPDATE leasehold_once SET mark = mark + 1000000")
    connection.commit()
    with pytest.raises(leasehold.StoreWentBack):
        once.run(connection, "order/1", lambda work: enter(connection, work))
    assert (ledger.seen(), locks.list()) == ([], [])


def test_without_the_store_of_the_locks_results_are_replayed_and_nothing_is_run(ledger: Ledger) -> None:
    connection = ledger.connect()
    with RedisServer(aof="no") as server, leasehold.connect(server.url, timeout=0.5) as locks:
        once = sql.Once(locks)
        once.run(connection, "order/1", lambda work: enter(connection, work) or 1)
        server.kill()
        assert once.run(connection, "order/1", lambda work: enter(connection, work) or 2) == 1
        with pytest.raises(leasehold.StoreUnavailable):
            once.run(connection, "order/2", lambda work: enter(connection, work))
    assert ledger.seen() == ["order/1"]


# Connections that cannot work.


def test_a_connection_in_a_transaction_is_refused_for_run(ledger: Ledger, locks: leasehold.Locks) -> None:
    connection = ledger.connect()
    connection.execute("INSERT INTO entries VALUES ('mine', 1)")
    with pytest.raises(leasehold.InvalidInput, match=r"must be in no transaction.*use join"):
        sql.Once(locks).run(connection, "order/1", lambda work: 1)
    connection.rollback()
    assert sql.Once(locks).run(connection, "order/1", lambda work: 1) == 1


def test_a_connection_in_no_transaction_is_refused_for_join_and_publish(ledger: Ledger, locks: leasehold.Locks) -> None:
    connection = ledger.place.connect(autocommit=True)
    for call in (
        lambda: sql.Once(locks).join(connection, "order/1", lambda work: 1),
        lambda: sql.publish(connection, "topic", b""),
    ):
        with pytest.raises(leasehold.InvalidInput, match="must be in a transaction"):
            call()
        connection.execute("BEGIN")
        call()
        connection.execute("ROLLBACK")


def test_run_takes_a_connection_in_autocommit_mode(ledger: Ledger, locks: leasehold.Locks) -> None:
    connection = ledger.place.connect(autocommit=True)
    with pytest.raises(OSError, match="gone"):
        sql.Once(locks).run(connection, "order/1", lambda work: (enter(connection, work), fail())[1])
    assert ledger.seen() == []
    sql.Once(locks).run(connection, "order/1", lambda work: enter(connection, work))
    assert ledger.seen() == ["order/1"]


def test_a_function_that_commits_is_told_so(ledger: Ledger, locks: leasehold.Locks) -> None:
    connection = ledger.connect()

    def commit(work: sql.Work) -> None:
        enter(connection, work)
        connection.commit()

    with pytest.raises(Exception, match=r"must leave the transaction open|commit\(\) forbidden within a Transaction"):
        sql.Once(locks).run(connection, "order/1", commit)
    assert ledger.records() == []


def test_an_option_that_means_nothing_here_is_refused(ledger: Ledger, locks: leasehold.Locks) -> None:
    for wrong in ({"rerun": True}, {"retry": (OSError,)}, {"patience": 5}):
        with pytest.raises(leasehold.InvalidInput, match="options"):
            sql.Once(locks).run(ledger.connect(), "order/1", lambda work: 1, **wrong)


def test_what_is_no_connection_is_refused_before_anything_is_written(locks: leasehold.Locks) -> None:
    with pytest.raises(leasehold.InvalidInput, match=r"psycopg\.Connection or a sqlite3\.Connection"):
        sql.Once(locks).run("postgresql://", "order/1", lambda work: 1)  # type: ignore[arg-type]
    assert locks.list() == []


def test_tables_can_be_made_again_and_by_many_at_once(ledger: Ledger) -> None:
    def add(_: int) -> None:
        connection = ledger.connect()
        sql.add_tables(connection)
        connection.commit()

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(add, range(16))) == [None] * 16


def fail() -> None:
    raise OSError("gone")


def in_a_thread(work: Any) -> Any:
    """As somebody else would: a thread may not ask for what it holds."""
    with ThreadPoolExecutor(1) as one:
        return one.submit(work).result(30)
