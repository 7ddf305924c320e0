"""Fenced rows of PostgreSQL and SQLite: the laws, transactions, the table of marks, and triggers for plain SQL."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import namedtuple_row

import leasehold
from leasehold import fence
from leasehold.fence import aio
from leasehold.fence.sql import MarksResource, RowResource
from leasehold.fence.sql_connections import database, database_aio
from leasehold.testing.fences import FenceLaws
from leasehold.wires.colour import drive
from tests.fence.sql_support import Postgres, Sqlite, accounts, stored
from tests.servers import postgres
from tests.support import eventually


def place(connection: Any) -> str:
    return "?" if isinstance(connection, sqlite3.Connection) else "%s"


@pytest.fixture(params=["postgres", "sqlite"])
def place_of(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Postgres | Sqlite]:
    made = Postgres() if request.param == "postgres" else Sqlite(tmp_path)
    yield made
    made.close()


@pytest.fixture
def server() -> Iterator[Postgres]:
    made = Postgres()
    yield made
    made.close()


class Committed:
    """A resource, each verb of which is a transaction of its own."""

    def __init__(self, resource: Any, connection: Any) -> None:
        self._resource, self._connection = resource, connection

    def open(self, token):
        return self._done(self._resource.open(token))

    def read(self, token):
        return self._done(self._resource.read(token))

    def write(self, token, value):
        return self._done(self._resource.write(token, value))

    def _done(self, verb):
        try:
            found = drive(verb)
        except BaseException:
            self._connection.rollback()
            raise
        self._connection.commit()
        return found


class RowLaws(FenceLaws):
    def value(self, number: int) -> dict[str, Any]:
        return {"total": number}

    def number(self, value: dict[str, Any]) -> int:
        assert value.keys() == {"id", "total", "owner"}
        return value["total"]


class TestRows(RowLaws):
    @pytest.fixture(params=[False, True], ids=["plain", "triggered"])
    def reach(self, request: pytest.FixtureRequest, place_of: Postgres | Sqlite):
        accounts(place_of.connect(), trigger=request.param)

        def reached() -> Committed:
            connection = place_of.connect()
            return Committed(RowResource(database(connection), "accounts", 7, "id", "lease_mark"), connection)

        return reached


class TestRowsOfAutocommit(RowLaws):
    @pytest.fixture
    def reach(self, place_of: Postgres | Sqlite):
        accounts(place_of.connect())
        return lambda: RowResource(database(place_of.connect(autocommit=True)), "accounts", 7, "id", "lease_mark")


class AwaitedRow:
    """A row over an asyncio connection that is made on the loop it is used on."""

    def __init__(self, server: Postgres) -> None:
        self._server = server
        self.connection: Any = None

    async def open(self, token):
        await self._done("open", token)

    async def read(self, token):
        return await self._done("read", token)

    async def write(self, token, value):
        await self._done("write", token, value)

    async def _done(self, verb, *given):
        if self.connection is None:
            self.connection = await self._server.connect_aio()
        row = RowResource(database_aio(self.connection), "accounts", 7, "id", "lease_mark")
        async with self.connection.transaction():
            return await getattr(row, verb)(*given)


class TestRowsOfAsyncio(RowLaws):
    @pytest.fixture
    def reach(self, server: Postgres):
        accounts(server.connect())
        made: list[AwaitedRow] = []

        def reached() -> AwaitedRow:
            made.append(AwaitedRow(server))
            return made[-1]

        yield reached
        for row in made:
            # Its loop has ended.
            row.connection.pgconn.finish()


class Marked:
    """A number in an unfenced table, under a mark in the table of marks."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._marks = MarksResource(database(connection), "numbers", "leasehold_marks")

    async def open(self, token):
        await self._marks.open(token)

    async def read(self, token):
        await self._marks.read(token)
        return self._connection.execute("SELECT number FROM numbers").fetchone()[0]

    async def write(self, token, value):
        await self._marks.write(token, None)
        self._connection.execute("DELETE FROM numbers")
        self._connection.execute(f"INSERT INTO numbers VALUES ({place(self._connection)})", (value,))  # noqa: S608


class TestMarks(FenceLaws):
    @pytest.fixture
    def reach(self, place_of: Postgres | Sqlite):
        connection = place_of.connect()
        connection.execute("CREATE TABLE numbers (number BIGINT)")
        fence.add_marks_table(connection)
        fence.add_marks_table(connection)
        connection.commit()

        def reached() -> Committed:
            mine = place_of.connect()
            return Committed(Marked(mine), mine)

        return reached

    def value(self, number: int) -> int:
        return number

    def number(self, value: int) -> int:
        return value


class PlainSql:
    """Text in `under`: it looks at no mark itself."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def open(self, token):
        self._changed(token, "UPDATE accounts SET id = id WHERE id = 7")

    async def read(self, token):
        # A trigger sees no SELECT: the row is touched first.
        self._changed(token, "UPDATE accounts SET id = id WHERE id = 7")
        return self._connection.execute("SELECT total FROM accounts WHERE id = 7").fetchone()[0]

    async def write(self, token, value):
        self._changed(token, f"UPDATE accounts SET total = {int(value)} WHERE id = 7")  # noqa: S608

    def _changed(self, token, sql):
        with fence.under(self._connection, token):
            self._connection.execute(sql)


class TestPlainSqlUnderTheTrigger(TestMarks):
    @pytest.fixture
    def reach(self, place_of: Postgres | Sqlite):
        accounts(place_of.connect(), trigger=True)

        def reached() -> Committed:
            connection = place_of.connect()
            return Committed(PlainSql(connection), connection)

        return reached


# A row, and the caller's transaction.


def test_a_lease_opens_a_row_and_the_next_one_ends_that(place_of: Postgres | Sqlite) -> None:
    connection, other = accounts(place_of.connect()), place_of.connect()
    with leasehold.connect("memory://rows") as locks:
        row = fence.Row(connection, "accounts", 7, scope="account/7")
        with locks.hold("account/7") as first:
            opened = row.open(first)
            opened.write({"total": opened.read()["total"] + 5})
            connection.commit()
        assert stored(connection) == (5, first.token)
        with locks.hold("account/7") as second:
            assert fence.Row(other, "accounts", 7).open(second).read() == {"id": 7, "total": 5, "owner": "ada"}
            other.commit()
        for late in (opened.read, opened.check, lambda: opened.write({"total": 9})):
            with pytest.raises(leasehold.StaleToken, match="accounts id=7") as refusal:
                late()
            connection.rollback()
            assert (refusal.value.token, refusal.value.mark) == (first.token, second.token)
        assert stored(connection) == (5, second.token)
        with locks.hold("other") as wrong, pytest.raises(leasehold.ScopeMismatch, match="'other'"):
            row.open(wrong)


def test_a_row_that_is_rolled_back_keeps_its_old_mark_and_data(place_of: Postgres | Sqlite) -> None:
    connection = accounts(place_of.connect())
    row = fence.Row(connection, "accounts", 7)
    row.open(5)
    connection.commit()
    row.open(6).write({"total": 1})
    connection.rollback()
    assert stored(connection) == (0, 5)


def test_a_rollback_closes_what_was_opened(place_of: Postgres | Sqlite) -> None:
    """Otherwise an older holder could write between what was read and what is written."""
    connection, other = accounts(place_of.connect()), place_of.connect()
    late = fence.Row(other, "accounts", 7).open(5)
    other.commit()
    opened = fence.Row(connection, "accounts", 7).open(6)
    assert opened.read()["total"] == 0
    connection.rollback()
    late.write({"total": 50})
    other.commit()
    for refused in (opened.check, lambda: opened.write({"total": 1})):
        with pytest.raises(leasehold.InvalidInput, match="was rolled back"):
            refused()
        connection.rollback()
    assert stored(connection) == (50, 5)
    # To read is to open it again.
    assert opened.read()["total"] == 50
    connection.commit()
    with pytest.raises(leasehold.StaleToken):
        late.write({"total": 51})
    other.rollback()
    opened.write({"total": 60})
    connection.commit()
    assert stored(connection) == (60, 6)


def test_a_check_covers_everything_else_in_its_transaction(place_of: Postgres | Sqlite) -> None:
    connection, other = accounts(place_of.connect()), place_of.connect()
    connection.execute("CREATE TABLE entries (amount INTEGER)")
    connection.commit()
    opened = fence.Row(connection, "accounts", 7).open(5)
    opened.check()
    connection.execute("INSERT INTO entries VALUES (1)")
    connection.commit()
    fence.Row(other, "accounts", 7).open(6)
    other.commit()
    connection.execute("INSERT INTO entries VALUES (2)")
    with pytest.raises(leasehold.StaleToken):
        opened.check()
    connection.rollback()
    assert connection.execute("SELECT amount FROM entries").fetchall() == [(1,)]


def test_a_sharer_reads_and_neither_writes_nor_raises_the_mark(place_of: Postgres | Sqlite) -> None:
    connection = accounts(place_of.connect())
    row = fence.Row(connection, "accounts", 7)
    with leasehold.connect("memory://rows") as locks, locks.hold(leasehold.Shared("a"), mode="shared") as lease:
        opened = row.open(lease)
        assert opened.read()["owner"] == "ada"
        for refused in (opened.check, lambda: opened.write({"total": 1})):
            with pytest.raises(leasehold.ScopeMismatch, match="reading"):
                refused()
        connection.commit()
        assert stored(connection) == (0, 0)
        row.open(lease.token + 1)
        with pytest.raises(leasehold.StaleToken):
            opened.read()


def test_a_sealed_token_opens_a_row_and_a_forged_one_leaves_it_alone(place_of: Postgres | Sqlite) -> None:
    connection = accounts(place_of.connect())
    seal, forger = fence.Seal(b"k" * 16), fence.Seal(b"x" * 16)
    row = fence.Row(connection, "accounts", 7, scope="account/7", seal=seal)
    row.open(seal.seal("account/7", 5)).write({"total": 1})
    for forged, kind in (
        (forger.seal("account/7", 2**62), leasehold.ForgedToken),
        (seal.seal("account/8", 2**62), leasehold.ScopeMismatch),
        (2**62, leasehold.ForgedToken),
    ):
        with pytest.raises(kind):
            row.open(forged)
    assert stored(connection) == (1, 5)


def test_a_row_that_is_not_there_is_told_from_one_that_refuses(place_of: Postgres | Sqlite) -> None:
    row = fence.Row(accounts(place_of.connect()), "accounts", 8)
    with pytest.raises(leasehold.NoSuchResource, match=r"accounts id=8.*insert it first"):
        row.open(5)


def test_names_are_quoted_and_values_bound(place_of: Postgres | Sqlite) -> None:
    connection = place_of.connect()
    key = "x'; DROP TABLE y; --"
    connection.execute('CREATE TABLE "odd""%s ?table" ("the %s key" TEXT PRIMARY KEY, "?" TEXT)')
    connection.execute("""INSERT INTO "odd""%s ?table" VALUES ('x''; DROP TABLE y; --', NULL)""")
    fence.add_mark(connection, 'odd"%s ?table', mark="my %mark", trigger=True)
    row = fence.Row(connection, 'odd"%s ?table', key, column="the %s key", mark="my %mark")
    opened = row.open(5)
    opened.write({"?": "%s"})
    assert opened.read() == {"the %s key": key, "?": "%s"}


def test_a_schema_can_be_named(place_of: Postgres | Sqlite) -> None:
    connection = accounts(place_of.connect())
    schema = place_of.schema if isinstance(place_of, Postgres) else "main"
    fence.add_mark(connection, f"{schema}.accounts", trigger=True)
    fence.Row(connection, f"{schema}.accounts", 7).open(5).write({"total": 1})
    assert stored(connection) == (1, 5)
    fence.add_marks_table(connection, f"{schema}.marks")
    assert fence.Marks(connection, "all", table=f"{schema}.marks").open(5).token == 5


@pytest.mark.parametrize("value", [{}, None, 5, {"lease_mark": 9}, [("total", 1)]], ids=repr)
def test_what_is_no_set_of_columns_is_refused(place_of: Postgres | Sqlite, value: Any) -> None:
    connection = accounts(place_of.connect())
    opened = fence.Row(connection, "accounts", 7).open(5)
    with pytest.raises(leasehold.InvalidInput, match="value"):
        opened.write(value)
    assert stored(connection) == (0, 5)


def test_a_column_of_the_wrong_name_is_an_error_and_no_text(place_of: Postgres | Sqlite) -> None:
    """SQLite takes an unknown name in quotes for text: every row would have the key "no_such"."""
    connection = accounts(place_of.connect())
    row = fence.Row(connection, "accounts", "no_such", column="no_such")
    with pytest.raises((psycopg.errors.UndefinedColumn, sqlite3.OperationalError), match="no_such"):
        row.open(5)
    connection.rollback()
    assert stored(connection) == (0, 0)


def test_a_mark_of_text_is_compared_as_a_number_or_not_at_all(place_of: Postgres | Sqlite) -> None:
    connection = place_of.connect()
    connection.execute("CREATE TABLE accounts (id INTEGER PRIMARY KEY, lease_mark TEXT)")
    connection.execute("INSERT INTO accounts VALUES (7, '10')")
    row = fence.Row(connection, "accounts", 7)
    with pytest.raises((leasehold.StaleToken, psycopg.errors.UndefinedFunction)):
        row.open(9)
    connection.rollback()


def test_a_mark_that_is_null_is_an_error_with_the_remedy(place_of: Postgres | Sqlite) -> None:
    connection = place_of.connect()
    connection.execute("CREATE TABLE accounts (id INTEGER PRIMARY KEY, lease_mark BIGINT)")
    connection.execute("INSERT INTO accounts VALUES (7, NULL)")
    with pytest.raises(leasehold.InvalidInput, match="add_mark"):
        fence.Row(connection, "accounts", 7).open(5)


def test_rows_of_sqlite_have_their_names_whatever_shape_the_connection_gives_them() -> None:
    connection = sqlite3.connect(":memory:")
    connection.row_factory = sqlite3.Row
    with contextlib.closing(accounts(connection)):
        assert fence.Row(connection, "accounts", 7).open(5).read() == {"id": 7, "total": 0, "owner": "ada"}


def test_rows_of_postgres_have_their_names_whatever_shape_the_connection_gives_them(server: Postgres) -> None:
    connection = accounts(server.connect())
    connection.row_factory = namedtuple_row
    connection.cursor_factory = psycopg.RawCursor
    assert fence.Row(connection, "accounts", 7).open(5).read() == {"id": 7, "total": 0, "owner": "ada"}


@pytest.mark.parametrize("given", [None, "postgresql://somewhere", object()], ids=["none", "url", "object"])
def test_what_is_no_connection_is_refused(given: Any) -> None:
    with pytest.raises(leasehold.InvalidInput, match=r"psycopg\.Connection"):
        fence.Row(given, "accounts", 7)
    with pytest.raises(leasehold.InvalidInput, match=r"psycopg\.AsyncConnection"):
        aio.Row(given, "accounts", 7)


def test_sqlite_is_not_offered_to_asyncio() -> None:
    with (
        contextlib.closing(sqlite3.connect(":memory:")) as connection,
        pytest.raises(leasehold.InvalidInput, match="in a thread"),
    ):
        aio.Row(connection, "accounts", 7)


# Two transactions at once.


def blocked(connection: Any) -> bool:
    """Whether somebody waits for what this connection has locked."""
    return bool(
        postgres().execute(
            "SELECT 1 FROM pg_stat_activity WHERE %s = ANY(pg_blocking_pids(pid))", connection.info.backend_pid
        )
    )


@pytest.mark.parametrize("raw", [False, True], ids=["Row", "plain SQL under the trigger"])
@pytest.mark.parametrize("commits", [True, False], ids=["committed", "rolled back"])
def test_whoever_waited_for_the_row_is_refused_if_the_other_one_committed(
    server: Postgres, *, raw: bool, commits: bool
) -> None:
    """Rolled back is the control: the same wait then ends in a write."""
    ours, theirs = accounts(server.connect(), trigger=raw), server.connect()
    row = fence.Row(ours, "accounts", 7)
    opened = row.open(5)
    ours.commit()
    fence.Row(theirs, "accounts", 7).open(6).write({"total": 60})
    said: list[BaseException | None] = []

    def late() -> None:
        try:
            if raw:
                with fence.under(ours, 5):
                    ours.execute("UPDATE accounts SET total = 50 WHERE id = 7")
            else:
                opened.write({"total": 50})
        except leasehold.StaleToken as refusal:
            ours.rollback()
            said.append(refusal)
        else:
            ours.commit()
            said.append(None)

    thread = threading.Thread(target=late)
    thread.start()
    eventually(lambda: blocked(theirs))
    (theirs.commit if commits else theirs.rollback)()
    thread.join(20)
    if commits:
        assert isinstance(said[0], leasehold.StaleToken)
        assert (said[0].token, said[0].mark) == (5, 6)
        assert stored(theirs) == (60, 6)
    else:
        assert said == [None]
        assert stored(theirs) == (50, 5)


def test_above_read_committed_the_server_ends_whoever_was_overtaken(server: Postgres) -> None:
    ours, theirs = accounts(server.connect()), server.connect()
    ours.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    opened = fence.Row(ours, "accounts", 7).open(5)
    ours.commit()
    assert opened.read()["total"] == 0
    fence.Row(theirs, "accounts", 7).open(6)
    theirs.commit()
    with pytest.raises(psycopg.errors.SerializationFailure):
        opened.write({"total": 50})
    ours.rollback()
    assert stored(theirs) == (0, 6)


def test_a_deferred_transaction_that_read_before_others_wrote_is_begun_again(tmp_path: Path) -> None:
    files = Sqlite(tmp_path)
    ours, theirs = accounts(files.connect()), files.connect()
    opened = fence.Row(ours, "accounts", 7).open(5)
    ours.commit()
    ours.execute("BEGIN")
    assert opened.read()["total"] == 0
    fence.Row(theirs, "accounts", 7).open(6)
    theirs.commit()
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        opened.write({"total": 50})
    ours.rollback()
    with pytest.raises(leasehold.StaleToken):
        opened.write({"total": 50})
    assert stored(theirs) == (0, 6)
    files.close()


# The table of marks.


def test_a_mark_outlives_the_rows_it_stands_for(place_of: Postgres | Sqlite) -> None:
    connection = accounts(place_of.connect())
    fence.add_marks_table(connection)
    late = fence.Marks(connection, "account/7").open(5)
    connection.execute("DELETE FROM accounts")
    assert fence.Marks(connection, "account/8").open(1).token == 1
    fence.Marks(connection, "account/7").open(6)
    for refused in (late.check, lambda: fence.Marks(connection, "account/7").open(5)):
        with pytest.raises(leasehold.StaleToken, match="leasehold_marks account/7") as refusal:
            refused()
        assert (refusal.value.token, refusal.value.mark) == (5, 6)


def test_a_rollback_closes_a_mark_too(place_of: Postgres | Sqlite) -> None:
    connection = place_of.connect()
    fence.add_marks_table(connection)
    connection.commit()
    marks = fence.Marks(connection, "all").open(5)
    marks.check()
    connection.rollback()
    with pytest.raises(leasehold.InvalidInput, match="was rolled back"):
        marks.check()


def test_two_that_make_the_same_mark_are_put_in_order(server: Postgres) -> None:
    ours, theirs = server.connect(), server.connect()
    fence.add_marks_table(ours)
    ours.commit()
    fence.Marks(ours, "all").open(6)
    said: list[BaseException] = []

    def late() -> None:
        try:
            fence.Marks(theirs, "all").open(5)
        except leasehold.StaleToken as refusal:
            said.append(refusal)

    thread = threading.Thread(target=late)
    thread.start()
    eventually(lambda: blocked(ours))
    ours.commit()
    thread.join(20)
    assert [type(each) for each in said] == [leasehold.StaleToken]


# Triggers.


def refused_without_a_token() -> Any:
    return pytest.raises((psycopg.Error, sqlite3.Error), match="leasehold")


CHANGES = [
    "UPDATE accounts SET total = 1 WHERE id = 7",
    "UPDATE accounts SET lease_mark = 0 WHERE id = 7",
    "DELETE FROM accounts WHERE id = 7",
]


@pytest.mark.parametrize("change", CHANGES)
def test_plain_sql_is_refused_where_there_is_a_trigger(place_of: Postgres | Sqlite, change: str) -> None:
    connection = accounts(place_of.connect(), trigger=True)
    fence.Row(connection, "accounts", 7).open(6)
    connection.commit()
    # One that never met Leasehold, one that shows nothing, and one that shows too small a token.
    for client in (place_of.connect(), connection):
        with refused_without_a_token():
            client.execute(change)
        client.rollback()
    with pytest.raises(leasehold.StaleToken) as refusal, fence.under(connection, 5):
        connection.execute(change)
    connection.rollback()
    assert (refusal.value.token, refusal.value.mark) == (5, 6)
    assert stored(connection) == (0, 6)


@pytest.mark.parametrize("change", CHANGES)
def test_control_without_a_trigger_plain_sql_does_as_it_likes(place_of: Postgres | Sqlite, change: str) -> None:
    connection = accounts(place_of.connect())
    fence.Row(connection, "accounts", 7).open(6)
    with fence.under(connection, 5):
        assert connection.execute(change).rowcount == 1


def test_plain_sql_raises_the_mark(place_of: Postgres | Sqlite) -> None:
    connection = accounts(place_of.connect(), trigger=True)
    with leasehold.connect("memory://rows") as locks, locks.hold("account/7") as lease:
        with fence.under(connection, lease):
            connection.execute("UPDATE accounts SET total = total + 1")
        assert stored(connection) == (1, lease.token)
        # As from mappers that write every column they have read.
        with fence.under(connection, lease.token + 1):
            connection.execute("UPDATE accounts SET total = total + 1, lease_mark = lease_mark")
        assert stored(connection) == (2, lease.token + 1)


def test_a_mark_that_is_named_helps_nobody_who_shows_a_smaller_token(place_of: Postgres | Sqlite) -> None:
    connection = accounts(place_of.connect(), trigger=True)
    fence.Row(connection, "accounts", 7).open(6)
    connection.commit()
    with pytest.raises(leasehold.StaleToken), fence.under(connection, 5):
        connection.execute("UPDATE accounts SET total = 1, lease_mark = 6")
    connection.rollback()
    with fence.under(connection, 7):
        connection.execute("UPDATE accounts SET total = 1, lease_mark = 8")
    assert stored(connection) == (1, 8)


def test_a_new_row_has_the_token_as_its_mark(place_of: Postgres | Sqlite) -> None:
    connection = accounts(place_of.connect(), trigger=True)
    with fence.under(connection, 5):
        connection.execute("INSERT INTO accounts (id, total) VALUES (8, 1)")
    connection.execute("INSERT INTO accounts (id, total) VALUES (9, 1)")
    marks = connection.execute("SELECT id, lease_mark FROM accounts ORDER BY id").fetchall()
    assert marks == [(7, 0), (8, 5), (9, 0)]


@pytest.mark.parametrize("recursive", ["off", "on"])
def test_a_row_is_not_replaced_behind_its_mark(tmp_path: Path, recursive: str) -> None:
    """SQLite's REPLACE deletes without telling a trigger of DELETE."""
    files = Sqlite(tmp_path)
    connection = accounts(files.connect(), trigger=True)
    connection.execute(f"PRAGMA recursive_triggers = {recursive}")
    fence.Row(connection, "accounts", 7).open(6)
    connection.commit()
    with pytest.raises(leasehold.StaleToken), fence.under(connection, 5):
        connection.execute("INSERT OR REPLACE INTO accounts VALUES (7, 50, 'eve', 0)")
    with fence.under(connection, 6):
        connection.execute("INSERT OR REPLACE INTO accounts VALUES (7, 60, 'ada', 0)")
    assert stored(connection) == (60, 6)
    files.close()


def test_the_token_is_shown_in_its_block_alone(place_of: Postgres | Sqlite) -> None:
    connection = accounts(place_of.connect(), trigger=True)
    with fence.under(connection, 5):
        with fence.under(connection, 6):
            connection.execute("UPDATE accounts SET total = 1")
        with pytest.raises(leasehold.StaleToken), fence.under(connection, 4):
            raise_again(connection, "UPDATE accounts SET total = 2")
    fence.Row(connection, "accounts", 7).open(6).write({"total": 3})
    with refused_without_a_token():
        raise_again(connection, "UPDATE accounts SET total = 4")
    connection.commit()
    assert stored(connection) == (3, 6)


def test_a_block_in_a_block_tells_the_refusal_although_the_transaction_has_failed(place_of: Postgres | Sqlite) -> None:
    connection = accounts(place_of.connect(), trigger=True)
    fence.Row(connection, "accounts", 7).open(6)
    connection.commit()
    with pytest.raises(leasehold.StaleToken) as refusal, fence.under(connection, 7), fence.under(connection, 5):
        connection.execute("UPDATE accounts SET total = 1")
    assert (refusal.value.token, refusal.value.mark) == (5, 6)
    connection.rollback()
    with refused_without_a_token():
        connection.execute("UPDATE accounts SET total = 2")


def raise_again(connection: Any, sql: str) -> None:
    """Run it in a savepoint: PostgreSQL wants one to go on after an error."""
    connection.execute("SAVEPOINT before")
    try:
        connection.execute(sql)
    except BaseException:
        connection.execute("ROLLBACK TO SAVEPOINT before")
        raise


def test_after_a_commit_in_the_block_no_token_is_shown(server: Postgres) -> None:
    connection = accounts(server.connect(), trigger=True)
    with refused_without_a_token(), fence.under(connection, 5):
        connection.execute("UPDATE accounts SET total = 1")
        connection.commit()
        connection.execute("UPDATE accounts SET total = 2")
    connection.rollback()
    assert stored(connection) == (1, 5)


def test_a_block_needs_a_transaction(server: Postgres) -> None:
    connection = server.connect(autocommit=True)
    with pytest.raises(leasehold.InvalidInput, match=r"connection\.transaction"), fence.under(connection, 5):
        connection.execute("SELECT 1")
    with connection.transaction(), fence.under(connection, 5):
        assert connection.execute("SELECT current_setting('leasehold.token')").fetchone() == ("5",)
    assert connection.execute("SELECT current_setting('leasehold.token', true)").fetchone() == ("",)


@pytest.mark.parametrize("token", [0, -1, 1.5, "7", True, None], ids=repr)
def test_what_is_no_token_is_shown_to_nobody(place_of: Postgres | Sqlite, token: Any) -> None:
    with pytest.raises(leasehold.InvalidInput), fence.under(place_of.connect(), token):
        pytest.fail("the block was entered")


def test_a_mark_is_added_as_often_as_one_likes(place_of: Postgres | Sqlite) -> None:
    connection = accounts(place_of.connect(), trigger=True)
    fence.Row(connection, "accounts", 7).open(5)
    fence.add_mark(connection, "accounts", trigger=True)
    fence.add_mark(connection, "accounts")
    connection.commit()
    assert stored(connection) == (0, 5)
    with refused_without_a_token():
        connection.execute("UPDATE accounts SET total = 1")


def test_tables_without_a_key_have_marks_too(tmp_path: Path) -> None:
    files = Sqlite(tmp_path)
    connection = files.connect()
    connection.execute("CREATE TABLE plain (total INTEGER)")
    connection.execute("CREATE TABLE keyed (a TEXT, b TEXT, total INTEGER, PRIMARY KEY (a, b)) WITHOUT ROWID")
    for table in ("plain", "keyed"):
        fence.add_mark(connection, table, trigger=True)
    with fence.under(connection, 5):
        connection.execute("INSERT INTO plain (total) VALUES (1)")
        connection.execute("INSERT INTO keyed (a, b, total) VALUES ('x', 'y', 1), ('x', 'z', 1)")
    with fence.under(connection, 6):
        connection.execute("UPDATE plain SET total = 2")
        connection.execute("UPDATE keyed SET total = 2 WHERE b = 'y'")
    assert connection.execute("SELECT total, lease_mark FROM plain").fetchall() == [(2, 6)]
    assert connection.execute("SELECT b, lease_mark FROM keyed ORDER BY b").fetchall() == [("y", 6), ("z", 5)]
    files.close()


# Optimistic.


@pytest.fixture
def optimist(place_of: Postgres | Sqlite) -> tuple[Any, RowResource]:
    connection = accounts(place_of.connect())
    connection.execute("ALTER TABLE accounts ADD COLUMN ratio REAL DEFAULT 0.1")
    connection.execute("ALTER TABLE accounts ADD COLUMN note TEXT")
    connection.commit()
    return connection, RowResource(database(connection), "accounts", 7, "id", "lease_mark")


def test_what_nobody_changed_is_replaced(optimist: tuple[Any, RowResource]) -> None:
    connection, row = optimist
    value, version = drive(row.load())
    assert value.keys() == {"id", "total", "owner", "ratio", "note"}
    assert drive(row.replace({**value, "total": 5}, version)) is True
    assert drive(row.replace({"total": 6}, version)) is False
    assert drive(row.load())[0]["total"] == 5
    value, version = drive(row.load())
    assert drive(row.replace({"note": "now something"}, version)) is True
    assert drive(row.replace({"note": None}, version)) is False
    connection.commit()


def test_what_anybody_changed_is_not_replaced_and_a_mark_is_no_change(optimist: tuple[Any, RowResource]) -> None:
    connection, row = optimist
    _, version = drive(row.load())
    drive(row.open(5))
    assert drive(row.replace({"total": 1}, version)) is True
    _, version = drive(row.load())
    connection.execute("UPDATE accounts SET owner = 'eve'")
    assert drive(row.replace({"total": 2}, version)) is False
    connection.execute("DELETE FROM accounts")
    assert drive(row.replace({"total": 2}, version)) is False
    with pytest.raises(leasehold.NoSuchResource):
        drive(row.load())


def test_columns_of_every_type_are_compared(server: Postgres) -> None:
    """Types without an equality of their own, and numbers that Python cannot hold, would never be the same again."""
    connection = accounts(server.connect())
    connection.execute(
        "ALTER TABLE accounts ADD a json DEFAULT '{\"x\": 1}', ADD b real DEFAULT 0.1, "
        "ADD c timestamptz DEFAULT now(), ADD d numeric DEFAULT 0.10, "
        "ADD e bytea DEFAULT 'x', ADD f point DEFAULT '(1,2)', ADD g int[] DEFAULT '{1}'"
    )
    row = RowResource(database(connection), "accounts", 7, "id", "lease_mark")
    _, version = drive(row.load())
    assert drive(row.replace({"total": 5}, version)) is True
    assert drive(row.replace({"total": 6}, version)) is False


# asyncio.


def test_everything_is_there_for_asyncio(server: Postgres) -> None:
    accounts(server.connect())

    async def work() -> None:
        async with await server.connect_aio() as connection, await leasehold.aio.connect("memory://rows") as locks:
            await aio.add_mark(connection, "accounts", trigger=True)
            await aio.add_marks_table(connection)
            async with locks.hold("account/7") as lease:
                opened = await aio.Row(connection, "accounts", 7, scope="account/7").open(lease)
                await opened.check()
                await opened.write({"total": (await opened.read())["total"] + 1})
                await (await aio.Marks(connection, "all").open(lease)).check()
                async with aio.under(connection, lease):
                    await connection.execute("UPDATE accounts SET total = total + 1")
                await connection.commit()
            with pytest.raises(leasehold.StaleToken) as refusal:
                async with aio.under(connection, 1):
                    await connection.execute("UPDATE accounts SET total = 0")
            assert (refusal.value.token, refusal.value.mark) == (1, lease.token)

    asyncio.run(work())
    assert stored(server.connect())[0] == 2
