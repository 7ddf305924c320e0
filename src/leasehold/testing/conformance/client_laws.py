"""What a client promises on any store: the contract, point by point, while nothing fails."""

from __future__ import annotations

import threading

import pytest

from leasehold.engine import events
from leasehold.errors import AcquireTimeout, AlreadyHeld, InvalidInput, LeaseLost
from leasehold.model import Renewal
from leasehold.rules.line import ticket_ttl
from leasehold.testing.conformance.arena import Arena, LeaseFace
from leasehold.testing.conformance.exercise import exercises


class ClientLaws:
    """Laws of holding."""

    # Exclusion, tokens, release.

    @exercises("Locks.try_acquire", "Lease.held")
    def test_while_one_holds_nobody_else_is_granted(self, arena: Arena) -> None:
        ada, bob = arena.client("ada"), arena.client("bob")
        lease = ada.try_acquire("job", ttl=arena.ttl)
        assert lease.held
        assert bob.try_acquire("job", ttl=arena.ttl) is None
        assert bob.try_acquire("other", ttl=arena.ttl).held

    @exercises("Locks.acquire", "Lease.token")
    def test_tokens_grow_across_release_expiry_and_force(self, arena: Arena) -> None:
        ada, bob = arena.client("ada"), arena.client("bob")
        tokens = []
        for turn in range(12):
            who = (ada, bob)[turn % 2]
            lease = who.acquire("job", ttl=arena.ttl, wait=0)
            tokens.append(lease.token)
            if turn % 3 == 0:
                lease.release()
            elif turn % 3 == 1:
                who.store.down()
                arena.elapse(1.1 * arena.ttl)
                who.store.up()
            else:
                bob.break_lease("job", reason="law", force=True)
                assert lease.renew() is Renewal.LOST
        assert tokens == sorted(set(tokens))

    @exercises("Lease.release")
    def test_release_is_true_once_and_then_false(self, arena: Arena) -> None:
        ada = arena.client()
        lease = ada.acquire("job", ttl=arena.ttl)
        assert lease.release() is True
        assert lease.release() is False
        assert not lease.held
        assert ada.inspect("job") is None

    @exercises("Lease.release", "Locks.inspect")
    def test_a_late_release_does_not_remove_the_next_holders_lease(self, arena: Arena) -> None:
        """The unconditional DEL of the copied recipe."""
        ada, bob = arena.client("ada"), arena.client("bob")
        late = ada.acquire("job", ttl=arena.ttl)
        ada.store.down()
        arena.elapse(1.1 * arena.ttl)
        # Told, and so no longer renewed: what follows is the late call's doing alone.
        arena.eventually(lambda: any(isinstance(event, events.Lost) for event in ada.events))
        ada.store.up()
        mine = bob.acquire("job", ttl=arena.ttl, wait=0)
        assert late.release() is False
        assert bob.inspect("job").token == mine.token
        assert mine.renew() is Renewal.RENEWED

    @exercises("Lease.renew")
    def test_a_late_renewal_changes_nothing(self, arena: Arena) -> None:
        ada, bob = arena.client("ada"), arena.client("bob")
        late = ada.acquire("job", ttl=arena.ttl)
        ada.store.down()
        arena.elapse(1.1 * arena.ttl)
        # Told, and so no longer renewed: what follows is the late call's doing alone.
        arena.eventually(lambda: any(isinstance(event, events.Lost) for event in ada.events))
        ada.store.up()
        mine = bob.acquire("job", ttl=arena.ttl, wait=0)
        assert late.renew() is Renewal.LOST
        assert bob.inspect("job").token == mine.token

    @exercises("Lease.renew")
    def test_a_renewal_after_release_does_not_resurrect(self, arena: Arena) -> None:
        ada = arena.client()
        lease = ada.acquire("job", ttl=arena.ttl)
        lease.release()
        assert lease.renew() is Renewal.LOST
        assert ada.inspect("job") is None

    @exercises("Locks.acquire")
    def test_the_same_name_after_a_restart_waits_like_anyone(self, arena: Arena) -> None:
        before, after = arena.client("pod-1"), arena.client("pod-1")
        before.acquire("job", ttl=arena.ttl)
        assert after.try_acquire("job", ttl=arena.ttl) is None
        with pytest.raises(AcquireTimeout):
            after.acquire("job", ttl=arena.ttl, wait=0)

    # Keeping and waiting.

    @exercises("Lease.expires_in", "Lease.ttl")
    def test_the_heartbeat_keeps_a_lease_far_beyond_its_ttl(self, arena: Arena) -> None:
        ada, bob = arena.client(), arena.client()
        lease = ada.acquire("job", ttl=arena.ttl)
        arena.live(lease, 4 * arena.ttl)
        assert lease.held
        assert bob.try_acquire("job") is None

    @exercises("Lease.renew", "Lease.expires_in")
    def test_renew_extends_trust_at_once(self, arena: Arena) -> None:
        ada = arena.client()
        lease = ada.acquire("job", ttl=arena.ttl)
        arena.elapse(0.2 * arena.ttl)
        before = lease.expires_in
        assert lease.renew() is Renewal.RENEWED
        assert [answer for answer in Renewal if answer] == [Renewal.RENEWED]
        assert lease.expires_in > before

    @exercises("Locks.acquire")
    def test_a_waiter_is_granted_after_a_release(self, arena: Arena) -> None:
        ada, bob = arena.client("ada"), arena.client("bob")
        first = ada.acquire("job", ttl=arena.ttl)
        waiting = bob.begin("acquire", "job", ttl=arena.ttl)
        arena.eventually(lambda: any(isinstance(event, events.Busy) for event in bob.events))
        assert not waiting.done()
        first.release()
        arena.eventually(waiting.done)
        assert waiting.result().token > first.token

    @exercises("Locks.acquire")
    def test_a_waiter_is_granted_after_a_silent_holders_ttl(self, arena: Arena) -> None:
        ada, bob = arena.client("ada"), arena.client("bob")
        first = ada.acquire("job", ttl=arena.ttl)
        ada.store.down()
        waiting = bob.begin("acquire", "job", ttl=arena.ttl)
        arena.eventually(lambda: any(isinstance(event, events.Busy) for event in bob.events))
        arena.elapse(0.95 * arena.ttl)
        assert not waiting.done()
        arena.elapse(0.1 * arena.ttl)
        arena.eventually(waiting.done)
        assert waiting.result().token > first.token
        assert not first.held

    @exercises("Locks.acquire")
    def test_a_timeout_says_who_for_how_long_and_when_to_ask_again(self, arena: Arena) -> None:
        ada, bob = arena.client("ada"), arena.client("bob")
        ada.acquire("job", ttl=arena.ttl)
        with pytest.raises(AcquireTimeout, match="'job' is held by ada for another") as told:
            bob.acquire("job", ttl=arena.ttl, wait=0)
        assert told.value.holder == "ada"
        assert told.value.expires_in is not None
        assert 0 < told.value.expires_in <= arena.ttl
        assert 0 < told.value.retry_after <= 6.0

    @exercises("Locks.acquire")
    def test_waiting_ends_when_wait_is_over(self, arena: Arena) -> None:
        ada, bob = arena.client("ada"), arena.client("bob")
        lease = ada.acquire("job", ttl=arena.ttl)
        # So little that nothing has to be renewed meanwhile.
        short = 0.2 * min(ticket_ttl(bob.store.guarantees), arena.ttl)
        waiting = bob.begin("acquire", "job", ttl=arena.ttl, wait=short)
        arena.eventually(lambda: any(isinstance(event, events.Busy) for event in bob.events))
        arena.elapse(1.2 * short)
        arena.eventually(waiting.done)
        assert isinstance(waiting.exception(), AcquireTimeout)
        assert lease.held

    # `with`.

    @exercises("Locks.hold")
    def test_hold_runs_the_body_under_the_lease_and_lets_go(self, arena: Arena) -> None:
        ada, bob = arena.client("ada"), arena.client("bob")
        token = ada.within("job", lambda lease: (lease.check(), lease.token)[1], ttl=arena.ttl)
        assert bob.acquire("job", ttl=arena.ttl, wait=0).token > token

    @exercises("Locks.hold")
    def test_hold_never_runs_its_body_without_the_lease(self, arena: Arena) -> None:
        """`with lock:` of a peer ran unlocked after its default timeout."""
        ada, bob = arena.client(), arena.client()
        ada.acquire("job", ttl=arena.ttl)
        ran: list[LeaseFace] = []
        with pytest.raises(AcquireTimeout):
            bob.within("job", ran.append, ttl=arena.ttl, wait=0)
        assert ran == []

    @exercises("Locks.hold")
    def test_the_bodys_own_exception_is_never_masked(self, arena: Arena) -> None:
        ada, bob = arena.client(), arena.client()

        def fail(_lease: LeaseFace) -> None:
            raise ZeroDivisionError

        def lose_and_fail(lease: LeaseFace) -> None:
            ada.store.down()
            arena.elapse(1.1 * arena.ttl)
            assert not lease.held
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            ada.within("job", fail, ttl=arena.ttl)
        with pytest.raises(ZeroDivisionError):
            ada.within("job", lose_and_fail, ttl=arena.ttl)
        ada.store.up()
        assert bob.acquire("job", ttl=arena.ttl, wait=0).held

    @exercises("Locks.hold", "Lease.check")
    def test_leaving_a_block_whose_lease_was_lost_raises(self, arena: Arena) -> None:
        ada = arena.client()

        def outlive(lease: LeaseFace) -> None:
            ada.store.down()
            arena.elapse(1.1 * arena.ttl)
            with pytest.raises(LeaseLost):
                lease.check()

        with pytest.raises(LeaseLost, match="job"):
            ada.within("job", outlive, ttl=arena.ttl)

    @exercises("Locks.locked")
    def test_locked_holds_the_key_made_of_the_arguments(self, arena: Arena) -> None:
        ada = arena.client("ada")
        told: list[str] = []

        def report(user_id: int, *, kind: str = "pdf") -> str:
            told.append(f"{type(ada.events[-1]).__name__} {ada.events[-1].scope}")
            return f"{kind} for {user_id}"

        async def report_async(user_id: int, *, kind: str = "pdf") -> str:
            return report(user_id, kind=kind)

        held = ada.decorated("report:{user_id}:{kind}", report if arena.loop is None else report_async, ttl=arena.ttl)
        assert ada.person.do(lambda: held(7)) == "pdf for 7"
        assert ada.person.do(lambda: held(8, kind="csv")) == "csv for 8"
        assert told == ["Granted report:7:pdf", "Granted report:8:csv"]
        assert ada.list() == []

    # The same thread or task again; handing over; threads.

    @exercises("Locks.acquire")
    def test_asking_again_for_what_one_holds_is_refused_at_once(self, arena: Arena) -> None:
        ada = arena.client()
        lease = ada.acquire("job", ttl=arena.ttl)
        with pytest.raises(AlreadyHeld, match=str(lease.token)):
            ada.acquire("job", ttl=arena.ttl)
        with pytest.raises(AlreadyHeld):
            ada.try_acquire("job", ttl=arena.ttl)
        assert ada.beside().try_acquire("job", ttl=arena.ttl) is None
        lease.release()
        assert ada.acquire("job", ttl=arena.ttl, wait=0).token > lease.token

    @exercises("Lease.depth")
    def test_reentrant_gives_the_same_lease_one_deeper(self, arena: Arena) -> None:
        ada = arena.client()
        outer = ada.acquire("job", ttl=arena.ttl)
        inner = ada.acquire("job", ttl=arena.ttl, reentrant=True)
        assert inner.real is outer.real
        assert (outer.depth, inner.token) == (2, outer.token)
        assert inner.release() is True
        assert outer.held
        assert outer.release() is True
        assert ada.inspect("job") is None

    @exercises("Lease.adopt")
    def test_a_lease_can_be_handed_to_another_thread_or_task(self, arena: Arena) -> None:
        ada = arena.client()
        other = ada.beside()
        lease = ada.acquire("job", ttl=arena.ttl)
        lease.adopt(other)
        with pytest.raises(AlreadyHeld):
            other.acquire("job", ttl=arena.ttl)
        assert ada.try_acquire("job", ttl=arena.ttl) is None
        assert other.person.do(lease.real.release) is True
        assert ada.acquire("job", ttl=arena.ttl, wait=0).held

    @exercises("Locks.acquire", "Lease.release")
    def test_one_client_serves_many_threads_or_tasks_at_once(self, arena: Arena) -> None:
        ada = arena.client()
        users = [ada.beside() for _ in range(6)]
        grants: list[int] = []
        inside: list[int] = []
        lock = threading.Lock()

        def work(user: int) -> None:
            for _ in range(4):
                lease = users[user].acquire("job", ttl=60)
                with lock:
                    inside.append(user)
                    assert len(inside) == 1
                    grants.append(lease.token)
                    inside.pop()
                assert lease.release() is True

        threads = [threading.Thread(target=work, args=(user,)) for user in range(len(users))]
        for thread in threads:
            thread.start()
        arena.eventually(lambda: not any(thread.is_alive() for thread in threads))
        assert len(grants) == 24
        assert grants == sorted(set(grants))

    # Bad input.

    @exercises("Locks.acquire", "Locks.try_acquire", "Locks.inspect", "Locks.break_lease")
    def test_bad_input_is_refused_before_anything_is_written(self, arena: Arena) -> None:
        ada, store = arena.client(), arena.store()
        for key in ("", "a" * 1025, "a" * 10_000_000, "nul\0", "\ud800", b"bytes", 7, None):
            for verb in (ada.acquire, ada.try_acquire, ada.inspect, lambda given: ada.break_lease(given, reason="law")):
                with pytest.raises(InvalidInput, match="scope: ") as told:
                    verb(key)
                assert len(str(told.value)) < 300
        limit = ada.guarantees.ttl_max
        for ttl in (0, -1, ada.guarantees.ttl_min / 2, 2 * limit, float("nan"), float("inf"), "30", None, True):
            with pytest.raises(InvalidInput, match="ttl: "):
                ada.acquire("job", ttl=ttl)
        for field, wrong in (("wait", -1), ("max_hold", 0.001), ("metadata", {"why": 3}), ("on_lost", "print")):
            with pytest.raises(InvalidInput, match=field):
                ada.acquire("job", ttl=arena.ttl, **{field: wrong})
        assert store.page(ada.locks._engine.names.root, None, 10) == []  # noqa: SLF001  what no client shows
        assert ada.store.calls["swap"] == 0

    # The client itself.

    @exercises("Locks.close", "Locks.holder", "Locks.guarantees", "Locks.lag")
    def test_closing_releases_what_is_held(self, arena: Arena) -> None:
        ada, bob = arena.client("ada"), arena.client("bob")
        assert (ada.holder, ada.lag) == ("ada", 0.0)
        assert ada.guarantees == bob.guarantees
        lease = ada.acquire("job", ttl=arena.ttl)
        ada.close()
        assert not lease.held
        assert lease.release() is False
        assert bob.try_acquire("job", ttl=arena.ttl).held

    @exercises("Locks.acquire")
    def test_observers_hear_of_a_whole_life_in_order(self, arena: Arena) -> None:
        ada = arena.client("ada")
        lease = ada.acquire("job", ttl=arena.ttl)
        lease.renew()
        lease.release()
        kinds = [type(event) for event in ada.events]
        assert kinds == [events.Attempt, events.Granted, events.Renewed, events.Released]
        assert all((event.scope, event.holder) == ("job", "ada") for event in ada.events)
