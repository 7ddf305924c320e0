"""What the five verbs must do, whatever stands behind them.

Each law is named after what it forbids or demands; several are breakages that
real stores showed when they were first put behind this seam.
"""

from __future__ import annotations

import random

import pytest

from leasehold.errors import InvalidInput
from leasehold.model import KEEP, Conflict, Key, Record, Renewal, Scan, Swap, Unrenewed
from leasehold.testing.conformance.arena import Arena
from leasehold.testing.conformance.exercise import exercises

KEY = Key("app/t/name/laws", "lock")
PARTS = "app/t/line/parts"
# Where records of ranges and paths lie, and others beside them, in more than one alphabet.
MEMBERS = [
    "!",
    "lock",
    "p/a b//1",
    "p/a//1",
    "p/ä//1",
    "r00",
    "r0000ff/1",
    "r01",
    "r0é",
    "s/1",
    "z",
    "ä",
    "日本",
    "𝄞",
    "𝄞1",
]


class StoreLaws:
    """Laws of the seam."""

    @exercises("Store.load", "Store.swap")
    def test_a_created_record_is_loaded_as_written(self, arena: Arena) -> None:
        store = arena.store()
        assert store.load(KEY) is None
        made = store.swap(KEY, None, b"mine", arena.ttl)
        assert isinstance(made, Record)
        assert (made.value, made.born, made.ttl) == (b"mine", made.revision, arena.ttl)
        found = store.load(KEY)
        assert (found.key, found.value, found.revision, found.born) == (KEY, b"mine", made.revision, made.born)
        assert 0 < found.left <= arena.ttl

    @exercises("Store.swap")
    def test_a_live_record_stands_in_the_way_and_is_shown(self, arena: Arena) -> None:
        store = arena.store()
        made = store.swap(KEY, None, b"mine", arena.ttl)
        answer = arena.store().swap(KEY, None, b"theirs", arena.ttl)
        assert isinstance(answer, Conflict)
        assert answer.record is not None
        assert (answer.record.value, answer.record.revision) == (b"mine", made.revision)
        assert store.load(KEY).value == b"mine"

    @exercises("Store.swap")
    def test_a_swap_repeated_after_a_lost_reply_meets_its_own_value(self, arena: Arena) -> None:
        store = arena.store()
        made = store.swap(KEY, None, b"secret-1", arena.ttl)
        again = store.swap(KEY, None, b"secret-1", arena.ttl)
        assert isinstance(again, Conflict)
        assert again.record is not None
        assert (again.record.value, again.record.revision) == (b"secret-1", made.revision)

    @exercises("Store.swap")
    def test_revisions_grow_over_many_lives_of_one_key(self, arena: Arena) -> None:
        store, last = arena.store(), 0
        for _ in range(41):
            made = store.swap(KEY, None, b"x", arena.ttl)
            assert made.revision > last
            last = made.revision
            assert store.swap(KEY, made, None, None) == made

    @exercises("Store.swap")
    def test_a_stale_delete_does_not_remove_the_next_record(self, arena: Arena) -> None:
        """ZooKeeper's versions restart at 0, so that a late delete matched the next holder's node."""
        store = arena.store()
        first = store.swap(KEY, None, b"same", arena.ttl)
        store.swap(KEY, first, None, None)
        second = store.swap(KEY, None, b"same", arena.ttl)
        answer = store.swap(KEY, first, None, None)
        assert isinstance(answer, Conflict)
        assert answer.record is not None
        assert answer.record.revision == second.revision
        assert store.load(KEY).revision == second.revision

    @exercises("Store.swap")
    def test_a_stale_write_does_not_overwrite_the_next_record(self, arena: Arena) -> None:
        store = arena.store()
        first = store.swap(KEY, None, b"first", arena.ttl)
        store.swap(KEY, first, None, None)
        store.swap(KEY, None, b"second", arena.ttl)
        assert isinstance(store.swap(KEY, first, b"late", arena.ttl), Conflict)
        assert store.load(KEY).value == b"second"

    @exercises("Store.swap")
    def test_a_write_expecting_a_deleted_record_does_not_resurrect_it(self, arena: Arena) -> None:
        """Kubernetes answers 201 to a PUT after a DELETE."""
        store = arena.store()
        made = store.swap(KEY, None, b"x", arena.ttl)
        store.swap(KEY, made, None, None)
        assert store.swap(KEY, made, b"late", arena.ttl) == Conflict(None)
        assert store.load(KEY) is None

    @exercises("Store.swap")
    def test_the_owners_rewrite_moves_the_revision_and_keeps_born(self, arena: Arena) -> None:
        store = arena.store()
        made = store.swap(KEY, None, b"one", arena.ttl)
        changed = store.swap(KEY, made, b"two", arena.ttl)
        assert changed.revision > made.revision
        assert changed.born == made.born
        assert isinstance(store.swap(KEY, made, b"three", arena.ttl), Conflict)

    @exercises("Store.swap", "Store.load")
    def test_keep_leaves_the_end_of_a_record_where_it_is(self, arena: Arena) -> None:
        store = arena.store()
        made = store.swap(KEY, None, b"one", arena.ttl)
        arena.elapse(0.5 * arena.ttl)
        store.swap(KEY, made, b"two", KEEP)
        assert store.load(KEY).left <= 0.5 * arena.ttl
        arena.elapse(0.55 * arena.ttl)
        assert store.load(KEY) is None

    @exercises("Store.swap", "Store.load")
    def test_a_lasting_record_does_not_end(self, arena: Arena) -> None:
        store = arena.store()
        made = store.swap(KEY, None, b"forever", None)
        assert made.ttl is None
        arena.elapse(3 * arena.ttl)
        assert store.load(KEY).value == b"forever"
        assert store.load(KEY).left is None

    @exercises("Store.load", "Store.swap", "Store.touch", "Store.scan", "Store.page")
    def test_an_expired_record_is_absent_to_every_verb(self, arena: Arena) -> None:
        store = arena.store()
        made = store.swap(KEY, None, b"x", arena.ttl)
        arena.elapse(1.05 * arena.ttl)
        assert store.load(KEY) is None
        assert store.scan(KEY.family) == []
        assert store.page("app/t/", None, 10) == []
        assert store.swap(KEY, made, b"late", arena.ttl) == Conflict(None)
        assert store.swap(KEY, made, None, None) == Conflict(None)
        assert store.touch([(made, arena.ttl)]) == [(Renewal.LOST, None)]
        fresh = store.swap(KEY, None, b"y", arena.ttl)
        assert fresh.revision > made.revision

    @exercises("Store.swap")
    def test_a_record_is_not_freed_before_its_ttl(self, arena: Arena) -> None:
        store = arena.store()
        store.swap(KEY, None, b"x", arena.ttl)
        arena.elapse(0.95 * arena.ttl)
        assert isinstance(store.swap(KEY, None, b"y", arena.ttl), Conflict)

    @exercises("Store.swap")
    def test_what_nobody_renews_lasts_its_whole_ttl_however_old_its_neighbours_are(self, arena: Arena) -> None:
        store = arena.store()
        store.swap(Key("app/t/name/older", "lock"), None, b"x", arena.ttl)
        arena.elapse(0.4 * arena.ttl)
        store.swap(KEY, None, b"x", Unrenewed(arena.ttl))
        arena.elapse(0.95 * arena.ttl)
        assert isinstance(store.swap(KEY, None, b"y", arena.ttl), Conflict)

    @exercises("Store.touch")
    def test_touch_extends_exactly_what_was_held(self, arena: Arena) -> None:
        store = arena.store()
        made = store.swap(KEY, None, b"x", arena.ttl)
        for _ in range(4):
            arena.elapse(0.7 * arena.ttl)
            ((answer, made),) = store.touch([(made, arena.ttl)])
            assert answer is Renewal.RENEWED
        assert store.load(KEY).born == made.born

    @exercises("Store.touch")
    def test_touch_answers_lost_with_what_is_there_now(self, arena: Arena) -> None:
        store = arena.store()
        made = store.swap(KEY, None, b"x", arena.ttl)
        store.swap(KEY, made, None, None)
        assert store.touch([(made, arena.ttl)]) == [(Renewal.LOST, None)]
        other = store.swap(KEY, None, b"other", arena.ttl)
        ((answer, found),) = store.touch([(made, arena.ttl)])
        assert answer is Renewal.LOST
        assert found.revision == other.revision
        assert store.load(KEY).revision == other.revision

    @exercises("Store.touch")
    def test_a_batch_is_verified_record_by_record(self, arena: Arena) -> None:
        """One keepalive for a whole session says fine although one of its keys was deleted."""
        store = arena.store()
        made = [store.swap(Key(f"app/t/name/{n}", "lock"), None, b"x", arena.ttl) for n in range(5)]
        store.swap(made[2].key, made[2], None, None)
        answers = [answer for answer, _ in store.touch([(record, arena.ttl) for record in made])]
        assert answers == [Renewal.RENEWED] * 2 + [Renewal.LOST] + [Renewal.RENEWED] * 2

    @exercises("Store.touch")
    def test_a_late_touch_does_not_resurrect_a_released_record(self, arena: Arena) -> None:
        store = arena.store()
        made = store.swap(KEY, None, b"x", arena.ttl)
        store.swap(KEY, made, None, None)
        store.touch([(made, arena.ttl)])
        assert store.load(KEY) is None

    @exercises("Store.watch")
    def test_watch_returns_at_once_when_the_state_is_no_longer_what_was_seen(self, arena: Arena) -> None:
        store = arena.store()
        made = store.swap(KEY, None, b"x", arena.ttl)
        far = arena.world.clock.now() + 1000 * arena.ttl
        store.watch(KEY, None, far)
        store.swap(KEY, made, None, None)
        store.watch(KEY, made, far)

    @exercises("Store.watch")
    def test_watch_wakes_on_a_change_of_any_kind(self, arena: Arena) -> None:
        store, watcher = arena.store(), arena.store()
        far = arena.world.clock.now() + 1000 * arena.ttl
        made = store.swap(KEY, None, b"x", None)
        for change in ((b"y", None), (None, None)):
            watching = watcher.begin("watch", KEY, made, far)
            made = store.swap(KEY, made, *change)
            arena.eventually(watching.done)
            watching.result()
        watching = watcher.begin("watch", KEY, None, far)
        store.swap(KEY, None, b"z", None)
        arena.eventually(watching.done)

    @exercises("Store.watch")
    def test_watch_wakes_when_the_record_expires(self, arena: Arena) -> None:
        store, watcher = arena.store(), arena.store()
        made = store.swap(KEY, None, b"x", arena.ttl)
        watching = watcher.begin("watch", KEY, made, arena.world.clock.now() + 1000 * arena.ttl)
        assert not watching.done()
        arena.elapse(1.1 * arena.ttl)
        arena.eventually(watching.done)

    @exercises("Store.watch")
    def test_watch_ends_at_until(self, arena: Arena) -> None:
        store, watcher = arena.store(), arena.store()
        made = store.swap(KEY, None, b"x", None)
        watching = watcher.begin("watch", KEY, made, arena.world.clock.now() + arena.ttl)
        arena.elapse(1.1 * arena.ttl)
        arena.eventually(watching.done)
        assert store.load(KEY) is not None

    @exercises("Store.scan")
    def test_scan_shows_one_family_in_the_order_of_birth(self, arena: Arena) -> None:
        store = arena.store()
        members = [f"m{n}" for n in range(12)]
        random.shuffle(members)
        made = [store.swap(Key("app/t/line/a", member), None, b"x", arena.ttl) for member in members]
        store.swap(Key("app/t/line/ab", "stranger"), None, b"x", arena.ttl)
        store.swap(made[3].key, made[3], b"rewritten", arena.ttl)
        found = arena.store().scan("app/t/line/a")
        assert [record.key.member for record in found] == members
        assert [record.born for record in found] == sorted(record.born for record in made)

    @exercises("Store.scan")
    def test_whoever_creates_and_then_scans_sees_all_with_smaller_revisions(self, arena: Arena) -> None:
        """A sequence drawn outside the family's order broke range exclusion on PostgreSQL."""
        family = "app/t/line/race"
        stores = [arena.store() for _ in range(4)]
        seen: dict[int, set[int]] = {}
        for turn in range(5):
            keys = [Key(family, f"{turn}-{n}") for n in range(len(stores))]
            creating = [store.begin("swap", key, None, b"x", None) for store, key in zip(stores, keys, strict=True)]
            made = [future.result(20) for future in creating]
            scanning = [store.begin("scan", family) for store in stores]
            for record, future in zip(made, scanning, strict=True):
                seen[record.revision] = {found.revision for found in future.result(20)}
        for mine, others in seen.items():
            assert {revision for revision in seen if revision <= mine} <= others

    @exercises("Store.scan")
    def test_windows_show_those_of_a_family_that_lie_in_one_of_them_once_and_in_the_order_of_birth(
        self, arena: Arena
    ) -> None:
        store, rng = arena.store(), random.Random(7)
        for member in rng.sample(MEMBERS, len(MEMBERS)):
            store.swap(Key(PARTS, member), None, b"x", arena.ttl)
            store.swap(Key(f"{PARTS}/other", member), None, b"x", arena.ttl)
        everybody = sorted(store.scan(PARTS), key=lambda record: record.born)
        assert sorted(record.key.member for record in everybody) == MEMBERS
        edges = ["", *MEMBERS, *(f"{member}!" for member in MEMBERS), "p", "p/a", "p/a0", "r", "r0", "\U0010ffff"]
        drawn = [[(rng.choice(edges), rng.choice(edges)) for _ in range(rng.choice([1, 2, 5, 17]))] for _ in range(16)]
        touching = [("", "lock"), ("lock", "r00"), ("p", "s/1"), ("z", "z")]
        for windows in [*drawn, touching, touching[::-1] * 16, [("r01", "r00")], [("", "\U0010ffff")]]:
            expected = [one.key for one in everybody if any(a <= one.key.member < b for a, b in windows)]
            assert [record.key for record in store.scan(PARTS, windows)] == expected

    @exercises("Store.scan", "Store.together")
    def test_whoever_creates_and_looks_through_windows_sees_itself_and_nobody_who_has_ended(self, arena: Arena) -> None:
        store, window = arena.store(), ("r0", "r1")
        old, new, beside = (Key(PARTS, member) for member in ("r0/old", "r0/new", "r2/beside"))
        store.swap(old, None, b"x", Unrenewed(arena.ttl))
        assert [record.key for record in store.scan(PARTS, [window])] == [old]
        arena.elapse(1.05 * arena.ttl)
        arena.eventually(lambda: store.scan(PARTS, [window]) == [])
        store.swap(beside, None, b"x", arena.ttl)
        made, found, all_of_them = store.together(
            [Swap(new, None, b"x", arena.ttl), Scan(PARTS, [window]), Scan(PARTS)]
        )
        assert [record.revision for record in found] == [made.revision]
        assert [record.key for record in all_of_them] == [beside, new]

    @exercises("Store.page")
    def test_pages_list_a_root_in_order_and_nothing_beside_it(self, arena: Arena) -> None:
        store = arena.store()
        keys = [Key(f"app/t/name/{n:02}", "lock") for n in range(23)]
        for key in random.sample(keys, len(keys)):
            store.swap(key, None, b"x", arena.ttl)
        for stranger in ("app/t2/name/00", "app/", "app/s/name/zz", "appx/t/name/00"):
            store.swap(Key(stranger, "lock"), None, b"x", arena.ttl)
        found: list[Key] = []
        while page := store.page("app/t/", found[-1] if found else None, 5):
            assert len(page) <= 5
            found += [record.key for record in page]
        assert found == keys

    @exercises("Store.collect")
    def test_collecting_removes_the_expired_and_lowers_no_revision(self, arena: Arena) -> None:
        store = arena.store()
        made = [store.swap(Key(f"app/t/name/{n}", "lock"), None, b"x", arena.ttl) for n in range(7)]
        lasting = store.swap(Key("app/t/name/lasting", "lock"), None, b"x", None)
        arena.elapse(1.05 * arena.ttl)
        live = store.swap(Key("app/t/name/live", "lock"), None, b"x", arena.ttl)
        assert store.collect(5) + store.collect(100) <= 7
        assert store.collect(100) == 0
        assert {record.key for record in store.page("app/t/", None, 100)} == {lasting.key, live.key}
        for old in made:
            assert store.swap(old.key, None, b"x", arena.ttl).revision > old.revision

    @exercises("Store.swap")
    def test_of_many_who_create_at_once_one_wins(self, arena: Arena) -> None:
        stores = [arena.store() for _ in range(6)]
        for turn in range(10):
            key = Key(f"app/t/name/race-{turn}", "lock")
            asked = [store.begin("swap", key, None, str(n).encode(), arena.ttl) for n, store in enumerate(stores)]
            answers = [future.result(20) for future in asked]
            winners = [answer for answer in answers if isinstance(answer, Record)]
            assert len(winners) == 1
            shown = {answer.record and answer.record.revision for answer in answers if isinstance(answer, Conflict)}
            assert shown == {winners[0].revision}

    @exercises("Store.open", "Store.close", "Store.load")
    def test_closing_and_opening_changes_no_record(self, arena: Arena) -> None:
        store = arena.store()
        made = store.swap(KEY, None, b"x", arena.ttl)
        store.close()
        store.open()
        assert store.load(KEY).revision == made.revision
        assert arena.store().load(KEY).revision == made.revision

    @exercises("Store.swap", "Store.guarantees")
    def test_a_value_that_is_too_large_is_refused_before_anything_is_written(self, arena: Arena) -> None:
        store = arena.store()
        largest = store.guarantees.value_max
        with pytest.raises(InvalidInput, match=f"{largest + 1} bytes"):
            store.swap(KEY, None, b"x" * (largest + 1), arena.ttl)
        assert store.load(KEY) is None
        store.swap(KEY, None, b"x" * largest, arena.ttl)
        assert len(store.load(KEY).value) == largest

    @exercises("Store.guarantees")
    def test_the_store_declares_what_it_promises(self, arena: Arena) -> None:
        declared = arena.store().guarantees
        assert 0 < declared.ttl_min <= declared.ttl_max <= 86_400
        assert declared.batch >= 1
        for said in (declared.store, declared.clock, declared.persistence, declared.failover, declared.token_source):
            assert said
