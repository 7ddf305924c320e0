"""Fenced resources for asyncio: the names of `leasehold.fence`, awaited."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from leasehold.client_aio import like
from leasehold.engine.lease import BaseLease
from leasehold.errors import InvalidInput
from leasehold.extras import require
from leasehold.fence import blocking, sql_triggers
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


@like(blocking.Opened)
class Opened(Generic[T]):
    def __init__(self, fence: Fence[T], shown: Shown) -> None:
        self._fence = fence
        self._shown = shown

    @property
    @like(blocking.Opened.token)
    def token(self) -> int:
        return self._shown.token

    @like(blocking.Opened.read)
    async def read(self) -> T:
        return await self._fence.read(self._shown)

    @like(blocking.Opened.write)
    async def write(self, value: T) -> None:
        await self._fence.write(self._shown, value)


@like(blocking.Fenced)
class Fenced(Generic[T]):
    def __init__(self, resource: Resource[T], *, scope: str | None = None, seal: Seal | None = None) -> None:
        self._fence: Fence[T] = Fence(resource, scope, seal)

    @property
    @like(blocking.Fenced.name)
    def name(self) -> str:
        return self._fence.resource.name

    @like(blocking.Fenced.open)
    async def open(self, lease: BaseLease | int | str) -> Opened[T]:
        return Opened(self._fence, await self._fence.open(lease))


@like(blocking.OpenedRedisKey)
class OpenedRedisKey(Opened[bytes]):
    def __init__(self, fence: Fence[bytes], shown: Shown, resource: RedisResource) -> None:
        super().__init__(fence, shown)
        self._resource = resource

    @like(blocking.OpenedRedisKey.call)
    async def call(self, command: str, *words: str | bytes | float) -> Any:
        return await self._resource.call(self._shown, command, words)


@like(blocking.RedisKey)
class RedisKey(Fenced[bytes]):
    def __init__(self, client: RedisClient, key: str, *, scope: str | None = None, seal: Seal | None = None) -> None:
        self._resource = RedisResource(client, key, awaited=True)
        super().__init__(self._resource, scope=scope, seal=seal)

    @like(blocking.RedisKey.open)
    async def open(self, lease: BaseLease | int | str) -> OpenedRedisKey:
        return OpenedRedisKey(self._fence, await self._fence.open(lease), self._resource)


@like(blocking.OpenedKubernetesObject)
class OpenedKubernetesObject(Opened[Object]):
    def __init__(self, fence: Fence[Object], shown: Shown, resource: KubernetesResource) -> None:
        super().__init__(fence, shown)
        self._resource = resource

    @like(blocking.OpenedKubernetesObject.write)
    async def write(self, value: Object, *, status: bool = False) -> None:
        check_writes(self._resource.name, self._shown.scope, shared=self._shown.shared)
        await self._resource.write(self._shown.token, value, status=status)


@like(blocking.KubernetesObject)
class KubernetesObject(Fenced[Object]):
    def __init__(self, objects: Objects, name: str, *, scope: str | None = None, seal: Seal | None = None) -> None:
        self._resource = KubernetesResource(_store_of(objects), name)
        super().__init__(self._resource, scope=scope, seal=seal)

    @like(blocking.KubernetesObject.open)
    async def open(self, lease: BaseLease | int | str) -> OpenedKubernetesObject:
        return OpenedKubernetesObject(self._fence, await self._fence.open(lease), self._resource)


def _store_of(objects: Objects) -> ObjectStore:
    kube = require("leasehold.kube.aio", feature="fence.KubernetesObject", extra="kubernetes")
    if not isinstance(objects, kube.Objects):
        raise InvalidInput("objects", objects, "must be what leasehold.kube.aio.connect() returns, awaited")
    store: ObjectStore = objects._store  # noqa: SLF001  one library, two rooms
    return store


@like(blocking.File)
class File(Fenced[bytes]):
    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        scope: str | None = None,
        seal: Seal | None = None,
        timeout: float = 5.0,
    ) -> None:
        super().__init__(_InThread(FileResource(path, timeout)), scope=scope, seal=seal)


@like(blocking.OpenedRow)
class OpenedRow(Opened[Values]):
    def __init__(self, fence: RowFence, shown: Shown) -> None:
        super().__init__(fence, shown)
        self._row = fence

    @like(blocking.OpenedRow.check)
    async def check(self) -> None:
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

    @like(blocking.Row.open)
    async def open(self, lease: BaseLease | int | str) -> OpenedRow:
        return OpenedRow(self._row, await self._row.open(lease))


@like(blocking.OpenedMarks)
class OpenedMarks:
    def __init__(self, fence: MarksFence, shown: Shown) -> None:
        self._fence = fence
        self._shown = shown

    @property
    @like(blocking.OpenedMarks.token)
    def token(self) -> int:
        return self._shown.token

    @like(blocking.OpenedMarks.check)
    async def check(self) -> None:
        await self._fence.check(self._shown)


@like(blocking.Marks)
class Marks:
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
    @like(blocking.Marks.name)
    def name(self) -> str:
        return self._fence.resource.name

    @like(blocking.Marks.open)
    async def open(self, lease: BaseLease | int | str) -> OpenedMarks:
        return OpenedMarks(self._fence, await self._fence.open(lease))


@like(blocking.add_mark)
async def add_mark(
    connection: AsyncConnection[Any], table: str, *, mark: str = "lease_mark", trigger: bool = False
) -> None:
    await sql_triggers.add_mark(database_aio(connection), table, mark, trigger=trigger)


@like(blocking.add_marks_table)
async def add_marks_table(connection: AsyncConnection[Any], table: str = "leasehold_marks") -> None:
    await sql_triggers.add_marks_table(database_aio(connection), table)


@like(blocking.under)
@contextlib.asynccontextmanager
async def under(connection: AsyncConnection[Any], lease: BaseLease | int) -> AsyncIterator[None]:
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
