"""Fenced resources for asyncio: the names of `leasehold.fence`, awaited."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
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
from leasehold.fence.sql_connections import Values, database_aio
from leasehold.rules.fencing import check_writes
from leasehold.rules.sealing import Seal
from leasehold.wires.colour import drive

if TYPE_CHECKING:
    from psycopg import AsyncConnection

    from leasehold.kube.aio import Objects
    from leasehold.kube.objects import ObjectStore

__all__ = [
    "Fenced",
    "File",
    "KubernetesObject",
    "Marks",
    "Opened",
    "OpenedKubernetesObject",
    "OpenedMarks",
    "OpenedRedisKey",
    "OpenedRow",
    "RedisKey",
    "Row",
    "add_mark",
    "add_marks_table",
    "under",
]

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

    async def read(self) -> T:
        """What is there."""
        return await self._fence.read(self._shown)

    async def write(self, value: T) -> None:
        """Replace it; mark and data change in one step."""
        await self._fence.write(self._shown, value)


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

    async def open(self, lease: BaseLease | int | str) -> Opened[T]:
        """Register as its holder, before the first read: with a lease, its token, or its sealed token.

        Raises StaleToken if a later holder was there; StoreWentBack if the lease is held all the same.
        """
        return Opened(self._fence, await self._fence.open(lease))


class OpenedRedisKey(Opened[bytes]):
    """A key of Redis as one holder has it: `read` is GET, `write` is SET, `call` anything else."""

    def __init__(self, fence: Fence[bytes], shown: Shown, resource: RedisResource) -> None:
        super().__init__(fence, shown)
        self._resource = resource

    async def call(self, command: str, *words: str | bytes | float) -> Any:
        """What Redis says to any command whose one key comes first, run on this key under the token, in one call.

        `opened.call("HSET", "field", "1")`. Text comes back as bytes, maps as flat lists, as scripts see them.
        A sharer's command must only read: any other raises ScopeMismatch.
        """
        return await self._resource.call(self._shown, command, words)


class RedisKey(Fenced[bytes]):
    """A key of Redis, through your own client of redis-py; see `redis.py` for where its mark lies, and how safely."""

    def __init__(self, client: RedisClient, key: str, *, scope: str | None = None, seal: Seal | None = None) -> None:
        self._resource = RedisResource(client, key, awaited=True)
        super().__init__(self._resource, scope=scope, seal=seal)

    async def open(self, lease: BaseLease | int | str) -> OpenedRedisKey:
        """Register as its holder, before the first read: with a lease, its token, or its sealed token.

        Raises StaleToken if a later holder was there; StoreWentBack if the lease is held all the same.
        """
        return OpenedRedisKey(self._fence, await self._fence.open(lease), self._resource)


class OpenedKubernetesObject(Opened[Object]):
    """An object of Kubernetes as one holder has it: `read` gives the whole object."""

    def __init__(self, fence: Fence[Object], shown: Shown, resource: KubernetesResource) -> None:
        super().__init__(fence, shown)
        self._resource = resource

    async def write(self, value: Object, *, status: bool = False) -> None:
        """A JSON merge patch, in one step with the mark; `status` changes the status, where the kind keeps it apart."""
        check_writes(self._resource.name, self._shown.scope, shared=self._shown.shared)
        await self._resource.write(self._shown.token, value, status=status)


class KubernetesObject(Fenced[Object]):
    """An object of Kubernetes that exists, of `objects` that `leasehold.kube` connected; its mark is an annotation."""

    def __init__(self, objects: Objects, name: str, *, scope: str | None = None, seal: Seal | None = None) -> None:
        self._resource = KubernetesResource(_store_of(objects), name)
        super().__init__(self._resource, scope=scope, seal=seal)

    async def open(self, lease: BaseLease | int | str) -> OpenedKubernetesObject:
        """Register as its holder, before the first read: with a lease, its token, or its sealed token.

        Raises StaleToken if a later holder was there; StoreWentBack if the lease is held all the same.
        """
        return OpenedKubernetesObject(self._fence, await self._fence.open(lease), self._resource)


def _store_of(objects: Objects) -> ObjectStore:
    kube = require("leasehold.kube.aio", feature="fence.KubernetesObject", extra="kubernetes")
    if not isinstance(objects, kube.Objects):
        raise InvalidInput("objects", objects, "must be what leasehold.kube.aio.connect() returns, awaited")
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
        super().__init__(_InThread(FileResource(path, timeout)), scope=scope, seal=seal)


class OpenedRow(Opened[Values]):
    """A row as one holder has it. `write` sets the columns it is given, and the mark, in one statement.

    A rollback of the transaction that opened it closes it: `write` and `check` then raise InvalidInput.
    """

    def __init__(self, fence: RowFence, shown: Shown) -> None:
        super().__init__(fence, shown)
        self._row = fence

    async def check(self) -> None:
        """Cover everything else in this transaction: raises StaleToken if a later holder opened the row."""
        await self._row.check(self._shown)


class Row(Fenced[Values]):
    """A row of PostgreSQL, over your connection and in your transaction: nothing is committed here.

    SQLite is for `leasehold.fence`: in asyncio, use that in a thread. See `sql.py` for isolation levels.
    """

    def __init__(
        self,
        connection: AsyncConnection[Any],
        table: str,
        key: object,
        *,
        column: str = "id",
        mark: str = "lease_mark",
        scope: str | None = None,
        seal: Seal | None = None,
    ) -> None:
        resource = RowResource(database_aio(connection), table, key, column, mark)
        super().__init__(resource, scope=scope, seal=seal)
        self._row = RowFence(resource, scope, seal)

    async def open(self, lease: BaseLease | int | str) -> OpenedRow:
        """Register as its holder, before the first read: it lasts with your transaction."""
        return OpenedRow(self._row, await self._row.open(lease))


class OpenedMarks:
    """A mark as one holder has it."""

    def __init__(self, fence: MarksFence, shown: Shown) -> None:
        self._fence = fence
        self._shown = shown

    @property
    def token(self) -> int:
        """What it was opened with."""
        return self._shown.token

    async def check(self) -> None:
        """Cover everything in this transaction: raises StaleToken if a later holder opened it."""
        await self._fence.check(self._shown)


class Marks:
    """A mark without data, in a table of its own: for groups of rows, for inserts and for deletes.

    Every transaction that reads or changes what it protects calls `check`.
    """

    def __init__(
        self,
        connection: AsyncConnection[Any],
        key: str,
        *,
        table: str = "leasehold_marks",
        scope: str | None = None,
        seal: Seal | None = None,
    ) -> None:
        resource = MarksResource(database_aio(connection), key, table)
        self._fence = MarksFence(resource, scope, seal)

    @property
    def name(self) -> str:
        """What people call it."""
        return self._fence.resource.name

    async def open(self, lease: BaseLease | int | str) -> OpenedMarks:
        """Register as its holder, before the first read: it lasts with your transaction."""
        return OpenedMarks(self._fence, await self._fence.open(lease))


async def add_mark(
    connection: AsyncConnection[Any], table: str, *, mark: str = "lease_mark", trigger: bool = False
) -> None:
    """Give a table its column of marks, and with `trigger` the triggers that make plain SQL obey. Can be repeated."""
    await sql_triggers.add_mark(database_aio(connection), table, mark, trigger=trigger)


async def add_marks_table(connection: AsyncConnection[Any], table: str = "leasehold_marks") -> None:
    """Make the table of `Marks`, unless it is there."""
    await sql_triggers.add_marks_table(database_aio(connection), table)


@contextlib.asynccontextmanager
async def under(connection: AsyncConnection[Any], lease: BaseLease | int) -> AsyncIterator[None]:
    """In this block plain SQL shows the token to the triggers of fenced tables; their refusal is StaleToken.

    For one transaction: PostgreSQL forgets the token when that ends, and refuses what follows in the block.
    """
    block = sql_triggers.Under(database_aio(connection), token_of(lease))
    await block.enter()
    try:
        yield
    except BaseException as error:
        await block.leave(error)
        raise
    await block.leave(None)


class _InThread:
    """A resource that would hold up the loop. What was begun goes on to its end, even if the caller is cancelled."""

    def __init__(self, resource: FileResource) -> None:
        self._resource = resource

    @property
    def name(self) -> str:
        return self._resource.name

    async def open(self, token: int) -> None:
        await asyncio.to_thread(drive, self._resource.open(token))

    async def read(self, token: int) -> bytes:
        return await asyncio.to_thread(drive, self._resource.read(token))

    async def write(self, token: int, value: bytes) -> None:
        await asyncio.to_thread(drive, self._resource.write(token, value))

    async def load(self) -> tuple[bytes, bytes]:
        return await asyncio.to_thread(drive, self._resource.load())

    async def replace(self, value: bytes, version: bytes) -> bool:
        return await asyncio.to_thread(drive, self._resource.replace(value, version))
