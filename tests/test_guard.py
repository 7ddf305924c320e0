"""Guards on every store whose time a test can move: one run at a time, a rest after each, in both colours."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import leasehold
from leasehold import aio
from leasehold.engine import events
from leasehold.engine.blocking import drive
from leasehold.errors import (
    InvalidInput,
    LeaseLost,
    NotAcquired,
    RecentlyRemediated,
    ResourceBusy,
    StoreUnavailable,
)
from leasehold.patterns import guard, guard_aio
from leasehold.rules.cooldown import Phase, read_run, write_run
from leasehold.testing.conformance.arena import Arena
from leasehold.testing.faults import cut, drop, hold_back, refuse
from tests import test_conformance
from tests.guard_support import COOLDOWN, NAME, TARGET, TIMEOUT, WALL, Executor, guard_of
from tests.test_shape import _members, differences

# One of each kind: how a store is reached makes no difference to a guard.
KINDS = ("memory", "sqlite", "redis", "postgresql", "kubernetes", "etcd", "zookeeper")
WORLDS = {kind: test_conformance.WORLDS[kind] for kind in KINDS}
COLOURS = ("blocking", "asyncio")
# What the store has no part in is tried where it costs least.
CHEAP = ("memory", "sqlite")
DAY = 86_400.0


def stages(worlds: Iterable[str]) -> Any:
    return pytest.mark.parametrize(
        ("world", "colour"),
        [pytest.param(world, colour, id=f"{world}-{colour}") for world in worlds for colour in COLOURS],
    )


everywhere, here = stages(WORLDS), stages(CHEAP)


@pytest.fixture
def arena(world: str, colour: str, tmp_path: Path) -> Iterator[Arena]:
    made = Arena(WORLDS[world](tmp_path), colour)
    yield made
    made.close()


# Beginning, and being refused.


@everywhere
def test_who_begins_has_the_target_and_the_next_is_told_who_has_it(arena: Arena) -> None:
    one, other = Executor(arena), Executor(arena)
    run = one.begin("wfe-1")
    assert (run.target, run.owner, run.name, run.phase) == (TARGET, "wfe-1", NAME, Phase.RUNNING)
    assert (run.token > 0, run.adopted, run.timeout, run.cooldown) == (True, False, TIMEOUT, COOLDOWN)
    with pytest.raises(ResourceBusy) as caught:
        other.begin("wfe-2")
    assert caught.value.reason == "ResourceBusy (held by wfe-1)"
    assert (caught.value.holder, caught.value.target, caught.value.other) == ("wfe-1", TARGET, None)
    assert 0 < caught.value.expires_in <= TIMEOUT
    with pytest.raises(ResourceBusy) as caught:
        other.do("check", TARGET)
    assert caught.value.reason == "ResourceBusy (active: wfe-1)"
    one.run(run, "check")


@everywhere
def test_of_many_who_begin_at_once_one_does(arena: Arena) -> None:
    crowd = {f"wfe-{number}": Executor(arena) for number in range(6)}
    # All of them pass the look: it decides nothing.
    for each in crowd.values():
        each.do("check", TARGET)
    started = {owner: each.start("begin", TARGET, owner=owner) for owner, each in crowd.items()}
    outcomes = {owner: future.exception(20) for owner, future in started.items()}
    (winner,) = [owner for owner, error in outcomes.items() if error is None]
    losers = [str(error) for error in outcomes.values() if error is not None]
    assert len(losers) == len(crowd) - 1
    assert all(text.startswith(f"ResourceBusy (held by {winner})") for text in losers)


@everywhere
def test_other_targets_other_guards_other_tenants_and_locks_do_not_meet(arena: Arena) -> None:
    one = Executor(arena)
    other, cautious = Executor(arena, client=arena.client(tenant="t")), Executor(arena, name="drain")
    # The target itself as a lock: on Kubernetes a lock called like the run would share its object.
    runs = [one.begin("wfe-1"), one.begin("wfe-1", "staging/x"), other.begin("wfe-2"), cautious.begin("wfe-3")]
    assert one.client.try_acquire(TARGET).held
    assert one.do("once_per", TARGET, 60).token > 0
    assert cautious.guard.name_of(TARGET) == NAME.replace("wfe-", "drain-")
    assert [each.run(run, "complete") for each, run in zip((one, one, other, cautious), runs, strict=True)] == [
        True
    ] * 4


@everywhere
def test_a_run_on_another_target_of_the_same_short_name_is_in_the_way_and_told_apart(arena: Arena) -> None:
    one = Executor(arena)
    pretend(one, {"scope": "staging/deployment/other", "holder": "wfe-9"})
    with pytest.raises(ResourceBusy) as caught:
        one.begin("wfe-9")
    assert (caught.value.other, caught.value.holder) == ("staging/deployment/other", "wfe-9")
    assert "shares its short name with 'staging/deployment/other'" in str(caught.value)
    for verb, words in (("check", {"owner": "wfe-9"}), ("free", {"reason": "stuck"})):
        with pytest.raises(ResourceBusy, match="shares its short name"):
            one.do(verb, TARGET, **words)
    assert one.do("resume", TARGET, owner="wfe-9") is None
    assert one.do("inspect", TARGET).target == "staging/deployment/other"


@everywhere
def test_a_record_that_no_guard_wrote_is_in_the_way_until_it_is_freed(arena: Arena) -> None:
    one = Executor(arena)
    arena.store().swap(one.guard._runs.engine.names.guard(NAME), None, b"not ours", None)
    for verb in ("check", "begin"):
        with pytest.raises(ResourceBusy) as caught:
            one.do(verb, TARGET, owner="wfe-1")
        assert (caught.value.reason, caught.value.holder) == ("ResourceBusy", None)
    assert one.do("resume", TARGET, owner="wfe-1") is None
    assert one.do("inspect", TARGET).owner == "(unreadable)"
    assert one.do("free", TARGET, reason="not ours") is True
    assert one.begin("wfe-1").phase is Phase.RUNNING


def pretend(one: Executor, changes: dict[str, Any]) -> None:
    """Begin a run and let its record say something else."""
    one.begin("wfe-0")
    bare, key = one.arena.store(), one.guard._runs.engine.names.guard(NAME)
    seen = bare.load(key)
    run = read_run(seen)
    assert run is not None
    answer = bare.swap(key, seen, write_run(msgspec.structs.replace(run, **changes)), seen.ttl)
    assert answer.revision > seen.revision


# From running to rest to free.


@everywhere
def test_the_target_rests_after_a_run_and_is_free_after_that(arena: Arena) -> None:
    one, other = Executor(arena), Executor(arena)
    first = one.begin("wfe-1")
    arena.elapse(TIMEOUT / 2)
    assert one.run(first, "complete") is True
    arena.elapse(42)
    for verb in ("begin", "check"):
        with pytest.raises(RecentlyRemediated) as caught:
            other.do(verb, TARGET, owner="wfe-2")
        error = caught.value
        # Servers' clocks also run by themselves.
        assert 42 <= error.ago < COOLDOWN
        assert error.reason == f"RecentlyRemediated (by wfe-1, {error.ago:.0f}s ago)"
        assert error.retry_after == error.expires_in <= COOLDOWN - 42 + 5
    arena.elapse(COOLDOWN - 42 - 60)
    with pytest.raises(RecentlyRemediated):
        other.begin("wfe-2")
    arena.elapse(60 + 5.1)
    other.do("check", TARGET)
    second = other.begin("wfe-2")
    assert second.token > first.token
    assert one.heard(events.Finished)[-1].outcome == "completed"


@here
def test_a_failed_run_is_followed_by_the_same_rest(arena: Arena) -> None:
    one = Executor(arena)
    run = one.begin("wfe-1")
    assert one.run(run, "fail") is True
    assert (one.run(run, "fail"), one.run(run, "complete"), run.phase) == (True, False, Phase.FAILED)
    with pytest.raises(RecentlyRemediated):
        Executor(arena).begin("wfe-2")


@everywhere
def test_a_run_that_is_never_finished_ends_by_its_timeout_and_can_change_nothing_after(arena: Arena) -> None:
    one, other = Executor(arena), Executor(arena)
    stuck = one.begin("wfe-1", timeout=600)
    # On Kubernetes it ends in the sight of whoever watches it.
    for passes in (540, 61):
        with pytest.raises(ResourceBusy):
            other.begin("wfe-2")
        arena.elapse(passes)
    second = other.begin("wfe-2")
    assert second.token > stuck.token
    assert one.run(stuck, "complete") is False
    assert (one.run(stuck, "fail"), one.run(stuck, "abandon")) == (False, False)
    with pytest.raises(LeaseLost, match="wfe-2 has begun another run since"):
        one.run(stuck, "check")
    assert one.heard(events.Lost)[-1].token == stuck.token
    other.run(second, "check")
    assert other.run(second, "complete") is True


@here
def test_a_run_whose_time_is_over_is_told_so(arena: Arena) -> None:
    one = Executor(arena)
    stuck = one.begin("wfe-1", timeout=60)
    arena.elapse(61)
    with pytest.raises(LeaseLost, match="it was not finished within its timeout of 60 s"):
        one.run(stuck, "check")
    assert one.run(stuck, "complete") is False
    # Told once.
    assert len(one.heard(events.Lost)) == 1


@here
def test_a_run_that_goes_on_is_not_lost_by_time(arena: Arena) -> None:
    """The control."""
    one = Executor(arena)
    run = one.begin("wfe-1", timeout=60)
    arena.elapse(59)
    one.run(run, "check")
    assert not one.heard(events.Lost)


# Early ends.


@everywhere
def test_an_abandoned_run_frees_its_target_at_once_in_every_phase(arena: Arena) -> None:
    one, other = Executor(arena), Executor(arena)
    first = one.begin("wfe-1")
    assert one.run(first, "abandon") is True
    second = other.begin("wfe-2")
    assert (one.run(first, "abandon"), one.run(first, "complete")) == (False, False)
    other.run(second, "complete")
    with pytest.raises(RecentlyRemediated):
        one.begin("wfe-3")
    assert other.run(second, "abandon") is True
    third = one.begin("wfe-3")
    assert first.token < second.token < third.token
    # What came late changed nothing.
    assert (other.run(second, "abandon"), one.run(third, "check")) == (False, None)


@everywhere
def test_a_freed_target_is_free_and_both_sides_are_told(arena: Arena) -> None:
    one, other = Executor(arena), Executor(arena)
    run = one.begin("wfe-1")
    assert other.do("free", TARGET, reason="stuck in a loop") is True
    (told,) = other.heard(events.Revoked)
    assert (told.scope, told.holder, told.token, told.reason) == (TARGET, "wfe-1", run.token, "stuck in a loop")
    assert one.run(run, "complete") is False
    (lost,) = one.heard(events.Lost)
    assert (lost.scope, lost.token, lost.reason) == (TARGET, run.token, "its record was deleted")
    assert other.begin("wfe-2").token > run.token
    assert other.do("free", "staging/nothing", reason="x") is False


@here
def test_a_target_can_be_freed_while_it_rests(arena: Arena) -> None:
    one = Executor(arena)
    one.run(one.begin("wfe-1"), "complete")
    assert one.do("free", TARGET, reason="urgent") is True
    assert one.begin("wfe-2").phase is Phase.RUNNING


# Restarts.


@everywhere
def test_after_a_crash_the_owner_adopts_its_own_run_and_goes_on(arena: Arena) -> None:
    one = Executor(arena)
    first = one.begin("wfe-1")
    restarted = Executor(arena)
    restarted.do("check", TARGET, owner="wfe-1")
    again = restarted.begin("wfe-1", timeout=60, cooldown=1)
    assert (again.adopted, again.token, again.since) == (True, first.token, first.since)
    # Of the record, not of the call.
    assert (again.timeout, again.cooldown) == (TIMEOUT, COOLDOWN)
    assert restarted.run(again, "complete") is True
    # The one that was thought dead comes back: nothing changes.
    assert (one.run(first, "complete"), one.run(first, "fail")) == (True, False)
    assert first.phase is Phase.COMPLETED


@everywhere
def test_after_a_restart_a_run_is_resumed_in_its_phase_and_none_is_begun(arena: Arena) -> None:
    one = Executor(arena)
    assert one.do("resume", TARGET, owner="wfe-1") is None
    first = one.begin("wfe-1")
    assert Executor(arena).do("resume", TARGET, owner="wfe-2") is None
    later = Executor(arena)
    running = later.do("resume", TARGET, owner="wfe-1")
    assert (running.phase, running.token, running.adopted) == (Phase.RUNNING, first.token, True)
    later.run(running, "complete")
    last = Executor(arena)
    resting = last.do("resume", TARGET, owner="wfe-1")
    assert (resting.phase, resting.token) == (Phase.COMPLETED, first.token)
    assert (last.run(resting, "complete"), last.run(resting, "fail")) == (True, False)
    with pytest.raises(LeaseLost, match="the run is completed"):
        last.run(resting, "check")
    # Its own rest is in its way, too: the request was served.
    with pytest.raises(RecentlyRemediated):
        last.begin("wfe-1")
    assert last.run(resting, "abandon") is True
    assert last.do("resume", TARGET, owner="wfe-1") is None


@everywhere
def test_a_rest_goes_on_from_the_record_whoever_asks(arena: Arena) -> None:
    one = Executor(arena)
    one.run(one.begin("wfe-1"), "complete")
    arena.elapse(COOLDOWN / 2)
    with pytest.raises(RecentlyRemediated) as caught:
        Executor(arena).begin("wfe-2")
    assert caught.value.ago >= COOLDOWN / 2
    arena.elapse(COOLDOWN / 2 + 5.1)
    # One that has never seen it.
    assert Executor(arena).begin("wfe-3").adopted is False


# A store that fails.


@here
def test_the_look_fails_open_with_a_warning_and_the_beginning_does_not(
    arena: Arena, caplog: pytest.LogCaptureFixture
) -> None:
    holder, one = Executor(arena), Executor(arena)
    holder.begin("wfe-1")
    for fault in (drop, refuse):
        one.store.down(fault)
        with caplog.at_level(logging.WARNING, "leasehold"):
            one.do("check", TARGET)
        assert "nobody could say whether" in caplog.text
        with pytest.raises(StoreUnavailable):
            one.begin("wfe-2")
    one.store.up()
    # The control: it would have been refused.
    with pytest.raises(ResourceBusy):
        one.do("check", TARGET)


@everywhere
def test_a_beginning_without_an_answer_is_found_by_asking_again(arena: Arena) -> None:
    one, other = Executor(arena), Executor(arena)
    one.store.plan("swap", cut)
    with pytest.raises(StoreUnavailable):
        one.begin("wfe-1")
    with pytest.raises(ResourceBusy, match="held by wfe-1"):
        other.begin("wfe-2")
    run = one.begin("wfe-1")
    assert run.adopted
    assert one.run(run, "complete") is True


@everywhere
def test_an_end_without_an_answer_is_found_by_asking_again_and_the_rest_is_not_begun_anew(arena: Arena) -> None:
    one = Executor(arena)
    run = one.begin("wfe-1")
    one.store.plan("swap", cut)
    with pytest.raises(StoreUnavailable):
        one.run(run, "complete")
    arena.elapse(100)
    assert (one.run(run, "complete"), one.run(run, "fail")) == (True, False)
    with pytest.raises(RecentlyRemediated) as caught:
        Executor(arena).begin("wfe-2")
    assert caught.value.ago >= 100


@everywhere
def test_a_deletion_without_an_answer_is_found_by_asking_again(arena: Arena) -> None:
    one = Executor(arena, cooldown=0)
    for verb in ("complete", "abandon"):
        run = one.begin("wfe-1")
        one.store.plan("swap", cut)
        with pytest.raises(StoreUnavailable):
            one.run(run, verb)
        assert one.run(run, verb) is True
        assert not one.heard(events.Lost)


@everywhere
def test_what_arrives_late_does_not_touch_the_next_run(arena: Arena) -> None:
    one, other = Executor(arena), Executor(arena)
    first = one.begin("wfe-1")
    one.store.plan("swap", hold_back, hold_back)
    for verb in ("complete", "abandon"):
        with pytest.raises(StoreUnavailable):
            one.run(first, verb)
    other.do("free", TARGET, reason="stuck")
    second = other.begin("wfe-2")
    one.client.person.do(one.store.deliver if arena.loop else lambda: drive(one.store.deliver()))
    other.run(second, "check")
    assert other.run(second, "complete") is True


@here
def test_a_record_that_never_stands_still_is_reported(arena: Arena) -> None:
    one = Executor(arena)
    run = one.begin("wfe-1")
    bare = arena.store()

    async def meddle(_store: Any, call: Any) -> Any:
        key = one.guard._runs.engine.names.guard(NAME)
        seen = await bare.real.load(key)
        await bare.real.swap(key, seen, seen.value, seen.ttl)
        return await call()

    one.store.plan("swap", *[meddle] * 2)
    # Somebody wrote over it what was there, as who puts a label on an object does: it still is ours.
    assert one.run(run, "complete") is True
    second = Executor(arena, cooldown=0)
    one.store.plan("swap", *[meddle] * 5)
    with pytest.raises(StoreUnavailable, match="changed 5 times"):
        one.run(run, "abandon")
    one.store.forget_plans()
    assert one.run(run, "abandon") is True
    assert second.begin("wfe-2").token > run.token


# Cooldowns.


@everywhere
def test_without_a_cooldown_the_target_is_free_at_once(arena: Arena) -> None:
    one = Executor(arena, cooldown=0)
    first = one.begin("wfe-1")
    assert (one.run(first, "complete"), one.run(first, "complete"), one.run(first, "fail")) == (True, True, False)
    assert one.do("inspect", TARGET) is None
    assert one.begin("wfe-2").token > first.token


@here
def test_each_target_can_have_its_own_cooldown(arena: Arena) -> None:
    one = Executor(arena)
    for target, cooldown in (("shop/cart", 60), ("shop/mail", 900)):
        one.run(one.begin("wfe-1", target, cooldown=cooldown), "complete")
    arena.elapse(400)
    assert one.begin("wfe-2", "shop/cart").cooldown == COOLDOWN
    with pytest.raises(RecentlyRemediated):
        one.begin("wfe-2", "shop/mail")
    arena.elapse(510)
    assert one.begin("wfe-2", "shop/mail", cooldown=900).cooldown == 900


@everywhere
def test_a_lowered_cooldown_counts_at_once_where_it_is_asked_for_and_a_raised_one_from_the_next_run_on(
    arena: Arena,
) -> None:
    one = Executor(arena)
    first = one.begin("wfe-1")
    one.run(first, "complete")
    arena.elapse(100)
    # Of guards that were set up otherwise since: what was promised counts.
    with pytest.raises(RecentlyRemediated):
        Executor(arena, cooldown=10).begin("wfe-2")
    with pytest.raises(RecentlyRemediated) as caught:
        one.begin("wfe-2", cooldown=900)
    assert caught.value.retry_after <= COOLDOWN - 100 + 5
    with pytest.raises(RecentlyRemediated):
        one.do("check", TARGET, cooldown=200)
    one.do("check", TARGET, cooldown=50)
    second = one.begin("wfe-2", cooldown=50)
    assert second.token > first.token
    assert second.adopted is False


@everywhere
def test_a_cooldown_longer_than_the_store_keeps_time_counts_by_the_record_s_times_and_the_skew(arena: Arena) -> None:
    one = Executor(arena, cooldown=7 * DAY, max_skew=60)
    first = one.begin("wfe-1")
    one.run(first, "complete")
    arena.elapse(7 * DAY + 50)
    with pytest.raises(RecentlyRemediated) as caught:
        Executor(arena, max_skew=60).begin("wfe-2")
    assert 0 < caught.value.retry_after <= 10
    # Whose clock is within the skew does not come too early; the control: one that is further off does.
    with pytest.raises(RecentlyRemediated):
        Executor(arena, max_skew=60, ahead=9).begin("wfe-2")
    arena.elapse(11)
    second = Executor(arena, max_skew=60).begin("wfe-2")
    assert second.token > first.token


@here
def test_a_clock_that_is_further_off_than_the_skew_cuts_only_a_rest_short(arena: Arena) -> None:
    one, fast = Executor(arena, cooldown=7 * DAY), Executor(arena, ahead=8 * DAY)
    one.run(one.begin("wfe-1"), "complete")
    run = fast.begin("wfe-2")
    assert run.adopted is False
    # And never a run: that ends by the store's clock alone.
    with pytest.raises(ResourceBusy):
        Executor(arena, ahead=8 * DAY).begin("wfe-3")


@everywhere
def test_a_completion_in_the_future_is_a_rest_that_begins_now(arena: Arena) -> None:
    fast, one = Executor(arena, ahead=365 * DAY, cooldown=2 * DAY), Executor(arena)
    fast.run(fast.begin("wfe-1"), "complete")
    with pytest.raises(RecentlyRemediated, match="0s ago"):
        one.begin("wfe-2")
    shown = one.do("inspect", TARGET)
    assert shown.ended == pytest.approx(WALL + arena.world.clock.now(), abs=10)
    arena.elapse(2 * DAY + 5.1)
    assert one.begin("wfe-2").adopted is False


# Once per interval.


@everywhere
def test_of_many_nodes_one_has_its_turn_per_interval(arena: Arena) -> None:
    nodes = [Executor(arena) for _ in range(4)]
    tokens: list[int] = []
    for _ in range(3):
        started = [node.start("once_per", "nightly", 3600) for node in nodes]
        (run,) = [future.result(20) for future in started if future.result(20) is not None]
        tokens.append(run.token)
        arena.elapse(3600 * 0.9)
        assert [node.do("once_per", "nightly", 3600) for node in nodes] == [None] * 4
        arena.elapse(3600 * 0.1 + 5.1)
    assert tokens == sorted(set(tokens))


@everywhere
def test_an_interval_counts_from_the_beginning_however_the_run_ended(arena: Arena) -> None:
    one, other = Executor(arena), Executor(arena)
    for verb in ("complete", "fail"):
        run = one.do("once_per", verb, 3600)
        arena.elapse(1800)
        assert one.run(run, verb) is True
        assert other.do("once_per", verb, 3600) is None
        arena.elapse(1800 + 5.1)
        assert other.do("once_per", verb, 3600).token > run.token
    run = one.do("once_per", "given back", 3600)
    assert one.run(run, "abandon") is True
    assert other.do("once_per", "given back", 3600).token > run.token
    assert one.do("free", "given back", reason="once more") is True
    assert one.do("once_per", "given back", 3600) is not None


@everywhere
def test_an_interval_longer_than_the_store_keeps_time_is_kept_by_the_record_s_times(arena: Arena) -> None:
    one = Executor(arena)
    first = one.do("once_per", "weekly", 7 * DAY)
    one.run(first, "complete")
    arena.elapse(7 * DAY - 1)
    assert Executor(arena).do("once_per", "weekly", 7 * DAY) is None
    arena.elapse(1 + 5.1)
    assert Executor(arena).do("once_per", "weekly", 7 * DAY).token > first.token


@here
def test_only_a_named_owner_gets_its_turn_again_after_a_restart(arena: Arena) -> None:
    client = arena.client("pod-1")
    one = Executor(arena, client=client)
    first = one.do("once_per", "nightly", 3600)
    assert (first.owner, first.timeout) == ("pod-1", 3600)
    assert one.do("once_per", "nightly", 3600) is None
    named = one.do("once_per", "weekly", 3600, owner="job-7")
    again = Executor(arena).do("once_per", "weekly", 3600, owner="job-7")
    assert (again.token, again.adopted) == (named.token, True)
    one.run(named, "complete")
    assert Executor(arena).do("once_per", "weekly", 3600, owner="job-7") is None


@here
def test_a_turn_that_is_over_is_not_taken_up_again_even_where_its_record_stays(arena: Arena) -> None:
    one = Executor(arena)
    first = one.do("once_per", "weekly", 7 * DAY, owner="job-7")
    arena.elapse(7 * DAY + 5.1)
    second = one.do("once_per", "weekly", 7 * DAY, owner="job-7")
    assert second.adopted is False
    assert second.token > first.token
    assert one.run(first, "complete") is False


@here
def test_a_turn_that_nobody_heard_of_is_given_back(arena: Arena) -> None:
    one = Executor(arena)
    one.store.plan("swap", cut)
    with pytest.raises(StoreUnavailable):
        one.do("once_per", "nightly", 3600)
    other = Executor(arena)
    arena.eventually(lambda: other.do("once_per", "nightly", 3600) is not None)


# asyncio.


def test_a_cancelled_beginning_is_found_by_its_owner_and_a_cancelled_turn_is_given_back(tmp_path: Path) -> None:
    arena = Arena(WORLDS["memory"](tmp_path), "asyncio")
    one, other = Executor(arena), Executor(arena)
    applied = asyncio.Event()

    async def stall(_store: Any, call: Any) -> Any:
        await call()
        applied.set()
        await asyncio.Event().wait()

    async def cancelled(verb: str, *args: Any, **options: Any) -> None:
        task = asyncio.ensure_future(getattr(one.guard, verb)(*args, **options))
        await applied.wait()
        applied.clear()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    one.store.plan("swap", stall, stall)
    one.client.person.do(lambda: cancelled("begin", TARGET, owner="wfe-1"))
    one.client.person.do(lambda: cancelled("once_per", "nightly", 3600))
    with pytest.raises(ResourceBusy):
        other.begin("wfe-2")
    assert one.begin("wfe-1").adopted
    arena.eventually(lambda: other.do("once_per", "nightly", 3600) is not None)
    arena.close()


def test_a_guard_belongs_to_the_loop_of_its_client() -> None:
    async def make() -> tuple[aio.Guard, aio.Run]:
        made = aio.Guard(await aio.connect("memory://guards"))
        return made, await made.begin(TARGET, owner="wfe-1")

    made, run = asyncio.run(make())
    words = {"owner": "wfe-1"}
    for call in (lambda: made.begin(TARGET, **words), lambda: made.check(TARGET), run.complete, run.abandon, run.check):
        with pytest.raises(leasehold.ClientClosed, match="another event loop"):
            asyncio.run(call())


# As a block.


@here
def test_a_block_completes_its_run_or_lets_it_fail(arena: Arena) -> None:
    one = Executor(arena)
    run = one.begin("wfe-1")
    assert one.within(run, lambda inside: inside.token) == run.token
    assert run.phase is Phase.COMPLETED

    def fail(_run: Any) -> None:
        raise ZeroDivisionError

    second = one.begin("wfe-2", "shop/cart")
    with pytest.raises(ZeroDivisionError):
        one.within(second, fail)
    assert second.phase is Phase.FAILED


@here
def test_a_body_that_said_how_its_run_ended_has_the_last_word(arena: Arena) -> None:
    one = Executor(arena)
    for verb, phase in (("fail", Phase.FAILED), ("abandon", Phase.RUNNING)):
        run = one.begin("wfe-1", verb)
        one.run(run, verb)
        one.within(run, lambda inside: None)
        assert run.phase is phase
        assert (one.do("inspect", verb) is None) is (verb == "abandon")


@here
def test_a_block_whose_run_was_over_before_it_raises_unless_its_body_did(arena: Arena) -> None:
    one, other = Executor(arena), Executor(arena)
    for number, body in enumerate((lambda _run: None, lambda _run: 1 / 0)):
        run = one.begin("wfe-1", f"target {number}")
        other.do("free", f"target {number}", reason="stuck")
        with pytest.raises(ZeroDivisionError if number else LeaseLost):
            one.within(run, body)


@here
def test_an_error_of_the_body_is_not_hidden_by_a_store_that_fails(
    arena: Arena, caplog: pytest.LogCaptureFixture
) -> None:
    one = Executor(arena)
    runs = [one.begin("wfe-1", target) for target in ("a", "b")]
    one.store.down()
    with caplog.at_level(logging.WARNING, "leasehold"), pytest.raises(ZeroDivisionError):
        one.within(runs[0], lambda _run: 1 / 0)
    assert "could not be finished and ends by its timeout" in caplog.text
    with pytest.raises(StoreUnavailable):
        one.within(runs[1], lambda _run: None)


# Looking.


@everywhere
def test_a_run_is_shown_to_everybody_and_in_the_list_of_leases(arena: Arena) -> None:
    one, other = Executor(arena), Executor(arena)
    assert other.do("inspect", TARGET) is None
    run = one.begin("wfe-1")
    shown = other.do("inspect", TARGET)
    assert (shown.target, shown.name, shown.owner, shown.phase) == (TARGET, NAME, "wfe-1", Phase.RUNNING)
    assert (shown.token, shown.ended, shown.since, shown.cooldown) == (run.token, None, run.since, COOLDOWN)
    assert 0 < shown.expires_in <= TIMEOUT
    (listed,) = other.client.list()
    assert (listed.scope, listed.holder, listed.token) == (f"guard:{NAME}", "wfe-1", run.token)
    assert listed.metadata == {"target": TARGET, "phase": "running"}
    one.run(run, "complete")
    shown = other.do("inspect", TARGET)
    assert (shown.phase, shown.ended >= shown.since) == (Phase.COMPLETED, True)
    assert 0 < shown.expires_in <= COOLDOWN + 5
    assert "wfe-1" in repr(run)
    assert "completed" in repr(run)


@everywhere
def test_each_verb_costs_one_call_of_the_store(arena: Arena) -> None:
    one = Executor(arena)
    before = one.store.calls.total()
    run = one.begin("wfe-1")
    assert one.store.calls.total() - before == 1
    with pytest.raises(NotAcquired):
        one.begin("wfe-2")
    assert one.store.calls.total() - before == 2
    for verb, calls in (("check", 3), ("complete", 4), ("complete", 4), ("abandon", 5)):
        one.run(run, verb)
        assert one.store.calls.total() - before == calls, verb
    one.do("check", TARGET)
    assert one.store.calls.total() - before == 6


@here
def test_a_closed_client_has_no_guard_and_leaves_its_runs(arena: Arena) -> None:
    one = Executor(arena)
    run = one.begin("wfe-1")
    one.client.close()
    for call in (lambda: one.begin("wfe-2"), lambda: one.do("check", TARGET), lambda: one.run(run, "complete")):
        with pytest.raises(leasehold.ClientClosed):
            call()
    assert Executor(arena).do("inspect", TARGET).token == run.token


# Arguments.


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("cooldown", {"cooldown": -1}),
        ("cooldown", {"cooldown": "300"}),
        ("cooldown", {"cooldown": float("nan")}),
        ("timeout", {"timeout": 0}),
        ("timeout", {"timeout": DAY + 1}),
        ("name", {"name": ""}),
        ("name", {"name": "x" * 129}),
        ("max_skew", {"max_skew": -1}),
    ],
)
@here
def test_a_guard_that_cannot_work_is_refused(arena: Arena, field: str, options: dict[str, Any]) -> None:
    client = arena.client()
    with pytest.raises(InvalidInput) as caught:
        guard_of(client, **options)
    assert caught.value.field == field


@pytest.mark.parametrize("target", ["", "x" * 1025, "a\0b", "\ud800", 5, None], ids=ascii)
@here
def test_a_target_that_cannot_be_is_refused_before_anything_is_asked(arena: Arena, target: Any) -> None:
    one = Executor(arena)
    words = [("begin", {"owner": "wfe-1"}), ("check", {}), ("resume", {"owner": "wfe-1"}), ("inspect", {})]
    for verb, options in [*words, ("free", {"reason": "x"}), ("once_per", {"interval": 60})]:
        with pytest.raises(InvalidInput) as caught:
            one.do(verb, target, **options)
        assert caught.value.field == "target"
    assert not one.store.calls


@pytest.mark.parametrize(
    ("field", "verb", "options"),
    [
        ("owner", "begin", {"owner": ""}),
        ("owner", "begin", {"owner": "x" * 257}),
        ("owner", "begin", {"owner": None}),
        ("owner", "check", {"owner": 5}),
        ("owner", "resume", {"owner": ""}),
        ("owner", "once_per", {"interval": 60, "owner": ""}),
        ("cooldown", "begin", {"owner": "wfe-1", "cooldown": -0.1}),
        ("cooldown", "check", {"cooldown": -0.1}),
        ("timeout", "begin", {"owner": "wfe-1", "timeout": 0}),
        ("interval", "once_per", {"interval": 0}),
        ("interval", "once_per", {"interval": -5}),
        ("reason", "free", {"reason": ""}),
    ],
)
@here
def test_an_argument_that_cannot_work_is_refused_before_anything_is_asked(
    arena: Arena, field: str, verb: str, options: dict[str, Any]
) -> None:
    one = Executor(arena)
    with pytest.raises(InvalidInput) as caught:
        one.do(verb, TARGET, **options)
    assert caught.value.field == field
    assert not one.store.calls


@everywhere
def test_a_target_may_be_as_long_and_odd_as_a_key(arena: Arena) -> None:
    one = Executor(arena)
    for target in ("x" * 1024, "../..", "a\nb", "日本", "'; DROP TABLE"):
        assert one.begin("wfe-1", target).target == target
        assert one.do("inspect", target).target == target


@here
def test_a_client_of_the_wrong_colour_is_refused(arena: Arena) -> None:
    other = leasehold.Guard if arena.loop else aio.Guard
    for locks in (arena.client().locks, None, "memory://"):
        with pytest.raises(InvalidInput) as caught:
            other(locks)
        assert caught.value.field == "locks"


# Shape.


AWAITED = {
    "Guard": {"begin", "check", "free", "inspect", "once_per", "resume"},
    "Run": {"__enter__", "__exit__", "abandon", "check", "complete", "fail"},
}
# Which client it takes has a colour.
TYPES = {"Guard: parameters", "__init__: parameters"}


@pytest.mark.parametrize("name", AWAITED)
def test_both_colours_look_alike(name: str) -> None:
    mine, theirs = getattr(leasehold, name), getattr(aio, name)
    assert (mine, theirs) == (getattr(guard, name), getattr(guard_aio, name))
    assert [each for each in differences(mine, theirs) if each not in TYPES] == []


@pytest.mark.parametrize("name", AWAITED)
def test_what_reaches_the_store_is_awaited_and_nothing_else_is(name: str) -> None:
    members = _members(getattr(aio, name))
    assert {member for member, value in members.items() if inspect.iscoroutinefunction(value)} == AWAITED[name]
    for member, value in _members(getattr(leasehold, name)).items():
        assert not inspect.iscoroutinefunction(value)
        assert inspect.getdoc(value), member
