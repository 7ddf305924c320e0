"""What a client makes of a store that gives smaller tokens than it gave before, on any store."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from leasehold.engine import events
from leasehold.errors import StoreWentBack
from leasehold.model import ByteRange
from leasehold.testing.conformance.arena import Arena, Client
from leasehold.testing.conformance.exercise import exercises
from leasehold.testing.faults import cut
from leasehold.testing.setback import SetBack

# So many grants that a store which counts from one does not catch up within a law.
BEFORE = 8
FIRST, SECOND = ByteRange(7, 0, 10), ByteRange(7, 20, 30)


class BackLaws:
    """Laws of a client's memory."""

    @exercises("Locks.acquire", "Locks.try_acquire", "Locks.hold")
    def test_a_token_that_is_not_larger_is_given_back_and_told(self, arena: Arena) -> None:
        (ada, store), bob = _client(arena), arena.client("bob")
        marks: dict[Any, int] = {scope: _granted(arena, ada, scope) for scope in ("job", FIRST)}
        ran: list[Any] = []
        for scope, mark in marks.items():
            store.set_back()
            for ask in (ada.acquire, ada.try_acquire, functools.partial(ada.within, body=ran.append)):
                with pytest.raises(StoreWentBack, match="Raise its tokens") as told:
                    ask(scope, ttl=arena.ttl)
                assert (told.value.scope, told.value.mark) == (ada.events[-1].scope, mark)
                assert told.value.token <= mark
            # Nothing was left behind, and whoever remembers nothing notices nothing.
            bob.acquire(scope, ttl=arena.ttl, wait=0).release()
            store.repair()
            assert ada.acquire(scope, ttl=arena.ttl, wait=0).token > mark
        assert ran == []

    @exercises("Locks.acquire")
    def test_one_who_waited_for_such_a_token_calls_the_next_in_line(self, arena: Arena) -> None:
        (ada, store), bob, cleo = _client(arena), arena.client("bob"), arena.client("cleo")
        mark = _granted(arena, ada, "job")
        store.set_back()
        held = bob.acquire("job", ttl=arena.ttl)
        to_ada = _begun(arena, ada)
        to_cleo = _begun(arena, cleo)
        held.release()
        arena.eventually(to_ada.done)
        assert isinstance(to_ada.exception(), StoreWentBack)
        arena.eventually(to_cleo.done)
        assert to_cleo.result().token > mark

    @exercises("Locks.acquire", "Locks.break_lease", "Lease.token")
    def test_a_store_that_did_not_go_back_is_not_accused(self, arena: Arena) -> None:
        ada, bob = arena.client("ada"), arena.client("bob")
        first = ada.acquire("job", ttl=arena.ttl)
        assert ada.acquire("job", ttl=arena.ttl, reentrant=True).token == first.token
        passed = [one.begin("acquire", "job", ttl=arena.ttl) for one in (ada.beside(), ada.beside())]
        first.release()
        first.release()
        while passed:
            arena.eventually(lambda: any(one.done() for one in passed))
            done = next(one for one in passed if one.done())
            passed.remove(done)
            ada.face(done.result()).release()
        ada.store.plan("swap", cut)
        again = ada.begin("acquire", "job", ttl=arena.ttl)
        arena.eventually(again.done)
        found = ada.face(again.result())
        bob.break_lease("job", reason="law", force=True)
        found.renew()
        assert ada.acquire("job", ttl=arena.ttl, wait=0).token > found.token > first.token

    @exercises("Locks.acquire")
    def test_one_who_came_first_and_is_served_last_is_not_refused(self, arena: Arena) -> None:
        """Of two parts that are in nobody's way, the later one may be granted first."""
        ada, bob = arena.client("ada"), arena.client("bob")
        held = bob.acquire(FIRST, ttl=arena.ttl)
        waiting = _begun(arena, ada, FIRST)
        later = ada.beside().acquire(SECOND, ttl=arena.ttl)
        held.release()
        arena.eventually(waiting.done)
        assert waiting.exception() is None
        assert waiting.result().token < later.token


def _client(arena: Arena) -> tuple[Client, SetBack]:
    made: list[SetBack] = []

    def change(store: Any) -> SetBack:
        made.append(SetBack(store))
        return made[0]

    return arena.client("ada", change=change), made[0]


def _granted(arena: Arena, who: Client, scope: Any) -> int:
    """The largest token of several grants."""
    tokens: list[int] = []
    for _ in range(BEFORE):
        lease = who.acquire(scope, ttl=arena.ttl)
        tokens.append(lease.token)
        lease.release()
    return max(tokens)


def _begun(arena: Arena, who: Client, scope: Any = "job") -> Any:
    """Somebody who waits by now."""
    begun = who.begin("acquire", scope, ttl=arena.ttl)
    arena.eventually(lambda: any(isinstance(event, events.Busy) for event in who.events))
    return begun
