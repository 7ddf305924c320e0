"""Fenced resources, blocking. `aio.py` has the same names, awaited.

    account = fence.File("/var/lib/app/balance")
    with locks.hold("balance") as lease:
        opened = account.open(lease)        # refuses us if a later holder was there
        opened.write(str(int(opened.read()) + 1).encode())

A facade decides nothing: it drives the coroutines of `base.py` and of one adapter.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from leasehold.engine.lease import BaseLease
from leasehold.errors import InvalidInput
from leasehold.extras import require
from leasehold.fence import sql_triggers
from leasehold.fence.base import Fence, Resource, Shown
from leasehold.fence.files import FileResource
from leasehold.fence.kubernetes import KubernetesResource, Object
from leasehold.fence.redis import RedisClient, RedisResource
from leasehold.fence.sql import MarksFence, MarksResource, RowFence, RowResource, token_of
from leasehold.fence.sql_connections import Values, database
from leasehold.rules.fencing import check_writes
from leasehold.rules.sealing import Seal
from leasehold.wires.colour import drive

if TYPE_CHECKING:
    import sqlite3

    from psycopg import Connection

    from leasehold.kube.blocking import Objects
    from leasehold.kube.objects import ObjectStore

T = TypeVar("T")


class Opened(Generic[T]):
    """A resource as one holder has it: every read and write carries its token.

    Each raises StaleToken once a later holder has opened it, and changes nothing then.
    """

    def __init__(self, fence: Fence[T], shown: Shown) -> None:
        self._fence = fence
        self._shown = shown

    @property
    def token(self) -> int:
        """What it was opened with."""
        return self._shown.token

    def read(self) -> T:
        """What is there."""
        return drive(self._fence.read(self._shown))

    def write(self, value: T) -> None:
        """Replace it; mark and data change in one step."""
        drive(self._fence.write(self._shown, value))


class Fenced(Generic[T]):
    """Something that only the latest holder can read and change.

    `scope` is what its holders hold: a lease on anything else is refused with ScopeMismatch. With a
    `seal`, tokens shown as text must be sealed for that scope.
    """

    def __init__(self, resource: Resource[T], *, scope: str | None = None, seal: Seal | None = None) -> None:
        self._fence: Fence[T] = Fence(resource, scope, seal)

    @property
    def name(self) -> str:
        """What people call it."""
        return self._fence.resource.name

    def open(self, lease: BaseLease | int | str) -> Opened[T]:
        """Register as its holder, before the first read: with a lease, its token, or its sealed token.

        Raises StaleToken if a later holder was there; StoreWentBack if the lease is held all the same.
        """
        return Opened(self._fence, drive(self._fence.open(lease)))


class OpenedRedisKey(Opened[bytes]):
    """A key of Redis as one holder has it: `read` is GET, `write` is SET, `call` anything else."""

    def __init__(self, fence: Fence[bytes], shown: Shown, resource: RedisResource) -> None:
        super().__init__(fence, shown)
        self._resource = resource

    def call(self, command: str, *words: str | bytes | float) -> Any:
        """What Redis says to any command whose one key comes first, run on this key under the token, in one call.

        `opened.call("HSET", "field", "1")`. Text comes back as bytes, maps as flat lists, as scripts see them.
        A sharer's command must only read: any other raises ScopeMismatch.
        """
        return drive(self._resource.call(self._shown, command, words))


class RedisKey(Fenced[bytes]):
    """A key of Redis, through your own client of redis-py; see `redis.py` for where its mark lies, and how safely."""

    def __init__(self, client: RedisClient, key: str, *, scope: str | None = None, seal: Seal | None = None) -> None:
        self._resource = RedisResource(client, key, awaited=False)
        super().__init__(self._resource, scope=scope, seal=seal)

    def open(self, lease: BaseLease | int | str) -> OpenedRedisKey:
        """Register as its holder, before the first read: with a lease, its token, or its sealed token.

        Raises StaleToken if a later holder was there; StoreWentBack if the lease is held all the same.
        """
        return OpenedRedisKey(self._fence, drive(self._fence.open(lease)), self._resource)


class OpenedKubernetesObject(Opened[Object]):
    """An object of Kubernetes as one holder has it: `read` gives the whole object."""

    def __init__(self, fence: Fence[Object], shown: Shown, resource: KubernetesResource) -> None:
        super().__init__(fence, shown)
        self._resource = resource

    def write(self, value: Object, *, status: bool = False) -> None:
        """A JSON merge patch, in one step with the mark; `status` changes the status, where the kind keeps it apart."""
        check_writes(self._resource.name, self._shown.scope, shared=self._shown.shared)
        drive(self._resource.write(self._shown.token, value, status=status))


class KubernetesObject(Fenced[Object]):
    """An object of Kubernetes that exists, of `objects` that `leasehold.kube` connected; its mark is an annotation."""

    def __init__(self, objects: Objects, name: str, *, scope: str | None = None, seal: Seal | None = None) -> None:
        self._resource = KubernetesResource(_store_of(objects), name)
        super().__init__(self._resource, scope=scope, seal=seal)

    def open(self, lease: BaseLease | int | str) -> OpenedKubernetesObject:
        """Register as its holder, before the first read: with a lease, its token, or its sealed token.

        Raises StaleToken if a later holder was there; StoreWentBack if the lease is held all the same.
        """
        return OpenedKubernetesObject(self._fence, drive(self._fence.open(lease)), self._resource)


def _store_of(objects: Objects) -> ObjectStore:
    kube = require("leasehold.kube", feature="fence.KubernetesObject", extra="kubernetes")
    if not isinstance(objects, kube.Objects):
        raise InvalidInput("objects", objects, "must be what leasehold.kube.connect() returns")
    store: ObjectStore = objects._store  # noqa: SLF001  one library, two rooms
    return store


class File(Fenced[bytes]):
    """A file, for the processes of one machine; see `files.py` for what lies beside it."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        scope: str | None = None,
        seal: Seal | None = None,
        timeout: float = 5.0,
    ) -> None:
        super().__init__(FileResource(path, timeout), scope=scope, seal=seal)


class OpenedRow(Opened[Values]):
    """A row as one holder has it. `write` sets the columns it is given, and the mark, in one statement.

    A rollback of the transaction that opened it closes it: `write` and `check` then raise InvalidInput.
    """

    def __init__(self, fence: RowFence, shown: Shown) -> None:
        super().__init__(fence, shown)
        self._row = fence

    def check(self) -> None:
        """Cover everything else in this transaction: raises StaleToken if a later holder opened the row."""
        drive(self._row.check(self._shown))


class Row(Fenced[Values]):
    """A row of PostgreSQL or SQLite, over your connection and in your transaction: nothing is committed here.

    See `sql.py` for isolation levels.
    """

    def __init__(
        self,
        connection: Connection[Any] | sqlite3.Connection,
        table: str,
        key: object,
        *,
        column: str = "id",
        mark: str = "lease_mark",
        scope: str | None = None,
        seal: Seal | None = None,
    ) -> None:
        resource = RowResource(database(connection), table, key, column, mark)
        super().__init__(resource, scope=scope, seal=seal)
        self._row = RowFence(resource, scope, seal)

    def open(self, lease: BaseLease | int | str) -> OpenedRow:
        """Register as its holder, before the first read: it lasts with your transaction."""
        return OpenedRow(self._row, drive(self._row.open(lease)))


class OpenedMarks:
    """A mark as one holder has it."""

    def __init__(self, fence: MarksFence, shown: Shown) -> None:
        self._fence = fence
        self._shown = shown

    @property
    def token(self) -> int:
        """What it was opened with."""
        return self._shown.token

    def check(self) -> None:
        """Cover everything in this transaction: raises StaleToken if a later holder opened it."""
        drive(self._fence.check(self._shown))


class Marks:
    """A mark without data, in a table of its own: for groups of rows, for inserts and for deletes.

    Every transaction that reads or changes what it protects calls `check`.
    """

    def __init__(
        self,
        connection: Connection[Any] | sqlite3.Connection,
        key: str,
        *,
        table: str = "leasehold_marks",
        scope: str | None = None,
        seal: Seal | None = None,
    ) -> None:
        resource = MarksResource(database(connection), key, table)
        self._fence = MarksFence(resource, scope, seal)

    @property
    def name(self) -> str:
        """What people call it."""
        return self._fence.resource.name

    def open(self, lease: BaseLease | int | str) -> OpenedMarks:
        """Register as its holder, before the first read: it lasts with your transaction."""
        return OpenedMarks(self._fence, drive(self._fence.open(lease)))


def add_mark(
    connection: Connection[Any] | sqlite3.Connection, table: str, *, mark: str = "lease_mark", trigger: bool = False
) -> None:
    """Give a table its column of marks, and with `trigger` the triggers that make plain SQL obey. Can be repeated."""
    drive(sql_triggers.add_mark(database(connection), table, mark, trigger=trigger))


def add_marks_table(connection: Connection[Any] | sqlite3.Connection, table: str = "leasehold_marks") -> None:
    """Make the table of `Marks`, unless it is there."""
    drive(sql_triggers.add_marks_table(database(connection), table))


@contextlib.contextmanager
def under(connection: Connection[Any] | sqlite3.Connection, lease: BaseLease | int) -> Iterator[None]:
    """In this block plain SQL shows the token to the triggers of fenced tables; their refusal is StaleToken.

    For one transaction: PostgreSQL forgets the token when that ends, and refuses what follows in the block.
    """
    block = sql_triggers.Under(database(connection), token_of(lease))
    drive(block.enter())
    try:
        yield
    except BaseException as error:
        drive(block.leave(error))
        raise
    drive(block.leave(None))
