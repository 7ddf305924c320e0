"""Stores that went back, from real backups: SQLite, Redis and PostgreSQL, which a command repairs.

Their tokens follow the clock, so an old backup alone does no harm. The clock must have been ahead, too.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import apsw
import pytest

import leasehold
from leasehold.rules.tokens import PASSES
from leasehold.testing.servers import PostgresServer, RedisServer, ShiftedClock
from tests.cli.conftest import only_json
from tests.went_back_support import goes_on, raise_tokens, repaired, went_back

HOUR = 3600.0


# SQLite: the file is put back.


def sqlite_backup(path: Path) -> Callable[[], None]:
    """Copy the file as SQLite's own .backup does; what puts it back."""
    leasehold.connect(f"sqlite://{path}").close()
    copy = path.with_suffix(".backup")
    with closing(apsw.Connection(str(path))) as db:
        db.execute("VACUUM INTO ?", (str(copy),))

    def put_back() -> None:
        for rest in ("-wal", "-shm"):
            path.with_name(path.name + rest).unlink(missing_ok=True)
        copy.replace(path)

    return put_back


def test_a_sqlite_file_that_is_put_back_goes_on_above_what_it_forgot(tmp_path: Path) -> None:
    path = tmp_path / "leases.db"
    goes_on(f"sqlite://{path}", tmp_path, forget=sqlite_backup(path))


def test_a_sqlite_file_that_is_put_back_after_its_counter_was_ahead(tmp_path: Path) -> None:
    path = tmp_path / "leases.db"
    url = f"sqlite://{path}"
    put_back = sqlite_backup(path)
    ahead_by(url, HOUR)
    went_back(url, tmp_path, forget=put_back, repair=repaired(url))


def ahead_by(url: str, seconds: float) -> None:
    """Let a store count as if its clock had been ahead."""
    with leasehold.connect(url) as locks, locks.hold("clock") as lease:
        pass
    assert raise_tokens(url, lease.token + int(seconds * 1e6) * PASSES).returncode == 0


# Redis: the snapshot is put back.


def redis_forgets(server: RedisServer, clock: ShiftedClock) -> Callable[[], None]:
    server.command("SAVE")
    snapshot, copy = server.folder / "dump.rdb", server.folder / "dump.copy"
    shutil.copy(snapshot, copy)

    def put_back() -> None:
        server.stop()
        copy.replace(snapshot)
        clock.offset = 0.0
        server.start()

    return put_back


@pytest.fixture(scope="module")
def redis_clock() -> ShiftedClock:
    return ShiftedClock()


@pytest.fixture(scope="module")
def redis(redis_clock: ShiftedClock):
    with RedisServer(aof="no", clock=redis_clock) as server:
        yield server


def test_a_redis_snapshot_that_is_put_back_goes_on_above_what_it_forgot(redis, redis_clock, tmp_path: Path) -> None:
    goes_on(redis.url, tmp_path, forget=redis_forgets(redis, redis_clock))


def test_a_redis_snapshot_that_is_put_back_with_the_clock(redis, redis_clock, tmp_path: Path) -> None:
    forget = redis_forgets(redis, redis_clock)
    redis_clock.offset = HOUR
    went_back(redis.url, tmp_path, forget=forget, repair=repaired(redis.url))


def test_the_repair_reaches_every_bucket_of_redis(redis) -> None:
    with leasehold.connect(redis.url) as locks:
        mark = locks.acquire("job").token + int(HOUR * 1e6) * PASSES
        assert raise_tokens(redis.url, mark).returncode == 0
        tokens = [locks.acquire(f"job/{n}").token for n in range(300)]
        assert min(tokens) > mark


# PostgreSQL: the data folder is put back, as a base backup has it.


@pytest.fixture(scope="module")
def postgres_clock() -> ShiftedClock:
    return ShiftedClock()


@pytest.fixture(scope="module")
def postgres(postgres_clock: ShiftedClock):
    with PostgresServer(clock=postgres_clock) as server:
        yield server


def postgres_forgets(server: PostgresServer, clock: ShiftedClock) -> Callable[[], None]:
    leasehold.connect(server.url).close()
    data, copy = server.folder / "data", server.folder / "copy"
    server.stop()
    server.home.run(["cp", "-R", str(data), str(copy)])
    server.start()

    def put_back() -> None:
        server.stop()
        shutil.rmtree(data)
        copy.replace(data)
        clock.offset = 0.0
        server.start()

    return put_back


def test_a_postgres_that_is_put_back_goes_on_above_what_it_forgot(postgres, postgres_clock, tmp_path: Path) -> None:
    goes_on(postgres.url, tmp_path, forget=postgres_forgets(postgres, postgres_clock))


def test_a_postgres_that_is_put_back_with_the_clock(postgres, postgres_clock, tmp_path: Path) -> None:
    forget = postgres_forgets(postgres, postgres_clock)
    postgres_clock.offset = HOUR
    went_back(postgres.url, tmp_path, forget=forget, repair=repaired(postgres.url))


def test_on_postgres_only_the_owner_of_the_schema_raises_tokens(postgres) -> None:
    postgres.execute("CREATE ROLE app LOGIN PASSWORD 'app'")
    postgres.execute("GRANT USAGE ON SCHEMA leasehold TO app")
    postgres.execute("GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA leasehold TO app")
    url = postgres.url_for("app", "app")
    with leasehold.connect(url) as locks, locks.hold("job") as lease:
        done = raise_tokens(url, lease.token + 10_000 * PASSES)
    assert (done.returncode, done.stdout) == (77, "")
    assert "owns schema leasehold" in done.stderr


# The command.


def test_the_repair_lowers_nothing_and_may_be_repeated(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path / 'leases.db'}"
    with leasehold.connect(url) as locks:
        mark = locks.acquire("one").token + int(HOUR * 1e6) * PASSES + 255
        told = [only_json(raise_tokens(url, mark, "--json").stdout) for _ in range(2)]
        assert [one["raised"] for one in told] == [True, False]
        assert {one["smallest"] for one in told} == {str(mark // PASSES * PASSES + PASSES)}
        assert "nothing to raise" in raise_tokens(url, mark - 3 * PASSES).stdout
        assert locks.acquire("two").token == mark // PASSES * PASSES + PASSES


def test_clients_go_on_during_the_repair(postgres, tmp_path: Path) -> None:
    """Tokens only grow, whatever is raised while they are drawn."""
    for url in (f"sqlite://{tmp_path / 'leases.db'}", postgres.url):
        tokens: list[int] = []
        over = threading.Event()

        def draw(locks: leasehold.Locks, tokens: list[int] = tokens, over: threading.Event = over) -> None:
            while not over.is_set():
                with locks.hold("job") as lease:
                    tokens.append(lease.token)

        with leasehold.connect(url) as locks:
            drawing = threading.Thread(target=draw, args=(locks,))
            drawing.start()
            with locks.hold("mark") as lease:
                marks = [lease.token + step * 10_000_000 * PASSES for step in (1, 2)]
            done = [raise_tokens(url, mark).returncode for mark in marks]
            over.set()
            drawing.join()
            with locks.hold("job") as last:
                assert last.token > marks[-1]
        assert done == [0, 0]
        assert tokens == sorted(set(tokens))


@pytest.mark.parametrize("url", ["etcd://127.0.0.1:1", "zookeeper://127.0.0.1:1", "kubernetes://default"])
def test_a_store_that_numbers_its_grants_itself_is_refused_with_the_page(url: str) -> None:
    done = raise_tokens(url, 256)
    assert (done.returncode, done.stdout) == (2, "")
    assert "docs/howto/went-back.md" in done.stderr


@pytest.mark.parametrize("above", [0, 2**62])
def test_a_token_that_cannot_be_one_is_refused_and_nothing_is_raised(above: int, tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path / 'leases.db'}"
    done = raise_tokens(url, above)
    assert (done.returncode, done.stdout) == (2, "")
    assert not (tmp_path / "leases.db").exists()
