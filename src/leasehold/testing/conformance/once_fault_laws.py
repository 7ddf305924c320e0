"""What becomes of work that is handled once when the store fails, and when time passes. On any store."""

from __future__ import annotations

from typing import Any

import pytest

from leasehold.errors import OutcomeUnknown, ResultNotKept, RunFailed, StillRunning, StoreUnavailable
from leasehold.model import Key
from leasehold.rules.names import LOCK
from leasehold.rules.once import State
from leasehold.testing.conformance.arena import Arena
from leasehold.testing.conformance.exercise import exercises
from leasehold.testing.conformance.once_face import (
    KEY,
    RECEIPT,
    Declined,
    Gate,
    Hiccup,
    Ledger,
    WorkFace,
    live,
    through,
    two_of,
)
from leasehold.testing.faults import Fault, cut, drop


class OnceFaultLaws:
    """Laws of `Once` on a store that fails, and of how long things last."""

    @exercises("Once.run")
    def test_a_store_that_is_down_is_told_before_anything_ran(self, arena: Arena) -> None:
        one, two = two_of(arena)
        ledger = Ledger()
        one.who.store.down()
        with pytest.raises(StoreUnavailable):
            one.run(KEY, ledger.charge)
        one.who.store.up()
        assert ledger.done == []
        assert two.run(KEY, ledger.charge) == RECEIPT

    @pytest.mark.parametrize("fault", [cut, drop])
    @exercises("Once.run", "Once.inspect")
    def test_a_request_or_a_reply_that_is_lost_before_the_work_leaves_nothing(self, arena: Arena, fault: Fault) -> None:
        one, two = two_of(arena)
        ledger, store = Ledger(), arena.store()
        for verb, before in (("load", 0), ("swap", 0), ("swap", 1)):
            key = f"{KEY}/{verb}/{before}"
            one.who.store.plan(verb, *[through] * before, fault)
            with pytest.raises(StoreUnavailable):
                one.run(key, ledger.charge)
            assert ledger.done == []
            # A lease whose grant got lost is removed by who asked for it.
            lease = Key(one.real._handling.key_of(key).family, LOCK)  # noqa: SLF001  where it lives is nobody's business
            arena.eventually(lambda: store.load(lease) is None)  # noqa: B023  at once
            assert two.run(key, ledger.charge) == one.run(key, ledger.charge) == RECEIPT
            assert two.inspect(key).attempt == len(ledger.done) == 1
            ledger.done.clear()

    @pytest.mark.parametrize("fault", [cut, drop])
    @exercises("Once.run", "Once.inspect", "Work.step")
    def test_a_request_or_a_reply_that_is_lost_in_taking_over_leaves_what_was_there(
        self, arena: Arena, fault: Fault
    ) -> None:
        one, two = two_of(arena)
        done: list[str] = []

        async def doing(work: WorkFace) -> Any:
            await work.step("charge", lambda: done.append("charge"))
            if work.attempt == 1:
                raise KeyError("what")
            return work.attempt

        with pytest.raises(KeyError):
            one.run(KEY, doing)
        one.who.store.plan("swap", through, fault)
        with pytest.raises(StoreUnavailable):
            one.run(KEY, doing, rerun=True)
        found = two.inspect(KEY)
        assert (found.state, found.attempt, found.steps) == (State.UNKNOWN, 1, ("charge",))
        assert found.expires_in is None or found.expires_in > arena.ttl
        with pytest.raises(OutcomeUnknown):
            two.run(KEY, doing)
        assert (two.run(KEY, doing, rerun=True), done) == (2, ["charge"])

    @pytest.mark.parametrize("fault", [cut, drop])
    @exercises("Once.run")
    def test_a_request_or_a_reply_that_is_lost_after_the_work_costs_neither_answer_nor_record(
        self, arena: Arena, fault: Fault
    ) -> None:
        one, two = two_of(arena)
        ledger = Ledger()
        for before in (2, 3):
            key = f"{KEY}/{before}"
            one.who.store.plan("swap", *[through] * before, fault)
            running = one.begin(key, ledger.charge)
            arena.eventually(running.done)
            assert running.result() == two.run(key, ledger.charge) == RECEIPT
            assert len(ledger.done) == 1
            ledger.done.clear()

    @pytest.mark.parametrize("fault", [cut, drop])
    @exercises("Work.step")
    def test_a_note_of_a_step_that_is_lost_is_written_again(self, arena: Arena, fault: Fault) -> None:
        one, two = two_of(arena, definite=(Declined,))
        done: list[str] = []

        async def doing(work: WorkFace) -> Any:
            one.who.store.plan("swap", through, fault)
            await work.step("first", lambda: done.append("first"))
            # Lost before anything was done: whoever goes on all the same still writes the truth.
            one.who.store.plan("swap", fault)
            with pytest.raises(StoreUnavailable):
                await work.step("second", lambda: done.append("second"))
            raise Declined("in the end")

        running = one.begin(KEY, doing)
        arena.eventually(running.done)
        assert isinstance(running.exception(), Declined)
        assert done == ["first"]
        with pytest.raises(RunFailed, match="in the end"):
            two.run(KEY, doing)

    @exercises("Once.run", "Once.inspect")
    def test_a_result_that_cannot_be_kept_is_told_after_the_work_which_is_not_done_again(self, arena: Arena) -> None:
        one, two = two_of(arena, limit=100)
        endless: list[Any] = []
        endless.append(endless)
        most = one.who.store.guarantees.value_max
        for number, (value, options) in enumerate(
            [(object(), {}), ("x" * 100, {}), (endless, {}), ("x" * most, {"limit": 2 * most})]
        ):
            key, done = f"{KEY}/{number}", list[int]()

            async def doing(_work: WorkFace, value: Any = value, done: list[int] = done) -> Any:
                done.append(1)
                return value

            with pytest.raises(ResultNotKept) as told:
                one.run(key, doing, **options)
            assert told.value.value is value
            with pytest.raises(ResultNotKept) as told:
                two.run(key, doing, rerun=True)
            assert told.value.value is None
            assert (len(done), two.inspect(key).state) == (1, State.COMPLETED)

    @exercises("Once.run", "Work.held")
    def test_a_long_run_keeps_its_lease_and_a_result_lasts_longer_than_that(self, arena: Arena) -> None:
        ledger, gate, held = Ledger(), Gate(arena), list[bool]()
        one, two = two_of(arena, keep=4 * arena.ttl)

        async def doing(work: WorkFace) -> Any:
            await gate.passed()
            held.append(work.held)
            return await ledger.charge(work)

        running = one.begin(KEY, doing)
        arena.eventually(gate.reached.is_set)
        live(arena, one, 2 * arena.ttl)
        with pytest.raises(StillRunning):
            two.run(KEY, ledger.charge, duplicates="raise")
        gate.open()
        arena.eventually(running.done)
        live(arena, one, 2 * arena.ttl)
        assert two.run(KEY, ledger.charge) == RECEIPT
        assert (held, len(ledger.done)) == ([True], 1)
        # It ends, too; and with it the key.
        arena.elapse(3 * arena.ttl)
        arena.eventually(lambda: two.inspect(KEY) is None)
        two.run(KEY, ledger.charge)
        assert len(ledger.done) == 2

    @exercises("Once.run")
    def test_a_run_that_takes_longer_than_results_are_kept_still_keeps_its_own(self, arena: Arena) -> None:
        ledger, gate = Ledger(), Gate(arena)
        one, two = two_of(arena, keep=arena.ttl)
        running = one.begin(KEY, ledger.held_up(gate))
        arena.eventually(gate.reached.is_set)
        live(arena, one, 1.5 * arena.ttl)
        gate.open()
        arena.eventually(running.done)
        assert running.result() == two.run(KEY, ledger.charge) == RECEIPT
        assert len(ledger.done) == 1

    @exercises("Once.run", "Once.forget", "Store.scan", "Store.page")
    def test_nothing_is_left_but_the_record_and_nothing_once_that_is_forgotten(self, arena: Arena) -> None:
        one, two = two_of(arena, retry=(Hiccup,))
        ledger, store = Ledger(), arena.store()
        one.run(KEY, ledger.charge)
        family = one.real._handling.key_of(KEY).family  # noqa: SLF001  where it lives is nobody's business
        assert [record.key.member for record in store.scan(family)] == ["once"]
        with pytest.raises(Hiccup):
            two.run(f"{KEY}/2", ledger.failing(Hiccup()))
        two.forget(KEY)
        assert store.page(one.who.locks._engine.names.root, None, 10) == []  # noqa: SLF001
