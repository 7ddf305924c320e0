"""The published figures that are counts. Times are measured by `make bench` and never asserted."""

from __future__ import annotations

import pytest

from benchmarks import calls, imports, renewals
from benchmarks.harness import Figure, medians
from tests.support import note


def test_acquire_and_release_in_memory_call_few_python_functions() -> None:
    counted = calls.calls()
    note(f"Python calls: {counted:.1f}")
    # More than nothing: the profiler was really on.
    assert 10 < counted <= calls.TARGET


@pytest.mark.parametrize("spread", [0.0, renewals.PERIOD], ids=["acquired at once", "acquired over a whole period"])
def test_a_thousand_leases_are_renewed_in_a_few_store_calls_a_period(spread: float) -> None:
    counts = renewals.store_calls(spread)
    note(f"store calls in each period: {counts}")
    assert renewals.LEASES == 1000
    assert 0 < max(counts) <= renewals.TARGET


def test_import_leasehold_loads_no_more_modules_than_import_redis() -> None:
    ours, theirs, nothing = imports.modules("leasehold"), imports.modules("redis"), imports.modules("sys")
    note(f"modules: {ours} against {theirs}, {nothing} in a bare interpreter")
    assert nothing < ours <= theirs


def test_a_figure_above_its_target_fails() -> None:
    assert Figure("a", "", "", 1.51, 1.5).verdict == "FAIL"
    assert Figure("a", "", "", 1.5, 1.5).verdict == "pass"
    assert Figure("a", "", "", 99.0, None).verdict == "shown"


def test_cases_take_turns_and_the_first_of_each_is_thrown_away() -> None:
    ran: list[str] = []
    readings = {"a": iter([100.0, 1.0, 2.0, 3.0]), "b": iter([100.0, 7.0, 9.0, 8.0])}

    def case(name: str) -> float:
        ran.append(name)
        return next(readings[name])

    assert medians({"a": lambda: case("a"), "b": lambda: case("b")}, rounds=3) == {"a": 2.0, "b": 8.0}
    assert ran == ["a", "b", "b", "a", "a", "b", "b", "a"]
