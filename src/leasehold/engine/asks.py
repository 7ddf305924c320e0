"""What callers want, with every argument checked. Nothing is written before this."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from leasehold.engine.attempt import Ask
from leasehold.engine.grant import Grant
from leasehold.errors import StoreError
from leasehold.model import Key, Name, Scope
from leasehold.rules.arguments import flag, policy
from leasehold.rules.backoff import Retry
from leasehold.rules.names import check_metadata
from leasehold.rules.overlap import Claim, place, together
from leasehold.rules.scopes import any_scope, checked_mode, resource
from leasehold.rules.timing import checked_hold, checked_wait, granted_ttl

if TYPE_CHECKING:
    from leasehold.engine.engine import Engine


def ask_for(
    engine: Engine,
    scope: str | Scope,
    *,
    ttl: float,
    wait: float | None,
    metadata: Mapping[str, str] | None,
    max_hold: float | None,
    mode: str = "exclusive",
    fair: bool = False,
    retry: Retry | None = None,
) -> Ask:
    """What somebody wants who acquires a scope."""
    engine.check_open()
    flag("fair", fair)
    policy("retry", retry, fair=fair)
    given = any_scope(scope)
    length = granted_ttl(ttl, engine.store.guarantees)
    if isinstance(given, Name):
        checked_mode(mode, given)
        text, key, claim = given.text, engine.names.lock(given), None
    else:
        found = resource(given, mode)
        text, key, claim = (
            found.shown,
            presence_key(engine.names.family(found.kind, found.text), found.claim),
            found.claim,
        )
    return Ask(
        text,
        engine.holder,
        key,
        length,
        checked_wait(wait),
        check_metadata(metadata),
        checked_hold(max_hold, length),
        fair=fair,
        retry=retry,
        claim=claim,
    )


def presence_key(family: str, claim: Claim) -> Key:
    """Where somebody's presence will be: a name of its own, that can be found by what is wanted."""
    return Key(family, place(claim) + secrets.token_hex(8))


def candidacy(
    engine: Engine, name: str, identity: str, *, ttl: float, wait: float | None, withdrawn: Callable[[], bool]
) -> Ask:
    """What a candidate in an election wants: the record that says who leads, under the candidate's name."""
    engine.check_open()
    key = engine.names.election(name)
    return Ask(engine.names.text(key), identity, key, ttl, checked_wait(wait), {}, None, withdrawn, lines_up=False)


# Several at once.


def merged(asks: Sequence[Ask]) -> list[tuple[Ask, list[str]]]:
    """One ask for each record that is needed, with the scopes it is for, in the one order that everybody keeps.

    Parts of one resource are asked for together: between two requests for parts of it somebody could come to stand
    who waits for the first and is in the way of the second.
    """
    found: dict[str, tuple[Ask, list[str]]] = {}
    for ask in sorted(asks, key=lambda ask: (ask.key.family, ask.scope)):
        family = ask.key.family
        if family not in found:
            found[family] = (ask, [ask.scope])
            continue
        first, scopes = found[family]
        if first.claim is not None and ask.claim is not None:
            claim = together(first.claim, ask.claim)
            scopes = list(dict.fromkeys([*scopes, ask.scope]))
            key = presence_key(family, claim)
            found[family] = (msgspec.structs.replace(first, scope=" ".join(scopes), key=key, claim=claim), scopes)
    return list(found.values())


async def acquire_all(engine: Engine, asks: Sequence[Ask]) -> list[tuple[Grant, list[str]]]:
    """All of them or none, each once, in one order: so no two wait for each other. Each grant with its scopes."""
    started, grants = engine.clock.now(), list[tuple[Grant, list[str]]]()
    try:
        for ask, scopes in merged(asks):
            left = None if ask.wait is None else max(ask.wait - (engine.clock.now() - started), 0.0)
            grant = await engine.acquire(msgspec.structs.replace(ask, wait=left), reentrant=False)
            grants.append((grant, scopes))
    except BaseException:
        for grant, _ in reversed(grants):
            await engine.runtime.finish(engine.give_back(grant))
        raise
    return grants


async def release_all(engine: Engine, grants: Sequence[Grant]) -> bool:
    """Let go of all of them, the last one first; what the store does not answer for is raised at the end."""
    answers: list[bool] = []
    failed: list[StoreError] = []
    for grant in reversed(grants):
        try:
            answers.append(await engine.release(grant))
        except StoreError as error:
            failed.append(error)
    if failed:
        raise failed[0]
    return all(answers)
