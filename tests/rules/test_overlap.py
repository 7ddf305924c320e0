"""Who is in whose way: checked against a model that knows nothing but single bytes, and every path by its steps."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.rules.overlap import (
    END,
    Claim,
    Part,
    Present,
    conflicts,
    draw,
    holders,
    in_the_way,
    overlaps,
    place,
    windows,
    without,
    would_wait_for_itself,
)

SMALL = 24
STEPS = st.lists(st.sampled_from(["a", "b", "ab", "a-", "0", "ä"]), max_size=3)


@st.composite
def small_parts(draw_one):
    start = draw_one(st.integers(0, SMALL - 1))
    return Part(start, draw_one(st.integers(start + 1, SMALL)), shared=draw_one(st.booleans()))


@st.composite
def large_parts(draw_one):
    offset = st.one_of(st.integers(0, 300), st.integers(0, END - 1), st.integers(0, 62).map(lambda bits: 1 << bits))
    start = draw_one(offset)
    length = draw_one(st.one_of(st.integers(1, 300), offset.map(lambda size: size + 1)))
    return Part(start, min(start + length, END), shared=draw_one(st.booleans()))


path_parts = st.builds(lambda steps, shared: Part(path="/" + "/".join(steps), shared=shared), STEPS, st.booleans())
small_claims = st.lists(small_parts(), min_size=1, max_size=3).map(lambda parts: Claim(tuple(parts)))
large_claims = st.lists(large_parts(), min_size=1, max_size=3).map(lambda parts: Claim(tuple(parts)))
path_claims = st.lists(path_parts, min_size=1, max_size=3).map(lambda parts: Claim(tuple(parts)))


def line(claims: Sequence[Claim]) -> list[Present]:
    return [Present(f"member-{born}", born, claim) for born, claim in enumerate(claims)]


# The model: sets of bytes, or of all that a path covers.


def touched(part: Part) -> set[object]:
    if not part.path:
        return set(range(part.start, part.end))
    steps = tuple(part.path.split("/")[1:]) if part.path != "/" else ()
    return {steps[:depth] for depth in range(len(steps) + 1)}


def meets(one: Part, other: Part) -> bool:
    if not one.path:
        return bool(touched(one) & touched(other))
    longest = {frozenset(touched(part)): part for part in (one, other)}
    return len(longest) == 1 or touched(one) <= touched(other) or touched(other) <= touched(one)


@given(small_parts(), small_parts())
def test_ranges_overlap_where_they_have_a_byte_in_common(one: Part, other: Part) -> None:
    assert overlaps(one, other) is overlaps(other, one) is meets(one, other)


@given(path_parts, path_parts)
def test_paths_overlap_where_one_leads_to_the_other(one: Part, other: Part) -> None:
    assert overlaps(one, other) is overlaps(other, one) is meets(one, other)


@given(small_claims, small_claims)
def test_claims_are_in_each_others_way_unless_all_that_overlaps_is_shared(one: Claim, other: Claim) -> None:
    model = any(meets(a, b) and not (a.shared and b.shared) for a in one.parts for b in other.parts)
    assert conflicts(one, other) is conflicts(other, one) is model


# Who holds.


@given(st.lists(st.one_of(small_claims), max_size=8))
def test_no_two_who_hold_are_in_each_others_way_and_whoever_waits_has_somebody_ahead(claims: list[Claim]) -> None:
    everybody = line(claims)
    held = holders(everybody)
    for one in held:
        assert not any(conflicts(one.claim, other.claim) for other in held if other is not one)
    for one in everybody:
        ways = in_the_way(everybody, one)
        assert (one in held) is (ways == [])
        assert [way.born for way in ways] == sorted(way.born for way in ways)
        assert all(way.born < one.born and conflicts(way.claim, one.claim) for way in ways)
    # Somebody always goes on.
    assert bool(held) is bool(everybody)


@given(st.integers(1, 4), st.integers(0, 8))
def test_so_many_permits_are_held_and_those_who_came_first_hold_them(permits: int, people: int) -> None:
    everybody = line([Claim(permits=permits)] * people)
    assert holders(everybody) == everybody[:permits]


@given(st.lists(small_claims, min_size=1, max_size=7), st.data())
def test_an_upgrade_waits_for_itself_only_if_some_chain_of_waiting_leads_back_to_it(claims: list[Claim], data) -> None:
    everybody = line(claims)
    mine = data.draw(st.sampled_from(holders(everybody)))
    me = Present("me", len(claims), Claim(mine.claim.parts, replaces=mine.member))
    everybody.append(me)
    ways = {one.member: {way.member for way in in_the_way(everybody, one)} for one in everybody}
    reached, new = set(), {"me"}
    while new:
        reached |= new
        new = {way for member in new for way in ways[member]} - reached
    assert would_wait_for_itself(everybody, me) is (mine.member in reached)


# Letting go of a part.


@given(st.lists(small_parts(), min_size=1, max_size=3), small_parts())
def test_what_is_left_is_what_was_there_without_what_was_let_go(parts: list[Part], gone: Part) -> None:
    left = without(parts, gone.start, gone.end)
    for shared in (True, False):
        before = set().union(*(touched(part) for part in parts if part.shared is shared))
        after = set().union(*(touched(part) for part in left if part.shared is shared))
        assert after == before - touched(gone)


# Where to look.


@given(st.one_of(st.tuples(large_claims, large_claims), st.tuples(path_claims, path_claims)))
def test_whoever_may_be_in_the_way_lies_in_a_window(claims: tuple[Claim, Claim]) -> None:
    one, other = claims
    found = windows(one)
    member = f"{place(other)}0123456789abcdef"
    if conflicts(one, other):
        assert found == [] or any(first <= member < end for first, end in found)
    assert len(found) <= 64


def test_what_lies_far_away_is_not_looked_at() -> None:
    """The control: windows that let everything in would satisfy the law above."""
    near = windows(Claim((Part(4096, 8192),)))
    far = [place(Claim((Part(start, start + 4096),))) for start in range(1 << 20, 1 << 24, 1 << 16)]
    assert not any(first <= member < end for member in far for first, end in near)
    beside = windows(Claim((Part(path="/a/b"),)))
    assert not any(first <= place(Claim((Part(path="/a/c/d"),))) < end for first, end in beside)


# For people.


def test_a_map_shows_who_holds_and_who_waits() -> None:
    everybody = line([Claim((Part(0, 10),)), Claim((Part(20, 30, shared=True),)), Claim((Part(5, 25),))])
    shown = [line.strip("|") for line in draw(everybody).splitlines()]
    assert ["".join(dict.fromkeys(row)) for row in shown] == ["W ", " R", " w"]
    assert len({len(row) for row in shown}) == 1


@pytest.mark.parametrize("claims", [[], [Claim()]])
def test_a_map_of_nobody_or_of_one_who_has_it_all_is_drawn_too(claims: list[Claim]) -> None:
    assert draw(line(claims)).strip("|").strip("W") == ""
