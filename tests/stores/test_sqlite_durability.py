"""What is on disk before a grant is told: pragmas, syncs, and power cuts at every point."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import apsw
import pytest

from leasehold.engine.blocking import drive
from leasehold.errors import StoreUnavailable
from tests.stores.disks import DATABASE, LOG, Disk, Event, Surface, disk
from tests.stores.support import KEY, Driven, driven, key
from tests.support import count, note

LEVELS = {"": 2, "?synchronous=full": 2, "?synchronous=normal": 1}


@pytest.mark.parametrize("options", LEVELS)
def test_every_connection_has_the_durability_of_the_url(tmp_path: Path, options: str) -> None:
    together, levels = threading.Barrier(4), []

    def look(db: apsw.Connection) -> None:
        together.wait(60)  # all at once, so that each has a connection of its own
        levels.append((id(db), db.pragma("synchronous"), db.pragma("journal_mode")))

    with driven(tmp_path / "leases.db", options=options) as store:
        threads = [threading.Thread(target=lambda: drive(store.wire.read(look))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len({connection for connection, _, _ in levels}) == 4
    assert {(level, mode) for _, level, mode in levels} == {(LEVELS[options], "wal")}


def test_full_syncs_each_grant_before_it_is_told(tmp_path: Path) -> None:
    with disk() as under, driven(tmp_path / "leases.db") as store:
        under.events.clear()
        assert unsynced_when_told(grants(store, under, 50)) == 0


def test_normal_does_not_sync_each_grant(tmp_path: Path) -> None:
    """The control of the one above."""
    with disk() as under, driven(tmp_path / "leases.db", options="?synchronous=normal") as store:
        under.events.clear()
        assert unsynced_when_told(grants(store, under, 50)) > 0


def test_no_power_cut_takes_a_token_back(tmp_path: Path) -> None:
    cuts = count(1000)
    events, base = recorded(tmp_path, "", cuts)
    assert lost_tokens(tmp_path, events, base, cuts) == 0


def test_normal_loses_tokens_in_a_power_cut_and_opening_the_file_makes_up_for_it(tmp_path: Path) -> None:
    """The control of the one above; and what the counter's start at the wall clock is for."""
    cuts = count(1000)
    events, base = recorded(tmp_path, "?synchronous=normal", cuts)
    lost = lost_tokens(tmp_path, events, base, cuts)
    note(f"synchronous=normal: {lost} of {2 * cuts} power cuts took a token back")
    assert lost > 0
    surface = Surface(base)
    for event in events:
        surface.apply(event)
    told = max(event.at for event in events if event.what == "told")
    with driven(surface.cut_the_power(tmp_path, None)) as store:
        assert store.grant(KEY._replace(member="after")).revision > told


def test_a_sync_that_fails_is_no_grant_and_its_token_is_not_used_again(tmp_path: Path) -> None:
    failing = [False]

    def fault(what: str, file: str) -> None:
        if failing[0] and (what, file) == ("sync", LOG):
            raise apsw.IOError("the disk gave up")

    told = []
    with disk() as under, driven(tmp_path / DATABASE) as store:
        under.fault = fault
        for number in range(10):
            told.append(store.grant(key(number)).revision)
            failing[0] = True
            with pytest.raises(StoreUnavailable, match="check the disk") as caught:
                store.swap(KEY._replace(member=str(number)), None, b"lost", 30.0)
            assert caught.value.applied is None
            failing[0] = False
    with driven(tmp_path / DATABASE) as store:
        told.append(store.grant(key(99)).revision)
    assert told == sorted(set(told))


def test_a_write_that_fails_before_the_commit_certainly_changed_nothing(tmp_path: Path) -> None:
    with driven(tmp_path / DATABASE) as store:

        def fail(db: apsw.Connection) -> None:
            db.execute("DELETE FROM state")
            raise apsw.IOError("the disk gave up")

        before = store.grant().revision
        with pytest.raises(StoreUnavailable) as caught:
            drive(store.wire.write(fail))
        assert caught.value.applied is False
        assert store.grant(key(1)).revision == before + 1


def grants(store: Driven, under: Disk, number: int) -> list[Event]:
    """Take and leave a lease many times; everything that happened to the disk meanwhile."""
    for turn in range(number):
        record = store.grant(key(turn % 7))
        under.told(record.revision)
        store.swap(record.key, record, None, None)
    return list(under.events)


def unsynced_when_told(events: list[Event]) -> int:
    """How many revisions were told while something written to the log was not synced."""
    dirty, found = False, 0
    for event in events:
        if event.what == "told":
            found += dirty
        elif event.file == LOG:
            dirty = event.what == "write"
    return found


def recorded(tmp_path: Path, options: str, cuts: int) -> tuple[list[Event], bytes]:
    """What happened to the disk during many grants, and the file before."""
    path = tmp_path / "recorded" / DATABASE
    path.parent.mkdir()
    driven_once = Driven(path)
    driven_once.close()
    base = path.read_bytes()
    with disk(checkpoint_every=20) as under, driven(path, options=options) as store:
        return grants(store, under, max(cuts // 4, 50)), base


def lost_tokens(tmp_path: Path, events: list[Event], base: bytes, cuts: int) -> int:
    """Cut the power at many points, twice each; how often the file then forgot a revision that was told."""
    chance = random.Random(1)
    chosen = set(chance.sample(range(len(events)), cuts))
    surface, told, lost = Surface(base), 0, 0
    for place, event in enumerate(events):
        surface.apply(event)
        told = event.at if event.what == "told" else told
        if place in chosen:
            for luck in (None, chance):
                lost += counter(surface.cut_the_power(tmp_path, luck)) < told
    assert told > 0
    return lost


def counter(path: Path) -> int:
    """The counter in the file, by SQLite's own recovery and none of ours."""
    db = apsw.Connection(str(path))
    try:
        assert db.pragma("integrity_check") == "ok"
        return int(db.execute("SELECT revision FROM state").get)
    finally:
        db.close()
