"""Messages that last with the caller's transaction, and the relay that publishes them: for both colours.

`publish` writes a row in the transaction that changes the data. A relay, one at a time for a database, reads rows in
their order, hands them to the publisher, and deletes them in a transaction that is refused once a later one has begun.
A relay that dies between the two leaves what was published to be published again: at least once, and never out of
order. One that was stopped for longer than its lease may still publish the one message it had in hand when it wakes.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import msgspec

from leasehold.engine.events import log_fields
from leasehold.engine.grant import Grant
from leasehold.errors import InvalidInput, LeaseLost, StaleToken
from leasehold.fence.sql import MarksResource
from leasehold.fence.sql_connections import Database, Values
from leasehold.patterns.candidate import GLANCE, Candidate
from leasehold.rules.arguments import whole
from leasehold.rules.backoff import Backoff
from leasehold.rules.names import check_text
from leasehold.rules.timing import seconds
from leasehold.sql.connections import CHANNEL, ROOM, is_transient, now
from leasehold.sql.tables import MARKS, OUTBOX
from leasehold.wires.chance import chance

BATCH_MAX = 10_000
POLL_MAX = 3600.0
MARK = "leasehold outbox"
# After a message that could not be published, and after a database that could not be reached.
AGAIN = Backoff(base=0.1, cap=60.0)
RECONNECT = Backoff(base=0.1, cap=5.0)

_log = logging.getLogger("leasehold")


class Message(msgspec.Struct, frozen=True):
    """What a publisher is given. `id` grows within a key: whoever remembers the largest knows what it has had.

    `token` is the relay's fencing token, `attempt` 1 at first and more after failures.
    """

    id: int
    topic: str
    key: str | None
    payload: bytes
    token: int
    attempt: int


class Batch(msgspec.Struct):
    """What became of some messages: numbers of those that were published, and how long others are left alone."""

    sent: list[int]
    failed: dict[int, float]


class Link(Protocol):
    """A relay's own connection."""

    database: Database

    async def look(self, sql: str, given: Sequence[object]) -> list[Values]:
        """What one statement finds, in no transaction that would last."""
        ...

    async def begin(self) -> None:
        """Begin a transaction."""
        ...

    async def commit(self) -> None:
        """Make it last."""
        ...

    async def rollback(self, error: BaseException) -> None:
        """Undo it, as this happened."""
        ...

    async def heard(self, seconds: float) -> bool:
        """Wait so long; True as soon as somebody says that there is something."""
        ...

    async def close(self) -> None:
        """Let go of it."""
        ...


async def publish(database: Database, topic: str, payload: bytes, key: str | None) -> int:
    """Write a message down, for the relay to publish once the transaction has been committed. Its number."""
    given = (check_text("topic", topic), None if key is None else check_text("key", key), _checked(payload))
    if database.postgres:
        if key is not None:
            # Before the number is drawn, until the end: so that numbers of a key become visible in their order.
            await database.rows("SELECT pg_advisory_xact_lock(%s, hashtext(%s))", (ROOM + 1, key))
        await database.rows("SELECT pg_notify(%s, '')", (CHANNEL,))
    at = database.place
    sql = f"INSERT INTO {OUTBOX} (topic, key, payload) VALUES ({at}, {at}, {at}) RETURNING id"
    ((number,),) = [row.values() for row in await database.rows(sql, given)]
    return int(number)


class Relaying:
    """What `Relay` means. `connect` gives a connection; `send` hands a message to the caller's function."""

    def __init__(
        self,
        candidate: Candidate,
        connect: Callable[[], Awaitable[Link]],
        send: Callable[[Message], Awaitable[None]],
        *,
        batch: int,
        poll: float,
        backoff: Backoff,
    ) -> None:
        self.candidate: Candidate = candidate
        self._connect = connect
        self._send = send
        self._batch = whole("batch", batch, 1, BATCH_MAX)
        self._poll = seconds("poll", poll, 0.01, POLL_MAX)
        if not isinstance(backoff, Backoff):
            raise InvalidInput("backoff", backoff, "must be a leasehold.Backoff")
        self._backoff = backoff

    async def run(self) -> None:
        """Relay whenever it is our turn, until stopped."""
        await self.candidate.lead(self._lead)

    async def drain(self, wait: float | None) -> int:
        """Publish what is due, and come back: how many."""
        grant = await self.candidate.campaign(wait)
        sent, failed = 0, set[int]()
        try:
            link = await self._opened(grant)
            try:
                while not self.candidate.is_over(grant) and (more := await self._relay(link, grant)):
                    sent += len(more.sent)
                    if failed & more.failed.keys():
                        # Not for ever: what failed may be due again at once.
                        break
                    failed |= more.failed.keys()
                _check(grant)
            finally:
                await link.close()
        finally:
            await self.candidate.engine.give_back(grant)
        return sent

    async def _lead(self, grant: Grant) -> None:
        failures = 0
        while not self.candidate.is_over(grant):
            link: Link | None = None
            try:
                link = await self._opened(grant)
                while not self.candidate.is_over(grant):
                    more = await self._relay(link, grant)
                    failures = 0
                    if not more:
                        await self._idle(link, grant)
            except Exception as error:
                if not is_transient(error):
                    raise
                self._warn("the database cannot be reached: %s", grant, error)
                await self.candidate.over_within(grant, RECONNECT.delay(failures, chance()))
                failures += 1
            finally:
                if link is not None:
                    await link.close()

    async def _opened(self, grant: Grant) -> Link:
        """A connection on which a relay before us can no longer delete anything."""
        link = await self._connect()
        try:
            await self._in_transaction(link, grant, [])
        except BaseException:
            await link.close()
            raise
        return link

    async def _relay(self, link: Link, grant: Grant) -> Batch | None:
        """Publish a batch. None if nothing is due."""
        found = await link.look(*_finding(link.database, self._batch))
        if not found:
            return None
        batch = Batch([], {})
        stuck: set[str] = set()
        try:
            for row in found:
                if self.candidate.is_over(grant):
                    break
                if row["key"] in stuck:
                    continue
                message = Message(
                    row["id"], row["topic"], row["key"], bytes(row["payload"]), grant.token, row["attempts"] + 1
                )
                try:
                    await self._send(message)
                except Exception as error:  # noqa: BLE001  logged, and tried again: others must not wait for it
                    batch.failed[message.id] = self._failed(message, error, grant)
                    if message.key is not None:
                        stuck.add(message.key)
                else:
                    batch.sent.append(message.id)
        finally:
            # Also for a publisher that is interrupted: what was published before need not be published again.
            await self.candidate.engine.runtime.finish(self._note(link, grant, batch))
        return batch

    async def _note(self, link: Link, grant: Grant, batch: Batch) -> None:
        sent, at, clock = batch.sent, link.database.place, now(postgres=link.database.postgres)
        notes: list[tuple[str, tuple[object, ...]]] = []
        if sent and link.database.postgres:
            notes.append((f"DELETE FROM {OUTBOX} WHERE id = ANY({at})", (sent,)))
        elif sent:
            notes.append((f"DELETE FROM {OUTBOX} WHERE id IN (SELECT value FROM json_each({at}))", (json.dumps(sent),)))
        later = f"UPDATE {OUTBOX} SET attempts = attempts + 1, due = {clock} + {at} WHERE id = {at}"
        notes += [(later, (delay, number)) for number, delay in batch.failed.items()]
        if notes:
            await self._in_transaction(link, grant, notes)

    async def _in_transaction(self, link: Link, grant: Grant, notes: list[tuple[str, tuple[object, ...]]]) -> None:
        """Under the mark: a relay that was overtaken changes nothing. Without notes, raise it."""
        marks = MarksResource(link.database, MARK, MARKS)
        await link.begin()
        try:
            await (marks.confirm(grant.token) if notes else marks.open(grant.token))
            for sql, given in notes:
                await link.database.change(sql, given, None)
        except StaleToken as error:
            await link.rollback(error)
            if grant.loss() is None:
                raise
            raise LeaseLost(grant.scope, grant.token, "a later relay has begun") from error
        except BaseException as error:
            await link.rollback(error)
            raise
        await link.commit()

    async def _idle(self, link: Link, grant: Grant) -> None:
        """Wait until there may be something: a commit that is heard of, or one that failed and is due again."""
        clock, there = self.candidate.engine.clock, now(postgres=link.database.postgres)
        sql = f"SELECT min(due) - {there} AS remaining FROM {OUTBOX} WHERE due > 0 AND due > {there}"
        ((due,),) = [row.values() for row in await link.look(sql, ())]
        until = clock.now() + (self._poll if due is None else min(self._poll, due))
        while not self.candidate.is_over(grant) and (left := until - clock.now()) > 0:
            if await link.heard(min(GLANCE, left)):
                return

    def _failed(self, message: Message, error: Exception, grant: Grant) -> float:
        """How long to leave it alone."""
        self._warn("message %s of %r could not be published: %s", grant, message.id, message.topic, error)
        return self._backoff.delay(message.attempt - 1, chance())

    def _warn(self, told: str, grant: Grant, *given: object) -> None:
        _log.warning(told, *given, extra=log_fields(grant.scope, grant.hold.holder, grant.token))


def _finding(database: Database, batch: int) -> tuple[str, tuple[object, ...]]:
    """The oldest that are due, and have nothing before them in their key that is not."""
    at, clock = database.place, now(postgres=database.postgres)
    sql = (
        f"SELECT id, topic, key, payload, attempts FROM {OUTBOX} AS one WHERE NOT EXISTS ("
        f"SELECT 1 FROM {OUTBOX} AS held WHERE held.due > 0 AND held.due > {clock} "
        "AND (held.id = one.id OR (held.key = one.key AND held.id < one.id))"
        f") ORDER BY id LIMIT {at}"
    )
    return sql, (batch,)


def _check(grant: Grant) -> None:
    reason = grant.loss()
    if reason is not None:
        raise LeaseLost(grant.scope, grant.token, reason)


def _checked(payload: object) -> bytes:
    if not isinstance(payload, bytes):
        raise InvalidInput("payload", payload, f"must be bytes, not {type(payload).__name__}")
    return payload
