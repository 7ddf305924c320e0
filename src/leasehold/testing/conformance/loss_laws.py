"""What a client promises when a lease ends against its holder's will, and to those who look and repair."""

from __future__ import annotations

import time

import pytest

from leasehold.engine import events
from leasehold.errors import LeaseLost
from leasehold.model import Name, Renewal
from leasehold.testing.conformance.arena import Arena
from leasehold.testing.conformance.exercise import exercises


class LossLaws:
    """Laws of losing."""

    # Losing.

    @exercises("Lease.lost", "Loss.wait", "Lease.why_lost", "Lease.check")
    def test_a_loss_is_told_on_every_channel_before_the_store_frees_it(self, arena: Arena) -> None:
        ada, bob = arena.client("ada"), arena.client("bob")
        called: list[object] = []
        lease = ada.acquire("job", ttl=arena.ttl, on_lost=called.append)
        assert lease.why_lost() is None
        ada.store.down()
        arena.elapse(0.91 * arena.ttl)
        assert not lease.held
        assert lease.lost.is_set()
        arena.eventually(lambda: called)
        assert lease.lost_within(0)
        assert called == [lease.real]
        with pytest.raises(LeaseLost, match="not renewed in time"):
            lease.check()
        assert bob.try_acquire("job", ttl=arena.ttl) is None
        arena.elapse(0.1 * arena.ttl)
        assert bob.try_acquire("job", ttl=arena.ttl).held
        assert [type(event) for event in ada.events if isinstance(event, events.Lost)] == [events.Lost]

    @exercises("Lease.lost", "Locks.break_lease")
    def test_a_lease_the_store_no_longer_has_is_lost_at_the_next_renewal(self, arena: Arena) -> None:
        """Elsewhere the callback never fired when a renewal met a conflict."""
        ada, bob = arena.client(), arena.client()
        called: list[object] = []
        lease = ada.acquire("job", ttl=arena.ttl, on_lost=called.append)
        bob.break_lease("job", reason="law", force=True)
        arena.elapse(0.4 * arena.ttl)
        arena.eventually(lambda: called == [lease.real])
        assert lease.lost.is_set()
        assert "no longer has it" in lease.why_lost()
        assert lease.release() is False

    @exercises("Lease.release")
    def test_a_release_is_not_a_loss(self, arena: Arena) -> None:
        ada = arena.client()
        called: list[object] = []
        lease = ada.acquire("job", ttl=arena.ttl, on_lost=called.append)
        lease.release()
        assert not lease.lost.is_set()
        assert not lease.lost_within(0)
        assert lease.why_lost() is None
        with pytest.raises(LeaseLost, match="released"):
            lease.check()
        assert called == []

    @exercises("Lease.held", "Lease.expires_in")
    def test_wall_clocks_decide_nothing(self, arena: Arena) -> None:
        """Deadlines by time.time(): a clock that was set took the lease away, or gave it twice."""
        ada, bob = arena.client(), arena.client()
        lease = ada.acquire("job", ttl=arena.ttl)
        for jump in (288.0, -288.0, 1e9, -1e9):
            with pytest.MonkeyPatch.context() as patch:
                wall = time.time()
                patch.setattr(time, "time", lambda set_to=wall + jump: set_to)
                assert lease.held
                assert lease.expires_in > 0.8 * arena.ttl
                assert bob.try_acquire("job", ttl=arena.ttl) is None
                assert lease.renew() is Renewal.RENEWED

    @exercises("Locks.acquire")
    def test_max_hold_ends_a_lease_that_is_renewed_for_ever(self, arena: Arena) -> None:
        ada, bob = arena.client(), arena.client()
        lease = ada.acquire("job", ttl=arena.ttl, max_hold=2.5 * arena.ttl)
        arena.live(lease, 2 * arena.ttl)
        assert lease.held
        assert lease.renew() is Renewal.RENEWED
        arena.elapse(0.6 * arena.ttl)
        assert "max_hold" in lease.why_lost()
        # A renewal that was on its way may still have arrived; none follows it.
        waiting = bob.begin("acquire", "job", ttl=arena.ttl)
        arena.elapse(1.1 * arena.ttl)
        arena.eventually(waiting.done)
        assert waiting.result().token > lease.token

    # Looking and repairing.

    @exercises("Locks.inspect", "Lease.metadata", "Lease.holder", "Lease.scope")
    def test_inspect_shows_who_holds_it_and_why(self, arena: Arena) -> None:
        ada, bob = arena.client("ada"), arena.client("bob")
        assert bob.inspect("job") is None
        lease = ada.acquire(Name("job"), ttl=arena.ttl, metadata={"why": "nightly", "where": "rack 4"})
        info = bob.inspect("job")
        assert (info.scope, info.holder, info.token, info.ttl) == ("job", "ada", lease.token, arena.ttl)
        assert info.metadata == {"why": "nightly", "where": "rack 4"} == dict(lease.metadata)
        assert (lease.holder, lease.scope, info.revoked) == ("ada", "job", None)
        assert 0 < info.expires_in <= arena.ttl

    @exercises("Locks.list")
    def test_list_shows_what_is_held_and_nothing_of_other_tenants(self, arena: Arena) -> None:
        ada, eve = arena.client(tenant="acme"), arena.client(tenant="acme2")
        for key in ("b/2", "a", "b/1"):
            ada.acquire(key, ttl=arena.ttl)
        eve.acquire("a", ttl=arena.ttl)
        ada.acquire("gone", ttl=arena.ttl).release()
        assert [info.scope for info in ada.list()] == ["a", "b/1", "b/2"]
        assert [info.scope for info in eve.list()] == ["a"]

    @exercises("Locks.break_lease", "Lease.lost")
    def test_a_revoked_holder_is_told_and_nobody_is_granted_before_the_old_end(self, arena: Arena) -> None:
        ada, bob = arena.client("ada"), arena.client("bob")
        lease = ada.acquire("job", ttl=arena.ttl)
        broken = bob.break_lease("job", reason="stuck deploy")
        assert (broken.holder, broken.token) == ("ada", lease.token)
        shown = bob.inspect("job")
        assert shown is not None
        assert shown.revoked == "stuck deploy"
        arena.elapse(0.4 * arena.ttl)
        arena.eventually(lease.lost.is_set)
        assert lease.why_lost() == "it was revoked: stuck deploy"
        assert bob.try_acquire("job", ttl=arena.ttl) is None
        arena.elapse(0.5 * arena.ttl)
        assert bob.try_acquire("job", ttl=arena.ttl) is None
        arena.elapse(0.2 * arena.ttl)
        assert bob.try_acquire("job", ttl=arena.ttl).token > lease.token

    @exercises("Locks.break_lease", "Lease.release")
    def test_a_revoked_holder_can_still_let_go_of_its_own(self, arena: Arena) -> None:
        ada, bob = arena.client("ada"), arena.client("bob")
        lease = ada.acquire("job", ttl=arena.ttl)
        bob.break_lease("job", reason="law")
        assert lease.release() is True
        assert bob.try_acquire("job", ttl=arena.ttl).held

    @exercises("Locks.break_lease")
    def test_force_frees_at_once_and_breaking_nothing_says_so(self, arena: Arena) -> None:
        ada, bob = arena.client("ada"), arena.client("bob")
        assert bob.break_lease("job", reason="law") is None
        lease = ada.acquire("job", ttl=arena.ttl)
        bob.break_lease("job", reason="law", force=True)
        assert bob.try_acquire("job", ttl=arena.ttl).token > lease.token
        assert lease.renew() is Renewal.LOST
        assert lease.release() is False
        assert bob.inspect("job").holder == "bob"

    @exercises("Locks.gc")
    def test_gc_removes_expired_leases_and_lowers_no_token(self, arena: Arena) -> None:
        ada, bob = arena.client(), arena.client()
        last = [ada.acquire(f"job/{n}", ttl=arena.ttl).token for n in range(5)][-1]
        ada.store.down()
        arena.elapse(1.1 * arena.ttl)
        ada.store.up()
        live = bob.acquire("live", ttl=arena.ttl)
        assert bob.gc() <= 5
        assert [info.scope for info in bob.list()] == ["live"]
        assert live.held
        assert bob.acquire("job/4", ttl=arena.ttl).token > last
