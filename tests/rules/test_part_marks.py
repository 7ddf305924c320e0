"""Marks of parts: who comes too late for which part, and who reaches beyond what its token was given for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.errors import InvalidInput, ScopeMismatch, StaleToken
from leasehold.rules.overlap import Part
from leasehold.rules.part_marks import PartMark, ShownParts, admit_parts

FILE = "inode:7"


def shown(token: int, *parts: Part, resource: str = FILE) -> ShownParts:
    return ShownParts(resource, token, parts)


def admitted(*leases: ShownParts) -> tuple[PartMark, ...]:
    marks: tuple[PartMark, ...] = ()
    for lease in leases:
        marks = admit_parts(marks, lease, FILE, ())
    return marks


def test_parts_beside_each_other_know_nothing_of_each_other() -> None:
    marks = admitted(shown(9, Part(10, 20)))
    assert len(admit_parts(marks, shown(5, Part(0, 10)), FILE, [Part(0, 10)])) == 2


def test_a_later_holder_of_an_overlapping_part_refuses_an_earlier_one() -> None:
    marks = admitted(shown(5, Part(0, 10)), shown(9, Part(9, 20)))
    with pytest.raises(StaleToken) as refusal:
        admit_parts(marks, shown(5, Part(0, 10)), FILE, [Part(0, 1)])
    assert (refusal.value.token, refusal.value.mark) == (5, 9)


def test_sharers_do_not_refuse_each_other_and_a_writer_refuses_them() -> None:
    marks = admitted(shown(9, Part(0, 10, shared=True)))
    reading = shown(5, Part(0, 10, shared=True))
    marks = admit_parts(marks, reading, FILE, [Part(0, 5, shared=True)])
    marks = admit_parts(marks, shown(11, Part(0, 10)), FILE, [Part(0, 10)])
    with pytest.raises(StaleToken):
        admit_parts(marks, reading, FILE, [Part(0, 5, shared=True)])


@pytest.mark.parametrize(
    ("lease", "wanted"),
    [
        (shown(5, Part(0, 10)), Part(5, 11)),
        (shown(5, Part(0, 10), Part(20, 30)), Part(5, 25)),
        (shown(5, Part(0, 10, shared=True)), Part(0, 10)),
        (shown(5, Part(0, 10), resource="inode:8"), Part(0, 10)),
        (shown(5, Part(path="/docs")), Part(path="/docs2")),
        (shown(5, Part(path="/docs")), Part(0, 10)),
        (shown(5, Part(0, 10)), Part(path="/docs")),
        (shown(5), Part(0, 10)),
    ],
)
def test_a_token_is_good_for_what_it_was_given_for_and_nothing_else(lease: ShownParts, wanted: Part) -> None:
    with pytest.raises(ScopeMismatch):
        admit_parts((), lease, FILE, [wanted])


def test_a_token_is_bound_to_the_parts_it_showed_first() -> None:
    marks = admitted(shown(5, Part(0, 10), Part(20, 30)))
    assert admit_parts(marks, shown(5, Part(20, 30)), FILE, [Part(25, 30)]) == marks
    for more in (Part(0, 11), Part(40, 50)):
        with pytest.raises(ScopeMismatch):
            admit_parts(marks, shown(5, more), FILE, [])


def test_a_token_that_was_shared_cannot_be_shown_as_one_to_write_with() -> None:
    marks = admitted(shown(5, Part(0, 10, shared=True)))
    with pytest.raises(ScopeMismatch, match="for reading"):
        admit_parts(marks, shown(5, Part(0, 10)), FILE, [Part(0, 10)])


def test_whoever_covers_what_others_left_replaces_it() -> None:
    marks = admitted(*(shown(token, Part(token, token + 1)) for token in range(1, 50)), shown(99, Part(0, 1000)))
    assert marks == (PartMark(Part(0, 1000), 99),)


def test_paths_reach_to_everything_below_them() -> None:
    tree = "path:/"
    marks = admit_parts((), ShownParts(tree, 9, (Part(path="/docs"),)), tree, [Part(path="/docs/a/b")])
    late = ShownParts(tree, 5, (Part(path="/docs/a"),))
    with pytest.raises(StaleToken):
        admit_parts(marks, late, tree, [Part(path="/docs/a")])
    beside = ShownParts(tree, 5, (Part(path="/docs2"),))
    assert len(admit_parts(marks, beside, tree, [Part(path="/docs2")])) == 2


@pytest.mark.parametrize("token", [0, -1, 1.5, "7", True, None, 2**63])
def test_what_is_no_token_is_refused(token) -> None:
    with pytest.raises(InvalidInput, match="token"):
        admit_parts((), shown(token, Part(0, 10)), FILE, [])


RANGES = st.tuples(st.integers(0, 6), st.integers(1, 4)).map(lambda at: (at[0], at[0] + at[1]))
LEASES = st.lists(st.tuples(RANGES, st.booleans()), min_size=1, max_size=8)


@given(leases=LEASES, order=st.lists(st.integers(0, 7), max_size=20))
def test_marks_that_were_dropped_are_never_missed(leases: list[tuple[tuple[int, int], bool]], order: list[int]) -> None:
    """It decides as one that remembers every request."""
    marks: tuple[PartMark, ...] = ()
    seen: list[tuple[tuple[int, int], int, bool]] = []
    for at in (each % len(leases) for each in order):
        (start, end), shared = leases[at]
        late = any(
            token > at + 1 and a < end and start < b and not (shared and others) for (a, b), token, others in seen
        )
        try:
            marks = admit_parts(marks, shown(at + 1, Part(start, end, shared=shared)), FILE, ())
        except StaleToken:
            assert late
        else:
            assert not late
            seen.append(((start, end), at + 1, shared))
