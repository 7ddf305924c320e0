"""The caller's own connection to PostgreSQL or SQLite, for the fences of rows.

Nothing here begins, commits or rolls back. What the database says goes to the caller as it is.
"""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from leasehold.errors import InvalidInput
from leasehold.extras import require
from leasehold.rules.names import check_text

if TYPE_CHECKING:
    from types import ModuleType

    import psycopg

Values = dict[str, Any]

# What our triggers say, for programs: a code on PostgreSQL, how the message begins on SQLite.
TOO_LATE = "LHF01"
NOT_SHOWN = "LHF02"
SAID = "leasehold: "

_SHOWN = "SELECT current_setting('leasehold.token', true) AS before, set_config('leasehold.token', %s, true)"


class Database(Protocol):
    """A connection, whatever its colour and make."""

    postgres: bool
    place: str

    async def change(self, sql: str, given: Sequence[object], token: int | None) -> int:
        """How many rows it changed. Triggers see the token, if the statement does not name it itself."""
        ...

    async def rows(self, sql: str, given: Sequence[object]) -> list[Values]:
        """What it found; nothing, if it is a statement that finds nothing."""
        ...

    async def show(self, token: int) -> int | None:
        """Show triggers this token from now on; the one they were shown before."""
        ...

    async def restore(self, before: int | None) -> None:
        """Show them that one again, unless the transaction has ended or failed, which takes both along."""
        ...

    async def refused(self, error: BaseException) -> tuple[int, int] | None:
        """The token and the mark, if a trigger of ours refused the token."""
        ...


def database(connection: object) -> Database:
    """A connection of psycopg or of the standard library, for blocking programs."""
    if isinstance(connection, sqlite3.Connection):
        return Sqlite(connection)
    if isinstance(connection, _psycopg().Connection):
        return Postgres(connection)
    raise InvalidInput("connection", connection, "must be a psycopg.Connection or a sqlite3.Connection")


def database_aio(connection: object) -> Database:
    """A connection of psycopg, for asyncio."""
    if isinstance(connection, _psycopg().AsyncConnection):
        return AsyncPostgres(connection)
    remedy = "must be a psycopg.AsyncConnection; for SQLite, use leasehold.fence in a thread"
    raise InvalidInput("connection", connection, remedy)


def quoted(field: str, name: str, *, postgres: bool) -> str:
    """A name as a statement has it, whatever is in it."""
    text = '"' + check_text(field, name).replace('"', '""') + '"'
    # psycopg looks for its placeholders everywhere.
    return text.replace("%", "%%") if postgres else text


def qualified(table: str, *, postgres: bool) -> str:
    """A table, perhaps with its schema: `billing.accounts`."""
    return ".".join(quoted("table", part, postgres=postgres) for part in check_text("table", table).split("."))


C = TypeVar("C", "psycopg.Connection[Any]", "psycopg.AsyncConnection[Any]")


class _Psycopg(ABC, Generic[C]):
    """What both colours of psycopg share: all but how a statement is sent."""

    postgres = True
    place = "%s"

    def __init__(self, connection: C) -> None:
        self._connection: C = connection

    @abstractmethod
    async def rows(self, sql: str, given: Sequence[object]) -> list[Values]:
        """What it found."""

    async def show(self, token: int) -> int | None:
        _check_transaction(self._connection)
        ((before, _),) = [row.values() for row in await self.rows(_SHOWN, (str(token),))]
        return int(before) if before else None

    async def restore(self, before: int | None) -> None:
        if self._connection.info.transaction_status.name == "INTRANS":
            await self.rows(_SHOWN, ("" if before is None else str(before),))

    async def refused(self, error: BaseException) -> tuple[int, int] | None:
        return _numbers(error)


class Postgres(_Psycopg["psycopg.Connection[Any]"]):
    """psycopg, blocking."""

    # With cursors of our own: the connection's may be made to give rows of another shape, or want other placeholders.
    async def change(self, sql: str, given: Sequence[object], token: int | None) -> int:
        del token  # the statement sets the mark, which is how the trigger sees it
        cursor = _psycopg().Cursor(self._connection)
        cursor.execute(sql, given)
        return int(cursor.rowcount)

    async def rows(self, sql: str, given: Sequence[object]) -> list[Values]:
        cursor = _psycopg().Cursor(self._connection, row_factory=_psycopg().rows.dict_row)
        cursor.execute(sql, given)
        return list(cursor.fetchall()) if cursor.description else []


class AsyncPostgres(_Psycopg["psycopg.AsyncConnection[Any]"]):
    """psycopg, awaited."""

    async def change(self, sql: str, given: Sequence[object], token: int | None) -> int:
        del token
        cursor = _psycopg().AsyncCursor(self._connection)
        await cursor.execute(sql, given)
        return int(cursor.rowcount)

    async def rows(self, sql: str, given: Sequence[object]) -> list[Values]:
        cursor = _psycopg().AsyncCursor(self._connection, row_factory=_psycopg().rows.dict_row)
        await cursor.execute(sql, given)
        return list(await cursor.fetchall()) if cursor.description else []


class Sqlite:
    """The standard library's sqlite3."""

    postgres = False
    place = "?"

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._triggered = False

    async def change(self, sql: str, given: Sequence[object], token: int | None) -> int:
        if token is None or not self._triggered:
            try:
                return self._connection.execute(sql, given).rowcount
            except sqlite3.Error as error:
                if token is None or not _wants_a_token(error):
                    raise
                # The table has our trigger, which undid nothing but this statement.
                self._triggered = True
        before = await self.show(token)
        try:
            return self._connection.execute(sql, given).rowcount
        finally:
            await self.restore(before)

    async def rows(self, sql: str, given: Sequence[object]) -> list[Values]:
        cursor = self._execute(sql, given)
        if cursor.description is None:
            return []
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    async def show(self, token: int) -> int | None:
        try:
            return self._show(token)
        except sqlite3.OperationalError as error:
            if "no such function" not in str(error):
                raise
        _register(self._connection)
        return self._show(token)

    async def restore(self, before: int | None) -> None:
        self._show(before)

    async def refused(self, error: BaseException) -> tuple[int, int] | None:
        if not isinstance(error, sqlite3.IntegrityError) or not str(error).startswith(f"{SAID}the token"):
            return None
        ((token, mark),) = self._execute("SELECT leasehold_token(NULL), leasehold_mark()", ()).fetchall()
        return token, mark

    def _execute(self, sql: str, given: Sequence[object]) -> sqlite3.Cursor:
        cursor = self._connection.cursor()
        cursor.row_factory = None
        return cursor.execute(sql, given)

    def _show(self, token: int | None) -> int | None:
        ((before,),) = self._execute("SELECT leasehold_show(?)", (token,)).fetchall()
        return None if before is None else int(before)


class _Shown:
    """What the functions of one SQLite connection know. It lives as long as they do."""

    def __init__(self) -> None:
        self.token: int | None = None
        self.mark = 0

    def show(self, token: int | None) -> int | None:
        before, self.token = self.token, token
        return before

    def compared(self, mark: int | None) -> int | None:
        """The token; a mark that it comes too late for is kept, as a trigger can say no numbers."""
        if self.token is not None and mark is not None and mark > self.token:
            self.mark = mark
        return self.token


def _register(connection: sqlite3.Connection) -> None:
    shown = _Shown()
    connection.create_function("leasehold_show", 1, shown.show)
    connection.create_function("leasehold_token", 1, shown.compared)
    connection.create_function("leasehold_mark", 0, lambda: shown.mark)


def _wants_a_token(error: sqlite3.Error) -> bool:
    return str(error).startswith(SAID) or "no such function: leasehold_token" in str(error)


def _check_transaction(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    """A setting of the transaction needs one; otherwise it would be forgotten at once."""
    if connection.autocommit and connection.info.transaction_status.name == "IDLE":
        remedy = "must be in a transaction, with which the token is forgotten: with connection.transaction():"
        raise InvalidInput("connection", connection, remedy)


def _numbers(error: BaseException) -> tuple[int, int] | None:
    if not isinstance(error, _psycopg().Error) or getattr(error, "sqlstate", None) != TOO_LATE:
        return None
    token, mark = str(error.diag.message_detail).split()
    return int(token), int(mark)


def _psycopg() -> ModuleType:
    return require("psycopg", feature="a fence in PostgreSQL", extra="postgres")
