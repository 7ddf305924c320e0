"""Every finding about a PostgreSQL, provoked on a real one, and absent from a healthy one."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import psycopg
import pytest

from leasehold.doctor.examine import Report, examine
from leasehold.doctor.facts import PostgresFacts
from leasehold.doctor.judge_common import EXPIRED_MANY
from leasehold.doctor.judge_postgres import DEAD_MANY, TRANSACTION_OLD
from leasehold.testing.servers import PgBouncer, PostgresServer, ServerClock, ShiftedClock, programs
from leasehold.wires.postgres_url import POOL
from tests.doctor.support import Liar, Trouble, check_trouble, codes
from tests.support import eventually

ROOM = 32


@pytest.fixture(scope="module")
def clock() -> ShiftedClock:
    return ShiftedClock()


@pytest.fixture(scope="module")
def server(clock: ShiftedClock) -> Iterator[PostgresServer]:
    # Nothing may be cleared away behind our back while we make a mess.
    config = {"max_connections": ROOM, "autovacuum_naptime": "1h"}
    with PostgresServer(config=config, clock=clock) as made:
        yield made


@pytest.fixture(scope="module")
def healthy(server: PostgresServer) -> Report:
    return examine(server.url)


@contextmanager
def setting(server: PostgresServer, name: str, value: str) -> Iterator[dict[str, Any]]:
    before = server.execute(f"SHOW {name}")
    change(server, f"ALTER SYSTEM SET {name} = {value}", name, [(value,)])
    try:
        yield {"url": server.url}
    finally:
        change(server, f"ALTER SYSTEM RESET {name}", name, before)


def change(server: PostgresServer, statement: str, name: str, to: list[tuple[str]]) -> None:
    server.execute(statement)
    server.execute("SELECT pg_reload_conf()")
    eventually(lambda: server.execute(f"SHOW {name}") == to)


@contextmanager
def fsync_off(server: PostgresServer, _: ShiftedClock) -> Iterator[dict[str, Any]]:
    with setting(server, "fsync", "off") as given:
        yield given


@contextmanager
def commits_lost(server: PostgresServer, _: ShiftedClock) -> Iterator[dict[str, Any]]:
    yield {"url": f"{server.url}?synchronous_commit=off"}


@contextmanager
def full_page_writes_off(server: PostgresServer, _: ShiftedClock) -> Iterator[dict[str, Any]]:
    with setting(server, "full_page_writes", "off") as given:
        yield given


@contextmanager
def autovacuum_off(server: PostgresServer, _: ShiftedClock) -> Iterator[dict[str, Any]]:
    with setting(server, "autovacuum", "off") as given:
        yield given


@contextmanager
def standby(server: PostgresServer, _: ShiftedClock) -> Iterator[dict[str, Any]]:
    """Whoever streams the log is a standby to the server."""
    with tempfile.TemporaryDirectory() as folder:
        command = [programs.postgres("pg_receivewal"), "-D", folder, "-d", server.url, "--synchronous"]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            eventually(lambda: server.execute("SELECT count(*) FROM pg_stat_replication") == [(1,)])
            yield {"url": server.url}
        finally:
            process.terminate()
            process.wait(timeout=30)
            eventually(lambda: server.execute("SELECT count(*) FROM pg_stat_replication") == [(0,)])


@contextmanager
def pooler(server: PostgresServer, _: ShiftedClock) -> Iterator[dict[str, Any]]:
    with PgBouncer(server, mode="transaction") as bouncer:
        yield {"url": bouncer.url}


@contextmanager
def bloat(server: PostgresServer, _: ShiftedClock) -> Iterator[dict[str, Any]]:
    server.execute(
        "INSERT INTO leasehold.leases (family, rest, member, digest, value, revision, born) "
        "SELECT '', '', '', sha256(n::text::bytea), '', n, n FROM generate_series(1, %s) AS n",
        DEAD_MANY + 100,
    )
    server.execute("DELETE FROM leasehold.leases WHERE family = ''")
    dead = "SELECT n_dead_tup FROM pg_stat_user_tables WHERE relname = 'leases'"
    eventually(lambda: server.execute(dead)[0][0] > DEAD_MANY)
    try:
        yield {"url": server.url}
    finally:
        server.execute("VACUUM leasehold.leases")
        eventually(lambda: server.execute(dead) == [(0,)])


@contextmanager
def long_transaction(server: PostgresServer, clock: ShiftedClock) -> Iterator[dict[str, Any]]:
    with psycopg.connect(server.url) as open_one:
        open_one.execute("SELECT pg_current_xact_id()")
        clock.offset = TRANSACTION_OLD + 60
        try:
            yield {"url": server.url}
        finally:
            clock.offset = 0.0


@contextmanager
def clock_differs(server: PostgresServer, clock: ShiftedClock) -> Iterator[dict[str, Any]]:
    clock.offset = -7.0
    try:
        yield {"url": server.url}
    finally:
        clock.offset = 0.0


@contextmanager
def clock_stands_still(_: PostgresServer, __: ShiftedClock) -> Iterator[dict[str, Any]]:
    with PostgresServer(clock=ServerClock(time.time() - 60)) as other:
        yield {"url": other.url}


@contextmanager
def connections_nearly_full(server: PostgresServer, _: ShiftedClock) -> Iterator[dict[str, Any]]:
    with ExitStack() as connections:
        for _nth in range(ROOM - POOL):
            connections.enter_context(psycopg.connect(server.url))
        yield {"url": server.url}


@contextmanager
def version(server: PostgresServer, number: int) -> Iterator[dict[str, Any]]:
    ((truth,),) = server.execute("SHOW server_version_num")
    with Liar(server.host, server.port, {truth.encode(): str(number).encode()}) as liar:
        yield {"url": server.url.replace(f":{server.port}/", f":{liar.port}/")}


@contextmanager
def index_bug(server: PostgresServer, _: ShiftedClock) -> Iterator[dict[str, Any]]:
    with version(server, 140003) as given:
        yield given


@contextmanager
def notify_bug(server: PostgresServer, _: ShiftedClock) -> Iterator[dict[str, Any]]:
    with version(server, 150015) as given:
        yield given


@contextmanager
def role(server: PostgresServer, grants: str) -> Iterator[dict[str, Any]]:
    """A role with what programs need, less or more what the test says."""
    server.execute(
        "CREATE ROLE app LOGIN PASSWORD 'word'; GRANT USAGE ON SCHEMA leasehold TO app; "
        f"GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA leasehold TO app; {grants}"
    )
    try:
        yield {"url": server.url_for("app", "word")}
    finally:
        server.execute("DROP OWNED BY app; DROP ROLE app")


SEES_ALL = "GRANT pg_read_all_stats TO app; GRANT SELECT ON leasehold.leases TO app"


@contextmanager
def permission(server: PostgresServer, _: ShiftedClock) -> Iterator[dict[str, Any]]:
    revoke = "REVOKE EXECUTE ON FUNCTION leasehold.touch FROM app"
    with role(server, f"{SEES_ALL}; {revoke}") as given:
        yield given


@contextmanager
def not_examined(server: PostgresServer, _: ShiftedClock) -> Iterator[dict[str, Any]]:
    with role(server, "") as given:
        yield given


TROUBLES: dict[str, Trouble] = {
    "postgres-fsync-off": fsync_off,
    "postgres-commits-lost": commits_lost,
    "postgres-full-page-writes-off": full_page_writes_off,
    "postgres-autovacuum-off": autovacuum_off,
    "postgres-standbys-unconfirmed": standby,
    "postgres-pooler": pooler,
    "postgres-bloat": bloat,
    "postgres-long-transaction": long_transaction,
    "postgres-connections-nearly-full": connections_nearly_full,
    "postgres-index-bug": index_bug,
    "postgres-notify-bug": notify_bug,
    "permission": permission,
    "not-examined": not_examined,
    "clock-differs": clock_differs,
    "clock-rate": clock_stands_still,
}
# What cannot but come along.
ALSO = {
    "postgres-long-transaction": ("clock-differs",),
    "postgres-index-bug": ("postgres-notify-bug",),
    "clock-rate": ("clock-differs",),
}


@pytest.mark.parametrize("code", TROUBLES)
def test_each_trouble_is_found_and_no_other(
    code: str, server: PostgresServer, clock: ShiftedClock, healthy: Report
) -> None:
    check_trouble(code, TROUBLES[code](server, clock), healthy, ALSO.get(code, ()))


def test_expired_records_are_counted(server: PostgresServer, healthy: Report) -> None:
    server.execute(
        "INSERT INTO leasehold.leases (family, rest, member, digest, value, revision, born, ttl, ends) "
        "SELECT 'doctor', '', '', sha256(n::text::bytea), '', n, n, 1, clock_timestamp() "
        "FROM generate_series(1, %s) AS n",
        EXPIRED_MANY + 1,
    )
    found = codes(examine(server.url))
    server.execute("TRUNCATE leasehold.leases")
    assert found == {"expired-records"}
    assert codes(healthy) == set()


def test_a_missing_right_is_named(server: PostgresServer, clock: ShiftedClock, healthy: Report) -> None:
    found = check_trouble("permission", permission(server, clock), healthy)
    assert "EXECUTE ON FUNCTION leasehold.touch(" in found.remedy


def test_a_role_with_the_documented_rights_and_eyes_for_everything_finds_nothing(server: PostgresServer) -> None:
    with role(server, SEES_ALL) as given:
        assert codes(examine(**given)) == set()


def test_a_server_that_does_not_wait_for_the_disk_is_made_to_by_the_store(server: PostgresServer) -> None:
    with setting(server, "synchronous_commit", "off") as given:
        assert codes(examine(**given)) == set()


def test_a_standby_that_commits_wait_for_is_no_trouble(server: PostgresServer, clock: ShiftedClock) -> None:
    with standby(server, clock), setting(server, "synchronous_standby_names", "pg_receivewal") as given:
        assert codes(examine(**given)) == set()


def test_a_pooler_through_which_waiters_are_woken_is_no_trouble(server: PostgresServer) -> None:
    with PgBouncer(server, mode="session") as bouncer:
        report = examine(bouncer.url)
    assert codes(report) == set()
    assert isinstance(report.facts, PostgresFacts)
    assert report.facts.pooler
