"""How clients wait on any store: in line, passing a hold on inside one client, and for several scopes at once."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import pytest

from leasehold.engine import events
from leasehold.errors import AcquireTimeout, InvalidInput, LeaseLost
from leasehold.model import Conflict, Key, Record, Renewal, Scan, Swap
from leasehold.rules.backoff import Backoff
from leasehold.rules.line import ticket_ttl
from leasehold.rules.timing import granted_ttl
from leasehold.testing.conformance.arena import Arena, Client
from leasehold.testing.conformance.exercise import exercises
from leasehold.testing.faults import cut


class LineLaws:
    """Laws of waiting."""

    # The line.

    @exercises("Locks.acquire", "Locks.inspect")
    def test_who_waits_in_line_is_granted_in_the_order_of_coming(self, arena: Arena) -> None:
        ada, *others = (arena.client(name) for name in ("ada", "bob", "cleo", "dora"))
        lease = ada.acquire("job", ttl=arena.ttl, fair=True)
        waiting = _line_up(arena, others, ttl=arena.ttl, fair=True)
        tokens = [lease.token]
        for who, granted in zip(others, waiting, strict=True):
            lease.release()
            arena.eventually(granted.done)
            lease = who.face(granted.result())
            tokens.append(lease.token)
            assert lease.held
            assert sum(other.done() for other in waiting) == len(tokens) - 1
        assert tokens == sorted(set(tokens))
        assert ada.inspect("job").token == tokens[-1]

    @exercises("Locks.acquire")
    def test_whoever_asks_fairly_waits_although_it_is_free_if_others_came_before(self, arena: Arena) -> None:
        ada, bob, cleo = (arena.client(name) for name in ("ada", "bob", "cleo"))
        lease = ada.acquire("job", ttl=arena.ttl)
        (waiting,) = _line_up(arena, [bob], ttl=arena.ttl, fair=True)
        # Freed by force: nothing is reserved for anybody, and Bob was not told yet.
        bob.store.down()
        ada.break_lease("job", reason="law", force=True)
        assert lease.renew() is Renewal.LOST
        with pytest.raises(AcquireTimeout, match="bob"):
            cleo.acquire("job", ttl=arena.ttl, wait=0, fair=True)
        bob.store.up()
        arena.eventually(waiting.done)
        assert bob.face(waiting.result()).held

    @exercises("Locks.try_acquire", "Lease.release")
    def test_what_a_holder_who_knows_of_others_lets_go_is_kept_for_the_first_of_them(self, arena: Arena) -> None:
        ada, bob, cleo, newcomer = (arena.client(name) for name in ("ada", "bob", "cleo", "newcomer"))
        first = ada.acquire("job", ttl=arena.ttl)
        to_bob, to_cleo = _line_up(arena, [bob, cleo], ttl=arena.ttl)
        first.release()
        arena.eventually(to_bob.done)
        # Bob, who stood in line himself, has seen Cleo behind him. She does not hear of his leaving yet.
        cleo.store.down()
        bob.face(to_bob.result()).release()
        assert newcomer.try_acquire("job", ttl=arena.ttl) is None
        found = newcomer.inspect("job")
        assert found.holder == "cleo" if newcomer.store.guarantees.bequeaths else found.reserved
        cleo.store.up()
        arena.eventually(to_cleo.done)
        assert cleo.face(to_cleo.result()).held

    @exercises("Locks.acquire", "Locks.inspect")
    def test_who_gives_up_leaves_the_line_and_delays_nobody(self, arena: Arena) -> None:
        ada, bob, cleo = (arena.client(name) for name in ("ada", "bob", "cleo"))
        lease = ada.acquire("job", ttl=arena.ttl)
        # So little that nobody's ticket has to be renewed meanwhile.
        short = 0.2 * ticket_ttl(ada.store.guarantees)
        (impatient,) = _line_up(arena, [bob], ttl=arena.ttl, wait=short)
        (patient,) = _line_up(arena, [cleo], ttl=arena.ttl, after=1)
        arena.elapse(1.2 * short)
        arena.eventually(impatient.done)
        assert isinstance(impatient.exception(), AcquireTimeout)
        # He gave it back: it did not end by itself.
        arena.eventually(lambda: [one.holder for one in ada.inspect("job").waiters] == ["cleo"], standing=True)
        lease.release()
        arena.eventually(patient.done)
        assert cleo.face(patient.result()).held

    @exercises("Locks.acquire")
    def test_who_dies_in_line_delays_the_next_by_its_own_short_ttl_at_most(self, arena: Arena) -> None:
        ada, bob, cleo = (arena.client(name) for name in ("ada", "bob", "cleo"))
        lease = ada.acquire("job", ttl=arena.ttl)
        _, patient = _line_up(arena, [bob, cleo], ttl=arena.ttl)
        bob.store.down()
        lease.release()
        arena.elapse(1.1 * ticket_ttl(ada.store.guarantees))
        arena.eventually(patient.done)
        assert cleo.face(patient.result()).held

    @exercises("Locks.acquire")
    def test_a_reservation_that_nobody_comes_for_ends_by_itself(self, arena: Arena) -> None:
        ada, bob, cleo = (arena.client(name) for name in ("ada", "bob", "cleo"))
        first = ada.acquire("job", ttl=arena.ttl)
        to_bob, _ = _line_up(arena, [bob, cleo], ttl=arena.ttl)
        first.release()
        arena.eventually(to_bob.done)
        cleo.store.down()
        bob.face(to_bob.result()).release()
        arena.elapse(1.1 * ticket_ttl(ada.store.guarantees))
        arena.eventually(lambda: ada.try_acquire("job", ttl=arena.ttl))

    @exercises("Locks.acquire")
    def test_a_place_in_line_is_kept_for_longer_than_its_ttl(self, arena: Arena) -> None:
        ada, bob, cleo = (arena.client(name) for name in ("ada", "bob", "cleo"))
        lease = ada.acquire("job", ttl=arena.ttl)
        to_bob, to_cleo = _line_up(arena, [bob, cleo], ttl=arena.ttl)
        # More than after which it is renewed, less than for which it is trusted.
        step = 0.4 * min(ticket_ttl(ada.store.guarantees), arena.ttl)
        for _ in range(6):
            _tick(arena, bob, step)
        arena.eventually(lambda: [one.holder for one in ada.inspect("job").waiters] == ["bob", "cleo"])
        assert not to_bob.done()
        lease.release()
        arena.eventually(to_bob.done)
        assert not to_cleo.done()

    @exercises("Locks.acquire")
    def test_a_claim_whose_reply_was_lost_is_found_again_with_its_token(self, arena: Arena) -> None:
        ada, bob, cleo = (arena.client(name) for name in ("ada", "bob", "cleo"))
        first = ada.acquire("job", ttl=arena.ttl)
        to_bob, to_cleo = _line_up(arena, [bob, cleo], ttl=arena.ttl)
        first.release()
        arena.eventually(to_bob.done)
        second = bob.face(to_bob.result())
        cleo.store.plan("swap", cut)
        second.release()
        arena.eventually(to_cleo.done)
        third = cleo.face(to_cleo.result())
        assert third.token > second.token > first.token
        assert ada.inspect("job").token == third.token
        assert third.renew() is Renewal.RENEWED

    @exercises("Locks.inspect", "Locks.list")
    def test_inspect_shows_who_waits_and_since_when_and_the_list_shows_holders_alone(self, arena: Arena) -> None:
        ada, bob, cleo = (arena.client(name) for name in ("ada", "bob", "cleo"))
        ada.acquire("job", ttl=arena.ttl)
        _line_up(arena, [bob], ttl=arena.ttl, metadata={"why": "report"})
        _line_up(arena, [cleo], ttl=arena.ttl, after=1)
        first, second = ada.inspect("job").waiters
        assert (first.holder, second.holder) == ("bob", "cleo")
        assert first.metadata == {"why": "report"}
        assert 0 < first.since <= second.since
        assert [info.holder for info in ada.list()] == ["ada"]

    @exercises("Store.together")
    def test_what_is_asked_together_is_answered_in_order_as_if_asked_alone(self, arena: Arena) -> None:
        store = arena.store()
        one, other = Key("//name/job", "lock"), Key("//name/job", "ticket/1")
        made, ticket, found = store.together(
            [Swap(one, None, b"a", arena.ttl), Swap(other, None, b"b", arena.ttl), Scan(one.family)]
        )
        assert isinstance(made, Record)
        assert [record.key for record in found] == [one, other]
        assert [record.revision for record in found] == [made.revision, ticket.revision]
        refused, gone, left = store.together(
            [Swap(one, None, b"c", arena.ttl), Swap(one, made, None, None), Scan(one.family)]
        )
        assert isinstance(refused, Conflict)
        assert refused.record is not None
        assert refused.record.value == b"a"
        assert isinstance(gone, Record)
        assert [record.key for record in left] == [other]

    @exercises("Store.together", "Store.watch")
    def test_what_a_watcher_is_told_of_is_what_followed(self, arena: Arena) -> None:
        store, watcher = arena.store(), arena.store()
        lock, own, heir = (Key("app/t/name/told", member) for member in ("lock", "ticket/1", "ticket/2"))
        made, place = store.swap(lock, None, b"held", arena.ttl), store.swap(own, None, b"own", arena.ttl)
        store.swap(heir, None, b"next", arena.ttl)
        watching = watcher.begin("watch", own, place, arena.world.clock.now() + 1000 * arena.ttl)
        store.together([Swap(lock, made, None, None, "ticket/", own), Swap(own, place, None, None)])
        arena.eventually(watching.done)
        told, found = watching.result(), store.load(lock)
        # Not every store tells, and who came late has missed it.
        assert told is None or (told.key, told.value, told.revision) == (lock, b"next", found.revision)

    @exercises("Store.together", "Store.load")
    def test_what_is_let_go_is_followed_by_the_first_born_of_its_heirs_where_the_store_bequeaths(
        self, arena: Arena
    ) -> None:
        store, family = arena.store(), "app/t/name/will"
        lock, own, first, second = (Key(family, member) for member in ("lock", "ticket/1", "ticket/3", "ticket/2"))
        made, _ = store.swap(lock, None, b"mine", arena.ttl), store.swap(own, None, b"own", arena.ttl)
        heirs = [store.swap(key, None, key.member.encode(), 2 * arena.ttl) for key in (first, second)]
        if not store.real.guarantees.bequeaths:
            store.together([Swap(lock, made, None, None, "ticket/", own)])
            assert store.load(lock) is None
            assert len(store.scan(family)) == 3
            return
        for heir in heirs:
            (gone,) = store.together([Swap(lock, made, None, None, "ticket/", own)])
            assert gone == made
            made = store.load(lock)
            assert (made.value, made.ttl) == (heir.value, heir.ttl)
            assert made.born == made.revision > heirs[-1].revision
            (stale,) = store.together([Swap(lock, gone, None, None, "ticket/", own)])
            assert isinstance(stale, Conflict)
            store.swap(heir.key, heir, None, None)
        store.together([Swap(lock, made, None, None, "ticket/", own)])
        assert store.load(lock) is None
        # What was told of it went along.
        assert store.scan(family) == []

    @exercises("Locks.acquire", "Lease.ttl", "Lease.renew")
    def test_who_came_to_it_by_standing_in_line_holds_it_for_what_was_asked(self, arena: Arena) -> None:
        ada, bob = arena.client("ada"), arena.client("bob")
        lease = ada.acquire("job", ttl=arena.ttl, fair=True)
        limits = ada.store.guarantees
        long = granted_ttl(min(8 * max(arena.ttl, ticket_ttl(limits)), limits.ttl_max), limits)
        (waiting,) = _line_up(arena, [bob], ttl=long, metadata={"why": "report"})
        lease.release()
        arena.eventually(waiting.done)
        mine = bob.face(waiting.result())
        assert mine.ttl == long
        assert mine.renew() is Renewal.RENEWED
        found = ada.inspect("job")
        assert (found.holder, found.token, found.ttl) == ("bob", mine.token, long)
        assert dict(found.metadata) == {"why": "report"}
        # Not only the ticket's time.
        arena.elapse(min(2 * ticket_ttl(limits), 0.5 * long))
        assert mine.held
        assert ada.try_acquire("job", ttl=arena.ttl) is None

    # Inside one client.

    @exercises("Locks.acquire", "Lease.token")
    def test_threads_or_tasks_of_one_client_pass_a_hold_on_without_asking_the_store(self, arena: Arena) -> None:
        ada = arena.client("ada")
        lease = ada.acquire("job", ttl=arena.ttl)
        others = [ada.beside() for _ in range(5)]
        waiting = [other.begin("acquire", "job", ttl=arena.ttl) for other in others]
        arena.eventually(lambda: _attempts(ada) == len(others) + 1)
        calls = sum(ada.store.calls.values())
        tokens = [lease.token]
        for _ in others:
            lease.release()
            arena.eventually(lambda: sum(one.done() for one in waiting) == len(tokens))
            who, lease = next(
                (other, other.face(one.result()))
                for other, one in zip(others, waiting, strict=True)
                if one.done() and one.result().token not in tokens
            )
            assert who.locks is ada.locks
            assert lease.held
            tokens.append(lease.token)
        assert sum(ada.store.calls.values()) == calls
        assert tokens == [tokens[0] + passed for passed in range(len(tokens))]

    @exercises("Locks.acquire")
    def test_a_passed_hold_is_renewed_lost_and_released_like_any_other(self, arena: Arena) -> None:
        ada, bob = arena.client("ada"), arena.client("bob")
        first = ada.acquire("job", ttl=arena.ttl)
        other = ada.beside()
        waiting = other.begin("acquire", "job", ttl=arena.ttl)
        arena.eventually(lambda: _attempts(ada) == 2)
        assert first.release() is True
        arena.eventually(waiting.done)
        second = other.face(waiting.result())
        assert not first.held
        assert first.release() is False
        assert second.renew() is Renewal.RENEWED
        assert bob.try_acquire("job", ttl=arena.ttl) is None
        bob.break_lease("job", reason="law")
        assert second.renew() is Renewal.LOST
        second.release()
        third = bob.acquire("job", ttl=arena.ttl, wait=0)
        assert third.token > second.token

    @exercises("Locks.acquire")
    def test_when_a_hold_is_lost_the_next_of_its_client_asks_the_store(self, arena: Arena) -> None:
        ada, bob = arena.client("ada"), arena.client("bob")
        first = ada.acquire("job", ttl=arena.ttl)
        other = ada.beside()
        waiting = other.begin("acquire", "job", ttl=arena.ttl)
        arena.eventually(lambda: _attempts(ada) == 2)
        bob.break_lease("job", reason="law", force=True)
        assert first.renew() is Renewal.LOST
        arena.eventually(waiting.done)
        assert other.face(waiting.result()).token > first.token

    @exercises("Locks.acquire", "Locks.try_acquire")
    def test_who_does_not_wait_long_enough_inside_a_client_is_told_who_holds_it(self, arena: Arena) -> None:
        ada = arena.client("ada")
        lease = ada.acquire("job", ttl=arena.ttl)
        other = ada.beside()
        assert other.try_acquire("job", ttl=arena.ttl) is None
        waiting = other.begin("acquire", "job", ttl=arena.ttl, wait=0.1 * arena.ttl)
        arena.eventually(lambda: _attempts(ada) == 3)
        arena.elapse(0.2 * arena.ttl)
        arena.eventually(waiting.done)
        error = waiting.exception()
        assert isinstance(error, AcquireTimeout)
        assert "ada" in str(error)
        assert lease.release() is True
        assert other.acquire("job", ttl=arena.ttl, wait=0).held

    @exercises("Locks.acquire")
    def test_who_wants_another_ttl_or_other_notes_is_passed_nothing(self, arena: Arena) -> None:
        ada = arena.client("ada")
        lease = ada.acquire("job", ttl=arena.ttl)
        other = ada.beside()
        waiting = other.begin("acquire", "job", ttl=arena.ttl, metadata={"why": "report"})
        arena.eventually(lambda: _attempts(ada) == 2)
        lease.release()
        arena.eventually(waiting.done)
        assert waiting.result().token >= lease.token + 256
        assert dict(ada.inspect("job").metadata) == {"why": "report"}

    # Several at once.

    @exercises("Locks.hold_all")
    def test_several_scopes_are_held_together_each_with_its_token(self, arena: Arena) -> None:
        ada, bob = arena.client("ada"), arena.client("bob")

        def body(leases: Any) -> list[str]:
            assert leases.held
            assert all(lease.token > 0 for lease in leases.values())
            leases.check()
            return list(leases)

        assert ada.within_all(["c", "a", "b", "a"], body, ttl=arena.ttl) == ["a", "b", "c"]
        assert bob.list() == []

    @exercises("Locks.hold_all")
    def test_where_one_of_several_is_busy_none_is_held(self, arena: Arena) -> None:
        ada, bob = arena.client("ada"), arena.client("bob")
        bob.acquire("b", ttl=arena.ttl)
        with pytest.raises(AcquireTimeout, match="'b'"):
            ada.within_all(["a", "b", "c"], lambda leases: leases, ttl=arena.ttl, wait=0)
        assert [info.scope for info in bob.list()] == ["b"]

    @exercises("Locks.hold_all")
    def test_the_loss_of_one_of_several_is_told(self, arena: Arena) -> None:
        ada, bob = arena.client("ada"), arena.client("bob")

        def body(leases: Any) -> None:
            # In the middle of the block: its lease on b is forgotten by the store, and the heartbeat notices.
            leases["b"]._grant.lost = "the law took it"  # noqa: SLF001  as if the store had said so

        with pytest.raises(LeaseLost, match="'b'"):
            ada.within_all(["a", "b"], body, ttl=arena.ttl)
        assert bob.try_acquire("a", ttl=arena.ttl).held

    @exercises("Locks.hold_all")
    def test_nothing_at_all_and_a_text_are_no_list_of_scopes(self, arena: Arena) -> None:
        ada = arena.client("ada")
        bad: Any
        for bad in ([], "ab", 7):
            with pytest.raises(InvalidInput, match="scopes"):
                ada.within_all(bad, lambda leases: leases, ttl=arena.ttl)

    # Asking again.

    @exercises("Locks.acquire")
    def test_a_policy_says_how_often_is_asked_again(self, arena: Arena) -> None:
        ada, bob = arena.client("ada"), arena.client("bob")
        ada.acquire("job", ttl=arena.ttl)
        asking = bob.begin("acquire", "job", ttl=arena.ttl, retry=Backoff(attempts=4))
        arena.eventually(asking.done)
        assert isinstance(asking.exception(), AcquireTimeout)
        assert bob.store.calls["swap"] == 4
        assert ada.inspect("job").waiters == ()

    @exercises("Locks.suggest_retry")
    def test_who_requeues_is_told_when_to_come_again(self, arena: Arena) -> None:
        ada, bob = arena.client("ada"), arena.client("bob")
        assert bob.suggest_retry("job") == 0.0
        ada.acquire("job", ttl=arena.ttl)
        assert 0.04 <= bob.suggest_retry("job") <= 6.0


def _line_up(arena: Arena, people: Sequence[Client], *, after: int = 0, **options: Any) -> list[Future[Any]]:
    """Everybody asks for the job, one after the other; each stands in line before the next comes."""
    waiting = []
    for place, who in enumerate(people, after + 1):
        waiting.append(who.begin("acquire", "job", **options))
        _stands(arena, who.beside(), place)
    return waiting


def _stands(arena: Arena, who: Client, place: int) -> None:
    arena.eventually(lambda: len(who.inspect("job").waiters) == place)


def _tick(arena: Arena, who: Client, seconds: float) -> None:
    """Let time pass, and the heartbeat of somebody who waits keep up with it."""
    before = who.store.calls["touch"]
    arena.elapse(seconds)
    arena.eventually(lambda: who.store.calls["touch"] > before)


def _attempts(client: Client) -> int:
    return sum(isinstance(event, events.Attempt) for event in client.events)
