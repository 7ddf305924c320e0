"""What a client promises while requests are dropped, replies lost, doubled, late or overtaken.

Many laws are bugs that other lock libraries had; their names say which.
"""

from __future__ import annotations

import msgspec
import pytest

from leasehold.engine import events
from leasehold.engine.blocking import drive
from leasehold.engine.grant import read_hold
from leasehold.engine.looking import key_of
from leasehold.errors import AcquireTimeout, StoreUnavailable
from leasehold.model import Guarantees, Record, Renewal
from leasehold.stores.base import Store
from leasehold.testing.conformance.arena import Arena, Client, LeaseFace
from leasehold.testing.conformance.exercise import exercises
from leasehold.testing.faults import Call, FaultyStore, cut, delay_reply, drop, duplicate, hang, hold_back, refuse


class FaultLaws:
    """Laws of ambiguity."""

    # A lost reply is not a lost lock.

    @exercises("Locks.acquire", "Locks.list")
    def test_a_retried_acquire_finds_its_own_hold_with_the_same_token(self, arena: Arena) -> None:
        """Elsewhere the retry made a second hold, or waited for itself until the ttl."""
        ada = arena.client("ada")
        ada.store.plan("swap", cut)
        acquiring = ada.begin("acquire", "job", ttl=arena.ttl)
        arena.eventually(acquiring.done)
        lease = ada.face(acquiring.result())
        assert lease.held
        (info,) = ada.list()
        assert info.token == lease.token
        assert ada.store.calls["swap"] == 2

    @exercises("Locks.acquire")
    def test_a_hold_found_again_is_trusted_only_from_its_first_request(self, arena: Arena) -> None:
        ada = arena.client("ada")
        sent: list[float] = []

        async def note_and_cut(store: FaultyStore, call: Call) -> None:
            sent.append(store.colour.clock.now())
            await cut(store, call)

        ada.store.plan("swap", note_and_cut)
        acquiring = ada.begin("acquire", "job", ttl=arena.ttl)
        arena.eventually(acquiring.done)
        lease = ada.face(acquiring.result())
        assert arena.world.clock.now() + lease.expires_in <= sent[0] + 0.9 * arena.ttl + 0.001

    @exercises("Locks.acquire", "Locks.break_lease")
    def test_a_hold_found_again_after_it_was_revoked_is_not_believed(self, arena: Arena) -> None:
        ada, bob = arena.client("ada"), arena.client("bob")
        revoked = ada.store.colour.signal()

        async def cut_when_revoked(store: FaultyStore, call: Call) -> None:
            await call()
            await revoked.wait()
            await drop(store, call)

        ada.store.plan("swap", cut_when_revoked)
        acquiring = ada.begin("acquire", "job", ttl=arena.ttl)
        arena.eventually(lambda: bob.inspect("job"))
        broken = bob.break_lease("job", reason="law")
        revoked.set()
        arena.eventually(lambda: any(isinstance(event, events.Busy) for event in ada.events))
        assert not acquiring.done()
        arena.elapse(1.1 * arena.ttl)
        arena.eventually(acquiring.done)
        assert ada.face(acquiring.result()).token > broken.token

    @exercises("Locks.acquire")
    def test_a_doubled_request_gives_one_hold(self, arena: Arena) -> None:
        ada, bob = arena.client("ada"), arena.client("bob")
        ada.store.plan("swap", duplicate)
        lease = ada.acquire("job", ttl=arena.ttl)
        assert lease.held
        assert lease.release() is True
        assert bob.try_acquire("job", ttl=arena.ttl).token > lease.token

    @exercises("Locks.acquire")
    def test_a_reply_that_comes_after_the_trust_has_ended_is_not_believed(self, arena: Arena) -> None:
        """Counting the deadline from the reply let two clients hold at once."""
        ada, bob = arena.client("ada"), arena.client("bob")
        ada.store.plan("swap", delay_reply(1.5 * arena.ttl))
        acquiring = ada.begin("acquire", "job", ttl=arena.ttl, wait=0)
        arena.eventually(lambda: ada.store.calls["swap"] and bob.inspect("job"))
        arena.elapse(1.2 * arena.ttl)
        mine = bob.acquire("job", ttl=arena.ttl, wait=0)
        arena.elapse(0.4 * arena.ttl)
        arena.eventually(acquiring.done)
        assert isinstance(acquiring.exception(), AcquireTimeout | StoreUnavailable)
        assert bob.inspect("job").token == mine.token

    @exercises("Locks.acquire", "Lease.held")
    def test_a_late_reply_is_believed_once_a_renewal_confirmed_it(self, arena: Arena) -> None:
        ada, bob = arena.client("ada"), arena.client("bob")
        ada.store.plan("swap", delay_reply(0.95 * arena.ttl))
        acquiring = ada.begin("acquire", "job", ttl=arena.ttl, wait=0)
        arena.eventually(lambda: bob.inspect("job"))
        arena.elapse(0.96 * arena.ttl)
        arena.eventually(acquiring.done)
        lease = ada.face(acquiring.result())
        assert lease.held
        assert ada.store.calls["touch"] >= 1
        arena.elapse(0.2 * arena.ttl)
        assert bob.try_acquire("job", ttl=arena.ttl) is None

    @exercises("Locks.acquire")
    def test_an_acquire_that_gave_up_leaves_no_orphan(self, arena: Arena) -> None:
        """An expired try that was granted later, and the ownerless entry of a lost create reply."""
        ada, bob = arena.client("ada"), arena.client("bob")
        ada.store.plan("swap", cut)
        with pytest.raises(StoreUnavailable):
            ada.acquire("job", ttl=arena.ttl, wait=0)
        arena.eventually(lambda: bob.try_acquire("job", ttl=arena.ttl))
        # Told a moment after it is gone.
        arena.eventually(lambda: _cleared(ada))

    @exercises("Locks.acquire")
    def test_a_request_overtaken_by_its_callers_patience_is_undone_when_it_arrives(self, arena: Arena) -> None:
        """An executor finished the acquire after its caller had been cancelled."""
        ada, bob = arena.client("ada"), arena.client("bob")
        ada.store.plan("swap", hold_back)
        with pytest.raises(StoreUnavailable):
            ada.acquire("job", ttl=arena.ttl, wait=0)
        (late,) = ada.person.do(ada.store.deliver if arena.loop else lambda: drive(ada.store.deliver()))
        assert isinstance(late, Record)
        arena.elapse(0.1 * arena.ttl)
        arena.eventually(lambda: bob.inspect("job") is None)

    @exercises("Lease.release")
    def test_a_release_of_unknown_outcome_raises_and_can_be_repeated(self, arena: Arena) -> None:
        """Elsewhere the token was forgotten before the delete was confirmed, and the lock stuck."""
        ada, bob = arena.client("ada"), arena.client("bob")
        lease = ada.acquire("job", ttl=arena.ttl)
        ada.store.down(drop)
        with pytest.raises(StoreUnavailable):
            lease.release()
        assert not lease.held
        ada.store.up()
        arena.eventually(lambda: bob.inspect("job") is None)
        assert lease.release() is False

    @exercises("Lease.release")
    def test_a_release_whose_reply_was_cut_removes_nothing_of_the_next_holder(self, arena: Arena) -> None:
        ada, bob = arena.client("ada"), arena.client("bob")
        lease = ada.acquire("job", ttl=arena.ttl)
        ada.store.plan("swap", cut)
        with pytest.raises(StoreUnavailable):
            lease.release()
        mine = bob.acquire("job", ttl=arena.ttl, wait=0)
        assert lease.release() is False
        arena.elapse(0.1 * arena.ttl)
        assert bob.inspect("job").token == mine.token
        assert mine.held

    @exercises("Locks.hold")
    def test_a_release_that_fails_after_a_good_block_is_told_not_raised(self, arena: Arena) -> None:
        ada = arena.client("ada")

        def body(_lease: LeaseFace) -> str:
            ada.store.plan("swap", drop)
            return "done"

        assert ada.within("job", body, ttl=arena.ttl) == "done"
        (released,) = [event for event in ada.events if isinstance(event, events.Released)]
        assert released.removed is None

    # Renewal under faults.

    @exercises("Lease.renew", "Lease.expires_in")
    def test_a_renewal_without_an_answer_extends_nothing_and_loses_nothing(self, arena: Arena) -> None:
        """A transient error is no loss; and it is no renewal."""
        ada = arena.client("ada")
        lease = ada.acquire("job", ttl=arena.ttl)
        arena.elapse(0.1 * arena.ttl)
        before = lease.expires_in
        for fault in (drop, cut, refuse):
            ada.store.plan("touch", fault)
            assert lease.renew() is Renewal.UNKNOWN
        assert lease.held
        assert lease.expires_in <= before
        assert lease.renew() is Renewal.RENEWED

    @exercises("Lease.held", "Lease.expires_in")
    def test_the_heartbeat_tries_again_inside_the_lease(self, arena: Arena) -> None:
        ada = arena.client("ada")
        lease = ada.acquire("job", ttl=arena.ttl)
        ada.store.plan("touch", drop, refuse, cut)
        arena.live(lease, 2 * arena.ttl)
        assert lease.held
        assert ada.store.calls["touch"] > 3

    @exercises("Lease.held")
    def test_a_store_that_never_answers_cannot_hold_up_the_news_of_a_loss(self, arena: Arena) -> None:
        """A renewal request with a timeout longer than the lease."""
        ada, bob = arena.client("ada"), arena.client("bob")
        called: list[object] = []
        lease = ada.acquire("job", ttl=arena.ttl, on_lost=called.append)
        thaw = ada.store.colour.signal()
        ada.store.down(hang(thaw))
        arena.elapse(0.5 * arena.ttl)
        arena.eventually(lambda: ada.store.calls["touch"])
        arena.elapse(0.41 * arena.ttl)
        assert not lease.held
        arena.eventually(lambda: called)
        assert bob.try_acquire("job", ttl=arena.ttl) is None
        ada.store.up()
        thaw.set()

    @exercises("Lease.held", "Lease.renew")
    def test_not_even_a_bug_in_the_store_stops_the_heartbeat(self, arena: Arena) -> None:
        async def broken(_store: FaultyStore, _call: Call) -> None:
            raise ZeroDivisionError

        ada = arena.client("ada")
        lease = ada.acquire("job", ttl=arena.ttl)
        ada.store.plan("touch", broken, broken, broken)
        assert lease.renew() is Renewal.UNKNOWN
        arena.live(lease, 2 * arena.ttl)
        assert lease.held
        unanswered = [event for event in ada.events if isinstance(event, events.Unanswered)]
        assert [event.error for event in unanswered] == ["ZeroDivisionError: "] * 3

    @exercises("Lease.held")
    def test_a_callback_that_blocks_or_raises_does_not_stop_the_heartbeat(self, arena: Arena) -> None:
        """A stop hook that outlived the deadline it was called for."""
        ada, bob = arena.client("ada"), arena.client("bob")
        called: list[str] = []
        never = ada.store.colour.signal()

        def raises(_lease: object) -> None:
            called.append("raises")
            raise ZeroDivisionError

        def blocks(_lease: object) -> None:
            called.append("blocks")
            drive(never.wait())

        async def hangs(_lease: object) -> None:
            called.append("blocks")
            await never.wait()

        ada.acquire("doomed/1", ttl=arena.ttl, on_lost=raises)
        ada.acquire("doomed/2", ttl=arena.ttl, on_lost=blocks if arena.loop is None else hangs)
        kept = ada.acquire("kept", ttl=arena.ttl)
        for key in ("doomed/1", "doomed/2"):
            bob.break_lease(key, reason="law", force=True)
        arena.live(kept, 2 * arena.ttl)
        assert sorted(called) == ["blocks", "raises"]
        assert kept.held
        never.set()

    # The store is down.

    @exercises("Locks.try_acquire")
    def test_not_knowing_is_not_free(self, arena: Arena) -> None:
        ada = arena.client("ada")
        for fault in (drop, refuse, cut):
            ada.store.plan("swap", fault)
            with pytest.raises(StoreUnavailable):
                ada.try_acquire("job", ttl=arena.ttl)

    @exercises("Locks.hold")
    def test_hold_does_not_run_its_body_while_the_store_is_down(self, arena: Arena) -> None:
        ada = arena.client("ada")
        ada.store.down()
        ran: list[LeaseFace] = []
        with pytest.raises(StoreUnavailable):
            ada.within("job", ran.append, ttl=arena.ttl, wait=0)
        assert ran == []

    @exercises("Locks.acquire")
    def test_a_waiting_acquire_survives_an_outage_inside_its_patience(self, arena: Arena) -> None:
        ada = arena.client("ada")
        ada.store.down(refuse)
        acquiring = ada.begin("acquire", "job", ttl=arena.ttl, wait=arena.ttl)
        arena.elapse(0.3 * arena.ttl)
        assert not acquiring.done()
        ada.store.up()
        arena.elapse(0.3 * arena.ttl)
        arena.eventually(acquiring.done)
        assert ada.face(acquiring.result()).held

    @exercises("Locks.acquire")
    def test_an_outage_longer_than_its_patience_is_told(self, arena: Arena) -> None:
        ada, bob = arena.client("ada"), arena.client("bob")
        ada.store.down(refuse)
        bob.store.down(refuse)
        for acquiring, patience in (
            (ada.begin("acquire", "job", ttl=arena.ttl, wait=0.5 * arena.ttl), 0.6 * arena.ttl),
            (bob.begin("acquire", "job", ttl=arena.ttl), 1.1 * arena.ttl),
        ):
            arena.eventually(lambda: ada.store.calls["swap"])
            for _ in range(20):
                arena.elapse(patience / 10)
                if acquiring.done():
                    break
            arena.eventually(acquiring.done)
            assert isinstance(acquiring.exception(), StoreUnavailable)

    # Records that share an expiry.

    @exercises("Lease.renew")
    def test_where_records_share_an_expiry_no_renewal_counts_while_one_is_in_doubt(self, arena: Arena) -> None:
        """The orphan of a lost reply lived on a shared etcd lease for as long as the client renewed anything."""
        ada = arena.client("ada", change=_shared)
        lease = ada.acquire("kept", ttl=arena.ttl)
        ada.store.plan("swap", cut)
        ada.store.plan("load", *[drop] * 1000)
        with pytest.raises(StoreUnavailable):
            ada.beside().acquire("orphan", ttl=arena.ttl, wait=0)
        assert lease.renew() is Renewal.UNKNOWN
        ada.store.forget_plans()
        arena.elapse(0.06 * arena.ttl)
        arena.eventually(lambda: ada.inspect("orphan") is None)

    # Secrets.

    @exercises("Locks.acquire")
    def test_every_acquisition_has_its_own_secret(self, arena: Arena) -> None:
        ada, store = arena.client("ada"), arena.store()
        secrets = set()
        for _ in range(5):
            lease = ada.acquire("job", ttl=arena.ttl)
            hold = read_hold(store.load(key_of(ada.locks._engine, "job")))  # noqa: SLF001  what no client shows
            assert hold is not None
            assert len(hold.secret) >= 32
            secrets.add(hold.secret)
            assert hold.secret not in repr(ada.inspect("job"))
            lease.release()
        assert len(secrets) == 5


class _Shared(FaultyStore):
    """A store that says its records share one expiry."""

    @property
    def guarantees(self) -> Guarantees:
        return msgspec.structs.replace(self.inner.guarantees, shared_expiry=True)


def _shared(store: FaultyStore) -> Store:
    return _Shared(store, store.colour)


def _cleared(client: Client) -> bool:
    return any(isinstance(event, events.Doubted) for event in client.events)
