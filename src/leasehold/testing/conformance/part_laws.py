"""How clients hold parts of what many share, on any store: readers and writers, ranges, paths, permits."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import pytest

from leasehold.errors import AcquireTimeout, AlreadyHeld, InvalidInput, LeaseLost, WouldDeadlock
from leasehold.model import ByteRange, Inode, Path, Permit, Renewal, Resource, Shared
from leasehold.rules.line import ticket_ttl
from leasehold.rules.overlap import END
from leasehold.testing.conformance.arena import Arena, Client, LeaseFace
from leasehold.testing.conformance.exercise import exercises
from leasehold.testing.faults import cut

NAMES = ("ada", "bob", "cleo", "dora")
DOC = Shared("report")


class PartLaws:
    """Laws of parts."""

    # Readers and writers.

    @exercises("Locks.acquire", "Locks.try_acquire", "Lease.mode")
    def test_readers_share_and_a_writer_has_it_to_itself(self, arena: Arena) -> None:
        ada, bob, cleo = _people(arena, 3)
        first = ada.acquire(DOC, ttl=arena.ttl, mode="shared")
        second = bob.acquire(DOC, ttl=arena.ttl, mode="shared")
        assert first.held
        assert (second.held, second.mode) == (True, "shared")
        assert second.token > first.token
        assert cleo.try_acquire(DOC, ttl=arena.ttl) is None
        first.release()
        assert cleo.try_acquire(DOC, ttl=arena.ttl) is None
        second.release()
        writer = cleo.acquire(DOC, ttl=arena.ttl, wait=0)
        assert (writer.mode, writer.token > second.token) == ("exclusive", True)
        assert ada.try_acquire(DOC, ttl=arena.ttl, mode="shared") is None

    @exercises("Locks.acquire", "Locks.inspect")
    def test_no_reader_who_came_later_passes_a_writer_who_waits(self, arena: Arena) -> None:
        ada, bob, cleo, dora = _people(arena, 4)
        reader = ada.acquire(DOC, ttl=arena.ttl, mode="shared")
        (to_bob,) = _line_up(arena, [bob], DOC, ttl=arena.ttl)
        (to_cleo,) = _line_up(arena, [cleo], DOC, ttl=arena.ttl, mode="shared", after=1)
        assert dora.try_acquire(DOC, ttl=arena.ttl, mode="shared") is None
        reader.release()
        arena.eventually(to_bob.done)
        writer = bob.face(to_bob.result())
        assert writer.held
        assert not to_cleo.done()
        writer.release()
        arena.eventually(to_cleo.done)
        assert cleo.face(to_cleo.result()).token > writer.token > reader.token

    @exercises("Lease.downgrade", "Lease.mode")
    def test_a_writer_who_becomes_a_reader_keeps_its_token_and_lets_readers_in(self, arena: Arena) -> None:
        ada, bob = _people(arena, 2)
        lease = ada.acquire(DOC, ttl=arena.ttl)
        (waiting,) = _line_up(arena, [bob], DOC, ttl=arena.ttl, mode="shared")
        token = lease.token
        lease.downgrade()
        assert (lease.token, lease.mode, lease.held) == (token, "shared", True)
        arena.eventually(waiting.done)
        assert bob.face(waiting.result()).held
        assert lease.renew() is Renewal.RENEWED
        assert lease.release() is True

    @exercises("Lease.upgrade")
    def test_a_reader_becomes_the_writer_with_a_new_token_once_the_others_have_gone(self, arena: Arena) -> None:
        ada, bob, cleo = _people(arena, 3)
        first, second = (who.acquire(DOC, ttl=arena.ttl, mode="shared") for who in (ada, bob))
        old = first.token
        becoming = _upgrading(arena, ada, first)
        _stands(arena, cleo, DOC, 1)
        assert (first.held, first.mode) == (True, "shared")
        second.release()
        arena.eventually(becoming.done)
        assert becoming.result() is None
        assert (first.held, first.mode) == (True, "exclusive")
        assert first.token > second.token > old
        assert [info.token for info in cleo.inspect(DOC).holders] == [first.token]
        assert cleo.try_acquire(DOC, ttl=arena.ttl, mode="shared") is None
        assert first.release() is True
        assert cleo.try_acquire(DOC, ttl=arena.ttl) is not None

    @exercises("Lease.upgrade")
    def test_the_second_reader_who_would_become_the_writer_is_refused_and_stays_a_reader(self, arena: Arena) -> None:
        ada, bob, cleo = _people(arena, 3)
        first, second = (who.acquire(DOC, ttl=arena.ttl, mode="shared") for who in (ada, bob))
        becoming = _upgrading(arena, ada, first)
        _stands(arena, cleo, DOC, 1)
        with pytest.raises(WouldDeadlock, match="Release it"):
            second.upgrade()
        assert (second.held, second.mode) == (True, "shared")
        assert len(cleo.inspect(DOC).waiters) == 1
        second.release()
        arena.eventually(becoming.done)
        assert first.mode == "exclusive"

    @exercises("Lease.upgrade")
    def test_a_reader_in_whose_way_a_writer_waits_is_refused_too(self, arena: Arena) -> None:
        ada, bob = _people(arena, 2)
        reader = ada.acquire(DOC, ttl=arena.ttl, mode="shared")
        (waiting,) = _line_up(arena, [bob], DOC, ttl=arena.ttl)
        with pytest.raises(WouldDeadlock):
            reader.upgrade()
        assert reader.held
        reader.release()
        arena.eventually(waiting.done)

    @exercises("Lease.upgrade")
    def test_an_upgrade_that_takes_too_long_leaves_the_reader_as_it_was(self, arena: Arena) -> None:
        ada, bob = _people(arena, 2)
        first, second = (who.acquire(DOC, ttl=arena.ttl, mode="shared") for who in (ada, bob))
        with pytest.raises(AcquireTimeout, match="bob"):
            first.upgrade(wait=0)
        assert (first.held, first.mode) == (True, "shared")
        assert bob.inspect(DOC).waiters == ()
        assert second.release() is first.release() is True

    # Files.

    @exercises("Locks.acquire", "Locks.try_acquire")
    def test_ranges_are_in_each_others_way_where_they_overlap_and_an_inode_is_in_the_way_of_all(
        self, arena: Arena
    ) -> None:
        ada, bob = _people(arena, 2)
        first = ada.acquire(ByteRange(7, 0, 100), ttl=arena.ttl)
        assert bob.try_acquire(ByteRange(7, 99, 100), ttl=arena.ttl) is None
        assert bob.try_acquire(Inode(7), ttl=arena.ttl) is None
        assert bob.try_acquire(ByteRange(8, 0, 100), ttl=arena.ttl).held
        next_to_it = bob.acquire(ByteRange(7, 100, None), ttl=arena.ttl, wait=0)
        assert next_to_it.token > first.token
        assert ada.try_acquire(ByteRange(7, END - 1, END), ttl=arena.ttl) is None
        first.release()
        next_to_it.release()
        whole = bob.acquire(Inode(7), ttl=arena.ttl, wait=0)
        assert whole.token > next_to_it.token
        assert ada.try_acquire(ByteRange(7, 1 << 40, 1 << 41), ttl=arena.ttl) is None

    @exercises("Lease.release_part")
    def test_what_is_left_of_a_range_keeps_its_token(self, arena: Arena) -> None:
        ada, bob, cleo = _people(arena, 3)
        lease = ada.acquire(ByteRange(7, 0, 100), ttl=arena.ttl)
        token = lease.token
        (waiting,) = _line_up(arena, [bob], ByteRange(7, 40, 60), ttl=arena.ttl)
        lease.release_part(40, 60)
        arena.eventually(waiting.done)
        middle = bob.face(waiting.result())
        assert middle.token > lease.token == token
        assert lease.held
        for start, end in ((0, 40), (60, 100)):
            assert cleo.try_acquire(ByteRange(7, start, end), ttl=arena.ttl) is None
        assert cleo.try_acquire(ByteRange(7, 100, 101), ttl=arena.ttl).held
        lease.release_part(0, None)
        assert not lease.held
        assert cleo.try_acquire(ByteRange(7, 0, 40), ttl=arena.ttl).held

    @exercises("Locks.acquire")
    def test_a_path_is_in_the_way_of_what_lies_above_and_below_it(self, arena: Arena) -> None:
        ada, bob = _people(arena, 2)
        lease = ada.acquire(Path("/data/./photos//2026/"), ttl=arena.ttl)
        for taken in ("/data/photos/2026", "/data/photos/2026/may", "/data", "/"):
            assert bob.try_acquire(Path(taken), ttl=arena.ttl) is None
        for free in ("/data/photos/202", "/data/photos/2026-may", "/data/film"):
            assert bob.try_acquire(Path(free), ttl=arena.ttl).held
        # Another root is another world.
        assert bob.try_acquire(Path("/data/photos/2026", root="/data"), ttl=arena.ttl).held
        assert lease.held

    @exercises("Locks.inspect")
    def test_inspect_shows_who_holds_and_who_waits_for_what_and_draws_it(self, arena: Arena) -> None:
        ada, bob, cleo = _people(arena, 3)
        first = ada.acquire(ByteRange(7, 0, 10), ttl=arena.ttl, metadata={"why": "compact"})
        bob.acquire(ByteRange(7, 20, 30), ttl=arena.ttl, mode="shared")
        _line_up(arena, [cleo], Inode(7), ttl=arena.ttl)
        found = ada.inspect(Inode(7))
        assert [(one.holder, one.scope, one.mode) for one in found.holders] == [
            ("ada", "inode:7[0,10)", "exclusive"),
            ("bob", "inode:7[20,30)", "shared"),
        ]
        assert (found.holders[0].token, dict(found.holders[0].metadata)) == (first.token, {"why": "compact"})
        assert [one.holder for one in found.waiters] == ["cleo"]
        lines = found.map.splitlines()
        assert ["".join(dict.fromkeys(line.strip("|"))) for line in lines] == ["W ", " R", "w"]
        assert ada.inspect(ByteRange(7, 12, 15)).holders == ()

    # Permits.

    @exercises("Locks.acquire", "Locks.try_acquire")
    def test_so_many_have_a_permit_each_with_its_own_token_and_the_next_waits_for_one(self, arena: Arena) -> None:
        ada, bob, cleo, dora = _people(arena, 4)
        permit = Permit("downloads", 2)
        first, second = (who.acquire(permit, ttl=arena.ttl) for who in (ada, bob))
        assert first.held
        assert second.token > first.token
        assert dora.try_acquire(permit, ttl=arena.ttl) is None
        to_cleo, to_dora = _line_up(arena, [cleo, dora], permit, ttl=arena.ttl)
        second.release()
        arena.eventually(to_cleo.done)
        third = cleo.face(to_cleo.result())
        assert third.token > second.token
        assert not to_dora.done()
        first.release()
        arena.eventually(to_dora.done)
        assert third.held

    @exercises("Locks.acquire")
    def test_whoever_counts_other_permits_for_the_same_name_is_told(self, arena: Arena) -> None:
        ada, bob = _people(arena, 2)
        ada.acquire(Permit("downloads", 2), ttl=arena.ttl)
        with pytest.raises(InvalidInput, match="others who use 'semaphore:downloads' now say 2"):
            bob.acquire(Permit("downloads", 3), ttl=arena.ttl)
        assert len(ada.inspect(Permit("downloads", 2)).holders) == 1

    # As with any lease.

    @exercises("Locks.acquire")
    def test_a_part_is_renewed_and_lost_like_a_name(self, arena: Arena) -> None:
        ada, bob = _people(arena, 2)
        lease = ada.acquire(ByteRange(7, 0, 10), ttl=arena.ttl)
        arena.live(lease, 2 * arena.ttl)
        assert lease.held
        bob.break_lease(ByteRange(7, 5, 6), reason="law")
        assert lease.renew() is Renewal.LOST
        with pytest.raises(LeaseLost, match="law"):
            lease.check()
        lease.release()
        assert bob.acquire(ByteRange(7, 0, 10), ttl=arena.ttl, wait=0).token > lease.token

    @exercises("Locks.acquire")
    def test_a_part_whose_holder_died_ends_by_its_ttl_and_one_that_died_in_line_by_its_own_short_one(
        self, arena: Arena
    ) -> None:
        ada, bob, cleo = _people(arena, 3)
        ada.acquire(DOC, ttl=arena.ttl)
        _line_up(arena, [bob], DOC, ttl=min(8 * arena.ttl, bob.store.guarantees.ttl_max))
        # Only then its place lasts no longer than that.
        arena.eventually(lambda: _is_kept(arena, bob))
        (waiting,) = _line_up(arena, [cleo], DOC, ttl=arena.ttl, after=1)
        arena.eventually(lambda: _is_kept(arena, cleo))
        ada.store.down()
        bob.store.down()
        # In small steps: in a leap, whoever lives would have ended with those who died.
        longest = max(arena.ttl, ticket_ttl(cleo.store.guarantees))
        for _ in range(20):
            arena.elapse(longest / 10)
            arena.eventually(lambda: _is_kept(arena, cleo))
        arena.eventually(waiting.done)
        assert cleo.face(waiting.result()).held

    @exercises("Locks.acquire")
    def test_who_gives_up_waiting_for_a_part_leaves_nothing(self, arena: Arena) -> None:
        ada, bob, cleo = _people(arena, 3)
        lease = ada.acquire(DOC, ttl=arena.ttl, mode="shared")
        with pytest.raises(AcquireTimeout, match="ada"):
            bob.acquire(DOC, ttl=arena.ttl, wait=0)
        assert cleo.try_acquire(DOC, ttl=arena.ttl, mode="shared").held
        assert lease.held

    @exercises("Locks.acquire")
    def test_a_part_whose_grant_got_lost_on_its_way_is_found_again(self, arena: Arena) -> None:
        ada, bob = _people(arena, 2)
        ada.store.plan("swap", cut)
        asking = ada.begin("acquire", ByteRange(7, 0, 10), ttl=arena.ttl)
        arena.eventually(asking.done)
        lease = ada.face(asking.result())
        assert lease.held
        assert [one.token for one in bob.inspect(Inode(7)).holders] == [lease.token]

    @exercises("Locks.acquire")
    def test_nobody_waits_for_a_part_it_holds_itself(self, arena: Arena) -> None:
        (ada,) = _people(arena, 1)
        ada.acquire(ByteRange(7, 0, 10), ttl=arena.ttl)
        with pytest.raises(AlreadyHeld):
            ada.acquire(Inode(7), ttl=arena.ttl)
        assert ada.acquire(ByteRange(7, 10, 20), ttl=arena.ttl).held
        assert ada.beside().try_acquire(ByteRange(7, 0, 10), ttl=arena.ttl) is None

    @exercises("Lease.adopt")
    def test_a_part_can_change_hands_inside_a_client(self, arena: Arena) -> None:
        (ada,) = _people(arena, 1)
        other = ada.beside()
        lease = ada.acquire(ByteRange(7, 0, 10), ttl=arena.ttl)
        lease.adopt(other)
        with pytest.raises(AlreadyHeld):
            other.acquire(ByteRange(7, 9, 11), ttl=arena.ttl)
        assert ada.try_acquire(ByteRange(7, 9, 11), ttl=arena.ttl) is None

    @exercises("Locks.hold_all")
    def test_parts_and_names_are_held_together_and_parts_of_one_resource_by_one_lease(self, arena: Arena) -> None:
        ada, bob = _people(arena, 2)
        scopes = [ByteRange(7, 20, 30), "job", (DOC, "shared"), ByteRange(7, 0, 10), Path("/data")]

        def body(leases: Any) -> dict[str, int]:
            assert leases.held
            return {scope: lease.token for scope, lease in leases.items()}

        tokens = ada.within_all(scopes, body, ttl=arena.ttl)
        assert set(tokens) == {"inode:7[20,30)", "inode:7[0,10)", "job", "shared:report", "path:/data"}
        assert tokens["inode:7[0,10)"] == tokens["inode:7[20,30)"]
        assert bob.list() == []

    @exercises("Locks.list", "Locks.suggest_retry")
    def test_the_list_shows_parts_that_are_held_and_not_who_waits(self, arena: Arena) -> None:
        ada, bob = _people(arena, 2)
        assert bob.suggest_retry(DOC) == 0.0
        ada.acquire(DOC, ttl=arena.ttl)
        ada.acquire("job", ttl=arena.ttl)
        _line_up(arena, [bob], DOC, ttl=arena.ttl)
        assert [(one.scope, one.holder) for one in ada.list()] == [("job", "ada"), ("shared:report", "ada")]
        assert 0.04 <= ada.suggest_retry(DOC) <= 6.0


def _people(arena: Arena, number: int) -> list[Client]:
    return [arena.client(name) for name in NAMES[:number]]


def _line_up(
    arena: Arena, people: Sequence[Client], scope: Resource, *, after: int = 0, **options: Any
) -> list[Future[Any]]:
    """Everybody asks for a scope, one after the other; each stands in line before the next comes."""
    waiting = []
    for place, who in enumerate(people, after + 1):
        waiting.append(who.begin("acquire", scope, **options))
        _stands(arena, who.beside(), scope, place)
    return waiting


def _is_kept(arena: Arena, who: Client) -> bool:
    """Whether a client holds something, or has a place in line, and renewed whatever was due of it."""
    held = who.locks._engine.heartbeat.held()  # noqa: SLF001  nothing public tells it of a place in line
    return bool(held) and all(not grant.busy and grant.due > arena.world.clock.now() for grant in held)


def _upgrading(arena: Arena, who: Client, lease: LeaseFace) -> Future[Any]:
    arena.used.add("Lease.upgrade")
    return who.person.begin(lease.real.upgrade)


def _stands(arena: Arena, who: Client, scope: Resource, place: int) -> None:
    arena.eventually(lambda: len(who.inspect(scope).waiters) == place)
