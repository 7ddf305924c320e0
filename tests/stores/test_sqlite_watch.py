"""Waiting for a change: by another process, by time, and no longer than asked. In both colours."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from blockbuster import blockbuster_ctx

from leasehold.engine.blocking import drive
from leasehold.engine.looped import LoopedRuntime
from leasehold.model import Key, Record
from leasehold.rules.clocks import ClockDomain
from leasehold.stores.open import open_store
from leasehold.wires.clock import system_clock
from leasehold.wires.sqlite import SqliteWire
from leasehold.wires.sqlite_line import SqliteLine
from tests.stores.support import KEY, Driven, SteppingClock, driven, key, result, start, virtual
from tests.support import eventually

START = 1000.0
TTL = 10.0
LONG = 3600.0


def watching(store: Driven, key: Key, seen: Record | None) -> threading.Thread:
    """A thread that watches a key for a long time."""
    thread = threading.Thread(target=lambda: drive(store.store.watch(key, seen, system_clock().now() + LONG)))
    thread.start()
    return thread


def test_a_release_by_another_process_is_noticed(tmp_path: Path) -> None:
    holder = start("hold", f"sqlite://{tmp_path}/leases.db", "job", 300)
    holder.stdout.readline()
    with driven(tmp_path / "leases.db") as store:
        (seen,) = store.page("//", None, 10)
        watcher = watching(store, seen.key, seen)
        holder.stdin.write("\n")
        holder.stdin.flush()
        assert result(holder) == "released"
        eventually(lambda: not watcher.is_alive())
        assert store.load(seen.key) is None


def test_a_grant_by_another_process_is_noticed(tmp_path: Path) -> None:
    with driven(tmp_path / "leases.db") as store:
        watcher = watching(store, KEY, None)
        revision = result(start("grant", tmp_path / "leases.db"))
        eventually(lambda: not watcher.is_alive())
        assert store.load(KEY).revision == revision


def test_an_asyncio_client_notices_another_process_and_never_blocks_its_loop(tmp_path: Path) -> None:
    async def watch() -> Record | None:
        colour = LoopedRuntime(system_clock())
        store = open_store(f"sqlite://{tmp_path}/leases.db", timeout=5.0, colour=colour)
        await store.open()
        watcher = asyncio.create_task(store.watch(KEY, None, system_clock().now() + LONG))
        await asyncio.to_thread(lambda: result(start("grant", tmp_path / "leases.db")))
        await asyncio.wait_for(watcher, 60)
        found = await store.load(KEY)
        await store.close()
        await colour.close()
        return found

    with blockbuster_ctx():
        assert asyncio.run(watch()) is not None


def test_what_is_no_longer_as_seen_ends_the_watch_at_once(tmp_path: Path) -> None:
    clock = SteppingClock(START)
    with driven(tmp_path / "leases.db", clock) as store:
        record = store.grant(ttl=TTL)
        store.watch(KEY, None, START + LONG)
        store.swap(KEY, record, None, None)
        store.watch(KEY, record, START + LONG)
        assert clock.now() == START


def test_the_end_of_a_record_ends_the_watch(tmp_path: Path) -> None:
    clock = SteppingClock(START)
    with driven(tmp_path / "leases.db", clock) as store:
        store.watch(KEY, store.grant(ttl=TTL), START + LONG)
        assert clock.now() == pytest.approx(START + TTL)
        assert store.load(KEY) is None


def test_a_renewal_does_not_end_the_watch_before_the_end_that_was_seen(tmp_path: Path) -> None:
    clock = virtual()
    with driven(tmp_path / "leases.db", clock) as store, driven(tmp_path / "leases.db", clock) as owner:
        record = owner.grant(ttl=TTL)
        watcher = threading.Thread(target=lambda: store.watch(KEY, record, START + LONG))
        watcher.start()
        for _ in range(5):
            clock.advance(0.15 * TTL)
            owner.touch([(record, TTL)])
        # A look at the file for each change that is made from now on: none of them was missed.
        other = owner.swap(Key("app//name/other", "lock"), None, b"x", TTL)
        store.watch(other.key, None, START + LONG)
        assert watcher.is_alive()
        assert store.load(KEY).revision == record.revision
        clock.advance(1.1 * TTL)
        watcher.join(20)
        assert not watcher.is_alive()


def test_a_change_that_the_times_of_the_file_do_not_tell_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SqliteWire, "stamp_now", lambda _: (0, 0, 0))
    with driven(tmp_path / "leases.db") as store, driven(tmp_path / "leases.db") as owner:
        record = owner.grant(ttl=LONG)
        watcher = watching(store, KEY, record)
        owner.swap(KEY, record, None, None)
        eventually(lambda: not watcher.is_alive())


def test_one_look_serves_all_who_wait_in_a_client_and_wakes_those_alone_whose_record_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []
    real = SqliteLine.ping

    def ping(self: SqliteLine) -> None:
        looks.append(threading.get_ident())
        real(self)

    monkeypatch.setattr(SqliteLine, "ping", ping)
    with driven(tmp_path / "leases.db") as store, driven(tmp_path / "leases.db") as owner:
        records = [owner.grant(key(number), ttl=LONG) for number in range(20)]
        watchers = [watching(store, record.key, record) for record in records]
        eventually(lambda: len(looks) > 20)
        owner.swap(records[7].key, records[7], None, None)
        eventually(lambda: not watchers[7].is_alive())
        assert [place for place, watcher in enumerate(watchers) if not watcher.is_alive()] == [7]
        assert len(set(looks)) == 1
        for record in records:
            owner.swap(record.key, record, None, None)
        eventually(lambda: not any(watcher.is_alive() for watcher in watchers))


@pytest.mark.parametrize("ttl", [None, LONG])
def test_a_watch_lasts_no_longer_than_until(tmp_path: Path, ttl: float | None) -> None:
    clock = SteppingClock(START)
    with driven(tmp_path / "leases.db", clock) as store:
        record = store.grant(ttl=ttl)
        store.watch(KEY, record, START + TTL)
        assert clock.now() == pytest.approx(START + TTL)
        store.watch(KEY, record, START - 1)
        assert clock.now() == pytest.approx(START + TTL)
        assert store.load(KEY).revision == record.revision


def test_the_observed_end_of_another_clocks_record_ends_the_watch(tmp_path: Path) -> None:
    clock = SteppingClock(7.0, ClockDomain(machine="m2", boot="b2", shifted=False))
    with driven(tmp_path / "leases.db", virtual()) as owner:
        owner.grant(ttl=TTL)
    with driven(tmp_path / "leases.db", clock) as store:
        store.watch(KEY, store.load(KEY), 7.0 + LONG)
        assert clock.now() == pytest.approx(7.0 + TTL)
        assert store.load(KEY) is None


def test_a_record_that_comes_and_goes_between_two_looks_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line is there already, from an earlier wait, and has last seen that there was none."""
    may_look = threading.Event()
    real = SqliteLine.ping

    def ping(self: SqliteLine) -> None:
        if may_look.is_set():
            real(self)

    monkeypatch.setattr(SqliteLine, "ping", ping)
    with driven(tmp_path / "leases.db") as store, driven(tmp_path / "leases.db") as owner:
        watching(store, KEY, owner.grant(key(1), ttl=LONG)).join(20)
        record = owner.grant(ttl=LONG)
        watcher = watching(store, KEY, record)
        eventually(lambda: any(store.store._ears._listener._ears.values()))
        owner.swap(KEY, record, None, None)
        may_look.set()
        eventually(lambda: not watcher.is_alive())
