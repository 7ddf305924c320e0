"""The servers for tests, seen from outside: what each verb does, and that nothing stays behind."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
import redis

from leasehold.errors import InvalidInput
from leasehold.testing.servers import (
    MissingProgram,
    PgBouncer,
    PostgresServer,
    RedisCluster,
    RedisSentinels,
    RedisServer,
    ServerClock,
    ServerFailed,
    ShiftedClock,
    ZooKeeperServer,
    postgres,
    process,
    programs,
    trees,
)
from leasehold.testing.servers.pgbouncer import Mode
from tests.support import PYTHON, ROOT, eventually

AnyServer = RedisServer | PostgresServer
Kind = type[RedisServer] | type[PostgresServer]
both = pytest.mark.parametrize("kind", [RedisServer, PostgresServer])
A_DAY = 86400.0
# More than an idle server ever needs to answer; a server that is paused never does.
SILENCE = 0.5
SHARED = "/dev/shm"  # noqa: S108  only looked at
ONCE = redis.retry.Retry(redis.backoff.NoBackoff(), 0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the servers of this file live: apart from those of other tests, and reachable for other users."""
    # Both are made once and stay; neither may end up in here.
    tmp_path_factory.getbasetemp()
    postgres._template()
    place = Path(tempfile.mkdtemp(prefix="with spaces "))
    place.chmod(0o755)
    yield place
    shutil.rmtree(place)


@pytest.fixture(autouse=True)
def nothing_stays_behind(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Around every test of this file: the same processes and the same folders after it as before."""
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    before = children(), set(folder.iterdir())
    yield
    assert (children(), set(folder.iterdir())) == before


def children() -> set[int]:
    """Our own, not theirs: a PostgreSQL has workers that come and go."""
    return {pid for pid in trees.tree(os.getpid()) if trees.stat(pid)[1:2] == [str(os.getpid())]}


@pytest.fixture(scope="module")
def pg(folder: Path) -> Iterator[PostgresServer]:
    """For the tests that only look at one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(folder))
        with PostgresServer(config={"max_connections": 31}) as server:
            server.execute("CREATE ROLE app LOGIN PASSWORD 'se:cr/et'")
            yield server


def mark(server: AnyServer) -> None:
    """Write something that one can look for later."""
    if isinstance(server, RedisServer):
        server.command("SET", "mark", "1")
    else:
        server.execute("CREATE TABLE mark AS SELECT 1")


def is_marked(server: AnyServer) -> bool:
    if isinstance(server, RedisServer):
        return bool(server.command("EXISTS", "mark"))
    return server.execute("SELECT to_regclass('mark') IS NOT NULL") == [(True,)]


def time_of(server: AnyServer) -> float:
    if isinstance(server, RedisServer):
        seconds, micros = server.command("TIME")
        return int(seconds) + int(micros) / 1e6
    [(instant,)] = server.execute("SELECT clock_timestamp()")
    return float(instant.timestamp())


# The verbs.


@both
def test_a_kill_loses_nothing_that_was_synced(kind: Kind) -> None:
    with kind() as server:
        mark(server)
        server.kill()
        server.start()
        assert is_marked(server)


def test_a_killed_redis_without_persistence_has_forgotten_everything() -> None:
    with RedisServer(aof="no") as server:
        mark(server)
        server.kill()
        server.start()
        assert not is_marked(server)


@both
def test_a_restart_keeps_port_and_data_but_not_the_process(kind: Kind) -> None:
    with kind() as server:
        mark(server)
        port, pid = server.port, server.pid
        server.restart()
        assert (server.port, is_marked(server)) == (port, True)
        assert server.pid != pid


def test_nobody_listens_between_stop_and_start() -> None:
    with RedisServer() as server:
        server.stop()
        assert not server.is_running
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((server.host, server.port))
        server.start()
        socket.create_connection((server.host, server.port)).close()


@both
def test_a_request_to_a_paused_server_hangs_and_is_answered_when_it_goes_on(kind: Kind) -> None:
    with kind() as server, connected(server) as ask, ThreadPoolExecutor() as threads:
        server.pause()
        answer = threads.submit(ask)
        with pytest.raises(TimeoutError):
            answer.result(SILENCE)
        server.go_on()
        assert answer.result()


@contextmanager
def connected(server: AnyServer) -> Iterator[Callable[[], object]]:
    """A question to the server, over a connection that exists already."""
    if isinstance(server, RedisServer):
        with redis.from_url(server.url) as client:
            client.ping()
            yield client.ping
    else:
        with psycopg.connect(server.url) as connection:
            yield lambda: connection.execute("SELECT 1").fetchall()


@both
def test_a_paused_server_can_be_ended_by_every_verb_with_all_its_processes(kind: Kind) -> None:
    with kind() as server:
        for verb in (server.restart, server.stop, server.kill, server.close):
            if not server.is_running:
                server.start()
            # With a connection, for which PostgreSQL has one process more.
            with connected(server):
                members = trees.tree(server.pid)
                server.pause()
                verb()
            assert not any(trees.is_alive(pid) for pid in members)


def test_a_server_that_ended_by_itself_can_be_started_again() -> None:
    with RedisServer() as server:
        mark(server)
        with pytest.raises(redis.ConnectionError):
            server.command("SHUTDOWN")
        eventually(lambda: not server.is_running)
        server.start()
        assert is_marked(server)


def test_a_verb_that_does_not_fit_the_state_is_refused() -> None:
    server = RedisServer()
    for verb in (server.stop, server.kill, server.pause, server.go_on, server.restart):
        with pytest.raises(ServerFailed, match="does not run"):
            verb()
    with server, pytest.raises(ServerFailed, match="runs already"):
        server.start()


@both
def test_two_servers_at_once_do_not_meet(kind: Kind) -> None:
    with kind() as one, kind() as other:
        mark(one)
        assert one.port != other.port
        assert (is_marked(one), is_marked(other)) == (True, False)
        one.kill()
        assert not is_marked(other)


# Private, and gone afterwards.


def test_a_server_listens_on_loopback_only(pg: PostgresServer) -> None:
    with RedisServer() as server, PgBouncer(pg) as pooler:
        assert [listening_on(one.port) for one in (pg, server, pooler)] == [{"0100007F"}] * 3


def listening_on(port: int) -> set[str]:
    """The addresses, in the kernel's own hexadecimal form, on which somebody listens at this port."""
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            _, local, _, state, *_ = line.split()
            address, _, number = local.partition(":")
            if state == "0A" and int(number, 16) == port:
                found.add(address)
    return found


def test_postgres_and_pgbouncer_never_run_as_root(pg: PostgresServer) -> None:
    with PgBouncer(pg) as pooler:
        assert 0 not in {os.stat(f"/proc/{one.pid}").st_uid for one in (pg, pooler)}


@both
@pytest.mark.parametrize("is_killed", [False, True], ids=["alive", "killed"])
def test_a_server_is_gone_with_folder_and_shared_memory_when_the_block_ends(kind: Kind, *, is_killed: bool) -> None:
    before = shared_memory()
    with kind(clock=ServerClock()) as server:
        members, place, port = trees.tree(server.pid), server.folder, server.port
        assert place.is_dir()
        assert made_by(members, before)
        if is_killed:
            server.kill()
    assert not any(trees.is_alive(pid) for pid in members)
    assert not place.exists()
    assert not made_by(members, before)
    assert listening_on(port) == set()


def made_by(members: list[int], before: set[tuple[int, int]]) -> set[tuple[int, int]]:
    """What these processes have in shared memory.

    What was there before them was made by others, who died with their watchers and had one of these numbers.
    """
    return {(maker, made) for maker, made in shared_memory() - before if maker in members}


def shared_memory() -> set[tuple[int, int]]:
    """System V segments, and what libfaketime names after a process: who made it, and its own number."""
    segments = [line.split() for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]]
    with os.scandir(SHARED) as files:
        named = {(int(maker), file.inode()) for file in files if (maker := file.name.rpartition("_")[2]).isdecimal()}
    return named | {(int(creator), int(segment)) for _, segment, _, _, creator, *_ in segments}


ORPHAN = """
import os, signal
from leasehold.testing.servers import PostgresServer, RedisCluster, RedisServer, ServerClock
clock = ServerClock()
servers = [RedisServer(), PostgresServer(clock=clock), RedisServer(), *RedisCluster(clock=clock).__enter__().nodes]
for server in servers[:3]:
    server.start()
servers[2].pause()
# A child that keeps every pipe of its parent open.
child = os.fork()
if child:
    print(child, *(server.pid for server in servers), flush=True)
signal.pause()
"""


def test_no_server_outlives_a_test_process_that_is_killed(folder: Path) -> None:
    env = {**os.environ, "TMPDIR": str(folder)}
    before, shared_before = set(folder.iterdir()), shared_memory()
    with subprocess.Popen([PYTHON, "-c", ORPHAN], stdout=subprocess.PIPE, text=True, env=env) as owner:
        assert owner.stdout is not None
        child, *servers = map(int, owner.stdout.readline().split())
        members = [pid for server in servers for pid in trees.tree(server)]
        assert len(members) > len(servers) == 6
        assert made_by(members, shared_before)
        owner.kill()
        eventually(lambda: not any(trees.is_alive(pid) for pid in members))
        eventually(lambda: set(folder.iterdir()) == before)
        # The control: the child that kept the pipes open lives.
        assert not made_by(members, shared_before)
        assert trees.is_alive(child)
        os.kill(child, signal.SIGKILL)


def test_a_forked_child_does_not_end_its_parents_server() -> None:
    with RedisServer() as server:
        child = os.fork()
        if child == 0:
            server.close()
            os._exit(0)
        os.waitpid(child, 0)
        mark(server)
        assert is_marked(server)


# What goes wrong is said.


@pytest.mark.parametrize(
    ("server", "program", "package"),
    [
        (RedisServer(), "redis-server", "redis-server"),
        (RedisServer(tls=True), "openssl", "openssl"),
        (RedisServer(clock=ServerClock()), "libfaketime.so.1", "libfaketime"),
        (RedisServer(program="/nowhere/redis-server"), "/nowhere/redis-server", "redis-server"),
        (PostgresServer(), "initdb", "postgresql"),
        (ZooKeeperServer(), "java", "default-jre-headless"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_missing_program_is_an_error_that_says_what_to_install(
    server: process.Server, program: str, package: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # Everything else is there: links to it in a folder, and nowhere to look but there.
    for name in ("redis-server", "openssl"):
        if name != program:
            (tmp_path / name).symlink_to(shutil.which(name) or "")
    monkeypatch.setenv("PATH", str(tmp_path))
    for place in ("POSTGRES", "SBIN"):
        monkeypatch.setattr(programs, place, str(tmp_path))
    monkeypatch.setattr(programs, "FAKETIME", (str(tmp_path),))
    monkeypatch.setattr(postgres, "_template", postgres._Template)
    with (
        pytest.raises(MissingProgram, match=f"^{program} is not installed here.*apt-get install -y {package}$"),
        server,
    ):
        pass


def test_a_missing_pooler_is_an_error_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "SBIN", "/nowhere")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(MissingProgram, match=r"apt-get install -y pgbouncer$"), PgBouncer(PostgresServer()):
        pass


def test_the_newest_postgres_is_found_off_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for version in ("9", "15", "16"):
        place = tmp_path / version / "bin"
        place.mkdir(parents=True)
        (place / "postgres").touch(0o755)
    monkeypatch.setattr(programs, "POSTGRES", f"{tmp_path}/*/bin")
    assert programs.postgres("postgres") == f"{tmp_path}/16/bin/postgres"


@both
def test_a_server_that_does_not_come_up_shows_its_log(kind: Kind) -> None:
    with pytest.raises(ServerFailed, match=r"(?s)ended at its start; the end of its log:.*no_such_setting"):
        kind(config={"no_such_setting": "1"}).__enter__()


@both
def test_a_port_that_somebody_takes_first_is_given_up_for_another(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server((process.HOST, 0)) as somebody:
        taken = somebody.getsockname()[1]
        ports = iter([taken, process.free_port()])
        monkeypatch.setattr(process, "free_port", lambda: next(ports))
        with kind() as server:
            assert server.port != taken
            assert time_of(server)
    assert list(ports) == []


def test_a_port_taken_while_the_server_was_down_is_an_error() -> None:
    with RedisServer() as server:
        server.stop()
        with socket.create_server((server.host, server.port)), pytest.raises(ServerFailed, match="already in use"):
            server.start()
        server.start()
        assert time_of(server)


def test_an_unknown_option_is_refused_before_anything_starts() -> None:
    with pytest.raises(InvalidInput, match="aof"):
        RedisServer(aof="sometimes")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="mode"):
        PgBouncer(PostgresServer(), mode="row")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="masters"):
        RedisCluster(masters=2)


# Clocks.


@both
def test_a_servers_clock_stands_still_until_it_is_advanced(kind: Kind) -> None:
    clock = ServerClock(1_700_000_000)
    with kind(clock=clock) as server:
        assert [time_of(server), time_of(server)] == [1_700_000_000, 1_700_000_000]
        clock.advance(0.25)
        assert time_of(server) == clock.now == 1_700_000_000.25
        clock.advance_to(1_700_001_000)
        assert time_of(server) == 1_700_001_000
        server.kill()
        server.start()
        assert time_of(server) == 1_700_001_000
        with pytest.raises(InvalidInput, match="reached already"):
            clock.advance(-1)


def test_keys_of_redis_expire_by_its_clock() -> None:
    clock = ServerClock()
    with RedisServer(clock=clock) as server:
        server.command("SET", "mark", "1", "PX", 100_000)
        # In steps that no float has exactly: together they make the whole second before.
        for _ in range(999):
            clock.advance(0.1)
        assert time_of(server) == clock.start + 99.9
        assert is_marked(server)
        clock.advance(0.101)
        assert not is_marked(server)


def test_one_clock_moves_several_servers() -> None:
    clock = ServerClock()
    with RedisServer(clock=clock) as one, PostgresServer(clock=clock) as other:
        clock.advance(A_DAY)
        assert time_of(one) == time_of(other) == clock.start + A_DAY


@both
def test_a_shifted_clock_runs_and_can_step_back(kind: Kind) -> None:
    clock = ShiftedClock(A_DAY)
    with kind(clock=clock) as server:
        began = time_of(server)
        assert A_DAY / 2 < began - time.time() < A_DAY * 2
        eventually(lambda: time_of(server) > began)
        clock.offset = -A_DAY
        assert -A_DAY * 2 < time_of(server) - time.time() < -A_DAY / 2


# What Redis can be told.


def test_users_of_redis_may_do_what_their_acl_says() -> None:
    with (
        RedisServer(acl=["user default off", "user app on >se:cr/et ~app:* +get"]) as server,
        redis.from_url(server.url_for("app", "se:cr/et")) as app,
        redis.from_url(server.url) as nobody,
    ):
        assert app.get("app:1") is None
        with pytest.raises(redis.exceptions.NoPermissionError):
            app.set("app:1", "x")
        with pytest.raises(redis.exceptions.AuthenticationError):
            nobody.get("app:1")
        assert server.command("SET", "app:1", "x")


def test_redis_over_tls_is_trusted_through_its_authority_and_by_its_name() -> None:
    with RedisServer(tls=True) as server, RedisServer(tls=True, tls_name="elsewhere.example") as liar:
        with redis.from_url(server.url, ssl_ca_certs=str(server.ca)) as client:
            assert client.ping()
        for stranger, authority, complaint in (
            (liar, liar.ca, "mismatch|not valid"),
            (server, liar.ca, "CERTIFICATE_VERIFY_FAILED"),
        ):
            with (
                redis.from_url(stranger.url, ssl_ca_certs=str(authority), retry=ONCE) as client,
                pytest.raises(redis.ConnectionError, match=complaint),
            ):
                client.ping()
        assert liar.command("PING")
        with redis.Redis(server.host, server.port, retry=ONCE) as plain, pytest.raises(redis.ConnectionError):
            plain.ping()


def test_sentinels_promote_a_replica_that_has_the_data() -> None:
    with RedisSentinels(replicas=1, sentinels=3) as group:
        mark(group.master)
        former = group.master
        assert former.command("WAIT", 1, 20_000) == 1
        group.failover()
        assert group.master is not former
        assert group.replicas == [former]
        assert is_marked(group.master)
        mark(group.master)


def test_sentinels_replace_a_master_that_was_killed_and_remember_it() -> None:
    clock = ServerClock()
    with RedisSentinels(clock=clock, down_after=0.5) as group:
        former = group.master
        former.kill()
        eventually(lambda: group.master is not former, patience=60)
        assert time_of(group.master) == clock.now
        successor = group.master
        group.sentinels[0].restart()
        assert group.master is successor


def test_a_cluster_spreads_keys_over_three_masters_and_a_replica_takes_over_from_a_killed_one() -> None:
    with RedisCluster(masters=3, replicas=1, config={"cluster-node-timeout": 1000}) as group:
        sizes = spread(group, 50)
        assert len(sizes) == 3
        assert min(sizes) > 0
        assert sum(sizes) == 50
        master, replica = group.nodes[0], group.nodes[3]
        eventually(lambda: replica.command("DBSIZE") == sizes[0])
        master.kill()
        eventually(lambda: replica.command("ROLE")[0] == "master", patience=60)


def spread(group: RedisCluster, keys: int) -> list[int]:
    """Write that many keys through a client of the cluster; how many each master has then."""
    with redis.RedisCluster(group.nodes[0].host, group.nodes[0].port) as client:
        for number in range(keys):
            client.set(f"key:{number}", number)
    return [node.command("DBSIZE") for node in group.nodes[: group.masters]]


def test_a_cluster_forms_on_a_clock_that_stands_still_and_bears_its_jumps() -> None:
    clock = ServerClock(1_700_000_000)
    with RedisCluster(clock=clock) as group:
        assert [time_of(node) for node in group.nodes] == [1_700_000_000] * 3
        clock.advance(A_DAY)
        eventually(lambda: all("cluster_state:ok" in node.command("CLUSTER", "INFO") for node in group.nodes))
        assert sum(spread(group, 20)) == 20


# What PostgreSQL can be told.


def test_roles_of_postgres_need_their_password(pg: PostgresServer) -> None:
    with psycopg.connect(pg.url_for("app", "se:cr/et")) as connection:
        assert connection.execute("SELECT current_user").fetchall() == [("app",)]
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(pg.url_for("app", "wrong"))


def test_postgres_over_tls_is_trusted_through_its_authority_and_by_its_name() -> None:
    with PostgresServer(tls=True) as server, PostgresServer(tls=True, tls_name="elsewhere.example") as liar:
        with psycopg.connect(server.url, sslmode="verify-full", sslrootcert=str(server.ca)) as connection:
            assert connection.pgconn.ssl_in_use
        with pytest.raises(psycopg.OperationalError, match="does not match host name"):
            psycopg.connect(liar.url, sslmode="verify-full", sslrootcert=str(liar.ca))
        with pytest.raises(psycopg.OperationalError, match="certificate verify failed"):
            psycopg.connect(server.url, sslmode="verify-full", sslrootcert=str(liar.ca))


def test_postgres_has_the_settings_asked_for_and_syncs_by_default(pg: PostgresServer) -> None:
    assert pg.execute("SHOW max_connections") == [("31",)]
    assert pg.execute("SELECT current_setting(%s), 1", "fsync") == [("on", 1)]


@pytest.mark.parametrize(("mode", "backends"), [("session", 2), ("transaction", 1), ("statement", 1)])
def test_a_pooler_shares_backends_as_its_mode_says(pg: PostgresServer, mode: Mode, backends: int) -> None:
    with PgBouncer(pg, mode=mode) as pooler:
        url = pooler.url_for("app", "se:cr/et")
        with psycopg.connect(url, autocommit=True) as one, psycopg.connect(url, autocommit=True) as other:
            pids = {each.execute("SELECT pg_backend_pid()").fetchall()[0] for each in (one, other, one, other)}
        assert len(pids) == backends


def test_a_pooler_can_be_killed_and_restarted_by_itself(pg: PostgresServer) -> None:
    with PgBouncer(pg) as pooler:
        pooler.kill()
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(pooler.url)
        assert time_of(pg)
        pooler.start()
        pooler.restart()
        psycopg.connect(pooler.url).close()


# The script that installs what is missing.


def test_the_script_that_installs_servers_has_nothing_to_do_here() -> None:
    done = subprocess.run([ROOT / "scripts" / "install-servers"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_where_it_may_not_install_the_script_says_the_exact_command(tmp_path: Path) -> None:
    answers = {"apt-get": "exit 1", "id": "echo 1000", "sudo": "exit 1"}
    for name, answer in answers.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{answer}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "tr").symlink_to(shutil.which("tr") or "")
    # Programs of /usr/bin are out of its sight: these live there.
    done = subprocess.run(
        ["/bin/sh", ROOT / "scripts" / "install-servers"],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    packages = "redis-server openssl default-jre-headless etcd-server etcd-client kubernetes-client xz-utils"
    assert f"sudo apt-get update && sudo apt-get install -y {packages}\n" in done.stderr
