"""Handling a key once in the caller's own database: what `sql.Once` means, for both colours.

    look at the row      it has a record: replay it. That is all a duplicate costs
    take the lease       in the store of `locks`; somebody has it: wait for that one, raise, or skip
    raise the mark       of the row, to the lease's token; committed before the work reads anything
    …the work…           in one transaction
    write the record     in that transaction, if the mark is still ours; commit; let go of the lease

What the work did and its record last together or not at all, so no outcome is ever unknown: a row without a record is
work that was not done. Whoever was overtaken finds a larger mark when it writes its record, and all it did is undone.

In a transaction of the caller's (`join`) the mark is raised there, and its row stays locked until that ends: nobody can
overtake, and whoever comes meanwhile waits for the database.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from leasehold.engine.grant import Grant, read_hold
from leasehold.errors import (
    AcquireTimeout,
    FinishedLate,
    InvalidInput,
    KeyReused,
    LeaseLost,
    ResultNotKept,
    StoreDamaged,
    StoreWentBack,
    shown,
)
from leasehold.fence.sql_connections import Database
from leasehold.model import Key, Record, Renewal
from leasehold.patterns.handled import OnceInfo
from leasehold.patterns.handling import AGAIN, Handling, encoded, replay
from leasehold.patterns.work import BaseBegun, Kept, Policy
from leasehold.rules.names import LOCK
from leasehold.rules.once import (
    OnceRecord,
    State,
    check_same,
    checked_fingerprint,
    decode_once,
    failure_of,
    write_once,
)
from leasehold.rules.tokens import PASSES, token
from leasehold.sql.connections import Connection, now
from leasehold.sql.tables import ONCE
from leasehold.wires.chance import chance, secret

if TYPE_CHECKING:
    from leasehold.engine.engine import Engine

# How long a mark without a record is kept, at least: longer than anybody works.
MARK_KEPT = 86400.0


class Row(msgspec.Struct, frozen=True):
    """What the database says of a key."""

    mark: int
    fingerprint: str
    said: OnceRecord | None
    left: float


class Begun(BaseBegun):
    """Work that was begun, with its transaction."""

    __slots__ = ("connection", "place")

    def __init__(self, connection: Connection, grant: Grant, place: Key, said: OnceRecord, policy: Policy) -> None:
        super().__init__(grant, said, policy)
        self.connection: Connection = connection
        self.place: Key = place


class SqlHandling:
    """Everything that one `sql.Once` handles."""

    def __init__(self, engine: Engine, name: str, policy: Policy) -> None:
        self._handling = Handling(engine, name, policy)
        self.engine: Engine = engine

    def changed(self, changes: dict[str, Any]) -> Policy:
        """The options of one run."""
        unknown = changes.keys() & {"retry", "rerun"}
        if unknown:
            raise InvalidInput("options", sorted(unknown), "are not needed here: no outcome is ever unknown")
        return self._handling.changed(changes)

    # Beginning.

    async def begin(self, connection: Connection, key: str, fingerprint: str | None, policy: Policy) -> Begun | Kept:
        """Work to be done now, or what it came to when it was done; raises what `run` raises."""
        self.engine.check_open()
        place, print_ = self._handling.key_of(key), checked_fingerprint(fingerprint)
        started = self.engine.clock.now()
        while True:
            row = await self._look(connection, place)
            if row is not None and row.said is not None:
                check_same(row.said, key, print_)
                self._handling.tell(row.said, "replayed")
                return replay(row.said, policy)
            grant = await self._handling.alone(place, key, policy)
            if isinstance(grant, AcquireTimeout):
                lease = await self._holder(place, row, key, print_)
                if policy.duplicates == "skip":
                    return Kept(None)
                await self._wait(lease, place, grant, policy, started)
                continue
            begun = await self._begin(connection, grant, place, self._fresh(key, print_, grant), policy)
            if begun is not None:
                return begun

    async def _holder(self, place: Key, row: Row | None, key: str, print_: str) -> Record | None:
        """The lease of whoever works on it; raises KeyReused if that is work on another payload."""
        lease = await self.engine.store.load(Key(place.family, LOCK))
        if row is not None and row.fingerprint != print_ and lease is not None:
            hold = read_hold(lease)
            granted = token((hold.granted if hold else 0) or lease.born)
            # The mark may be of somebody before, whose work came to nothing.
            if row.mark // PASSES == granted // PASSES:
                raise KeyReused(key)
        return lease

    async def _wait(
        self, lease: Record | None, place: Key, busy: AcquireTimeout, policy: Policy, started: float
    ) -> None:
        if lease is None:
            # It has just ended, or another thread of this client is about to have it: look again.
            await self.engine.runtime.sleep(AGAIN.delay(0, chance()))
            return
        await self._handling.wait(Key(place.family, LOCK), lease, busy, policy, started)

    def _fresh(self, key: str, print_: str, grant: Grant) -> OnceRecord:
        since = self._handling.wall()
        return OnceRecord(key, self.engine.holder, secret(), since, State.RUNNING, grant.token, fingerprint=print_)

    async def _begin(
        self, connection: Connection, grant: Grant, place: Key, said: OnceRecord, policy: Policy
    ) -> Begun | None:
        """The work, once the mark is ours; None if it was done before we had the lease."""
        try:
            if not await self._raise(connection, place, said, policy):
                row = await self._look(connection, place)
                await self._check_mark(row, grant)
                await self.engine.give_back(grant)
                return None
            await connection.begin()
        except BaseException:
            await self.engine.runtime.finish(self.engine.give_back(grant))
            raise
        self._handling.tell(said, "begun")
        return Begun(connection, grant, place, said, policy)

    async def _check_mark(self, row: Row | None, grant: Grant) -> None:
        if row is None or row.said is not None or row.mark < grant.token:
            return
        if await self.engine.renew(grant) is Renewal.RENEWED:
            # Nobody was granted it after us: so a larger token is from before the store went back.
            raise StoreWentBack(grant.scope, grant.token, row.mark)
        raise LeaseLost(grant.scope, grant.token, "a later holder was there before the work began")

    # Ending.

    async def completed(self, begun: Begun, value: Any) -> Any:
        """Write the record beside what the work did, and make both last."""
        result, unkept = encoded(value, begun.policy.limit)
        ended = self._handling.wall()
        said = msgspec.structs.replace(begun.said, state=State.COMPLETED, ended=ended, result=result, unkept=unkept)
        connection = begun.connection
        try:
            try:
                await connection.check()
                await self._write(connection.database, begun, said)
            except BaseException as error:
                await connection.rollback(error)
                raise
            await connection.commit()
        finally:
            # After the commit: whoever has the lease next finds the record.
            await self.engine.give_back(begun.grant)
        self._handling.tell(said, said.state.value)
        if unkept:
            raise ResultNotKept(said.key, unkept, value)
        return value

    async def failed(self, begun: Begun, error: BaseException) -> None:
        """Undo what the work did; keep a definite failure, in a transaction of its own. The next one may begin anew."""
        connection, outcome = begun.connection, "retried"
        try:
            await connection.rollback(error)
            if isinstance(error, begun.policy.definite) and not connection.joined:
                outcome = State.FAILED.value
                ended, failure = self._handling.wall(), failure_of(error)
                said = msgspec.structs.replace(begun.said, state=State.FAILED, ended=ended, failure=failure)
                if not await connection.change(*self._writing(connection.database, begun, said)):
                    outcome = "late"
        finally:
            self._handling.tell(begun.said, outcome)
            await self.engine.give_back(begun.grant)
        if outcome == "late":
            raise FinishedLate(begun.said.key, begun.said.token) from error

    # Looking and repairing: in the caller's transaction.

    async def inspect(self, database: Database, key: str) -> OnceInfo | None:
        """What the database says of a key."""
        place = self._handling.key_of(key)
        row = await self._find(database, place)
        if row is None or row.said is None:
            return None
        said = row.said
        failure = None if said.failure is None else f"{said.failure.kind}: {said.failure.message}"
        return OnceInfo(
            key, said.state, said.holder, said.token, said.attempt, said.since, said.ended, row.left, (), failure
        )

    async def forget(self, database: Database, key: str) -> bool:
        """Remove what is kept of a key."""
        sql = f"DELETE FROM {ONCE} WHERE key = {database.place}"
        return await database.change(sql, (self._handling.key_of(key).family,), None) > 0

    # Statements.

    async def _look(self, connection: Connection, place: Key) -> Row | None:
        return _row(place, await connection.look(*_finding(connection.database, place)))

    async def _find(self, database: Database, place: Key) -> Row | None:
        return _row(place, await database.rows(*_finding(database, place)))

    async def _raise(self, connection: Connection, place: Key, said: OnceRecord, policy: Policy) -> bool:
        """Raise the mark, unless a record is there, or a larger one."""
        at, clock = connection.database.place, now(postgres=connection.database.postgres)
        sql = (
            f"INSERT INTO {ONCE} AS found (key, mark, fingerprint, record, ends) "
            f"VALUES ({at}, {at}, {at}, NULL, {clock} + {at}) ON CONFLICT (key) DO UPDATE "
            "SET mark = excluded.mark, fingerprint = excluded.fingerprint, record = NULL, ends = excluded.ends "
            f"WHERE found.mark < excluded.mark AND (found.record IS NULL OR found.ends <= {clock})"
        )
        kept = max(policy.keep, MARK_KEPT)
        return await connection.change(sql, (place.family, said.token, said.fingerprint, kept)) > 0

    async def _write(self, database: Database, begun: Begun, said: OnceRecord) -> None:
        sql, given = self._writing(database, begun, said)
        if not await database.change(sql, given, None):
            self._handling.tell(said, "late")
            raise FinishedLate(said.key, said.token)

    def _writing(self, database: Database, begun: Begun, said: OnceRecord) -> tuple[str, tuple[object, ...]]:
        """The record, if the mark is still ours. On PostgreSQL it waits for whoever raises it at this moment."""
        at, clock = database.place, now(postgres=database.postgres)
        sql = f"UPDATE {ONCE} SET record = {at}, ends = {clock} + {at} WHERE key = {at} AND mark = {at}"
        return sql, (write_once(said).decode(), begun.policy.keep, begun.place.family, said.token)


async def collect(database: Database) -> int:
    """Remove what has ended: how many. A run that began longer ago than that is refused at its end."""
    return await database.change(f"DELETE FROM {ONCE} WHERE ends <= {now(postgres=database.postgres)}", (), None)


def _finding(database: Database, place: Key) -> tuple[str, tuple[object, ...]]:
    left = f"ends - {now(postgres=database.postgres)} AS remaining"
    return f"SELECT mark, fingerprint, record, {left} FROM {ONCE} WHERE key = {database.place}", (place.family,)


def _row(place: Key, found: list[dict[str, Any]]) -> Row | None:
    """What was found; a record that has ended is none."""
    if not found:
        return None
    (row,) = found
    text = row["record"] if row["remaining"] > 0 else None
    try:
        said = None if text is None else decode_once(text)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise StoreDamaged(f"the once-record of {shown(place.family)} in {ONCE} cannot be read: {error}") from error
    return Row(row["mark"], row["fingerprint"], said, row["remaining"])
