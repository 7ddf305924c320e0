"""What handling a key once means, on any store."""

from __future__ import annotations

from typing import Any

import pytest

from leasehold.errors import FinishedLate, KeyReused, LeaseLost, OutcomeUnknown, RunFailed, StillRunning
from leasehold.rules.once import State
from leasehold.testing.conformance.arena import PATIENCE, Arena
from leasehold.testing.conformance.exercise import exercises
from leasehold.testing.conformance.once_face import (
    KEY,
    RECEIPT,
    Declined,
    Doing,
    Gate,
    Hiccup,
    Ledger,
    OnceFace,
    WorkFace,
    comes_back,
    counted_of,
    died,
    two_of,
)
from leasehold.testing.faults import Call, FaultyStore


class OnceLaws:
    """Laws of `Once`."""

    # Replaying.

    @exercises("Once.run", "Once.inspect", "Work.token", "Locks.list")
    def test_the_first_run_is_done_and_every_later_one_gets_its_answer(self, arena: Arena) -> None:
        one, two = two_of(arena)
        ledger = Ledger()
        assert one.inspect(KEY) is None
        assert [once.run(KEY, ledger.charge, fingerprint="a") for once in (one, two, one)] == [RECEIPT] * 3
        assert len(ledger.done) == 1
        found = two.inspect(KEY)
        assert (found.state, found.holder, found.token, found.attempt) == (State.COMPLETED, "ada", ledger.done[0], 1)
        assert found.ended >= found.since
        assert (one.told, two.told) == (["begun", "completed", "replayed"], ["replayed"])
        # Nobody holds anything any more, and what is kept is no lease.
        assert two.who.list() == []
        # Another key, and the same one of other work, are something else.
        two.run(f"{KEY}/2", ledger.charge)
        OnceFace(arena, two.who, "refunds").run(KEY, ledger.charge)
        assert len(ledger.done) == 3

    @exercises("Once.run")
    def test_a_replay_is_one_request_and_a_run_adds_four(self, arena: Arena) -> None:
        ledger = Ledger()
        one, counted = counted_of(arena, "ada")
        one.run(KEY, ledger.charge, fingerprint="a")
        assert counted.requests == ["load", "swap", "swap", "together"]
        two, counted = counted_of(arena, "bob")
        two.run(KEY, ledger.charge, fingerprint="a")
        assert counted.requests == ["load"]
        assert len(ledger.done) == 1

    @exercises("Once.handler", "Work.key")
    def test_a_function_can_be_made_one_that_is_handled_once_for_each_of_its_keys(self, arena: Arena) -> None:
        one, two = two_of(arena)
        done: list[tuple[str, int]] = []

        def blocking(work: Any, order: int, *, cents: int) -> int:
            done.append((WorkFace(work, arena).key, cents))
            return order + cents

        async def looped(work: Any, order: int, *, cents: int) -> int:
            return blocking(work, order, cents=cents)

        for once in (one, two):
            decorate = once.handler(lambda order, **_: f"o/{order}", fingerprint=lambda *_, cents: str(cents))
            charge = decorate(blocking if arena.loop is None else looped)
            assert [arena.person().do(lambda: charge(n, cents=5)) for n in (1, 2, 1)] == [6, 7, 6]  # noqa: B023  done at once
            with pytest.raises(KeyReused):
                arena.person().do(lambda: charge(2, cents=6))  # noqa: B023  done at once
        assert done == [("o/1", 5), ("o/2", 5)]

    @exercises("Once.run")
    def test_a_hook_sees_every_replay_and_gives_what_is_returned_instead(self, arena: Arena) -> None:
        ledger, gate, seen = Ledger(), Gate(arena), list[tuple[str, Any]]()

        def blocking(key: str, value: Any) -> Any:
            seen.append((key, value))
            if len(seen) > 1:
                raise PermissionError(key)
            return {**value, "again": True}

        async def looped(key: str, value: Any) -> Any:
            return blocking(key, value)

        one, two = two_of(arena, on_replay=blocking if arena.loop is None else looped)
        running = one.begin(KEY, ledger.held_up(gate))
        arena.eventually(gate.reached.is_set)
        # Who goes away is given nothing, so there is nothing to see.
        assert two.run(KEY, ledger.charge, duplicates="skip") is None
        gate.open()
        assert running.result(PATIENCE) == RECEIPT
        assert seen == []
        assert two.run(KEY, ledger.charge) == {**RECEIPT, "again": True}
        with pytest.raises(PermissionError, match=KEY):
            two.run(KEY, ledger.charge)
        assert seen == [(KEY, RECEIPT)] * 2
        assert two.run(KEY, ledger.charge, on_replay=None) == RECEIPT
        assert len(ledger.done) == 1

    @exercises("Once.run")
    def test_tenants_do_not_meet(self, arena: Arena) -> None:
        ledger = Ledger()
        tenants = [OnceFace(arena, arena.client("ada", tenant=tenant)) for tenant in ("red", "blue", None)]
        for once in tenants:
            once.run(KEY, ledger.charge, fingerprint=repr(once))
        assert len(ledger.done) == 3

    @exercises("Once.run")
    def test_a_key_that_comes_with_another_payload_is_refused_also_while_its_work_goes_on(self, arena: Arena) -> None:
        one, two = two_of(arena)
        ledger, gate = Ledger(), Gate(arena)
        running = one.begin(KEY, ledger.held_up(gate), fingerprint="a")
        arena.eventually(gate.reached.is_set)
        for other in ("b", None):
            with pytest.raises(KeyReused):
                two.run(KEY, ledger.charge, fingerprint=other)
        gate.open()
        arena.eventually(running.done)
        with pytest.raises(KeyReused):
            two.run(KEY, ledger.charge, fingerprint="b")
        assert two.run(KEY, ledger.charge, fingerprint="a") == RECEIPT
        assert len(ledger.done) == 1

    @exercises("Once.run", "Once.inspect")
    def test_who_comes_meanwhile_waits_and_replays_or_is_told_or_goes_away(self, arena: Arena) -> None:
        one, two = two_of(arena)
        ledger, gate = Ledger(), Gate(arena)
        running = one.begin(KEY, ledger.held_up(gate))
        arena.eventually(gate.reached.is_set)
        assert two.inspect(KEY).state is State.RUNNING
        with pytest.raises(StillRunning) as told:
            two.run(KEY, ledger.charge, duplicates="raise")
        assert 0 < told.value.retry_after <= 2 * arena.ttl
        assert two.run(KEY, ledger.charge, duplicates="skip") is None
        with pytest.raises(StillRunning):
            two.run(KEY, ledger.charge, wait=0)
        waiting = [once.begin(KEY, ledger.charge, beside=True) for once in (one, two, two)]
        gate.open()
        arena.eventually(lambda: all(each.done() for each in (running, *waiting)))
        assert [each.result() for each in (running, *waiting)] == [RECEIPT] * 4
        assert len(ledger.done) == 1

    # Workers that die, or come too late.

    @exercises("Once.run", "Once.inspect", "Once.settle", "Once.forget")
    def test_after_a_worker_that_died_the_outcome_is_unknown_until_somebody_settles_or_forgets_it(
        self, arena: Arena
    ) -> None:
        one, two = two_of(arena)
        ledger, gate = Ledger(), Gate(arena)
        dead = died(arena, one, two, ledger.held_up(gate))
        assert two.inspect(KEY).state is State.UNKNOWN
        assert two.settle(KEY, RECEIPT) is True
        assert two.settle(KEY, "again") is False
        assert two.run(KEY, ledger.charge) == RECEIPT
        assert two.forget(KEY) is True
        assert two.forget(KEY) is False
        assert two.inspect(KEY) is None
        assert ledger.done == []
        assert two.run(KEY, ledger.charge) == RECEIPT
        assert len(ledger.done) == 1
        # The dead one comes back, and what it did counts for nothing.
        comes_back(arena, one, gate, dead)
        assert isinstance(dead.exception(), FinishedLate)
        assert "late" in one.told

    @exercises("Once.run", "Work.attempt", "Work.held", "Work.check")
    def test_what_is_declared_safe_is_run_again_with_a_larger_token_and_the_zombie_changes_nothing(
        self, arena: Arena
    ) -> None:
        one, two = two_of(arena)
        gate, seen = Gate(arena), list[tuple[int, int, bool]]()

        async def zombie(work: WorkFace) -> Any:
            await gate.passed()
            seen.append((work.attempt, work.token, work.held))
            with pytest.raises(LeaseLost):
                work.check()
            return "of the zombie"

        async def heir(work: WorkFace) -> Any:
            seen.append((work.attempt, work.token, work.held))
            return "of the heir"

        dead = died(arena, one, two, zombie)
        assert two.run(KEY, heir, rerun=True) == "of the heir"
        comes_back(arena, one, gate, dead)
        assert isinstance(dead.exception(), FinishedLate)
        (_, larger, first), (_, smaller, last) = seen
        assert ([attempt for attempt, _, _ in seen], first, last) == ([2, 1], True, False)
        assert larger > smaller
        assert two.run(KEY, heir) == "of the heir"
        assert one.told == ["begun", "late"]

    @pytest.mark.parametrize("error", [Declined("late"), Hiccup("late"), KeyError("late")])
    @exercises("Once.run")
    def test_a_failure_that_comes_too_late_frees_and_marks_nothing(self, arena: Arena, error: Exception) -> None:
        one, two = two_of(arena, definite=(Declined,), retry=(Hiccup,))
        ledger, gate, second = Ledger(), Gate(arena), Gate(arena)

        async def zombie(_work: WorkFace) -> Any:
            await gate.passed()
            raise error

        dead = died(arena, one, two, zombie)
        running = two.begin(KEY, ledger.held_up(second), rerun=True)
        arena.eventually(second.reached.is_set)
        comes_back(arena, one, gate, dead)
        assert isinstance(dead.exception(), FinishedLate | KeyError)
        # The heir is still at it, and nobody else may begin.
        with pytest.raises(StillRunning):
            OnceFace(arena, arena.client("cleo")).run(KEY, ledger.charge, duplicates="raise", rerun=True)
        second.open()
        arena.eventually(running.done)
        assert running.result() == two.run(KEY, ledger.charge) == RECEIPT
        assert one.told == ["begun", "late"]
        assert len(ledger.done) == 1

    @exercises("Once.run")
    def test_who_is_done_between_anothers_look_and_its_grant_has_no_unknown_outcome(self, arena: Arena) -> None:
        one, two = two_of(arena)
        ledger, gate, taking = Ledger(), Gate(arena), Gate(arena)
        running = one.begin(KEY, ledger.held_up(gate))
        arena.eventually(gate.reached.is_set)

        async def held_up(_store: FaultyStore, call: Call) -> Any:
            await taking.passed()
            return await call()

        # It saw a run that went on; when it asks for the lease, that is over.
        two.who.store.plan("swap", held_up)
        late = two.begin(KEY, ledger.charge)
        arena.eventually(taking.reached.is_set)
        gate.open()
        arena.eventually(running.done)
        taking.open()
        arena.eventually(late.done)
        assert late.result() == running.result() == RECEIPT
        assert len(ledger.done) == 1

    # Failures.

    @exercises("Once.run", "Once.inspect")
    def test_a_definite_failure_is_kept_and_told_to_whoever_comes_again(self, arena: Arena) -> None:
        one, two = two_of(arena, definite=(Declined,))
        ledger = Ledger()
        with pytest.raises(Declined, match="no money"):
            one.run(KEY, ledger.failing(Declined("no money")))
        for once in (one, two):
            with pytest.raises(RunFailed, match="no money") as told:
                once.run(KEY, ledger.charge, rerun=True)
            assert (told.value.kind, told.value.message) == ("Declined", "no money")
        assert (two.inspect(KEY).state, two.inspect(KEY).failure) == (State.FAILED, "Declined: no money")
        assert len(ledger.done) == 1

    @exercises("Once.run", "Once.inspect")
    def test_an_error_that_may_be_retried_frees_the_key_and_any_other_leaves_it_unknown(self, arena: Arena) -> None:
        one, two = two_of(arena, definite=(Declined,), retry=(Hiccup,))
        ledger = Ledger()
        with pytest.raises(Hiccup):
            one.run(KEY, ledger.failing(Hiccup()))
        assert two.inspect(KEY) is None
        with pytest.raises(KeyError):
            two.run(KEY, ledger.failing(KeyError("what")))
        assert (two.inspect(KEY).state, two.inspect(KEY).failure) == (State.UNKNOWN, "KeyError: 'what'")
        with pytest.raises(OutcomeUnknown):
            one.run(KEY, ledger.charge)
        # An error of the next run, even one after which it may be tried again, does not make it known.
        with pytest.raises(Hiccup):
            one.run(KEY, ledger.failing(Hiccup()), rerun=True)
        with pytest.raises(OutcomeUnknown):
            two.run(KEY, ledger.charge)
        assert two.run(KEY, ledger.charge, rerun=True) == RECEIPT
        assert len(ledger.done) == 4
        assert one.told + two.told == ["begun", "retried", "begun", "unknown", "begun", "unknown", "begun", "completed"]

    @exercises("Once.run")
    def test_who_waits_is_told_at_once_when_the_work_ends_with_an_unknown_outcome(self, arena: Arena) -> None:
        one, two = two_of(arena)
        ledger, gate = Ledger(), Gate(arena)

        async def doomed(_work: WorkFace) -> Any:
            await gate.passed()
            raise KeyError

        running = one.begin(KEY, doomed)
        arena.eventually(gate.reached.is_set)
        waiting = two.begin(KEY, ledger.charge)
        arena.eventually(lambda: two.who.store.calls["watch"])
        gate.open()
        arena.eventually(running.done)
        arena.eventually(waiting.done)
        assert isinstance(waiting.exception(), OutcomeUnknown)
        assert ledger.done == []

    # Steps.

    @exercises("Work.step", "Once.inspect")
    def test_finished_steps_are_replayed_and_one_that_was_begun_is_unknown_unless_it_may_be_done_again(
        self, arena: Arena
    ) -> None:
        one, two = two_of(arena)
        gate, done = Gate(arena), list[str]()

        def doing(name: str) -> str:
            done.append(name)
            return f"{name} done"

        def stuck() -> None:
            done.append("second")
            raise SystemError

        def work_of(second: Any, *, rerun: bool = False) -> Doing:
            async def doing_both(work: WorkFace) -> Any:
                first = await work.step("first", lambda: doing("first"))
                return [first, await work.step("second", second, rerun=rerun)]

            return doing_both

        with pytest.raises(SystemError):
            one.run(KEY, work_of(stuck))
        assert two.inspect(KEY).steps == ("first",)
        with pytest.raises(OutcomeUnknown, match="second"):
            two.run(KEY, work_of(lambda: doing("second")), rerun=True)
        assert done == ["first", "second"]
        again = work_of(lambda: doing("second"), rerun=True)
        assert two.run(KEY, again, rerun=True) == ["first done", "second done"]
        assert done == ["first", "second", "second"]
        assert two.inspect(KEY).attempt == 3
        gate.open()

    @exercises("Work.step")
    def test_what_may_be_tried_again_goes_on_after_the_steps_that_were_finished(self, arena: Arena) -> None:
        one, two = two_of(arena, retry=(Hiccup,))
        done: list[str] = []

        def work_of(error: Exception | None) -> Doing:
            def second() -> str:
                done.append("second")
                if error is not None:
                    raise error
                return "second done"

            async def doing(work: WorkFace) -> Any:
                await work.step("first", lambda: done.append("first"))
                return await work.step("second", second), work.attempt

            return doing

        with pytest.raises(Hiccup):
            one.run(KEY, work_of(Hiccup()))
        assert two.run(KEY, work_of(None)) == ("second done", 1)
        assert done == ["first", "second", "second"]
