"""The names of `leasehold.sql`, awaited: PostgreSQL with psycopg. SQLite is for `leasehold.sql`, in a thread."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

from leasehold.client_aio import Locks, like
from leasehold.errors import InvalidInput
from leasehold.fence.sql_connections import database_aio
from leasehold.patterns.candidate import Candidate
from leasehold.patterns.handled import OnceInfo
from leasehold.patterns.work import KEEP, RESULT_MAX, BaseWork, Duplicates, Errors, Kept, Policy
from leasehold.rules.arguments import function as check_function
from leasehold.rules.backoff import Backoff
from leasehold.rules.names import check_text
from leasehold.rules.timing import DEFAULT_TTL
from leasehold.sql import blocking, handling, outbox, tables
from leasehold.sql.connections import Connection as Ours
from leasehold.sql.connections import Joined, joined_aio, ours_aio
from leasehold.sql.handling import SqlHandling
from leasehold.sql.links import link_aio
from leasehold.sql.outbox import AGAIN, Link, Message, Relaying

if TYPE_CHECKING:
    from psycopg import AsyncConnection

__all__ = ["Message", "Once", "Relay", "Work", "add_tables", "collect", "publish"]

R = TypeVar("R")


@like(blocking.Work)
class Work(BaseWork):
    pass


@like(blocking.Once)
class Once:
    def __init__(
        self,
        locks: Locks,
        name: str = "once",
        *,
        ttl: float = DEFAULT_TTL,
        keep: float = KEEP,
        duplicates: Duplicates = "wait",
        wait: float | None = None,
        definite: Errors = (),
        result: Any = Any,
        limit: int = RESULT_MAX,
        on_replay: Callable[[str, Any], Awaitable[Any]] | None = None,
    ) -> None:
        if not isinstance(locks, Locks):
            raise InvalidInput("locks", locks, "must be what leasehold.aio.connect() returns, awaited")
        policy = Policy(ttl, keep, duplicates, wait, definite, result=result, limit=limit, on_replay=on_replay)
        self._handling = SqlHandling(locks._engine, name, policy)  # noqa: SLF001  one library, two rooms

    @like(blocking.Once.run)
    async def run(
        self,
        connection: AsyncConnection[Any],
        key: str,
        function: Callable[[Work], Awaitable[R]],
        *,
        fingerprint: str | None = None,
        **changes: Any,
    ) -> R:
        return await self._run(ours_aio(connection), key, function, fingerprint, changes)

    @like(blocking.Once.join)
    async def join(
        self,
        connection: AsyncConnection[Any],
        key: str,
        function: Callable[[Work], Awaitable[R]],
        *,
        fingerprint: str | None = None,
        **changes: Any,
    ) -> R:
        return await self._run(Joined(joined_aio(connection)), key, function, fingerprint, changes)

    @like(blocking.Once.inspect)
    async def inspect(self, connection: AsyncConnection[Any], key: str) -> OnceInfo | None:
        return await self._handling.inspect(database_aio(connection), key)

    @like(blocking.Once.forget)
    async def forget(self, connection: AsyncConnection[Any], key: str) -> bool:
        return await self._handling.forget(database_aio(connection), key)

    async def _run(
        self,
        connection: Ours,
        key: str,
        function: Callable[[Work], Awaitable[R]],
        fingerprint: str | None,
        changes: dict[str, Any],
    ) -> R:
        check_function("function", function)
        begun = await self._handling.begin(connection, key, fingerprint, self._handling.changed(changes))
        if isinstance(begun, Kept):
            return cast("R", begun.value if begun.hook is None else await begun.hook(begun.value))
        # Whatever happens to the caller from here on, the transaction comes to its end.
        finish = self._handling.engine.runtime.finish
        try:
            value = await function(Work(begun))
        except BaseException as error:
            await finish(self._handling.failed(begun, error))
            raise
        return cast("R", await finish(self._handling.completed(begun, value)))


@like(blocking.Relay)
class Relay:
    def __init__(
        self,
        locks: Locks,
        connect: Callable[[], Awaitable[AsyncConnection[Any]]],
        publish: Callable[[Message], Awaitable[object]],
        *,
        name: str = "outbox",
        ttl: float = DEFAULT_TTL,
        batch: int = 100,
        poll: float = 1.0,
        backoff: Backoff = AGAIN,
    ) -> None:
        if not isinstance(locks, Locks):
            raise InvalidInput("locks", locks, "must be what leasehold.aio.connect() returns, awaited")
        check_function("connect", connect)
        check_function("publish", publish)

        async def opened() -> Link:
            return link_aio(await connect())

        async def send(message: Message) -> None:
            await publish(message)

        candidate = Candidate(locks._engine, f"outbox/{check_text('name', name)}", None, ttl)  # noqa: SLF001  one library, two rooms
        self._relaying = Relaying(candidate, opened, send, batch=batch, poll=poll, backoff=backoff)

    @like(blocking.Relay.run)
    async def run(self) -> None:
        await self._relaying.run()

    @like(blocking.Relay.drain)
    async def drain(self, *, wait: float | None = None) -> int:
        return await self._relaying.drain(wait)

    @like(blocking.Relay.stop)
    def stop(self) -> None:
        self._relaying.candidate.stop()


@like(blocking.publish)
async def publish(connection: AsyncConnection[Any], topic: str, payload: bytes, *, key: str | None = None) -> int:
    return await outbox.publish(joined_aio(connection), topic, payload, key)


@like(blocking.add_tables)
async def add_tables(connection: AsyncConnection[Any]) -> None:
    await tables.add_tables(database_aio(connection))


@like(blocking.collect)
async def collect(connection: AsyncConnection[Any]) -> int:
    return await handling.collect(database_aio(connection))
