"""Looking at what the store says, and repairing it: for people, and for those who look after others' leases."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from leasehold.engine.events import Revoked
from leasehold.engine.grant import describe, describe_waiter, read_hold, write_hold
from leasehold.errors import StoreDamaged, StoreUnavailable
from leasehold.model import KEEP, Conflict, Key, LeaseInfo, Record
from leasehold.rules.arguments import flag, whole
from leasehold.rules.backoff import retry_after
from leasehold.rules.line import is_ticket, tickets_of
from leasehold.wires.chance import chance

if TYPE_CHECKING:
    from leasehold.engine.engine import Engine

PAGE = 500
BREAK_TRIES = 5


async def inspect(engine: Engine, key: Key) -> LeaseInfo | None:
    """What the store says of one key, and who stands in line for it."""
    # By its name: what others wrote may not be found as one of a family.
    lock = await engine.store.load(key)
    if lock is None:
        return None
    hold, found = read_hold(lock), await engine.store.scan(key.family)
    # Whoever holds it gives its ticket back with it, and waits for nothing.
    tickets = [one for one in tickets_of(found) if hold is None or one.key.member != hold.ticket]
    waiters = tuple(map(describe_waiter, tickets))
    return msgspec.structs.replace(describe(lock, engine.names.text(key)), waiters=waiters)


async def list_leases(engine: Engine) -> list[LeaseInfo]:
    """Everything held under this client's prefix and tenant."""
    engine.check_open()
    found: list[LeaseInfo] = []
    last: Key | None = None
    while True:
        page = await engine.store.page(engine.names.root, last, PAGE)
        locks = (record for record in page if not is_ticket(record.key))
        found += [describe(record, engine.names.text(record.key)) for record in locks]
        if len(page) < PAGE:
            return found
        last = page[-1].key


async def break_lease(engine: Engine, key: Key, reason: str, *, force: bool) -> LeaseInfo | None:
    """Revoke in place, or free at once. Returns what was broken, or None if nothing is held."""
    flag("force", force)
    for _ in range(BREAK_TRIES):
        record = await engine.store.load(key)
        if record is None:
            return None
        answer = await _break(engine, record, reason, force=force)
        if not isinstance(answer, Conflict):
            told = describe(record, engine.names.text(key))
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


async def suggest_retry(engine: Engine, key: Key) -> float:
    """The seconds after which to ask for it again: 0 if it is free now."""
    engine.check_open()
    record = await engine.store.load(key)
    return 0.0 if record is None else retry_after(record.left, chance())
