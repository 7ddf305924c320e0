"""Parts, closely: answers that are lost, callers who are cancelled, and permits given back at the same moment."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import leasehold
from leasehold import ByteRange, Inode, Permit, Shared
from leasehold.engine import presence
from leasehold.testing.conformance.arena import Arena, Client
from leasehold.testing.conformance.worlds import MemoryWorld, SqliteWorld
from leasehold.testing.faults import cut
from tests.support import eventually

WORLDS = {"memory": MemoryWorld, "sqlite": SqliteWorld}
DOC = Shared("report")


@pytest.fixture(params=[f"{world}-{colour}" for world in WORLDS for colour in ("blocking", "asyncio")])
def arena(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Arena]:
    world, _, colour = request.param.partition("-")
    made = Arena(WORLDS[world](tmp_path), colour)
    yield made
    made.close()


def people(arena: Arena, *names: str) -> list[Client]:
    return [arena.client(name) for name in names]


def waiters(who: Client, scope: leasehold.Resource) -> list[str]:
    return [one.holder for one in who.inspect(scope).waiters]


# Answers that are lost.


def test_whoever_heard_no_answer_to_its_downgrade_believes_no_more_than_to_share(arena: Arena) -> None:
    ada, bob = people(arena, "ada", "bob")
    lease = ada.acquire(DOC, ttl=arena.ttl)
    token = lease.token
    ada.store.plan("swap", cut)
    with pytest.raises(leasehold.StoreUnavailable):
        lease.downgrade()
    assert lease.mode == "shared"
    assert bob.acquire(DOC, ttl=arena.ttl, wait=0, mode="shared").held
    # What moved the record was our own write: it is renewed as ever.
    assert lease.renew() in {leasehold.Renewal.HELD, leasehold.Renewal.RENEWED}
    assert lease.renew() is leasehold.Renewal.RENEWED
    assert (lease.held, lease.token) == (True, token)


def test_a_part_let_go_after_one_whose_answer_was_lost_is_free_like_that(arena: Arena) -> None:
    ada, bob = people(arena, "ada", "bob")
    lease = ada.acquire(ByteRange(7, 0, 30), ttl=arena.ttl)
    ada.store.plan("swap", cut)
    with pytest.raises(leasehold.StoreUnavailable):
        lease.release_part(0, 10)
    lease.release_part(20, 30)
    assert bob.acquire(ByteRange(7, 0, 10), ttl=arena.ttl, wait=0).held
    assert bob.acquire(ByteRange(7, 20, 30), ttl=arena.ttl, wait=0).held
    assert bob.try_acquire(ByteRange(7, 10, 20), ttl=arena.ttl) is None
    assert lease.held


def test_a_part_let_go_in_vain_can_be_let_go_again(arena: Arena) -> None:
    ada, bob = people(arena, "ada", "bob")
    lease = ada.acquire(ByteRange(7, 0, 30), ttl=arena.ttl)
    ada.store.down()
    with pytest.raises(leasehold.StoreUnavailable):
        lease.release_part(0, 10)
    ada.store.up()
    assert bob.try_acquire(ByteRange(7, 0, 10), ttl=arena.ttl) is None
    lease.release_part(0, 10)
    assert bob.try_acquire(ByteRange(7, 0, 10), ttl=arena.ttl).held


def test_whoever_would_share_what_was_revoked_is_told_why_it_cannot(arena: Arena) -> None:
    ada, bob = people(arena, "ada", "bob")
    lease = ada.acquire(DOC, ttl=arena.ttl)
    bob.break_lease(DOC, reason="needed for a restore")
    with pytest.raises(leasehold.LeaseLost, match="needed for a restore"):
        lease.downgrade()


# Callers who are cancelled, or lose what they have.


def test_who_is_cancelled_while_it_waits_for_a_part_leaves_nothing(tmp_path: Path) -> None:
    """The clock stands: nothing ends by its ttl."""
    arena = Arena(MemoryWorld(tmp_path), "asyncio")
    ada, bob, cleo = people(arena, "ada", "bob", "cleo")
    lease = ada.acquire(ByteRange(7, 0, 10), ttl=arena.ttl)
    cancel_in_line(bob, lambda: bob.locks.acquire(Inode(7), ttl=arena.ttl))
    waiting = cleo.begin("acquire", ByteRange(7, 5, 15), ttl=arena.ttl)
    eventually(lambda: waiters(ada, Inode(7)) == ["cleo"])
    lease.release()
    eventually(waiting.done)
    arena.close()


def test_who_is_cancelled_while_it_waits_for_a_permit_leaves_nothing(tmp_path: Path) -> None:
    arena = Arena(MemoryWorld(tmp_path), "asyncio")
    ada, bob, cleo = people(arena, "ada", "bob", "cleo")
    lease = ada.acquire(Permit("downloads", 1), ttl=arena.ttl)
    cancel_in_line(bob, lambda: bob.locks.acquire(Permit("downloads", 1), ttl=arena.ttl))
    waiting = cleo.begin("acquire", Permit("downloads", 1), ttl=arena.ttl)
    eventually(lambda: waiters(ada, Permit("downloads", 1)) == ["cleo"])
    lease.release()
    eventually(waiting.done)
    arena.close()


def test_who_is_cancelled_while_it_waits_to_write_reads_on(tmp_path: Path) -> None:
    arena = Arena(MemoryWorld(tmp_path), "asyncio")
    ada, bob, cleo = people(arena, "ada", "bob", "cleo")
    reading = bob.acquire(DOC, ttl=arena.ttl, mode="shared")
    token = reading.token
    ada.acquire(DOC, ttl=arena.ttl, mode="shared")
    cancel_in_line(bob, reading.real.upgrade)
    assert (reading.held, reading.mode, reading.token) == (True, "shared", token)
    eventually(lambda: cleo.try_acquire(DOC, ttl=arena.ttl, mode="shared"))
    arena.close()


def test_who_is_cancelled_at_the_moment_it_may_write_does_and_leaves_one_record(tmp_path: Path) -> None:
    """The cancellation comes while the old record is removed: too late to change anything."""
    arena = Arena(MemoryWorld(tmp_path), "asyncio")
    (bob,) = people(arena, "bob")
    reading = bob.acquire(DOC, ttl=arena.ttl, mode="shared")

    async def cancelled() -> None:
        removing = asyncio.Event()

        async def slowly(_store, call):
            removing.set()
            await asyncio.sleep(0)
            return await call()

        async def promptly(_store, call):
            return await call()

        # The first swap brings the new record, the second removes the old one.
        bob.store.plan("swap", promptly, slowly)
        task = asyncio.ensure_future(reading.real.upgrade())
        await removing.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    bob.person.do(cancelled)
    assert (reading.held, reading.mode) == (True, "exclusive")
    assert [one.token for one in bob.inspect(DOC).holders] == [reading.token]
    reading.release()
    assert bob.inspect(DOC).holders == ()
    arena.close()


def test_who_loses_what_it_reads_while_it_waits_to_write_is_told_and_leaves_nothing(arena: Arena) -> None:
    ada, bob, cleo = people(arena, "ada", "bob", "cleo")
    reading = bob.acquire(DOC, ttl=arena.ttl, mode="shared")
    other = ada.acquire(DOC, ttl=arena.ttl, mode="shared")
    upgrading = bob.person.begin(reading.real.upgrade)
    eventually(lambda: waiters(ada, DOC) == ["bob"])
    ada.break_lease(DOC, reason="told by a test")
    assert bob.beside().person.do(reading.real.renew) is leasehold.Renewal.LOST
    other.release()
    assert isinstance(upgrading.exception(20), leasehold.LeaseLost)
    reading.release()
    eventually(lambda: cleo.try_acquire(DOC, ttl=arena.ttl))


def cancel_in_line(who: Client, asking) -> None:
    """Begin something that has to wait, and cancel it then."""
    before = who.store.calls["watch"]

    async def cancelled() -> None:
        task = asyncio.ensure_future(asking())
        await asyncio.to_thread(eventually, lambda: who.store.calls["watch"] > before)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    who.person.do(cancelled)


# Several at once.


def test_who_wants_the_same_shared_and_exclusive_has_it_to_itself(arena: Arena) -> None:
    (ada,) = people(arena, "ada")

    def modes(leases) -> list[str]:
        return [lease.mode for lease in leases.values()]

    for scopes in ([(DOC, "shared"), (DOC, "exclusive")], [DOC, (DOC, "shared")]):
        assert ada.within_all(scopes, modes, ttl=arena.ttl) == ["exclusive"]
    assert ada.within_all([(DOC, "shared"), (DOC, "shared")], modes, ttl=arena.ttl) == ["shared"]


def test_who_wants_two_semaphores_of_one_name_is_told(arena: Arena) -> None:
    (ada,) = people(arena, "ada")
    with pytest.raises(leasehold.InvalidInput, match="agree on one number"):
        ada.within_all([Permit("downloads", 2), Permit("downloads", 3)], lambda leases: leases.held, ttl=arena.ttl)


@pytest.fixture
def given_back_together(tmp_path: Path) -> Iterator[list[bool]]:
    """Two permits are given back at once: each who does so sees the other one gone. Whether the two in line have them.

    The clock stands: nobody looks again by itself.
    """
    arena = Arena(MemoryWorld(tmp_path), "blocking")
    permit = Permit("downloads", 2)
    ada, bob, cleo, dora = people(arena, "ada", "bob", "cleo", "dora")
    held = [who.acquire(permit, ttl=60) for who in (ada, bob)]
    waiting = []
    for place, who in enumerate((cleo, dora), 1):
        waiting.append(who.begin("acquire", permit, ttl=60))
        eventually(lambda place=place: len(waiters(ada, permit)) == place)
    both = threading.Barrier(2, timeout=20)

    async def meet(_store, call):
        both.wait()
        return await call()

    for who in (ada, bob):
        who.store.plan("scan", meet)
    letting_go = [who.person.begin(lease.real.release) for who, lease in zip((ada, bob), held, strict=True)]
    assert [one.result(20) for one in letting_go] == [True, True]
    yield waiting
    for who in (ada, bob, cleo, dora):
        who.store.forget_plans()
    arena.elapse(10)
    arena.close()


def test_all_who_may_come_are_called_when_permits_are_given_back_at_the_same_moment(given_back_together) -> None:
    eventually(lambda: all(one.done() for one in given_back_together))


@pytest.fixture
def only_the_last_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence, "CALLS", 1)


def test_control_if_only_the_last_is_called_one_of_two_is_left_waiting(
    only_the_last_is_called, given_back_together
) -> None:
    eventually(lambda: any(one.done() for one in given_back_together))
    assert [one.done() for one in given_back_together] == [False, True]


def test_calls_do_not_stay_behind(arena: Arena) -> None:
    ada, bob = people(arena, "ada", "bob")
    permit = Permit("downloads", 1)
    for _ in range(5):
        lease = ada.acquire(permit, ttl=arena.ttl)
        waiting = bob.begin("acquire", permit, ttl=arena.ttl)
        eventually(lambda: waiters(ada, permit) == ["bob"])
        lease.release()
        eventually(waiting.done)
        bob.face(waiting.result()).release()
    assert arena.store().page("/", None, 10) == []
