"""Fences with SQLAlchemy: the laws over statements and over mapped classes, and what a flush refuses."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import orm
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

import leasehold
from leasehold.fence.sqlalchemy import FencedMixin, guarded, open_row, refusal
from leasehold.testing.fences import FenceLaws
from tests.fence.sql_support import Postgres
from tests.servers import postgres
from tests.support import PYTHON


class Base(orm.DeclarativeBase):
    """What is mapped here."""


class Account(FencedMixin, Base):
    """One table, and another below it for some."""

    __tablename__ = "accounts"
    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    total: orm.Mapped[int]
    kind: orm.Mapped[str] = orm.mapped_column(default="plain")
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "plain"}  # noqa: RUF012  as declared there


class Savings(Account):
    """Its mark is in the table above."""

    __tablename__ = "savings"
    id: orm.Mapped[int] = orm.mapped_column(sa.ForeignKey("accounts.id"), primary_key=True)
    rate: orm.Mapped[int] = orm.mapped_column(default=1)
    __mapper_args__ = {"polymorphic_identity": "savings"}  # noqa: RUF012


class Seat(FencedMixin, Base):
    """A key of two columns."""

    __tablename__ = "seats"
    row: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    place: orm.Mapped[str] = orm.mapped_column(primary_key=True)
    taken: orm.Mapped[bool] = orm.mapped_column(default=False)


accounts: Any = Account.__table__
MARK = accounts.c.lease_mark


@pytest.fixture(params=["postgres", "sqlite"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[sa.Engine]:
    with contextlib.ExitStack() as stack:
        if request.param == "postgres":
            made = sa.create_engine(url_of(), connect_args=stack.enter_context(contextlib.closing(Postgres())).made())
        else:
            made = sa.create_engine(f"sqlite:///{tmp_path}/fences.db", connect_args={"timeout": 60})
            sa.event.listen(made, "connect", lambda connection, _: connection.execute("PRAGMA synchronous = off"))
        stack.callback(made.dispose)
        Base.metadata.create_all(made)
        with orm.Session(made) as session:
            session.add_all([Account(id=7, total=0), Savings(id=8, total=0), Seat(row=1, place="a")])
            session.commit()
        yield made


def url_of() -> str:
    return postgres().url.replace("postgresql://", "postgresql+psycopg://")


class Core:
    """One account, by statements."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def open(self, token):
        self._update(token, sa.update(accounts).where(accounts.c.id == 7))

    def read(self, token):
        statement = sa.select(accounts.c.total).where(accounts.c.id == 7)
        with self._engine.begin() as connection:
            found = connection.execute(guarded(statement, token, mark=MARK)).scalar()
            if found is None:
                raise refusal(connection, statement, token, mark=MARK)
            return found

    def write(self, token, value):
        self._update(token, sa.update(accounts).where(accounts.c.id == 7).values(total=value))

    def _update(self, token, statement):
        with self._engine.begin() as connection:
            if not connection.execute(guarded(statement, token, mark=MARK)).rowcount:
                raise refusal(connection, statement, token, mark=MARK)


class Mapped:
    """One account, by its class; a session for each verb, as from program to program."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def open(self, token):
        self.read(token)

    def read(self, token):
        with orm.Session(self._engine) as session:
            total = open_row(session, Account, 7, token).total
            session.commit()
            return total

    def write(self, token, value):
        with orm.Session(self._engine) as session:
            account = open_row(session, Account, 7, token)
            account.total = value
            session.commit()


class NumberLaws(FenceLaws):
    def value(self, number: int) -> int:
        return number

    def number(self, value: int) -> int:
        return value


class TestCore(NumberLaws):
    @pytest.fixture
    def reach(self, engine: sa.Engine):
        return lambda: Core(engine)


class TestMapped(NumberLaws):
    @pytest.fixture
    def reach(self, engine: sa.Engine):
        return lambda: Mapped(engine)


def stored(engine: sa.Engine) -> Any:
    with engine.connect() as connection:
        return connection.execute(sa.select(accounts.c.total, MARK).where(accounts.c.id == 7)).one()


# Statements.


def test_a_delete_is_guarded_too(engine: sa.Engine) -> None:
    seats: Any = Seat.__table__
    statement = sa.delete(seats).where(seats.c.row == 1)
    with engine.begin() as connection:
        connection.execute(guarded(sa.update(seats), 6, mark=seats.c.lease_mark))
        assert connection.execute(guarded(statement, 5, mark=seats.c.lease_mark)).rowcount == 0
        said = refusal(connection, statement, 5, mark=seats.c.lease_mark)
        assert isinstance(said, leasehold.StaleToken)
        assert (said.resource, said.token, said.mark) == ("seats", 5, 6)
        assert connection.execute(guarded(statement, 6, mark=seats.c.lease_mark)).rowcount == 1
        assert isinstance(refusal(connection, statement, 6, mark=seats.c.lease_mark), leasehold.NoSuchResource)


def test_only_statements_that_find_rows_are_guarded() -> None:
    with pytest.raises(leasehold.InvalidInput, match="an update, a delete or a select"):
        guarded(sa.insert(accounts), 5, mark=MARK)  # type: ignore[type-var]


# Mapped classes.


def test_a_lease_opens_a_row_and_the_next_one_ends_that(engine: sa.Engine) -> None:
    with leasehold.connect("memory://mapped") as locks, orm.Session(engine) as ours, orm.Session(engine) as theirs:
        with locks.hold("account/7") as first:
            account = open_row(ours, Account, 7, first)
            account.total += 5
            ours.commit()
        with locks.hold("account/7") as second:
            assert open_row(theirs, Account, 7, second).total == 5
            theirs.commit()
        # Loaded again, so with the later holder's mark: that must not help.
        ours.refresh(account)
        assert account.lease_mark == second.token
        ours.commit()
        account.total += 1
        with pytest.raises(leasehold.StaleToken, match="Account 7") as refused:
            ours.commit()
        ours.rollback()
        assert (refused.value.token, refused.value.mark) == (first.token, second.token)
        with pytest.raises(leasehold.StaleToken, match="Account 7"):
            open_row(ours, Account, 7, first)
        ours.rollback()
    assert stored(engine) == (5, second.token)


def test_a_delete_by_whoever_was_overtaken_is_refused(engine: sa.Engine) -> None:
    with orm.Session(engine) as ours, orm.Session(engine) as theirs:
        account = open_row(ours, Account, 7, 5)
        ours.commit()
        open_row(theirs, Account, 7, 6)
        theirs.commit()
        ours.delete(account)
        with pytest.raises(leasehold.StaleToken):
            ours.commit()
        ours.rollback()
        assert stored(engine) == (0, 6)
        theirs.delete(open_row(theirs, Account, 7, 6))
        theirs.commit()
        assert theirs.get(Account, 7) is None


def test_what_was_not_opened_is_not_changed(engine: sa.Engine) -> None:
    with orm.Session(engine) as session:
        session.get_one(Account, 7).total = 5
        with pytest.raises(leasehold.InvalidInput, match="open_row"):
            session.commit()
    assert stored(engine) == (0, 0)


@pytest.mark.parametrize("savepoint", [False, True], ids=["rollback", "savepoint"])
def test_a_rollback_closes_what_was_opened(engine: sa.Engine, *, savepoint: bool) -> None:
    """Otherwise an older holder could write between what is read and what is written."""
    with orm.Session(engine) as session:
        account = session.get_one(Account, 7)
        nested = session.begin_nested() if savepoint else session
        open_row(session, Account, 7, 6)
        nested.rollback()
        account.total += 1
        with pytest.raises(leasehold.InvalidInput, match="open_row"):
            session.commit()
        session.rollback()
        assert stored(engine) == (0, 0)
        open_row(session, Account, 7, 6).total += 1
        session.commit()
    assert stored(engine) == (1, 6)


def test_a_row_opened_again_keeps_nothing_of_what_was_not_written(engine: sa.Engine) -> None:
    with orm.Session(engine, autoflush=False) as ours, orm.Session(engine) as theirs:
        account = open_row(ours, Account, 7, 5)
        ours.commit()
        account.total = 50
        open_row(theirs, Account, 7, 6).total = 60
        theirs.commit()
        # What it was changed to under the token 5 must not be written under 7.
        with pytest.raises(leasehold.StaleToken):
            open_row(ours, Account, 7, 7)
        ours.rollback()
        assert open_row(ours, Account, 7, 7).total == 60
        ours.commit()
    assert stored(engine) == (60, 7)


def test_a_class_over_two_tables_has_one_mark(engine: sa.Engine) -> None:
    with orm.Session(engine) as ours, orm.Session(engine) as theirs:
        late = open_row(ours, Savings, 8, 5)
        late.rate = 2
        ours.commit()
        open_row(theirs, Account, 8, 6).total = 60
        theirs.commit()
        late.rate = 3
        with pytest.raises(leasehold.StaleToken):
            ours.commit()
        ours.rollback()
        assert (late.rate, late.total, late.lease_mark) == (2, 60, 6)


def test_a_key_of_several_columns(engine: sa.Engine) -> None:
    with orm.Session(engine) as session:
        open_row(session, Seat, (1, "a"), 5).taken = True
        session.commit()
        assert session.get_one(Seat, (1, "a")).taken
        with pytest.raises(leasehold.NoSuchResource, match="Seat 1, b"):
            open_row(session, Seat, (1, "b"), 5)
        with pytest.raises(leasehold.InvalidInput, match="2 columns"):
            open_row(session, Seat, 1, 5)


def test_control_what_no_flush_does_is_not_seen(engine: sa.Engine) -> None:
    """As the page says: such statements need `guarded`."""
    with orm.Session(engine) as session:
        open_row(session, Account, 7, 6)
        session.execute(sa.update(Account).where(Account.id == 7).values(total=5))
        session.commit()
    assert stored(engine) == (5, 6)


def test_a_row_is_opened_and_refused_through_run_sync() -> None:
    server = Postgres()
    options = server.made()

    def add(session: orm.Session, token: int) -> None:
        open_row(session, Account, 7, token).total += 1
        session.commit()

    async def work() -> None:
        engine = create_async_engine(url_of(), connect_args=options)
        async with engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)
        async with AsyncSession(engine) as session:
            session.add(Account(id=7, total=0))
            await session.commit()
            await session.run_sync(add, 6)
            with pytest.raises(leasehold.StaleToken) as refused:
                await session.run_sync(add, 5)
            assert (refused.value.token, refused.value.mark) == (5, 6)
            await session.rollback()
            assert (await session.get_one(Account, 7)).total == 1
        await engine.dispose()

    asyncio.run(work())
    server.close()


def test_without_sqlalchemy_the_command_that_installs_it_is_told() -> None:
    code = (
        "import sys; sys.modules['sqlalchemy'] = None\n"
        "import leasehold.fence\n"
        "try: import leasehold.fence.sqlalchemy\n"
        "except ImportError as error: print(error)\n"
    )
    done = subprocess.run([PYTHON, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'leasehold[sqlalchemy]'" in done.stdout


def test_without_psycopg_fences_of_sqlite_work() -> None:
    code = (
        "import sys; sys.modules['psycopg'] = None\n"
        "import sqlite3\n"
        "from leasehold import fence\n"
        "connection = sqlite3.connect(':memory:')\n"
        "fence.add_marks_table(connection)\n"
        "print(fence.Marks(connection, 'all').open(5).token)\n"
        "try: fence.Marks(None, 'all')\n"
        "except ImportError as error: print(error)\n"
    )
    done = subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("5\n")
    assert "pip install 'leasehold[postgres]'" in done.stdout
