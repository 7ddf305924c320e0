"""The chunk store and its clients as processes: nothing is lost or torn, whoever dies, sleeps or is cut off."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from leasehold import ByteRange, Inode
from leasehold import Path as Tree
from leasehold.fence import Part, ShownParts
from leasehold.testing.proxy import Proxy
from tests import servers
from tests.examples.file_support import CHUNK, END, FILES, LOG, NONE, SIZE, TABLE, Client, Place, module, place, shown
from tests.examples.programs import PATIENCE
from tests.support import PYTHON, count, eventually, note

fence = module("fence")
SHORT = 1.5


@pytest.fixture(params=["sqlite", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return servers.redis().url if request.param == "redis" else f"sqlite://{tmp_path}/leases.db"


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Place]:
    """A place whose locks are in a file."""
    with place(tmp_path, f"sqlite://{tmp_path}/leases.db") as made:
        yield made


@pytest.fixture(scope="module")
def open_to_all(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A place that several tests ask directly."""
    folder = tmp_path_factory.mktemp("open")
    with place(folder, f"sqlite://{folder}/leases.db") as made:
        yield made


# Everything at once.


def test_nothing_is_lost_or_torn_while_clients_die_sleep_and_are_cut_off(tmp_path: Path) -> None:
    redis = servers.redis()
    with contextlib.ExitStack() as stack:
        made = stack.enter_context(place(tmp_path, redis.url, places=12))
        to_store = stack.enter_context(Proxy(redis.host, redis.port))
        to_server = stack.enter_context(Proxy("127.0.0.1", made.server.port))
        other_way = redis.url.replace(str(redis.port), str(to_store.port))
        options = ["--ttl", str(SHORT), "--timeout", "1", "--wait", "3"]
        made.client("change", *options, name="steady")
        doomed = made.client("change", *options, name="doomed")
        sleeper = made.client("change", *options, "--stop-at", "3", name="sleeper")
        unlocked = made.client("change", *options, name="unlocked", store=other_way)
        unserved = made.client("append", *options, name="unserved", port=to_server.port)
        reader = made.client("check", *options)
        collector = made.client("collect", *options, "--every", "0.1")
        mover = made.client("rebalance", *options, "--every", "0.1", "--churn")
        for name in ("steady", "doomed", "unlocked", "unserved"):
            made.progress(name, 1)
        doomed.kill()
        _stop_before_a_write(made, sleeper)
        for _ in range(count(10)):
            _sleep_beyond_the_lease(made, sleeper, collector, mover)
            _cut_off(made, to_store, unlocked, "unlocked")
            _cut_off(made, to_server, unserved, "unserved")
        eventually(lambda: reader.all("whole"), PATIENCE)
        eventually(lambda: made.journal("remove") and made.journal("move"), PATIENCE)
        for client in made.clients[1:]:
            if client is not doomed:
                assert "Traceback" not in client.end()
        written, stale = made.journal("write"), made.journal("StaleToken")
        note(f"{len(written)} records written under faults: {made.damage()}; {len(stale)} requests refused as stale")
        assert made.damage() == NONE
        assert made.unwritten() == set()
        assert "sleeper" in {line["by"] for line in stale}
        assert made.journal("ScopeMismatch", "LeaseRequired", "ChunkGone") == []
        # What is left is garbage, and all of that goes; nothing else does.
        made.run("collect", "--count", "1")
        assert made.garbage() == {}
        assert made.damage() == NONE


def _stop_before_a_write(made: Place, sleeper: Client) -> None:
    """It stops itself between its last check and its write, until others have written there."""
    eventually(sleeper.is_stopped, PATIENCE)
    start = sleeper.all("place")[-1] * SIZE
    before = len(made.journal())
    eventually(lambda: any(line["start"] == start for line in made.journal()[before:] if "start" in line), PATIENCE)
    sleeper.go_on()


def _sleep_beyond_the_lease(made: Place, *sleepers: Client) -> None:
    for client in sleepers:
        client.pause()
    names = {"sleeper", "collect", "rebalance"}
    with made.locks() as locks:
        eventually(lambda: all(info.holder not in names for info in locks.list()), PATIENCE)
    made.progress("steady", 5)
    said = [len(client.lines()) for client in sleepers]
    for client in sleepers:
        client.go_on()
    for client, before in zip(sleepers, said, strict=True):
        eventually(lambda client=client, before=before: len(client.lines()) > before, PATIENCE)


def _cut_off(made: Place, proxy: Proxy, client: Client, name: str) -> None:
    """Its requests arrive, and no answer comes back; later everything is as before."""
    failures = len(client.all("failed"))
    proxy.replies.blackhole = True
    eventually(lambda: len(client.all("failed")) > failures, PATIENCE)
    made.progress("steady", 5)
    proxy.replies.blackhole = False
    proxy.cut()
    made.progress(name, 1)


def test_without_locks_and_without_the_fence_writes_are_lost(tmp_path: Path) -> None:
    """The control of the test above: the same people, who take no locks, on a server that checks nothing."""
    with place(tmp_path, "", "--no-fence", places=3) as made:
        for number in range(3):
            made.client("change", "--no-lock", name=f"change-{number}")
        made.client("check", "--no-lock")
        made.client("rebalance", "--no-lock", "--churn")
        eventually(lambda: made.damage().lost, PATIENCE)
        # Last, for hardly anything can be read after it.
        made.client("collect", "--no-lock")
        eventually(lambda: made.damage().removed, PATIENCE)
        for client in made.clients[1:]:
            client.end()
        found = made.damage()
        note(f"without locks and fence, of {len(made.journal('write'))} writes: {found}")
        assert found.lost > 0
        assert found.removed > 0


# Who comes too late.


def test_a_writer_that_slept_beyond_its_lease_is_refused_with_both_tokens(tmp_path: Path, store: str) -> None:
    with place(tmp_path, store, places=1) as made:
        late, stopped, later = _late_writer(made)
        eventually(lambda: late.lines()[-1] != stopped, PATIENCE)
        late.end()
        (refused,) = made.journal("StaleToken")
        assert (refused["by"], refused["token"], refused["mark"]) == ("late", stopped["token"], later["token"])
        assert int(refused["token"]) < int(refused["mark"])
        (told,) = (line for at, line in enumerate(late.lines()) if at and late.lines()[at - 1] == stopped)
        assert told["failed"] in {"LeaseLost", "StaleToken"}
        assert made.damage() == NONE


def test_without_the_fence_that_writer_destroys_what_the_next_one_wrote(tmp_path: Path) -> None:
    """The control: the locks alone cannot call a request back that is under way."""
    with place(tmp_path, f"sqlite://{tmp_path}/leases.db", "--no-fence", places=1) as made:
        late, stopped, _ = _late_writer(made)
        eventually(lambda: stopped["sends"] in {line["digest"] for line in made.journal("write")}, PATIENCE)
        late.end()
        assert made.journal("StaleToken") == []
        assert made.damage().lost == 1


def _late_writer(made: Place) -> tuple[Client, dict[str, str], dict[str, str]]:
    """One stops between its last check and its write; another has the lease meanwhile, and writes."""
    late = made.client("change", "--ttl", str(SHORT), "--stop-at", "1", name="late")
    eventually(late.is_stopped, PATIENCE)
    sends, done = made.run("change", "--count", "1", "--wait", str(PATIENCE), name="later")
    assert done == {"done": sends["sends"]}
    stopped = late.lines()[-1]
    late.go_on()
    return late, stopped, sends


def test_a_collector_that_slept_beyond_its_lease_removes_nothing(here: Place) -> None:
    here.run("change", "--count", "3")
    late = here.client("collect", "--ttl", str(SHORT), "--stop-at", "1")
    eventually(late.is_stopped, PATIENCE)
    here.run("change", "--count", "1", "--wait", str(PATIENCE), name="later")
    assert here.journal("remove") == []
    late.go_on()
    eventually(lambda: here.journal("StaleToken"), PATIENCE)
    # The control: with its next lease it does.
    eventually(lambda: here.garbage() == {}, PATIENCE)
    late.end()
    (refused,) = here.journal("StaleToken")
    assert refused["by"] == "collect"
    assert all(refused["token"] not in line["lease"] for line in here.journal("remove"))
    assert here.damage() == NONE


def test_the_server_knows_its_marks_after_it_was_killed(here: Place) -> None:
    with here.locks() as locks:
        with locks.hold(ByteRange(TABLE, 0, 10)) as lease:
            old = shown(lease, f"inode:{TABLE}", (0, 10))
        new = shown(locks.acquire(Inode(TABLE)), f"inode:{TABLE}", (0, END))
        assert here.ask("POST", f"/inodes/{TABLE}/register", new)[0] == 200
        here.server.kill()
        here.serve()
        status, said = here.ask("PUT", f"/inodes/{TABLE}/bytes", old, body=b"late", start=0)
        assert (status, said["error"]) == (412, "StaleToken")
        assert (said["token"], said["mark"]) == (old["token"], new["token"])
        assert here.damage() == NONE
        assert here.ask("PUT", f"/inodes/{TABLE}/bytes", new, body=b"in time", start=0)[0] == 200
        assert here.read(TABLE, 0, 7) == b"in time"


# Who reaches too far.


def test_a_writer_outside_of_its_range_is_told_so_and_not_that_it_is_late(open_to_all: Place) -> None:
    here = open_to_all
    url, inode, stale = f"/inodes/{TABLE}/bytes", f"inode:{TABLE}", here.journal("StaleToken")
    with here.locks() as locks:
        mine = locks.acquire(ByteRange(TABLE, 100, 200))
        assert here.ask("PUT", url, shown(mine, inode, (100, 200)), body=b"x" * 100, start=100)[0] == 200
        reader = locks.acquire(ByteRange(TABLE, 300, 400), mode="shared")
        tries = {
            "beyond its end": (url, shown(mine, inode, (100, 200)), 150),
            "before its start": (url, shown(mine, inode, (100, 200)), 50),
            "a range that grew": (url, shown(mine, inode, (0, 300)), 150),
            "another file": (f"/inodes/{LOG}/bytes", shown(mine, inode, (100, 200)), 100),
            "another kind of lock": (url, shown(mine, "path:/", "/table"), 100),
            "a reader": (url, shown(reader, inode, (300, 400)), 300),
        }
        for why, (path, lease, start) in tries.items():
            status, said = here.ask("PUT", path, lease, body=b"y" * 100, start=start)
            assert (why, status, said["error"]) == (why, 403, "ScopeMismatch")
        assert here.ask("PUT", url, body=b"y", start=0)[0] == 428
        assert b"y" * 10 not in here.read(TABLE, 0, SIZE)
        assert here.journal("StaleToken") == stale
        mine.release_part(100, 150)
        assert here.ask("PUT", url, shown(mine, inode, (150, 200)), body=b"y" * 50, start=150)[0] == 200


def test_readers_do_not_make_each_other_late_and_a_writer_makes_all_of_them(open_to_all: Place) -> None:
    here = open_to_all
    url, inode = f"/inodes/{TABLE}/bytes", f"inode:{TABLE}"
    with here.locks() as locks, here.locks() as others:
        readers = [one.acquire(Inode(TABLE), mode="shared") for one in (locks, others)]
        first, second = (shown(lease, inode, (0, END)) for lease in readers)
        for lease in (first, second, first):
            assert here.ask("GET", url, lease, start=0, end=10)[0] == 200
        for lease in readers:
            lease.release()
        writer = shown(locks.acquire(ByteRange(TABLE, 0, 10)), inode, (0, 10))
        assert here.ask("POST", f"/inodes/{TABLE}/register", writer)[0] == 200
        for lease in (first, second):
            assert here.ask("GET", url, lease, start=0, end=10)[1]["error"] == "StaleToken"


def test_paths_are_created_renamed_and_removed_only_with_a_lease_on_them(open_to_all: Place) -> None:
    here = open_to_all
    with here.locks() as locks:
        old = locks.acquire(Tree("/docs"))
        assert here.ask("POST", "/files", shown(old, "path:/", "/docs"), path="/docs/a")[0] == 201
        assert here.ask("POST", "/files", shown(old, "path:/", "/docs"), path="/docs/a")[0] == 409
        assert here.ask("POST", "/files", shown(old, "path:/", "/docs"), path="/docs2")[1]["error"] == "ScopeMismatch"
        late = shown(old, "path:/", "/docs")
        old.release()
        with locks.hold_all([Tree("/docs/a"), Tree("/b")]) as leases:
            one = shown(leases["path:/docs/a"], "path:/", "/docs/a")
            both = shown(leases["path:/b"], "path:/", "/docs/a", "/b")
            move = {"path": "/docs/a", "to": "/b"}
            assert here.ask("POST", "/files/rename", one, **move)[1]["error"] == "ScopeMismatch"
            assert here.ask("POST", "/files/rename", both, **move)[0] == 200
        assert here.ask("POST", "/files", late, path="/docs/c")[1]["error"] == "StaleToken"
        with locks.hold(Tree("/b")) as lease:
            assert here.ask("DELETE", "/files", shown(lease, "path:/", "/b"), path="/b")[1]["error"] == "ScopeMismatch"
    assert sorted(here.ask("GET", "/files")[1]) == ["/b", "/log", "/table"]
    here.run("rm", "/b")
    assert sorted(here.ask("GET", "/files")[1]) == ["/log", "/table"]


# Background work.


def test_the_collector_leaves_files_alone_that_are_read_and_collects_the_others(here: Place) -> None:
    here.run("change", "--count", "2")
    here.run("append", "--count", "2")
    assert here.garbage().keys() == {str(LOG), str(TABLE)}
    with here.locks() as locks:
        with locks.hold(ByteRange(TABLE, 0, 10), mode="shared"):
            assert {"busy": TABLE} in here.run("collect", "--count", "1", "--wait", "0.1")
            assert here.garbage().keys() == {str(TABLE)}
        here.run("collect", "--count", "1")
    assert here.garbage() == {}
    assert here.damage() == NONE


def test_the_chunks_of_a_removed_file_are_collected(here: Place) -> None:
    here.run("put", "/big", str(FILES / "server.py"))
    here.run("mv", "/big", "/bigger")
    assert (here.read(3, 0, 10**6)) == (FILES / "server.py").read_bytes()
    assert "3" not in here.garbage()
    here.run("rm", "/bigger")
    assert "3" in here.garbage()
    here.run("collect", "--count", "1")
    assert here.garbage() == {}
    assert here.damage() == NONE


def test_chunks_move_to_the_other_folder_around_a_range_that_somebody_holds(here: Place) -> None:
    assert {name[0] for name in here.chunks(TABLE)} == {"a"}
    with here.locks() as locks, locks.hold(ByteRange(TABLE, 0, CHUNK)):
        said = here.run("rebalance", "--count", "1", "--wait", "0.1")
        assert {"busy": TABLE, "at": 0} in said
        assert here.chunks(TABLE)[0].startswith("a/")
        assert here.chunks(TABLE)[1].startswith("b/")
    here.run("rebalance", "--count", "2")
    folders = [name[0] for name in here.chunks(TABLE)]
    assert abs(folders.count("a") - folders.count("b")) <= 1
    here.run("collect", "--count", "1")
    assert here.damage() == NONE


# Leases as they travel.


@pytest.mark.parametrize(
    "header",
    ["", "{}x", "[1]", '[{"resource": "inode:1", "parts": [], "token": "1", "shared": false}]']
    + [
        f'[{{"resource": "inode:1", "parts": [{part}], "token": "{token}", "shared": false}}]'
        for part, token in (
            ("[5, 5]", 1),
            ("[-1, 5]", 1),
            ('"a"', 1),
            ('"/a"', 1),
            ("[0, 5]", 0),
            ("[0, 5]", 2**63),
            ("[0, 5]", "x"),
        )
    ],
)
def test_a_lease_that_cannot_be_read_is_refused(header: str) -> None:
    with pytest.raises(fence.Malformed, match="the header Lease cannot be read"):
        fence.read_leases(header)


def test_a_lease_that_was_written_is_read_again() -> None:
    lease = ShownParts("inode:7", 2**62 + 1, (Part(0, 5, shared=True), Part(9, END, shared=True)))
    assert fence.read_leases(fence.write_leases([lease])) == [lease]


def test_what_cannot_be_asked_for_is_refused_and_changes_nothing(open_to_all: Place) -> None:
    here = open_to_all
    bytes_of, before = f"/inodes/{TABLE}/bytes", (here.read(TABLE, 0, 10 * SIZE), here.ask("GET", "/files"))
    with here.locks() as locks, locks.hold_all([Inode(TABLE), Tree("/")]) as leases:
        whole = shown(leases[f"inode:{TABLE}"], f"inode:{TABLE}", (0, END))
        tree = shown(leases["path:/"], "path:/", "/")
        bad = [
            here.ask("PUT", bytes_of, whole, body=b"", start=0),
            here.ask("PUT", bytes_of, whole, body=b"x", start=-1),
            here.ask("PUT", bytes_of, whole, body=b"x", start=2**26),
            here.ask("PUT", bytes_of, whole, body=b"x", start="9" * 5000),
            here.ask("PUT", bytes_of, whole, body=b"x", start=0, to="/etc"),
            here.ask("PUT", "/inodes/x/bytes", whole, body=b"x", start=0),
            *(here.ask("POST", "/files", tree, path=path) for path in ("", "a", "/", "/a/../b", "//a", "/a/")),
            here.ask("DELETE", f"/inodes/{TABLE}/chunks", whole, name=f"a/{TABLE}.x/../../index.json"),
            here.ask("DELETE", f"/inodes/{TABLE}/chunks", whole, name=f"a/{LOG}.{'0' * 16}"),
        ]
        assert [(status, said["error"]) for status, said in bad] == [(400, "Malformed")] * len(bad)
        assert here.ask("GET", "/inodes/99")[0] == 404
        assert here.ask("POST", "/inodes/99/register", shown(leases["path:/"], "inode:99", (0, END)))[0] == 404
    assert here.journal("remove") == []
    assert (here.read(TABLE, 0, 10 * SIZE), here.ask("GET", "/files")) == before


def test_a_file_that_is_not_there_is_told_in_one_line(open_to_all: Place) -> None:
    here = open_to_all
    command = [PYTHON, str(FILES), "get", "/nowhere", "--server", f"http://127.0.0.1:{here.server.port}"]
    done = subprocess.run([*command, "--store", here.store], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr == "file_store: Refused: NotThere: there is no file at /nowhere\n"
