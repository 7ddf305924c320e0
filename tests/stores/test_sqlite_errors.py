"""What can be wrong with a file and its place: one clear error each, and no token used twice afterwards."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest

from leasehold.engine.blocking import drive
from leasehold.errors import InvalidInput, LeaseholdError, StoreDamaged, StoreUnavailable
from leasehold.wires import sqlite as wire_file
from leasehold.wires.sqlite import CONNECTIONS, check_place, check_version, file_system_of
from tests.stores.disks import LOG, disk
from tests.stores.support import KEY, Driven, driven, key, result, run, start
from tests.support import count, note

MOUNTS = r"""22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
23 22 0:5 / /proc rw shared:2 - proc proc rw
30 22 0:40 / /mnt/share rw shared:3 - nfs4 server:/export rw,vers=4.2
31 30 8:2 / /mnt/share/local rw shared:4 - xfs /dev/sdb1 rw
32 22 0:41 / /mnt/a\040b rw shared:5 - cifs //server/share rw
33 22 0:42 / /mnt/überall rw - fuse.sshfs host: rw
34 22 8:3 / /data rw - btrfs /dev/sdc rw
35 22 0:43 / /data rw - 9p share rw
"""


# Where the file lies.


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/", "ext4"),
        ("/var/lib", "ext4"),
        ("/mnt/share", "nfs4"),
        ("/mnt/share/deep/er", "nfs4"),
        ("/mnt/shared", "ext4"),
        ("/mnt/share/local/x", "xfs"),
        ("/mnt/a b", "cifs"),
        ("/mnt/überall/x", "fuse.sshfs"),
        ("/data", "9p"),
    ],
)
def test_the_file_system_of_a_folder_is_that_of_the_innermost_mount(folder: str, kind: str) -> None:
    assert file_system_of(folder, MOUNTS) == kind


def test_a_network_file_system_is_refused_before_anything_is_created(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(wire_file, "_mounts", lambda: f"{MOUNTS}40 22 0:9 / {tmp_path} rw - nfs4 server:/x rw\n")
    with pytest.raises(StoreUnavailable, match=r"nfs4, a network file system.*local disk") as caught:
        Driven(tmp_path / "leases.db")
    assert caught.value.applied is False
    assert list(tmp_path.iterdir()) == []


def test_a_link_that_leads_to_a_network_file_system_is_refused(tmp_path: Path, monkeypatch) -> None:
    far = tmp_path / "far"
    far.mkdir()
    (tmp_path / "leases.db").symlink_to(far / "leases.db")
    monkeypatch.setattr(wire_file, "_mounts", lambda: f"40 22 0:9 / {far} rw - nfs4 server:/x rw\n")
    with pytest.raises(StoreUnavailable, match="network file system"):
        Driven(tmp_path / "leases.db")


def test_a_link_and_its_target_are_one_store(tmp_path: Path) -> None:
    (tmp_path / "link.db").symlink_to(tmp_path / "leases.db")
    with driven(tmp_path / "link.db") as one, driven(tmp_path / "leases.db") as two:
        mine = one.grant()
        assert two.refused().revision == mine.revision
        assert list(tmp_path.glob("link.db-*")) == []


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"^url: the folder .* does not exist; create it first"):
        Driven(tmp_path / "none" / "leases.db")


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="must name a plain file"):
        Driven(tmp_path)


def test_a_pipe_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "leases.db")
    with pytest.raises(InvalidInput, match="must name a plain file"):
        Driven(tmp_path / "leases.db")


def test_a_file_with_two_names_is_refused(tmp_path: Path) -> None:
    Driven(tmp_path / "leases.db").close()
    os.link(tmp_path / "leases.db", tmp_path / "other.db")
    with pytest.raises(InvalidInput, match="one name"):
        Driven(tmp_path / "other.db")


def test_a_name_the_file_system_cannot_hold_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot be a file"):
        Driven(tmp_path / ("x" * 300))


def test_a_name_with_a_line_break_works_and_does_not_break_messages(tmp_path: Path) -> None:
    path = tmp_path / "two\nlines.db"
    raw(path, "CREATE TABLE theirs (x)")
    with pytest.raises(StoreDamaged) as caught:
        Driven(str(path).replace("\n", "%0A"))
    assert "\n" not in str(caught.value)
    path.unlink()
    with driven(str(path).replace("\n", "%0A")) as store:
        assert store.grant().revision > 0
    assert path.exists()


def test_a_place_that_is_fine_is_not_refused(tmp_path: Path) -> None:
    """The control of all the above."""
    check_place(str(tmp_path / "leases.db"), MOUNTS)


# What the file holds.


def test_a_file_of_random_bytes_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "leases.db"
    content = random.Random(1).randbytes(50_000)
    path.write_bytes(content)
    with pytest.raises(StoreDamaged, match=r"not a healthy SQLite file.*move it away"):
        Driven(path)
    assert path.read_bytes() == content


def test_another_programs_file_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "leases.db"
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE theirs (x)")
    db.close()
    content = path.read_bytes()
    with pytest.raises(StoreDamaged, match="of another program; give Leasehold a file of its own"):
        Driven(path)
    assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("kept", [0, 100, 4096, 0.5])
def test_a_truncated_file_is_refused_or_starts_above_its_old_tokens(tmp_path: Path, kept: float) -> None:
    path = tmp_path / "leases.db"
    last = filled(path)
    os.truncate(path, int(path.stat().st_size * kept) if kept == 0.5 else int(kept))
    tokens, errors = used(path)
    assert tokens or errors
    assert all(token > last for token in tokens)
    assert bool(errors) is (kept != 0)


def test_flipped_bytes_are_an_error_of_ours_or_harmless_to_tokens(tmp_path: Path) -> None:
    path, chance = tmp_path / "leases.db", random.Random(5)
    last = filled(path)
    content, told = path.read_bytes(), 0
    for _ in range(count(400)):
        damaged = bytearray(content)
        for _ in range(chance.choice([1, 10, 200])):
            # The first hundred bytes are the header: half of the damage goes where it hurts.
            damaged[chance.randrange(chance.choice([200, len(damaged)]))] ^= chance.randrange(1, 256)
        for file in tmp_path.iterdir():
            file.unlink()
        path.write_bytes(damaged)
        tokens, errors = used(path)
        told += len(errors)
        assert all(token > last for token in tokens)
    note(f"errors told: {told}")
    assert told > 0


def test_values_nobody_wrote_are_a_damaged_store(tmp_path: Path) -> None:
    path = tmp_path / "leases.db"
    with driven(path) as store:
        store.grant()
        raw(path, "UPDATE records_2 SET ttl = NULL")
        for verb in (store.load, lambda key: store.swap(key, None, b"", 1.0), lambda key: store.scan(key.family)):
            with pytest.raises(StoreDamaged, match="values that Leasehold did not write"):
                verb(KEY)


def test_a_file_without_its_counter_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "leases.db"
    filled(path)
    raw(path, "DELETE FROM state")
    with pytest.raises(StoreDamaged, match="lost its counter"):
        Driven(path)


# Who may write it.


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that every user can reach, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)  # noqa: S103  that is the point
        yield Path(folder)
        os.chmod(folder, 0o700)


def test_a_file_this_user_cannot_write_is_permission_denied(public: Path) -> None:
    filled(public / "leases.db")
    os.chmod(public / "leases.db", 0o444)
    seen = run("as_nobody", public / "leases.db")
    assert seen["error"] == "PermissionDenied"
    assert "must be able to write the file and its folder" in seen["message"]


def test_a_folder_this_user_cannot_write_is_permission_denied(public: Path) -> None:
    os.chmod(public, 0o555)  # noqa: S103  that is the point
    seen = run("as_nobody", public / "new.db")
    assert seen["error"] == "PermissionDenied"
    assert not (public / "new.db").exists()


def test_a_folder_this_user_cannot_reach_is_permission_denied(public: Path) -> None:
    hidden = public / "hidden"
    hidden.mkdir(mode=0o000)
    seen = run("as_nobody", hidden / "leases.db")
    hidden.chmod(0o700)
    assert seen["error"] == "PermissionDenied"
    assert list(hidden.iterdir()) == []


def test_a_user_with_rights_is_not_refused(public: Path) -> None:
    """The control of the three above: it is the rights, not the user."""
    os.chmod(public, 0o777)  # noqa: S103  that is the point
    assert run("as_nobody", public / "new.db")["error"] is None


# When the disk is full or too many are at it.


def test_a_file_that_cannot_grow_is_no_grant_and_works_again_with_room(tmp_path: Path) -> None:
    seen = run("fill", tmp_path / "leases.db", 200_000)
    assert len(seen["errors"]) == 1
    tokens = [*seen["tokens"], seen["after"]]
    assert tokens == sorted(set(tokens))
    with driven(tmp_path / "leases.db") as store:
        assert store.grant(key(1)).revision > seen["after"]


@pytest.mark.parametrize("kind", ["write", "pages"])
def test_a_full_disk_says_so_and_no_token_is_used_twice(tmp_path: Path, kind: str) -> None:
    full, tokens = [False], []

    def fault(what: str, file: str) -> None:
        if full[0] and kind == "write" and (what, file) == ("write", LOG):
            raise apsw.FullError("no space left")

    def limit(db: apsw.Connection) -> None:
        if full[0] and kind == "pages":
            db.pragma("max_page_count", 1)

    apsw.connection_hooks.append(limit)
    try:
        with disk() as under, driven(tmp_path / "leases.db") as store:
            under.fault = fault
            for turn in range(10):
                tokens.append(store.grant(key(turn)).revision)
                full[0] = True
                store.wire._drop_idle()
                with pytest.raises(StoreUnavailable, match="free disk space"):
                    store.grant(key(1000 + turn), value=b"x" * 20_000)
                full[0] = False
    finally:
        apsw.connection_hooks.remove(limit)
    assert tokens == sorted(set(tokens))


def test_a_file_locked_all_the_time_is_unavailable_and_nothing_was_changed(tmp_path: Path) -> None:
    with driven(tmp_path / "leases.db", timeout=0.1) as store:
        other = apsw.Connection(str(tmp_path / "leases.db"))
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match="kept the file locked") as caught:
            store.swap(KEY, None, b"mine", 30.0)
        assert caught.value.applied is False
        other.execute("ROLLBACK")
        other.close()
        assert store.grant().revision > 0


def test_more_threads_than_connections_is_a_clear_error(tmp_path: Path) -> None:
    free, inside = threading.Event(), threading.Semaphore(0)

    def occupy(_: apsw.Connection) -> None:
        inside.release()
        free.wait(60)

    with driven(tmp_path / "leases.db", timeout=0.1) as store:
        threads = [threading.Thread(target=lambda: drive(store.wire.read(occupy))) for _ in range(CONNECTIONS)]
        for thread in threads:
            thread.start()
            inside.acquire()
        with pytest.raises(
            StoreUnavailable, match=r"no connection .* became free .*there are 16 at most.*fewer threads"
        ):
            store.load(KEY)
        free.set()
        for thread in threads:
            thread.join()
        assert store.load(KEY) is None


def test_too_many_open_files_is_not_called_a_matter_of_rights(tmp_path: Path) -> None:
    Driven(tmp_path / "leases.db").close()
    seen = run("without_descriptors", tmp_path / "leases.db")
    assert seen["error"] == "StoreUnavailable"
    assert "limit of open files" in seen["message"]


# When the file changes under its users.


def test_a_deleted_file_is_told_once_and_the_new_one_has_higher_tokens(tmp_path: Path) -> None:
    gone(tmp_path, lambda path: [file.unlink() for file in path.parent.iterdir()])


def test_a_file_deleted_without_its_log_is_told_once_and_the_new_one_has_higher_tokens(tmp_path: Path) -> None:
    gone(tmp_path, lambda path: path.unlink())


def test_a_file_replaced_by_another_lease_file_is_told_once_and_has_higher_tokens(tmp_path: Path) -> None:
    def replace(path: Path) -> None:
        filled(path.with_name("new.db"))
        os.replace(path.with_name("new.db"), path)

    gone(tmp_path, replace)


def test_a_file_replaced_by_another_programs_is_refused_and_left_alone(tmp_path: Path) -> None:
    path, theirs = tmp_path / "leases.db", tmp_path / "theirs.db"
    raw(theirs, "CREATE TABLE theirs (x)")
    content = theirs.read_bytes()
    with driven(path) as store:
        store.grant()
        for file in tmp_path.glob("leases.db*"):
            file.unlink()
        os.replace(theirs, path)
        with pytest.raises(StoreUnavailable, match="deleted or replaced"):
            store.load(KEY)
        for _ in range(2):
            with pytest.raises(StoreDamaged, match="another program"):
                store.load(KEY)
    assert path.read_bytes() == content


def test_a_folder_deleted_with_its_file_says_so_and_works_again_when_it_is_back(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "leases.db"
    path.parent.mkdir()
    with driven(path) as store:
        last = store.grant().revision
        shutil.rmtree(path.parent)
        with pytest.raises(StoreUnavailable, match="deleted or replaced"):
            store.load(KEY)
        with pytest.raises(StoreUnavailable, match="its folder is gone; create it again"):
            store.load(KEY)
        path.parent.mkdir()
        assert store.grant().revision > last


def test_whoever_closes_a_deleted_file_last_does_not_harm_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "leases.db"
    with driven(path) as store:
        store.grant()
        for file in tmp_path.iterdir():
            file.unlink()
        token = held_by_another_process(path, store.close)
    assert token is not None


# SQLite itself.


@pytest.mark.parametrize("version", ["3.7.0", "3.40.1", "3.51.2"])
def test_a_sqlite_with_the_wal_reset_bug_is_refused(version: str) -> None:
    with pytest.raises(StoreUnavailable, match=rf"SQLite {version} can corrupt.*3\.51\.3 or newer"):
        check_version(version)


@pytest.mark.parametrize("version", ["3.51.3", "3.54.1", "4.0.0"])
def test_a_sqlite_without_it_is_not(version: str) -> None:
    check_version(version)


def test_the_version_is_checked_before_a_file_is_created(tmp_path: Path, monkeypatch) -> None:
    check_version(apsw.sqlitelibversion())
    monkeypatch.setattr(apsw, "sqlitelibversion", lambda: "3.46.1")
    with pytest.raises(StoreUnavailable, match=r"SQLite 3\.46\.1"):
        Driven(tmp_path / "leases.db")
    assert list(tmp_path.iterdir()) == []


def filled(path: Path) -> int:
    """A file with a few hundred records; the last revision given out."""
    with driven(path) as store:
        return [store.grant(key(number), value=b"x" * 100).revision for number in range(300)][-1]


def used(path: Path) -> tuple[list[int], list[LeaseholdError]]:
    """Open the file and use every verb: the revisions it gave out and the errors it told, all of them ours."""
    tokens: list[int] = []
    errors: list[LeaseholdError] = []
    try:
        with driven(path) as store:
            works: list[Callable[[], object]] = [
                lambda: tokens.append(store.grant(key(7000)).revision),
                lambda: store.page("app//", None, 1000),
                lambda: store.collect(1000),
                *(lambda number=number: store.load(key(number)) for number in range(0, 300, 10)),
                lambda: tokens.append(store.grant(key(7001)).revision),
            ]
            for work in works:
                try:
                    work()
                except LeaseholdError as error:
                    errors.append(error)
    except LeaseholdError as error:
        errors.append(error)
    return tokens, errors


def gone(folder: Path, change: Callable[[Path], object]) -> None:
    """Two clients use a file that is taken away: each is told once, and then goes on with the new one."""
    path = folder / "leases.db"
    with driven(path) as one, driven(path) as two:
        records = [one.grant(key(1)), two.grant(key(2))]
        change(path)
        for store, record in zip((one, two), records, strict=True):
            with pytest.raises(StoreUnavailable, match=r"deleted or replaced while in use.*Never move") as caught:
                store.touch([(record, 30.0)])
            assert caught.value.applied is False
        last = max(record.revision for record in records)
        for store in (one, two):
            fresh = store.grant(KEY._replace(member=str(last)))
            assert fresh.revision > last
            last = fresh.revision


def held_by_another_process(path: Path, close: Callable[[], object]) -> int | None:
    """The token a third process sees of a lease in the new file, after somebody closed the old one."""
    holder = start("hold", f"sqlite://{path}", "job", 30)
    holder.stdout.readline()
    close()
    seen = run("inspect", f"sqlite://{path}", "job")
    result_of(holder)
    return seen["token"]


def result_of(holder) -> None:
    holder.stdin.write("\n")
    holder.stdin.flush()
    assert result(holder) == "released"


def raw(path: Path, statement: str) -> None:
    """Change a file behind the store's back."""
    db = apsw.Connection(str(path))
    db.set_busy_timeout(10_000)
    db.execute(statement)
    db.close()
