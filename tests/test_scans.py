"""A scan that would answer more than its store allows says so, on every store; none is cut short."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from leasehold.errors import StoreError, StoreUnavailable
from leasehold.model import Key, Scan, Swap
from leasehold.testing.conformance import arenas, exercises
from leasehold.testing.conformance.arena import Arena
from tests.test_conformance import WORLDS

FAMILY = "app/t/path/crowded"
MOST = 5

arena = arenas(**WORLDS)


@exercises("Store.scan", "Store.together")
def test_a_scan_that_finds_more_than_it_may_answer_tells_what_to_do(arena: Arena) -> None:
    store = arena.store()
    assert store.guarantees.scan_max == 20_000
    lower(store.real, MOST)
    for number in range(MOST):
        store.swap(Key(FAMILY, f"p{number}"), None, b"x", arena.ttl)
    # The control: as many as it may are answered.
    assert len(store.scan(FAMILY)) == len(store.scan(FAMILY, [("p", "p3"), ("p2", "q")])) == MOST
    store.swap(Key(FAMILY, "p9"), None, b"x", arena.ttl)
    for windows in ([], [("p", "q")], [("p", "p3"), ("p3", "p8"), ("p9", "q")]):
        with pytest.raises(
            StoreError, match=r"'app/t/path/crowded' finds more than 5 live records.*narrower scopes"
        ) as told:
            store.scan(FAMILY, windows)
        # Nobody comes again for that.
        assert not isinstance(told.value, StoreUnavailable)
        with pytest.raises(StoreError, match="more than 5"):
            store.together([Swap(Key(FAMILY, "p1"), None, b"x", arena.ttl), Scan(FAMILY, windows)])
    assert [record.key.member for record in store.scan(FAMILY, [("p3", "q")])] == ["p3", "p4", "p9"]


def lower(store: Any, most: int) -> None:
    store.guarantees = msgspec.structs.replace(store.guarantees, scan_max=most)
