"""The laws of fences find what is wrong with a fence: each of these keeps its mark badly."""

from __future__ import annotations

import pytest

import leasehold
from leasehold.rules.fencing import admit, checked_token
from leasehold.testing.fences import FenceLaws, Hand


class Memory:
    """A fence as it should be, in memory."""

    def __init__(self) -> None:
        self.mark, self.data = 0, b""

    def open(self, token):
        self.mark = admit("memory", self.mark, token)

    def read(self, token):
        admit("memory", self.mark, token)
        return self.data

    def write(self, token, value):
        self.open(token)
        self.data = value


class WriteOnly(Memory):
    """Looks at tokens when something is written, and at no other time."""

    def open(self, token):
        checked_token(token)

    def read(self, token):
        checked_token(token)
        return self.data

    def write(self, token, value):
        Memory.open(self, token)
        self.data = value


class Unfenced(Memory):
    """Looks at no token."""

    def open(self, token):
        checked_token(token)

    def write(self, token, value):
        checked_token(token)
        self.data = value


class Textual(Memory):
    """Compares digits from the left."""

    def open(self, token):
        if str(checked_token(token)) < str(self.mark):
            admit("memory", token + 1, token)
        self.mark = token


class Imprecise(Memory):
    """Keeps its mark as JavaScript and Lua would."""

    def open(self, token):
        self.mark = int(float(admit("memory", self.mark, token)))


class Gullible(Memory):
    """Takes anything for a token."""

    def open(self, token):
        self.mark = max(self.mark, int(token or 0))


class TestMemory(FenceLaws):
    @pytest.fixture
    def reach(self):
        kept = Memory()
        return lambda: kept


@pytest.mark.parametrize(
    ("kind", "law", "given"),
    [
        (WriteOnly, "test_whoever_was_overtaken_can_neither_open_nor_read_nor_write", ()),
        (Unfenced, "test_a_refusal_leaves_the_mark_where_it_was", ()),
        (Textual, "test_tokens_are_numbers_of_63_bits", (9, 10)),
        (Imprecise, "test_tokens_are_numbers_of_63_bits", (2**53, 2**53 + 1)),
        (Gullible, "test_what_is_no_token_is_refused_and_changes_nothing", (-1,)),
    ],
    ids=lambda given: getattr(given, "__name__", ""),
)
def test_control_a_bad_fence_breaks_a_law(kind, law: str, given: tuple[int, ...]) -> None:
    kept, good = kind(), Memory()
    getattr(FenceLaws(), law)(lambda: Hand(good, None), *given)
    with pytest.raises((AssertionError, pytest.fail.Exception, leasehold.StaleToken)):
        getattr(FenceLaws(), law)(lambda: Hand(kept, None), *given)
