"""What is collected and what is kept: by `collect`, and a little at a time by every few hundredth grant."""

from __future__ import annotations

from contextlib import closing
from itertools import pairwise
from pathlib import Path

import apsw
import pytest

import leasehold
from leasehold.stores.sqlite import COLLECT_EVERY, COLLECT_SOME
from tests.stores.support import KEY, driven, key, virtual

TTL = 10.0


def rows(path: Path, table: str = "records_2") -> int:
    """How many rows there really are, live or not."""
    with closing(apsw.Connection(str(path))) as db:
        return int(db.execute(f"SELECT count(*) FROM {table}").get)  # noqa: S608  one of two names


def test_collect_removes_what_is_over_and_keeps_the_rest(tmp_path: Path) -> None:
    path, clock = tmp_path / "leases.db", virtual()
    with driven(path, clock) as store:
        over = [store.grant(key(number), ttl=TTL) for number in range(20)]
        live = [store.grant(key(100 + number), ttl=3 * TTL) for number in range(5)]
        lasting = [store.grant(key(200 + number), ttl=None) for number in range(5)]
        clock.advance(TTL)
        assert rows(path) == 30
        assert store.collect(100) == len(over)
        assert store.collect(100) == 0
        assert rows(path) == len(live) + len(lasting)
        assert [record.revision for record in store.page("app//", None, 100)] == [
            record.revision for record in (*live, *lasting)
        ]


def test_collect_removes_no_more_than_it_is_asked_to(tmp_path: Path) -> None:
    path, clock = tmp_path / "leases.db", virtual()
    with driven(path, clock) as store:
        for number in range(20):
            store.grant(key(number), ttl=TTL)
        clock.advance(TTL)
        assert [store.collect(8) for _ in range(4)] == [8, 8, 4, 0]


def test_collect_removes_what_a_restart_ended(tmp_path: Path) -> None:
    path = tmp_path / "leases.db"
    with driven(path, virtual(boot="b1")) as store:
        for number in range(5):
            store.grant(key(number), ttl=TTL)
        store.grant(KEY, ttl=None)
    with driven(path, virtual(boot="b2", start=1.0)) as store:
        mine = store.grant(key(100), ttl=TTL)
        assert store.collect(100) == 5
        assert store.load(mine.key).revision == mine.revision
        assert store.load(KEY) is not None


def test_collect_removes_what_other_clocks_wrote_only_after_observing_it(tmp_path: Path) -> None:
    path, theirs, mine = tmp_path / "leases.db", virtual(), virtual("m2", "b2", 7)
    with driven(path, theirs) as owner, driven(path, mine) as other:
        kept = owner.grant(key(0), ttl=TTL)
        for number in range(1, 5):
            owner.grant(key(number), ttl=TTL)
        assert other.collect(100) == 0
        mine.advance(TTL / 2)
        theirs.advance(TTL / 2)
        owner.touch([(kept, TTL)])
        assert other.collect(100) == 0
        mine.advance(TTL / 2)
        assert other.collect(100) == 4
        assert owner.load(key(0)).revision == kept.revision
        mine.advance(TTL)
        assert other.collect(100) == 1
    assert rows(path) == 0


def test_records_of_other_clocks_that_live_do_not_hide_those_that_are_over(tmp_path: Path) -> None:
    path, theirs, mine = tmp_path / "leases.db", virtual(), virtual("m2", "b2", 7)
    with driven(path, theirs) as owner, driven(path, mine) as other:
        live = [owner.grant(key(number), ttl=TTL) for number in range(20)]
        over = [owner.grant(key(100 + number), ttl=TTL) for number in range(5)]
        for _ in range(1000):
            other.collect(4)
            mine.advance(TTL / 2)
            theirs.advance(TTL / 2)
            owner.touch([(record, TTL) for record in live])
            if rows(path) == len(live):
                break
        assert rows(path) == len(live)
        assert all(owner.load(record.key) is None for record in over)


def test_what_was_observed_of_a_record_goes_with_it(tmp_path: Path) -> None:
    path, theirs, mine = tmp_path / "leases.db", virtual(), virtual("m2", "b2", 7)
    with driven(path, theirs) as owner, driven(path, mine) as other:
        released, taken, collected = (owner.grant(key(number), ttl=TTL) for number in range(3))
        for record in (released, taken, collected):
            other.refused(record.key)
        assert rows(path, "observations") == 3
        owner.swap(released.key, released, None, None)
        assert rows(path, "observations") == 2
        mine.advance(TTL)
        other.grant(taken.key, ttl=TTL)
        assert rows(path, "observations") == 1
        assert other.collect(100) == 1
        assert rows(path, "observations") == 0


def test_grants_collect_a_little_of_what_is_over(tmp_path: Path) -> None:
    path, clock = tmp_path / "leases.db", virtual()
    with driven(path, clock) as store:
        for number in range(3 * COLLECT_SOME):
            store.grant(key(number), ttl=TTL)
        clock.advance(TTL)
        left = [rows(path)]
        for _ in range(3 * COLLECT_EVERY):
            record = store.grant(ttl=TTL)
            store.swap(KEY, record, None, None)
            left.append(rows(path))
        steps = {before - after for before, after in pairwise(left)}
        assert steps == {0, COLLECT_SOME}
        assert left[-1] == 0


def test_grants_on_the_last_key_collect_from_the_first(tmp_path: Path) -> None:
    path, clock = tmp_path / "leases.db", virtual()
    with driven(path, clock) as store:
        for number in range(COLLECT_SOME):
            store.grant(key(number), ttl=TTL)
        clock.advance(TTL)
        for number in range(COLLECT_EVERY):
            store.grant(key(1000 + number), ttl=TTL)
        assert rows(path) == COLLECT_EVERY


@pytest.mark.parametrize("number", [0, 1, 1200])
def test_the_client_collects_as_many_as_there_are_and_no_token_goes_down(tmp_path: Path, number: int) -> None:
    clock = virtual()
    path = tmp_path / "leases.db"
    with driven(path, clock) as store:
        last = [store.grant(key(turn), ttl=TTL).revision for turn in range(number)]
    with leasehold.connect(f"sqlite://{path}") as locks:
        # Written by a clock of another machine: observed now, over in one ttl of ours.
        assert locks.gc() == 0
        assert locks.acquire("after").token > 256 * max(last, default=0)
    clock.advance(TTL)
    with driven(path, clock) as store:
        assert store.collect(10_000) == number
