"""Which written times may be compared, which have certainly passed, and which tell nothing."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.rules.clocks import ClockDomain, Relation, relation

DOMAINS = st.builds(ClockDomain, st.sampled_from(["", "m1", "m2"]), st.sampled_from(["b1", "b2", "b3"]), st.booleans())


@pytest.mark.parametrize(
    ("theirs", "expected"),
    [
        (ClockDomain("m1", "b1", shifted=False), Relation.SAME),
        (ClockDomain("m1", "b1", shifted=True), Relation.SAME),
        (ClockDomain("m2", "b1", shifted=False), Relation.SAME),
        (ClockDomain("m1", "b0", shifted=False), Relation.ENDED),
        (ClockDomain("m1", "b0", shifted=True), Relation.FOREIGN),
        (ClockDomain("m2", "b0", shifted=False), Relation.FOREIGN),
        (ClockDomain("", "b0", shifted=False), Relation.FOREIGN),
    ],
)
def test_what_a_process_on_a_plain_machine_makes_of_other_clocks(theirs, expected) -> None:
    assert relation(ClockDomain("m1", "b1", shifted=False), theirs) is expected


def test_two_machines_without_an_id_are_not_taken_for_one() -> None:
    assert relation(ClockDomain("", "b1", shifted=False), ClockDomain("", "b0", shifted=False)) is Relation.FOREIGN


def test_a_container_with_its_own_time_concludes_nothing_from_another_boot() -> None:
    for mine, theirs in itertools.product((True, False), repeat=2):
        found = relation(ClockDomain("m1", "b1", shifted=mine), ClockDomain("m1", "b0", shifted=theirs))
        assert (found is Relation.FOREIGN) == (mine or theirs)


@given(DOMAINS)
def test_a_clock_compares_with_itself(domain) -> None:
    assert relation(domain, domain) is Relation.SAME


@given(DOMAINS, DOMAINS)
def test_two_clocks_see_each_other_the_same_way(one, other) -> None:
    assert relation(one, other) is relation(other, one)
