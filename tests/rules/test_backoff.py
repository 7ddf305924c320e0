"""Pauses grow, stay within their bounds, and differ from one asker to the next."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.rules.backoff import LATEST, SOONEST, Backoff, retry_after

CHANCES = st.floats(0, 1, exclude_max=True)
ATTEMPTS = st.integers(0, 10_000)
POLICIES = st.builds(
    Backoff,
    base=st.floats(0.001, 1),
    factor=st.floats(1, 4),
    jitter=st.floats(0, 0.5),
    cap=st.floats(1, 60),
)


@given(POLICIES, ATTEMPTS, CHANCES)
def test_a_pause_lies_between_the_base_and_the_cap_give_or_take_the_jitter(policy, attempt, chance) -> None:
    pause = policy.delay(attempt, chance)
    assert policy.base * (1 - policy.jitter) <= pause * 1.000001
    assert pause <= policy.cap * (1 + policy.jitter) * 1.000001


@given(POLICIES, ATTEMPTS, CHANCES)
def test_pauses_never_shrink(policy, attempt, chance) -> None:
    assert policy.delay(attempt, chance) <= policy.delay(attempt + 1, chance)


@given(CHANCES)
def test_the_first_pause_is_50_to_100_milliseconds(chance) -> None:
    assert 0.05 <= Backoff().delay(0, chance) <= 0.1


def test_pauses_double_until_the_cap() -> None:
    policy = Backoff(base=0.1, factor=2.0, jitter=0.0, cap=1.0)
    assert [policy.delay(attempt, 0.3) for attempt in range(6)] == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0, 1.0])


@given(POLICIES.filter(lambda policy: policy.jitter > 0.01), ATTEMPTS, st.floats(0, 0.4), st.floats(0.5, 0.99))
def test_two_askers_with_different_luck_do_not_come_back_together(policy, attempt, one, other) -> None:
    assert policy.delay(attempt, one) < policy.delay(attempt, other)


@given(st.none() | st.floats(-10, 1e6), CHANCES)
def test_a_suggestion_to_come_back_stays_within_reason(left, chance) -> None:
    assert 0.8 * SOONEST <= retry_after(left, chance) <= 1.2 * LATEST


@given(st.floats(SOONEST, LATEST), CHANCES)
def test_a_suggestion_to_come_back_is_about_when_the_lease_ends(left, chance) -> None:
    assert 0.79 * left <= retry_after(left, chance) <= 1.21 * left
