"""Fences with SQLAlchemy 2, on PostgreSQL and SQLite: statements of the core, and mapped classes.

    class Account(FencedMixin, Base): ...                        # has the column lease_mark

    with locks.hold("account/7") as lease, Session(engine) as session:
        account = open_row(session, Account, 7, lease)           # raises the mark, then reads
        account.total += 5
        session.commit()                                         # StaleToken, if a later holder opened it

The session's transaction is the caller's: nothing is committed here, and a rollback takes the mark along. With
AsyncSession, call these through `run_sync`. What may wait for another transaction, and what isolation levels do to
it, is told in `sql.py`.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any, TypeVar

from leasehold.engine.lease import BaseLease
from leasehold.errors import InvalidInput, LeaseholdError, MissingExtra, NoSuchResource, StaleToken
from leasehold.fence.sql import token_of

try:
    import sqlalchemy as sa
    from sqlalchemy import event, orm
except ImportError as _error:
    raise MissingExtra("leasehold.fence.sqlalchemy", "sqlalchemy") from _error

__all__ = ["FencedMixin", "guarded", "open_row", "refusal"]

S = TypeVar("S", sa.Update, sa.Delete, sa.Select[Any])
M = TypeVar("M", bound="FencedMixin")
Statement = sa.Update | sa.Delete | sa.Select[Any]


def guarded(statement: S, lease: BaseLease | int, *, mark: sa.ColumnElement[int]) -> S:
    """The same statement for rows that no later holder has opened; an UPDATE raises their marks too.

    It leaves other rows out: if it finds none, `refusal` says why. To open a row is to update nothing else.
    """
    token = token_of(lease)
    if isinstance(statement, sa.Update):
        return statement.where(mark <= token).values({mark: token})
    if isinstance(statement, sa.Delete | sa.Select):
        return statement.where(mark <= token)
    raise InvalidInput("statement", statement, "must be an update, a delete or a select of SQLAlchemy's")


def refusal(
    connection: sa.Connection | orm.Session,
    statement: Statement,
    lease: BaseLease | int,
    *,
    mark: sa.ColumnElement[int],
) -> LeaseholdError:
    """Why a guarded statement found no row, to be raised: StaleToken, or NoSuchResource.

    `statement` is the one that was not guarded.
    """
    token = token_of(lease)
    asked = sa.select(sa.func.max(mark))
    if statement.whereclause is not None:
        asked = asked.where(statement.whereclause)
    return _told(getattr(mark, "table", mark), connection.execute(asked).scalar(), token)


class FencedMixin:
    """For mapped classes whose rows only their latest holder changes.

    A flush that updates or deletes such a row raises its mark first, in the same transaction, and is refused with
    StaleToken once a later holder has opened it, with InvalidInput if it was not opened at all. New rows are free.
    What does not go through a flush is not seen: `session.execute(update(…))` and bulk operations need
    `guarded`. Nor are reads: attributes that expired are loaded again for anybody.
    """

    lease_mark: orm.Mapped[int] = orm.mapped_column(sa.BigInteger, nullable=False, default=0, server_default="0")


def open_row(session: orm.Session, model: type[M], key: Any, lease: BaseLease | int) -> M:
    """The row of this primary key, as its latest holder finds it: its mark is raised before it is read.

    Raises StaleToken if a later holder was there. A rollback of the session, or to a savepoint, closes what was opened.
    """
    token = token_of(lease)
    mapper = sa.inspect(model)
    values = key if isinstance(key, tuple) else (key,)
    if len(values) != len(mapper.primary_key):
        raise InvalidInput("key", key, f"must be the {len(mapper.primary_key)} columns of the primary key")
    # What this session changed before belongs to before: it must not be written under the new token.
    session.flush()
    _raise(session.connection(bind_arguments={"mapper": mapper}), mapper, values, token)
    found = session.get(model, key, populate_existing=True)
    if found is None:
        raise NoSuchResource(_named(mapper, values), "insert it first")
    _tokens[sa.inspect(found)] = token
    if not event.contains(session, "after_soft_rollback", _forget):
        event.listen(session, "after_soft_rollback", _forget)
    return found


# With which token an instance was opened: where SQLAlchemy neither expires it nor loads it again.
_tokens: weakref.WeakKeyDictionary[orm.InstanceState[Any], int] = weakref.WeakKeyDictionary()


@event.listens_for(FencedMixin, "before_update", propagate=True)
@event.listens_for(FencedMixin, "before_delete", propagate=True)
def _admit(mapper: orm.Mapper[Any], connection: sa.Connection, target: FencedMixin) -> None:
    """Before a flush changes a row: hold it, and be refused with both numbers if somebody came later."""
    values = mapper.primary_key_from_instance(target)
    token = _tokens.get(sa.inspect(target))
    if token is None:
        raise InvalidInput(_named(mapper, values), "no token", "must be opened with open_row before it is changed")
    _raise(connection, mapper, values, token)


def _forget(session: orm.Session, _: orm.SessionTransaction) -> None:
    """The marks may be what they were: an older holder could write between what was read and what would be written."""
    for instance in session:
        _tokens.pop(sa.inspect(instance), None)


def _raise(connection: sa.Connection, mapper: orm.Mapper[Any], values: Iterable[Any], token: int) -> None:
    mark = mapper.columns["lease_mark"]
    same = [column == value for column, value in zip(mapper.primary_key, values, strict=True)]
    if not connection.execute(guarded(sa.update(mark.table).where(*same), token, mark=mark)).rowcount:
        found = connection.execute(sa.select(mark).where(*same)).scalar()
        raise _told(_named(mapper, values), found, token)


def _told(name: object, mark: int | None, token: int) -> LeaseholdError:
    if mark is not None and mark > token:
        return StaleToken(str(name), token, mark)
    return NoSuchResource(str(name), "insert it first")


def _named(mapper: orm.Mapper[Any], values: Iterable[Any]) -> str:
    return f"{mapper.class_.__name__} {', '.join(map(str, values))}"
