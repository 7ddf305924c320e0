"""What was handled once, for people: looking at it, and repairing what a worker that died left unknown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from leasehold.errors import AcquireTimeout, InvalidInput, StillRunning
from leasehold.model import Conflict, Key
from leasehold.patterns.handling import Handling, encoded
from leasehold.rules.backoff import retry_after
from leasehold.rules.names import LOCK
from leasehold.rules.once import NOTHING, OnceRecord, State, read_once, write_once
from leasehold.wires.chance import chance, secret


class OnceInfo(msgspec.Struct, frozen=True):
    """What the store shows of a key. `since` and `ended` are its worker's wall clock."""

    key: str
    state: State
    holder: str
    token: int
    attempt: int
    since: float
    ended: float | None
    expires_in: float | None
    steps: tuple[str, ...]
    failure: str | None


async def inspect(handling: Handling, key: str) -> OnceInfo | None:
    """What the store says of a key."""
    place = handling.key_of(key)
    found = await handling.engine.store.load(place)
    said = read_once(found)
    if found is None or said is None:
        return None
    state = said.state
    if state is State.RUNNING and await handling.engine.store.load(Key(place.family, LOCK)) is None:
        # It may have been completed between the two looks.
        later = read_once(await handling.engine.store.load(place))
        state = State.UNKNOWN if later == said else (later or said).state
    return OnceInfo(
        key,
        state,
        said.holder,
        said.token,
        said.attempt,
        said.since,
        said.ended or None,
        found.left,
        tuple(one.name for one in said.steps if one.result != NOTHING),
        None if said.failure is None else f"{said.failure.kind}: {said.failure.message}",
    )


async def settle(handling: Handling, key: str, value: Any) -> bool:
    """Keep what an unknown outcome turned out to be, and replay it from now on. False if it is not unknown."""
    place = handling.key_of(key)
    result, unkept = encoded(value, handling.policy.limit)
    if unkept:
        raise InvalidInput("value", value, unkept)

    def settled(said: OnceRecord) -> OnceRecord:
        # No longer the record of whoever began it, who may yet come back from a long pause.
        fresh = secret()
        ended = handling.wall()
        return msgspec.structs.replace(
            said, state=State.COMPLETED, secret=fresh, ended=ended, result=result, failure=None
        )

    return await _repair(handling, place, key, settled, "settled")


async def forget(handling: Handling, key: str) -> bool:
    """Remove what is kept of a key, so that the next one begins anew. False if there was nothing."""
    return await _repair(handling, handling.key_of(key), key, lambda _: None, "forgotten")


async def _repair(
    handling: Handling, place: Key, key: str, change: Callable[[OnceRecord], OnceRecord | None], told: str
) -> bool:
    """Under the lease of whoever would do the work, so that nobody does."""
    engine = handling.engine
    engine.check_open()
    grant = await handling.alone(place, key, handling.policy)
    if isinstance(grant, AcquireTimeout):
        raise StillRunning(key, retry_after(grant.expires_in, chance()))
    try:
        found = await engine.store.load(place)
        said = read_once(found)
        final = None if said is None else change(said)
        if said is None or (final is not None and said.state not in {State.RUNNING, State.UNKNOWN}):
            return False
        value = None if final is None else write_once(final)
        life = None if final is None else handling.life(handling.policy)
        answer = await engine.store.swap(place, found, value, life)
    finally:
        await engine.runtime.finish(engine.give_back(grant))
    if not isinstance(answer, Conflict):
        handling.tell(said, told)
    return not isinstance(answer, Conflict)
