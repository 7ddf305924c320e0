"""Tokens grow with revisions first and local passes second, and always fit 63 bits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.errors import InvalidInput, StoreDamaged
from leasehold.rules.tokens import LARGEST, PASSES, RAISED_MAX, raised_to, token

LAST_REVISION = LARGEST // PASSES
REVISIONS = st.integers(0, LAST_REVISION - 1)
LOCAL = st.integers(0, PASSES - 1)


@given(REVISIONS, LOCAL, LOCAL)
def test_a_later_revision_beats_any_number_of_local_passes(revision, passes, later) -> None:
    assert token(revision, passes) < token(revision + 1, later)


@given(REVISIONS, st.integers(0, PASSES - 2))
def test_a_local_pass_beats_the_one_before(revision, passes) -> None:
    assert token(revision, passes) < token(revision, passes + 1)


@given(REVISIONS, LOCAL)
def test_a_token_fits_a_signed_64_bit_column(revision, passes) -> None:
    assert 0 <= token(revision, passes) < 2**63


@given(st.integers(LAST_REVISION + 1, 10**40), LOCAL)
def test_a_revision_too_large_to_compare_is_refused_with_a_way_out(revision, passes) -> None:
    with pytest.raises(StoreDamaged, match=f"revision {revision} .* move the locks"):
        token(revision, passes)


def test_the_largest_token_of_all_is_allowed() -> None:
    assert token(LAST_REVISION, PASSES - 1) == LARGEST


@given(st.integers(0, RAISED_MAX), LOCAL)
def test_what_follows_the_raised_revision_is_larger_and_what_precedes_it_is_not(revision, passes) -> None:
    above = token(revision, passes)
    assert token(raised_to(above) + 1) > above >= token(raised_to(above))


@given(st.integers(token(RAISED_MAX + 1), LARGEST))
def test_raising_leaves_room_for_later_tokens(above) -> None:
    assert raised_to(token(RAISED_MAX, PASSES - 1)) == RAISED_MAX
    with pytest.raises(InvalidInput, match="use up the range"):
        raised_to(above)
