"""Each property of `Once` has a law that fails when the property is broken on purpose."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from leasehold.engine.engine import Engine
from leasehold.errors import LeaseholdError, OutcomeUnknown
from leasehold.patterns import handling, steps
from leasehold.patterns.handling import Handling
from leasehold.rules.once import State, write_once
from leasehold.stores.memory import MemoryStore
from leasehold.testing.conformance import OnceConformance, once_face
from leasehold.testing.conformance import arena as arena_module
from leasehold.testing.conformance.once_face import Declined, Hiccup
from leasehold.testing.faults import cut
from tests.test_negative_controls import arena_of, no_renewals


class Control(NamedTuple):
    broken: str
    law: str
    patch: Callable[[pytest.MonkeyPatch], None]
    # What the law is given beside the arena.
    options: tuple[Any, ...] = ()


def late_writes_count(patch: pytest.MonkeyPatch) -> None:
    """Update and delete by name."""
    real = Engine.release_after

    async def release_after(self, held, last):
        return await real(self, held, last._replace(expect=await self.store.load(last.key)))

    patch.setattr(Engine, "release_after", release_after)


def payloads_are_not_compared(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(handling, "check_same", lambda *_: None)


def payloads_are_compared_once_it_is_done(patch: pytest.MonkeyPatch) -> None:
    real = handling.check_same
    patch.setattr(handling, "check_same", lambda found, *rest: found.state is State.RUNNING or real(found, *rest))


def what_is_unknown_is_run_again(patch: pytest.MonkeyPatch) -> None:
    real = handling.following
    patch.setattr(handling, "following", lambda *given: msgspec.structs.replace(real(*given), attempt=1))


def nobody_looks_again(patch: pytest.MonkeyPatch) -> None:
    async def refuse(self, held, _place, _found, key):
        await self.engine.give_back(held)
        raise OutcomeUnknown(key)

    patch.setattr(Handling, "_refuse", refuse)


def every_error_frees_the_key(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(handling, "is_declared", lambda _error, kinds: kinds != (Declined,))


def steps_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    real = handling.following
    patch.setattr(handling, "following", lambda *given: msgspec.structs.replace(real(*given), steps=()))


def a_begun_step_is_done_again(patch: pytest.MonkeyPatch) -> None:
    real = steps.step
    patch.setattr(steps, "step", lambda *given, rerun: real(*given, rerun=rerun or True))


def what_is_freed_is_deleted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(handling, "freed", lambda _record: None)


def nobody_asks_again(patch: pytest.MonkeyPatch) -> None:
    real = Handling.again_and_again
    patch.setattr(Handling, "again_and_again", lambda self, ask, _patience: real(self, ask, 0.0))


def nothing_is_withdrawn(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Handling, "_withdraw", lambda self, held, *_: self.engine.give_back(held))


def a_result_of_any_size_is_sent(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Handling, "_fitted", lambda _self, said: (write_once(said), said.unkept))


def an_expired_record_is_somebody_elses(patch: pytest.MonkeyPatch) -> None:
    async def end(self, begun, value):
        life = None if value is None else self.life(begun.policy)
        last = handling.Swap(begun.record.key, begun.record, value, life)
        return await self.engine.release_after(begun.grant, last)

    patch.setattr(Handling, "_end", end)


def a_replay_takes_the_lease(patch: pytest.MonkeyPatch) -> None:
    real = Handling.begin

    async def begin(self, key, *rest):
        await self.engine.store.load(self.key_of(key))
        return await real(self, key, *rest)

    patch.setattr(Handling, "begin", begin)


def an_unknown_end_is_not_written(patch: pytest.MonkeyPatch) -> None:
    real = Handling._finish

    async def finish(self, begun, state, value, patience):
        if state is State.UNKNOWN:
            await self._leave(begun)
        else:
            await real(self, begun, state, value, patience)

    patch.setattr(Handling, "_finish", finish)
    # Within the patience of the law nobody looks for himself, either.
    patch.setattr(handling, "LOOK_AGAIN", 10.0)


CONTROLS = [
    Control(
        "a late finish counts",
        "test_what_is_declared_safe_is_run_again_with_a_larger_token_and_the_zombie_changes_nothing",
        late_writes_count,
    ),
    Control(
        "a late failure counts",
        "test_a_failure_that_comes_too_late_frees_and_marks_nothing",
        late_writes_count,
        (Hiccup("late"),),
    ),
    Control(
        "payloads are not compared",
        "test_a_key_that_comes_with_another_payload_is_refused_also_while_its_work_goes_on",
        payloads_are_not_compared,
    ),
    Control(
        "payloads are compared once it is done",
        "test_a_key_that_comes_with_another_payload_is_refused_also_while_its_work_goes_on",
        payloads_are_compared_once_it_is_done,
    ),
    Control(
        "what is unknown is run again",
        "test_after_a_worker_that_died_the_outcome_is_unknown_until_somebody_settles_or_forgets_it",
        what_is_unknown_is_run_again,
    ),
    Control(
        "nobody looks again",
        "test_who_is_done_between_anothers_look_and_its_grant_has_no_unknown_outcome",
        nobody_looks_again,
    ),
    Control(
        "every error frees the key",
        "test_an_error_that_may_be_retried_frees_the_key_and_any_other_leaves_it_unknown",
        every_error_frees_the_key,
    ),
    Control(
        "steps are forgotten",
        "test_finished_steps_are_replayed_and_one_that_was_begun_is_unknown_unless_it_may_be_done_again",
        steps_are_forgotten,
    ),
    Control(
        "a begun step is done again",
        "test_finished_steps_are_replayed_and_one_that_was_begun_is_unknown_unless_it_may_be_done_again",
        a_begun_step_is_done_again,
    ),
    Control(
        "what is freed is deleted",
        "test_what_may_be_tried_again_goes_on_after_the_steps_that_were_finished",
        what_is_freed_is_deleted,
    ),
    Control(
        "nobody asks again",
        "test_a_request_or_a_reply_that_is_lost_after_the_work_costs_neither_answer_nor_record",
        nobody_asks_again,
        (cut,),
    ),
    Control(
        "nothing is withdrawn",
        "test_a_request_or_a_reply_that_is_lost_before_the_work_leaves_nothing",
        nothing_is_withdrawn,
        (cut,),
    ),
    Control(
        "a result of any size is sent",
        "test_a_result_that_cannot_be_kept_is_told_after_the_work_which_is_not_done_again",
        a_result_of_any_size_is_sent,
    ),
    Control("no renewals", "test_a_long_run_keeps_its_lease_and_a_result_lasts_longer_than_that", no_renewals),
    Control(
        "an expired record is somebody else's",
        "test_a_run_that_takes_longer_than_results_are_kept_still_keeps_its_own",
        an_expired_record_is_somebody_elses,
    ),
    Control("a replay asks twice", "test_a_replay_is_one_request_and_a_run_adds_four", a_replay_takes_the_lease),
    Control(
        "an unknown end is not written",
        "test_who_waits_is_told_at_once_when_the_work_ends_with_an_unknown_outcome",
        an_unknown_end_is_not_written,
    ),
]


@pytest.mark.parametrize("control", CONTROLS, ids=lambda control: control.broken)
def test_the_law_notices(control: Control, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for room in (arena_module, once_face):
        monkeypatch.setattr(room, "PATIENCE", 1.0)
    control.patch(monkeypatch)
    broken = (AssertionError, pytest.fail.Exception, TimeoutError, LeaseholdError, AttributeError)
    with arena_of(MemoryStore, tmp_path) as arena, pytest.raises(broken) as noticed:
        getattr(OnceConformance(), control.law)(arena, *control.options)
    # And not because the control names what is no longer there.
    assert "'Handling'" not in str(noticed.value)


@pytest.mark.parametrize("control", CONTROLS, ids=lambda control: control.broken)
def test_the_law_passes_where_nothing_is_broken(control: Control, tmp_path: Path) -> None:
    with arena_of(MemoryStore, tmp_path) as arena:
        getattr(OnceConformance(), control.law)(arena, *control.options)
