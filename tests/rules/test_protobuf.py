"""protobuf's wire format, as far as etcd's messages need it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.rules.protobuf import data, number, read

FIELDS = st.integers(1, 2**29 - 1)
NUMBERS = st.integers(-(2**63), 2**63 - 1)


def test_it_writes_what_the_format_says() -> None:
    """The examples of protobuf's own documentation."""
    assert number(1, 150) == b"\x08\x96\x01"
    assert data(2, b"testing") == b"\x12\x07testing"
    assert number(1, -2) == b"\x08\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"
    assert number(1, 0) == b""


@given(FIELDS, NUMBERS)
def test_a_number_is_read_as_it_was_written(field: int, value: int) -> None:
    assert read(number(field, value)).number(field) == value


@given(st.lists(st.tuples(FIELDS, st.binary(max_size=300))))
def test_bytes_are_read_as_they_were_written_and_in_their_order(fields: list[tuple[int, bytes]]) -> None:
    found = read(b"".join(data(field, value) for field, value in fields))
    for field, _ in fields:
        assert found.all_data(field) == [value for other, value in fields if other == field]


def test_what_is_absent_is_empty() -> None:
    found = read(b"")
    assert (found.number(1), found.data(1), found.text(1), found.messages(1)) == (0, b"", "", [])
    assert found.message(1).number(1) == 0


def test_fields_that_nobody_asked_for_are_passed_over() -> None:
    fixed = b"\x09" + b"x" * 8 + b"\x15" + b"y" * 4
    assert read(fixed + number(3, 7)).number(3) == 7


@pytest.mark.parametrize("broken", [b"\x08", b"\x08\x96", b"\x12\x05abc", b"\x0b", b"\x08" + b"\xff" * 11])
def test_what_is_cut_off_or_unknown_is_refused(broken: bytes) -> None:
    with pytest.raises(ValueError, match=r"cut off|unknown|too long"):
        read(broken)


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused_and_nothing_else(noise: bytes) -> None:
    try:
        read(noise)
    except ValueError as error:
        assert str(error)  # noqa: PT017  either is right; anything else escapes


def test_a_field_of_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="field 1 is no number"):
        read(data(1, b"x")).number(1)
    with pytest.raises(ValueError, match="field 1 is no bytes"):
        read(number(1, 5)).data(1)
