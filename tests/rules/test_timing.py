"""Lengths are checked and rounded up; renewal comes in time; no try is planned for after the end."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from leasehold.errors import InvalidInput
from leasehold.rules.timing import (
    LONGEST,
    checked_hold,
    checked_wait,
    granted_ttl,
    is_late,
    next_try,
    renewal_window,
    seconds,
    trust_ends,
)
from leasehold.stores.memory import GUARANTEES

TTLS = st.floats(0.1, 86_400)
INSTANTS = st.floats(0, 1e8)
CHANCES = st.floats(0, 1, exclude_max=True)
STEPS = st.sampled_from([0.0, 0.001, 0.01, 0.1, 0.25, 1.0, 7.0])
NOT_SECONDS = [None, "30", b"30", True, False, [30], 30j, Decimal(30), Fraction(30), object()]
NOT_FINITE = [math.nan, math.inf, -math.inf, 10**400, -(10**400)]


def approximately(value: float) -> float:
    """How far rounding may move a sum of an instant and a length."""
    return 4 * math.ulp(value)


@given(TTLS, STEPS)
def test_a_granted_ttl_is_the_asked_one_rounded_up_within_the_limits(ttl, step) -> None:
    limits = msgspec.structs.replace(GUARANTEES, ttl_step=step, ttl_min=0.1, ttl_max=86_400.0)
    granted = granted_ttl(ttl, limits)
    assert limits.ttl_min <= ttl <= granted <= limits.ttl_max
    assert granted - ttl < step or granted == ttl


@pytest.mark.parametrize(("ttl", "granted"), [(1, 2.0), (2, 2.0), (2.1, 4.0), (9, 9.0)])
def test_whole_steps_round_up_and_never_past_the_longest(ttl, granted) -> None:
    limits = msgspec.structs.replace(GUARANTEES, ttl_step=2.0, ttl_min=1.0, ttl_max=9.0)
    assert granted_ttl(ttl, limits) == granted


@pytest.mark.parametrize(
    "given", [0, -1, 0.0999, 86_400.1, *NOT_FINITE, *NOT_SECONDS], ids=lambda given: ascii(given)[:20]
)
def test_a_ttl_that_cannot_work_is_refused(given) -> None:
    with pytest.raises(InvalidInput) as caught:
        granted_ttl(given, GUARANTEES)
    assert caught.value.field == "ttl"
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize("given", [-1, -0.001, *NOT_FINITE, *NOT_SECONDS[1:]], ids=lambda given: ascii(given)[:20])
def test_a_wait_that_cannot_work_is_refused(given) -> None:
    with pytest.raises(InvalidInput) as caught:
        checked_wait(given)
    assert caught.value.field == "wait"


@pytest.mark.parametrize("given", [0, -1, 29.9, *NOT_FINITE, *NOT_SECONDS[1:]], ids=lambda given: ascii(given)[:20])
def test_a_longest_hold_shorter_than_the_ttl_or_not_a_length_is_refused(given) -> None:
    with pytest.raises(InvalidInput) as caught:
        checked_hold(given, 30.0)
    assert caught.value.field == "max_hold"


def test_none_means_no_limit_and_numbers_come_back_as_they_were() -> None:
    assert checked_wait(None) is None
    assert checked_hold(None, 30.0) is None
    assert checked_wait(0) == 0
    assert checked_wait(2.5) == 2.5
    assert checked_hold(30, 30.0) == 30
    assert type(seconds("timeout", 5, 0, 10)) is float


@given(st.floats(allow_nan=True, allow_infinity=True) | st.integers())
def test_seconds_are_taken_only_within_their_limits(given) -> None:
    inside = not math.isnan(given) and 0.5 <= given <= LONGEST
    if inside:
        assert seconds("timeout", given, 0.5, math.inf) == given
    else:
        with pytest.raises(InvalidInput, match=r"timeout: must be from 0\.5 to 1e"):
            seconds("timeout", given, 0.5, math.inf)


@given(INSTANTS, TTLS)
def test_a_loss_is_told_a_tenth_of_the_ttl_before_the_store_can_free(sent, ttl) -> None:
    freed = sent + ttl
    assert freed - trust_ends(sent, ttl) >= 0.1 * ttl - approximately(freed)


@given(INSTANTS, TTLS, CHANCES)
def test_renewal_is_due_at_a_third_of_the_ttl_give_or_take_a_tenth(sent, ttl, chance) -> None:
    window, due = renewal_window(sent, ttl, chance)
    slack = approximately(sent + ttl)
    assert sent + 0.9 * ttl / 3 - slack <= window <= due <= sent + 1.1 * ttl / 3 + slack


@given(INSTANTS, TTLS, CHANCES)
def test_a_renewal_that_fails_leaves_time_for_others_before_trust_ends(sent, ttl, chance) -> None:
    _, due = renewal_window(sent, ttl, chance)
    assert trust_ends(sent, ttl) - due >= ttl / 2


@given(INSTANTS, TTLS, CHANCES, CHANCES)
def test_leases_sent_together_are_due_in_one_window(sent, ttl, one, other) -> None:
    """Whoever is due first finds the window of the other open: that is what makes batches."""
    assert renewal_window(sent, ttl, one)[0] <= renewal_window(sent, ttl, other)[1]


def test_chance_spreads_the_due_times() -> None:
    dues = [renewal_window(0.0, 30.0, chance / 100)[1] for chance in range(100)]
    assert len(set(dues)) == 100
    assert max(dues) - min(dues) >= 0.9


@given(INSTANTS, INSTANTS, TTLS)
def test_the_next_try_comes_soon_and_never_after_trust_has_ended(now, deadline, ttl) -> None:
    again = next_try(now, deadline, ttl)
    assert now <= again <= max(deadline, now)
    assert again - now <= ttl / 20 + approximately(again)


@given(INSTANTS, TTLS)
def test_several_tries_fit_between_a_failed_renewal_and_the_end_of_trust(sent, ttl) -> None:
    now, end, tries = sent + 1.1 * ttl / 3, trust_ends(sent, ttl), 0
    assume(end - now > ttl / 2)
    while now < end and tries < 5:
        now, tries = next_try(now, end, ttl), tries + 1
    assert tries == 5


def test_a_beat_is_late_from_a_tenth_of_its_period_on() -> None:
    assert not is_late(0.99, 30.0)
    assert is_late(1.01, 30.0)
