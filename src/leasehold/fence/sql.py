"""Fenced rows: the mark is a column beside the data, and both change in one statement.

Nothing here commits: mark and data last with the caller's transaction, and go with it when it is rolled back. Whoever
rolls back has not opened anything: open it again, and read again. Until then nothing is written.

PostgreSQL, READ COMMITTED: a statement that waits for another transaction's row looks again when that one has ended, so
a holder that was overtaken meanwhile is refused. REPEATABLE READ and above: PostgreSQL ends such a transaction
itself (a serialization failure, for the caller to retry), and a read shows what was there when the transaction began.
SQLite: `open`, `check` and `write` take the one write lock. A deferred transaction that only read before them can find
that others wrote since: SQLite says that the database is locked, and the transaction has to be begun again.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Literal

from leasehold.engine.lease import BaseLease
from leasehold.errors import InvalidInput, LeaseholdError, NoSuchResource, StaleToken
from leasehold.fence.base import Fence, Shown
from leasehold.fence.sql_connections import Database, Values, qualified, quoted
from leasehold.rules.fencing import admit, check_writes, checked_token
from leasehold.rules.names import check_text
from leasehold.rules.sealing import Seal

VERSION = "leasehold_version"


class RowResource:
    """What `Row` means. `column` tells rows apart: it is the primary key, or as unique as one."""

    def __init__(self, database: Database, table: str, key: object, column: str, mark: str) -> None:
        self._database = database
        self._key = key
        self._mark = check_text("mark", mark)
        self._sql = _statements(database.postgres, database.place, table, column, mark)
        self._name = f"{table} {column}={key}"

    @property
    def name(self) -> str:
        return self._name

    async def open(self, token: int) -> None:
        await self._change(self._sql.updating((), "<="), (), token)

    async def confirm(self, token: int) -> None:
        """Hold the mark, if this very token opened it: what was read counts only as long as that."""
        await self._change(self._sql.updating((), "="), (), token)

    async def rewrite(self, token: int, value: Mapping[str, Any]) -> None:
        """Write, if this very token opened it."""
        names = self._named(value)
        await self._change(self._sql.updating(names, "="), tuple(value.values()), token)

    async def read(self, token: int) -> Values:
        values, mark = await self._found()
        if admit(self.name, mark, token) > mark:
            # The transaction that opened it was rolled back, and an older holder may still write.
            await self.open(token)
            return await self.look(token)
        return values

    async def look(self, token: int) -> Values:
        """Read for a sharer, which raises no mark."""
        values, mark = await self._found()
        admit(self.name, mark, token)
        return values

    async def write(self, token: int, value: Mapping[str, Any]) -> None:
        names = self._named(value)
        await self._change(self._sql.updating(names, "<="), tuple(value.values()), token)

    async def load(self) -> tuple[Values, object]:
        """Its columns, and what tells whether they are still the same: not the mark, nor a column made for it."""
        if self._database.postgres:
            found = await self._database.rows(self._sql.loading, (self._mark, self._key))
            version: object = found[0].pop(VERSION) if found else None
        else:
            found = await self._database.rows(self._sql.finding, (self._key,))
            version = {name: value for row in found for name, value in row.items() if name != self._mark}
        if not found:
            raise self._missing()
        return {name: value for name, value in found[0].items() if name != self._mark}, version

    async def replace(self, value: Mapping[str, Any], version: object) -> bool:
        names = self._named(value)
        if isinstance(version, dict):
            sql, seen = self._sql.replacing(names, tuple(version)), tuple(version.values())
        else:
            sql, seen = self._sql.replacing(names, None), (self._mark, version)
        return await self._database.change(sql, (*value.values(), self._key, *seen), None) > 0

    async def _change(self, sql: str, values: tuple[object, ...], token: int) -> None:
        given = (*values, checked_token(token), self._key, token)
        if not await self._database.change(sql, given, token):
            raise await self._refusal(token)

    async def _refusal(self, token: int) -> LeaseholdError:
        _, mark = await self._found()
        return StaleToken(self.name, token, mark) if mark > token else _not_open(self.name, token)

    async def _found(self) -> tuple[Values, int]:
        rows = await self._database.rows(self._sql.finding, (self._key,))
        if not rows:
            raise self._missing()
        if self._mark not in rows[0] or rows[0][self._mark] is None:
            raise InvalidInput(
                "mark", self._mark, "must be a column of whole numbers, and not null: see fence.add_mark"
            )
        mark = int(rows[0].pop(self._mark))
        return rows[0], mark

    def _missing(self) -> NoSuchResource:
        return NoSuchResource(self.name, "insert it first")

    def _named(self, value: object) -> tuple[str, ...]:
        if not isinstance(value, Mapping) or not value:
            raise InvalidInput("value", value, 'must be the columns to set, as in {"total": 5}')
        if self._mark in value:
            raise InvalidInput("value", value, f"must leave {self._mark} alone: the token is put there")
        return tuple(value)


class MarksResource:
    """What `Marks` means: a row of a table of marks, made when it is missing."""

    def __init__(self, database: Database, key: str, table: str) -> None:
        self._database = database
        self._key = check_text("key", key)
        into, place = qualified(table, postgres=database.postgres), database.place
        self._raise = (
            f"INSERT INTO {into} AS fenced (name, mark) VALUES ({place}, {place}) "
            "ON CONFLICT (name) DO UPDATE SET mark = excluded.mark WHERE fenced.mark <= excluded.mark"
        )
        self._find = f"SELECT mark FROM {into} WHERE name = {place}"
        self._confirm = f"UPDATE {into} SET mark = mark WHERE name = {place} AND mark = {place}"
        self._name = f"{table} {key}"

    @property
    def name(self) -> str:
        return self._name

    async def open(self, token: int) -> None:
        await self._change(self._raise, token)

    async def confirm(self, token: int) -> None:
        """Hold the mark, if this very token opened it."""
        await self._change(self._confirm, token)

    async def _change(self, sql: str, token: int) -> None:
        if not await self._database.change(sql, (self._key, checked_token(token)), token):
            rows = await self._database.rows(self._find, (self._key,))
            mark = int(rows[0]["mark"]) if rows else 0
            raise StaleToken(self.name, token, mark) if mark > token else _not_open(self.name, token)

    async def read(self, token: int) -> None:
        await self.open(token)

    async def write(self, token: int, value: None) -> None:
        del value
        await self.open(token)


class MarksFence(Fence[None]):
    """The fence of a mark without data."""

    def __init__(self, marks: MarksResource, scope: str | None, seal: Seal | None) -> None:
        super().__init__(marks, scope, seal)
        self._marks = marks

    async def check(self, shown: Shown) -> None:
        """Hold the mark until the transaction ends: what that does lasts only if nobody came later."""
        check_writes(self.resource.name, shown.scope, shared=shown.shared)
        await self._marks.confirm(shown.token)


class RowFence(Fence[Values]):
    """The fence of a row: sharers read it without raising the mark, and nobody writes what a rollback closed."""

    def __init__(self, row: RowResource, scope: str | None, seal: Seal | None) -> None:
        super().__init__(row, scope, seal)
        self._row = row

    async def read(self, shown: Shown) -> Values:
        return await (self._row.look(shown.token) if shown.shared else self._row.read(shown.token))

    async def write(self, shown: Shown, value: Values) -> None:
        check_writes(self.resource.name, shown.scope, shared=shown.shared)
        await self._row.rewrite(shown.token, value)

    async def check(self, shown: Shown) -> None:
        """Hold the mark until the transaction ends: what that does lasts only if nobody came later."""
        check_writes(self.resource.name, shown.scope, shared=shown.shared)
        await self._row.confirm(shown.token)


def token_of(given: BaseLease | int) -> int:
    """The token of whoever will change something."""
    if not isinstance(given, BaseLease):
        return checked_token(given)
    check_writes("the transaction", given.scope, shared=given.mode == "shared")
    return given.token


def _not_open(name: str, token: int) -> InvalidInput:
    told = "the transaction that opened it was rolled back, or this user may not change it"
    return InvalidInput("token", token, f"does not hold {name}: {told}; open it again, and read again")


class _Statements:
    """The SQL of one kind of row. Names are quoted, values are bound."""

    def __init__(self, postgres: bool, place: str, table: str, column: str, mark: str) -> None:  # noqa: FBT001  cached
        self._postgres, self._place = postgres, place
        self._mark = self._quoted("mark", mark)
        self._table = f"{qualified(table, postgres=postgres)} AS fenced"
        # Always with the table: SQLite takes an unknown name in quotes for text.
        self._at = f"fenced.{self._quoted('column', column)} = {place}"
        self.finding = f"SELECT fenced.* FROM {self._table} WHERE {self._at}"
        version = f"(to_jsonb(fenced) - {place}::text)::text AS {VERSION}"
        self.loading = f"SELECT fenced.*, {version} FROM {self._table} WHERE {self._at}"

    @functools.lru_cache(maxsize=256)  # noqa: B019  as few of these as there are kinds of rows
    def updating(self, names: tuple[str, ...], admits: Literal["<=", "="]) -> str:
        """Set these and the mark, if that is what it may be."""
        # Numbers, even in a column that somebody made for text.
        mark = f"fenced.{self._mark}" if self._postgres else f"CAST(fenced.{self._mark} AS INTEGER)"
        changes = [*self._changes(names), f"{self._mark} = {self._place}"]
        return f"UPDATE {self._table} SET {', '.join(changes)} WHERE {self._at} AND {mark} {admits} {self._place}"

    def replacing(self, names: tuple[str, ...], seen: tuple[str, ...] | None) -> str:
        """Set these, if the columns are what was seen; on PostgreSQL in one comparison that every type has."""
        same = [f"(to_jsonb(fenced) - {self._place}::text) = {self._place}::jsonb"]
        if seen is not None:
            same = [f"fenced.{self._quoted('value', name)} IS {self._place}" for name in seen]
        return f"UPDATE {self._table} SET {', '.join(self._changes(names))} WHERE {' AND '.join([self._at, *same])}"

    def _changes(self, names: tuple[str, ...]) -> list[str]:
        return [f"{self._quoted('value', name)} = {self._place}" for name in names]

    def _quoted(self, field: str, name: str) -> str:
        return quoted(field, name, postgres=self._postgres)


_statements = functools.lru_cache(maxsize=256)(_Statements)
