"""Schema versions: an older file migrated while it is used, a newer one refused, a process left behind."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import apsw
import pytest

import leasehold
from leasehold.errors import StoreDamaged
from leasehold.model import Key
from leasehold.stores.sqlite import SCHEMA
from leasehold.wires.clock import system_clock
from tests.stores.support import KEY, Driven, driven, key, overlaps, regressions, result, run, start, turns, virtual
from tests.support import ROOT

FIXTURE = ROOT / "tests" / "fixtures" / "leases-v1.db"
LASTING, FOREIGN, OLD = (Key(f"//name/{name}", "lock") for name in ("lasting", "foreign", "old"))
REVISION = 1_700_000_000_000_002


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A file of the first version."""
    return Path(shutil.copy(FIXTURE, tmp_path / "leases.db"))


def test_an_older_file_is_migrated_and_its_tokens_go_on(old: Path) -> None:
    with driven(old) as store:
        assert store.grant().revision > REVISION
    with closing(apsw.Connection(str(old))) as db:
        assert db.execute("SELECT schema FROM state").get == SCHEMA
        assert db.pragma("integrity_check") == "ok"


def test_its_lasting_records_stay(old: Path) -> None:
    with driven(old) as store:
        kept = store.load(LASTING)
        assert (kept.revision, kept.ttl, kept.left) == (REVISION - 1, None, None)


def test_its_leases_of_another_boot_are_observed(old: Path) -> None:
    clock = virtual()
    with driven(old, clock) as store:
        assert store.load(FOREIGN).left == 10.0
        clock.advance(10.0)
        assert store.load(FOREIGN) is None


def test_its_leases_of_this_boot_are_honoured_to_their_end(old: Path) -> None:
    clock = virtual(boot="this-boot", start=1000.0)
    old_lease(old, "this-boot", 1020.0)
    with driven(old, clock) as store:
        assert store.refused(OLD).left == 20.0
        clock.advance(20.0)
        assert store.grant(OLD).revision > REVISION


def test_a_file_is_migrated_while_old_and_new_processes_use_it(old: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    before = start("version_one", old, log)
    assert before.stdout.readline()
    run("contend", f"sqlite://{old}", log, 10, 2, "locked")
    left_behind = result(before)
    written = turns(log)
    assert left_behind["grants"] > 0
    assert "records" in left_behind["error"] or "state" in left_behind["error"]
    assert regressions(written) == 0
    assert overlaps([turn for turn in written if turn.key != "old"]) == 0
    with leasehold.connect(f"sqlite://{old}") as locks:
        # The last lease of the old process, honoured by its own end.
        assert 0 < locks.inspect("old").expires_in <= 30
        assert locks.try_acquire("old") is None


def test_a_newer_file_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "leases.db"
    Driven(path).close()
    migrate_beyond(path)
    content = path.read_bytes()
    with pytest.raises(StoreDamaged, match=rf"schema {SCHEMA + 1}.*knows up to {SCHEMA}; update Leasehold"):
        Driven(path)
    assert path.read_bytes() == content


VERBS: dict[str, Callable[[Driven], object]] = {
    "load": lambda store: store.load(KEY),
    "grant": lambda store: store.swap(key(1), None, b"mine", 30.0),
    "delete": lambda store: store.swap(KEY, store.mine, None, None),
    "touch": lambda store: store.touch([(store.mine, 30.0)]),
    "scan": lambda store: store.scan(KEY.family),
    "page": lambda store: store.page("app//", None, 10),
    "collect": lambda store: store.collect(10),
    "watch": lambda store: store.watch(KEY, store.mine, system_clock().now() + 60),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_process_whose_file_was_migrated_under_it_is_told_on_every_verb(tmp_path: Path, verb: str) -> None:
    path = tmp_path / "leases.db"
    with driven(path) as store:
        store.mine = store.grant()
        migrate_beyond(path)
        with pytest.raises(StoreDamaged, match="a newer version has migrated the file, restart this process"):
            VERBS[verb](store)
        with pytest.raises(StoreDamaged, match="update Leasehold on this host"):
            VERBS[verb](store)
    with closing(apsw.Connection(str(path))) as db:
        assert db.execute(f"SELECT count(*) FROM records_{SCHEMA + 1}").get == 1  # noqa: S608  our own number


def old_lease(path: Path, boot: str, ends: float) -> None:
    """A lease as a process of the first version wrote it."""
    with closing(apsw.Connection(str(path))) as db:
        row = (*OLD, b"{}", REVISION, REVISION, 30.0, ends, boot)
        db.execute("INSERT INTO records VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)


def migrate_beyond(path: Path) -> None:
    """What every later version does first: rename the table of the one before."""
    with closing(apsw.Connection(str(path))) as db:
        db.execute(f"ALTER TABLE records_{SCHEMA} RENAME TO records_{SCHEMA + 1}")
        db.execute("UPDATE state SET schema = ?", (SCHEMA + 1,))
