"""What a holder can do with its part of a resource: share it, have it to itself, or let go of some of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from leasehold.engine.asks import presence_key
from leasehold.engine.attempt import Ask
from leasehold.engine.grant import Grant, Hold, is_ours, is_revoked, write_hold
from leasehold.engine.presence import take
from leasehold.errors import InvalidInput, LeaseLost, StoreUnavailable
from leasehold.model import KEEP, Conflict, Record
from leasehold.rules.overlap import Claim, without
from leasehold.rules.scopes import checked_range
from leasehold.rules.timing import checked_wait

if TYPE_CHECKING:
    from leasehold.engine.engine import Engine


async def downgrade(engine: Engine, grant: Grant) -> None:
    """Share what was held exclusively."""
    await _rewrite(engine, grant, _in_mode(_held(engine, grant), shared=True))


async def upgrade(engine: Engine, grant: Grant, wait: float | None) -> None:
    """Wait in line to have to oneself what was shared."""
    claim = _in_mode(_held(engine, grant), shared=False)
    if claim == grant.hold.claim:
        return
    claim = msgspec.structs.replace(claim, replaces=grant.key.member)
    key = presence_key(grant.key.family, claim)
    hold = grant.hold
    ask = Ask(hold.scope, hold.holder, key, grant.ttl, checked_wait(wait), hold.metadata, None, claim=claim)
    fresh = await take(engine, ask, claim)
    # Whatever happens to the caller from here on, one of the two goes.
    await engine.runtime.finish(_replace(engine, grant, fresh))


async def release_part(engine: Engine, grant: Grant, start: int, end: int | None) -> None:
    """Let go of some bytes of what is held."""
    claim = _held(engine, grant)
    if any(part.path for part in claim.parts):
        raise InvalidInput("start", start, "a path has no ranges; release all of it")
    left = without(claim.parts, *checked_range(start, end))
    if not left:
        await engine.release(grant)
    else:
        # Even if we have none of it: the store may, whose answer was lost when we let go of it.
        await _rewrite(engine, grant, msgspec.structs.replace(claim, parts=left))


def _in_mode(claim: Claim, *, shared: bool) -> Claim:
    parts = tuple(msgspec.structs.replace(part, shared=shared) for part in claim.parts)
    return msgspec.structs.replace(claim, parts=parts, replaces="")


def _held(engine: Engine, grant: Grant) -> Claim:
    """What is held; raises if that has no parts or modes, or is not held any more."""
    engine.check_open()
    engine.runtime.check_here()
    claim = grant.hold.claim
    if claim is None:
        raise InvalidInput(
            "lease", grant.scope, "a plain name is held as a whole and exclusively; use leasehold.Shared"
        )
    if claim.permits:
        raise InvalidInput("lease", grant.scope, "a permit has neither modes nor parts")
    _check_held(grant)
    return claim


def _check_held(grant: Grant) -> None:
    reason = grant.loss()
    if reason is not None:
        raise LeaseLost(grant.scope, grant.token, reason)


async def _rewrite(engine: Engine, grant: Grant, claim: Claim) -> None:
    """Want something else from now on, of what is held: less of it, or the same shared. The token stays."""
    hold = msgspec.structs.replace(grant.hold, claim=claim)
    await engine.heartbeat.claim(grant)
    # Believed from now on: if the answer is lost, others may have what we let go of.
    grant.hold = hold
    try:
        answer = await engine.store.swap(grant.key, grant.record, write_hold(hold), KEEP)
        if isinstance(answer, Conflict) and _goes_on(answer.record, hold):
            # Moved by a write of our own whose answer was lost.
            answer = await engine.store.swap(grant.key, answer.record, write_hold(hold), KEEP)
        if not isinstance(answer, Conflict):
            grant.record = answer
    finally:
        engine.heartbeat.unclaim(grant)
    if isinstance(answer, Conflict):
        # Whatever became of it, a renewal meets it too, and tells everybody.
        await engine.renew(grant)
        _check_held(grant)


def _goes_on(record: Record | None, hold: Hold) -> bool:
    return record is not None and is_ours(record, hold) and not is_revoked(record)


async def _replace(engine: Engine, grant: Grant, fresh: Grant) -> None:
    """Go on as what was granted in its place, and let go of what was held until now."""
    try:
        await engine.heartbeat.claim(grant)
    except StoreUnavailable:
        await engine.give_back(fresh)
        raise
    old, secret = grant.record, grant.hold.secret
    try:
        if grant.loss() is not None:
            await engine.give_back(fresh)
            _check_held(grant)
        engine.exchange(grant, fresh)
        await engine.store.swap(old.key, old, None, None)
    except StoreUnavailable:
        # It is held all the same; what is left of the old one is in nobody's way for longer than its ttl.
        engine.doubt(old.key, secret, fresh.ttl)
    finally:
        engine.heartbeat.unclaim(grant)
