"""Windows of members: merged ones find the same members, each once."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from leasehold.errors import StoreError
from leasehold.model import Key, Record
from leasehold.rules.windows import lies_in, merged, scanned

EDGES = ["", "a", "a/", "a/0", "a0", "b", "ä", "日", "日本", "\uffff", "𝄞", "\U0010ffff"]


def test_merged_windows_hold_the_same_members_and_neither_touch_nor_overlap() -> None:
    rng = random.Random(11)
    for _ in range(2000):
        windows = [(rng.choice(EDGES), rng.choice(EDGES)) for _ in range(rng.randrange(1, 8))]
        fewer = merged(windows)
        for member in EDGES:
            assert lies_in(member, windows) == sum(first <= member < end for first, end in fewer)
        assert all(first < end for first, end in fewer)
        assert all(before[1] < after[0] for before, after in pairwise(fewer))


def test_no_windows_are_all_and_empty_ones_are_none() -> None:
    assert lies_in("a", [])
    assert not lies_in("a", [("a", "a"), ("b", "a")])
    assert merged([("a", "a"), ("b", "a")]) == []


def test_members_compare_as_the_bytes_that_stores_compare() -> None:
    assert sorted(EDGES) == sorted(EDGES, key=lambda edge: edge.encode())


def test_a_scan_answers_in_the_order_of_birth_as_many_as_it_may_and_none_of_more() -> None:
    found = [Record(Key("f", f"m{n}"), b"", 10 + n, born, None, None) for n, born in enumerate((3, 1, 2))]
    assert [record.born for record in scanned("f", found, 3)] == [1, 2, 3]
    with pytest.raises(StoreError, match="a scan of 'f' finds more than 2 live records, the most that one answers"):
        scanned("f", found, 2)
