"""Looking at what the store says, and repairing it: for people, and for those who look after others' leases."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

import msgspec

from leasehold.engine.events import Revoked
from leasehold.engine.grant import describe, describe_waiter, read_hold, write_hold
from leasehold.engine.presence import presents
from leasehold.errors import StoreDamaged, StoreUnavailable
from leasehold.model import KEEP, Conflict, Key, LeaseInfo, Name, Record, Resource, ResourceInfo, Scope
from leasehold.rules.arguments import flag, whole
from leasehold.rules.backoff import retry_after
from leasehold.rules.line import is_ticket, tickets_of
from leasehold.rules.names import LOCK, scope_of
from leasehold.rules.once import ONCE
from leasehold.rules.overlap import conflicts, draw, holders
from leasehold.rules.scopes import INODE_KIND, Meant, any_scope, resource
from leasehold.wires.chance import chance

if TYPE_CHECKING:
    from leasehold.engine.engine import Engine

PAGE = 500
BREAK_TRIES = 5


async def inspect(engine: Engine, scope: str | Name) -> LeaseInfo | None:
    """What the store says of one name, and who stands in line for it."""
    key = key_of(engine, scope)
    # By its name: what others wrote may not be found as one of a family.
    lock = await engine.store.load(key)
    if lock is None:
        return None
    hold, found = read_hold(lock), await engine.store.scan(key.family)
    # Whoever holds it gives its ticket back with it, and waits for nothing.
    tickets = [one for one in tickets_of(found) if hold is None or one.key.member != hold.ticket]
    waiters = tuple(map(describe_waiter, tickets))
    return msgspec.structs.replace(describe(lock, engine.names.text(key)), waiters=waiters)


async def inspect_resource(engine: Engine, scope: Resource) -> ResourceInfo:
    """Who is there for anything that a scope overlaps."""
    meant, held, waiting = await _overlapping(engine, scope)
    return ResourceInfo(
        meant.shown,
        tuple(map(_describe, held)),
        tuple(map(describe_waiter, waiting)),
        draw(presents([*held, *waiting])) if meant.kind == INODE_KIND else "",
    )


async def _overlapping(engine: Engine, scope: Resource) -> tuple[Meant, list[Record], list[Record]]:
    """Who holds and who waits for something that a scope overlaps, the first born first."""
    engine.check_open()
    meant = resource(scope, "exclusive")
    # All of them: whoever waits may wait for somebody who is not near.
    found = await engine.store.scan(engine.names.family(meant.kind, meant.text))
    everybody = presents(found)
    near = {one.member for one in everybody if meant.claim.permits or conflicts(one.claim, meant.claim)}
    held = {one.member for one in holders(everybody)}
    records = [record for record in found if record.key.member in near]
    return (
        meant,
        [record for record in records if record.key.member in held],
        [record for record in records if record.key.member not in held],
    )


def _describe(record: Record) -> LeaseInfo:
    hold = read_hold(record)
    return describe(record, hold.scope if hold else record.key.family)


def key_of(engine: Engine, scope: str | Name) -> Key:
    """Where the record of a name lives, for those who only look."""
    engine.check_open()
    return engine.names.lock(scope_of(scope))


async def list_leases(engine: Engine) -> list[LeaseInfo]:
    """Everything held under this client's prefix and tenant."""
    engine.check_open()
    records: list[Record] = []
    while True:
        page = await engine.store.page(engine.names.root, records[-1].key if records else None, PAGE)
        records += page
        if len(page) < PAGE:
            break
    return [
        info for _, family in groupby(records, lambda record: record.key.family) for info in _held(engine, [*family])
    ]


def _held(engine: Engine, family: list[Record]) -> list[LeaseInfo]:
    """What is held of one family: its lock, or the parts of those who wait for nobody."""
    lock = next((record for record in family if record.key.member == LOCK), None)
    if lock is not None:
        return [describe(lock, engine.names.text(lock.key))]
    present = [record for record in family if not is_ticket(record.key) and record.key.member != ONCE]
    held = {one.member for one in holders(presents(present))}
    return [_describe(record) for record in sorted(present, key=lambda one: one.born) if record.key.member in held]


async def break_lease(engine: Engine, scope: str | Scope, reason: str, *, force: bool) -> LeaseInfo | None:
    """Revoke in place, or free at once. Returns what was broken, or None if nothing is held.

    Of a resource: whatever is held of what the scope overlaps; the first of those is returned.
    """
    flag("force", force)
    given = any_scope(scope)
    if isinstance(given, Name):
        return await _break_one(engine, key_of(engine, given), reason, force=force)
    _, held, _ = await _overlapping(engine, given)
    broken = [await _break_one(engine, record.key, reason, force=force) for record in held]
    return next((info for info in broken if info is not None), None)


async def _break_one(engine: Engine, key: Key, reason: str, *, force: bool) -> LeaseInfo | None:
    for _ in range(BREAK_TRIES):
        record = await engine.store.load(key)
        if record is None:
            return None
        answer = await _break(engine, record, reason, force=force)
        if not isinstance(answer, Conflict):
            told = describe(record, engine.names.text(key)) if key.member == LOCK else _describe(record)
            engine.emit(Revoked(told.scope, told.holder, told.token, reason, force))
            return told
    raise StoreUnavailable(f"{key.family!r} changed {BREAK_TRIES} times while it was being broken; try again")


async def _break(engine: Engine, record: Record, reason: str, *, force: bool) -> Record | Conflict:
    if force:
        return await engine.store.swap(record.key, record, None, None)
    hold = read_hold(record)
    if hold is None:
        raise StoreDamaged(
            f"the record of {record.key.family!r} was not written by Leasehold; use force=True to free it"
        )
    revoked = write_hold(msgspec.structs.replace(hold, revoked=reason))
    return await engine.store.swap(record.key, record, revoked, KEEP)


async def collect(engine: Engine, limit: int) -> int:
    """Delete expired records, a page at a time."""
    engine.check_open()
    whole("limit", limit, 0)
    gone = 0
    while gone < limit:
        some = await engine.store.collect(min(PAGE, limit - gone))
        gone += some
        if some < PAGE:
            break
    return gone


async def suggest_retry(engine: Engine, scope: str | Scope) -> float:
    """The seconds after which to ask for it again: 0 if it is free now."""
    given = any_scope(scope)
    if isinstance(given, Name):
        record = await engine.store.load(key_of(engine, given))
        return 0.0 if record is None else retry_after(record.left, chance())
    meant, held, waiting = await _overlapping(engine, given)
    records = held + waiting
    if len(records) < max(meant.claim.permits, 1):
        return 0.0
    return retry_after(min((record.left for record in records if record.left is not None), default=None), chance())
