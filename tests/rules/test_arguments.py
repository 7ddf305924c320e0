"""Switches, whole numbers and functions are taken only as such."""

from __future__ import annotations

import pytest

from leasehold.errors import InvalidInput
from leasehold.rules.arguments import flag, function, whole


@pytest.mark.parametrize("given", [None, 0, 1, "no", "", [], object()])
def test_what_merely_counts_as_true_or_false_is_refused(given) -> None:
    with pytest.raises(InvalidInput, match=f"force: must be True or False, not {type(given).__name__}"):
        flag("force", given)


def test_true_and_false_are_taken() -> None:
    assert flag("force", True) is True
    assert flag("force", False) is False


@pytest.mark.parametrize("given", [None, True, 1.0, 2.5, "5", b"5", -1, 0])
def test_what_is_no_whole_number_or_too_small_is_refused(given) -> None:
    with pytest.raises(InvalidInput, match="limit: must be"):
        whole("limit", given, 1)


def test_whole_numbers_from_the_least_on_are_taken() -> None:
    assert [whole("limit", number, 1) for number in (1, 50, 10**50)] == [1, 50, 10**50]


@pytest.mark.parametrize("given", [None, 5, "print", [print], True])
def test_what_cannot_be_called_is_refused(given) -> None:
    with pytest.raises(InvalidInput, match=f"on_lost: must be a function, not {type(given).__name__}"):
        function("on_lost", given)


def test_what_can_be_called_is_taken() -> None:
    for given in (print, lambda _lease: None, str):
        assert function("on_lost", given) is None
