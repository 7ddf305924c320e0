"""Several processes on one SQLite file: turns, tokens, fairness, kill -9."""

from __future__ import annotations

import os
from pathlib import Path

import leasehold
from tests.stores.support import driven, healthy, key, overlaps, regressions, run, turns, virtual
from tests.support import count, note

PROCESSES = 8


def test_eight_processes_on_one_key_take_turns_with_growing_tokens(tmp_path: Path) -> None:
    log, grants = tmp_path / "log", count(100)
    run("contend", f"sqlite://{tmp_path}/leases.db", log, grants, 1, "locked")
    written = turns(log)
    assert len(written) == 2 * PROCESSES * grants
    assert overlaps(written) == 0
    assert regressions(written) == 0
    assert healthy(tmp_path / "leases.db")


def test_eight_processes_on_many_keys_take_turns_on_each(tmp_path: Path) -> None:
    log, grants = tmp_path / "log", count(400)
    run("contend", f"sqlite://{tmp_path}/leases.db", log, grants, 5, "locked")
    written = turns(log)
    assert len({turn.key for turn in written}) == 5
    assert overlaps(written) == 0
    assert regressions(written) == 0


def test_without_a_lock_the_same_processes_do_overlap(tmp_path: Path) -> None:
    """The control of the two above: the log shows an overlap where there is one."""
    log = tmp_path / "log"
    run("contend", f"sqlite://{tmp_path}/leases.db", log, 50, 1, "unlocked")
    assert overlaps(turns(log)) > 0


def test_no_writer_starves(tmp_path: Path) -> None:
    grants = run("race", f"sqlite://{tmp_path}/leases.db", 4, 2)
    note(f"grants of 4 writers in 2 s: {grants}, least to most {min(grants) / max(grants):.2f}")
    assert min(grants) / max(grants) > 0.2


def test_tokens_never_go_back_when_writers_are_killed_in_the_middle_of_work(tmp_path: Path) -> None:
    url, log = f"sqlite://{tmp_path}/leases.db", tmp_path / "log"
    kills = run("hunt", url, log, count(200), 4)
    written = turns(log)
    tokens = [turn.token for turn in written]
    assert len(written) > kills
    assert regressions(written) == 0
    assert len(set(tokens)) == len(tokens)
    assert healthy(tmp_path / "leases.db")
    with leasehold.connect(url) as locks:
        assert locks.acquire("after them all").token > max(tokens)


def test_tokens_grow_across_reopening(tmp_path: Path) -> None:
    last = 0
    for _ in range(20):
        with driven(tmp_path / "leases.db") as store:
            record = store.grant()
            assert record.revision > last
            last = record.revision
            store.swap(record.key, record, None, None)


def test_a_new_file_starts_above_the_tokens_of_a_deleted_one(tmp_path: Path) -> None:
    path, last = tmp_path / "leases.db", 0
    for _ in range(5):
        with driven(path) as store:
            for number in range(20):
                record = store.grant(key(number))
                assert record.revision > last
                last = record.revision
        for file in tmp_path.iterdir():
            file.unlink()


def test_an_old_copy_put_back_starts_above_the_tokens_given_out_since(tmp_path: Path) -> None:
    path, copy = tmp_path / "leases.db", tmp_path / "copy.db"
    with driven(path) as store:
        store.grant()
    copy.write_bytes(path.read_bytes())
    with driven(path) as store:
        last = [store.grant(key(number)).revision for number in range(50)][-1]
    os.replace(copy, path)
    with driven(path) as store:
        assert store.load(key(0)) is None
        assert store.grant(key(0)).revision > last


def test_a_wall_clock_that_is_absurdly_ahead_does_not_use_up_the_tokens(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("time.time_ns", lambda: 10**24)
    with leasehold.connect(f"sqlite://{tmp_path}/leases.db") as locks:
        assert locks.acquire("job").token < 2**63 // 2


def test_tokens_do_not_go_down_when_the_wall_clock_is_set_back_between_openings(tmp_path: Path, monkeypatch) -> None:
    with driven(tmp_path / "leases.db") as store:
        last = store.grant(key(1)).revision
    monkeypatch.setattr("time.time_ns", lambda: 0)
    with driven(tmp_path / "leases.db") as store:
        assert store.grant(key(2)).revision == last + 1


def test_collecting_lowers_no_token(tmp_path: Path) -> None:
    clock = virtual()
    with driven(tmp_path / "leases.db", clock) as store:
        last = [store.grant(key(number), ttl=1.0).revision for number in range(10)][-1]
        clock.advance(2.0)
        assert store.collect(100) == 10
        assert store.grant(key(0)).revision == last + 1
