"""Every finding about Redis, provoked on a real one, and absent from a healthy one.

The server stands behind a proxy that tells a version without known faults.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from leasehold.cli.codes import WARNED
from leasehold.doctor.examine import Report, examine
from leasehold.doctor.facts import Contents, RedisFacts
from leasehold.doctor.versions import REDIS
from leasehold.engine.blocking import BlockingRuntime, drive
from leasehold.model import Key
from leasehold.stores.base import Store
from leasehold.stores.open import open_store
from leasehold.stores.redis import LOAD, MINIMAL_ACL
from leasehold.testing.servers import RedisCluster, RedisServer
from leasehold.wires.clock import system_clock
from tests.doctor.support import Liar, Trouble, check_trouble, codes, doctor
from tests.support import eventually

SLOT_WITHOUT_BUCKET = 0


class Place:
    """A server with the proxy before it, and a Cluster, started when it is first needed."""

    def __init__(self, server: RedisServer, started: ExitStack) -> None:
        self.server = server
        self._started = started
        self.version: str = server.command("INFO")["redis_version"]
        self.truth = f"redis_version:{self.version}".encode()
        self.liar = self.told("9.9.9")

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.liar.port}/0"

    @functools.cached_property
    def cluster(self) -> RedisCluster:
        return self._started.enter_context(RedisCluster(config={"cluster-require-full-coverage": "no"}))

    def told(self, version: str) -> Liar:
        """A proxy through which the server seems to have another version, written as long as its own."""
        first, _, rest = version.partition(".")
        blank = len(self.truth) - len(f"redis_version:{version}")
        return Liar("127.0.0.1", self.server.port, {self.truth: f"redis_version:{'0' * blank}{first}.{rest}".encode()})


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with ExitStack() as started:
        made = Place(started.enter_context(RedisServer(config={"repl-diskless-sync-delay": 0})), started)
        started.enter_context(made.liar)
        yield made


@pytest.fixture(scope="module")
def healthy(place: Place) -> Report:
    return examine(place.url)


@contextmanager
def setting(place: Place, **names: str) -> Iterator[dict[str, Any]]:
    command = place.server.command
    before = {name: command("CONFIG", "GET", name.replace("_", "-")) for name in names}
    for name, value in names.items():
        command("CONFIG", "SET", name.replace("_", "-"), value)
    try:
        yield {"url": place.url}
    finally:
        for found in before.values():
            for name, value in found.items():
                command("CONFIG", "SET", name, value)


@contextmanager
def no_persistence(place: Place) -> Iterator[dict[str, Any]]:
    with setting(place, appendonly="no") as given:
        yield given


@contextmanager
def snapshots_only(place: Place) -> Iterator[dict[str, Any]]:
    with setting(place, appendonly="no", save="3600 1") as given:
        yield given


@contextmanager
def log_every_second(place: Place) -> Iterator[dict[str, Any]]:
    with setting(place, appendfsync="everysec") as given:
        yield given


@contextmanager
def log_not_synced(place: Place) -> Iterator[dict[str, Any]]:
    with setting(place, appendfsync="no") as given:
        yield given


@contextmanager
def writing_fails(place: Place) -> Iterator[dict[str, Any]]:
    in_the_way = place.server.folder / "dump.rdb"
    in_the_way.mkdir()
    save(place, "err")
    try:
        yield {"url": place.url}
    finally:
        in_the_way.rmdir()
        save(place, "ok")


def save(place: Place, outcome: str) -> None:
    def done() -> bool:
        info = place.server.command("INFO", "persistence")
        return not info["rdb_bgsave_in_progress"] and info["rdb_last_bgsave_status"] == outcome

    place.server.command("BGSAVE", "SCHEDULE")
    eventually(done)


@contextmanager
def eviction(place: Place) -> Iterator[dict[str, Any]]:
    with setting(place, maxmemory="1gb", maxmemory_policy="allkeys-lru") as given:
        yield given


@contextmanager
def eviction_ready(place: Place) -> Iterator[dict[str, Any]]:
    with setting(place, maxmemory_policy="allkeys-lfu") as given:
        yield given


@contextmanager
def cache(place: Place) -> Iterator[dict[str, Any]]:
    with setting(place, maxmemory="1gb", maxmemory_policy="volatile-ttl") as given:
        yield given


@contextmanager
def memory_nearly_full(place: Place) -> Iterator[dict[str, Any]]:
    # Ten percent are some hundred kilobytes here: enough for what the doctor itself needs.
    place.server.command("SET", "ballast", "x" * 8_000_000)
    used = place.server.command("INFO", "memory")["used_memory"]
    try:
        with setting(place, maxmemory=str(int(used / 0.93))) as given:
            yield given
    finally:
        place.server.command("DEL", "ballast")


@contextmanager
def memory_full(place: Place) -> Iterator[dict[str, Any]]:
    with setting(place, maxmemory="1") as given:
        yield given


@contextmanager
def replica(place: Place) -> Iterator[None]:
    with RedisServer(aof="no", config={"replicaof": f"127.0.0.1 {place.server.port}"}):
        eventually(lambda: place.server.command("INFO", "replication").get("slave0", {}).get("state") == "online")
        yield
    eventually(lambda: place.server.command("INFO", "replication")["connected_slaves"] == 0)


@contextmanager
def replicas_unconfirmed(place: Place) -> Iterator[dict[str, Any]]:
    with replica(place), setting(place, min_replicas_to_write="1") as given:
        yield given


@contextmanager
def cut_off_master(place: Place) -> Iterator[dict[str, Any]]:
    with replica(place):
        yield {"url": f"{place.url}?wait=1"}


@contextmanager
def replicas_missing(place: Place) -> Iterator[dict[str, Any]]:
    with setting(place, min_replicas_to_write="1") as given:
        yield given


@contextmanager
def clients_nearly_full(place: Place) -> Iterator[dict[str, Any]]:
    connected = place.server.command("INFO", "clients")["connected_clients"]
    with setting(place, maxclients=str(connected + 12)) as given:
        yield given


@contextmanager
def version(place: Place, told: str) -> Iterator[dict[str, Any]]:
    with place.told(told) as liar:
        yield {"url": f"redis://127.0.0.1:{liar.port}/0"}


@contextmanager
def replication_bug(place: Place) -> Iterator[dict[str, Any]]:
    with version(place, "6.0.3") as given:
        yield given


@contextmanager
def lua_bug(place: Place) -> Iterator[dict[str, Any]]:
    with version(place, "7.4.5") as given:
        yield given


@contextmanager
def user(place: Place, *rules: str) -> Iterator[dict[str, Any]]:
    place.server.command("ACL", "SETUSER", "app", "on", ">word", *rules)
    try:
        yield {"url": place.url.replace("//", "//app:word@")}
    finally:
        place.server.command("ACL", "DELUSER", "app")


@contextmanager
def permission(place: Place) -> Iterator[dict[str, Any]]:
    with user(place, "~leasehold:*", "&leasehold:*", "+@all", "-hset") as given:
        yield given


@contextmanager
def slow(place: Place, seconds: float, **given: float) -> Iterator[dict[str, Any]]:
    place.liar.slow = (LOAD.digest, seconds)
    try:
        yield {"url": place.url, **given}
    finally:
        place.liar.slow = None


@contextmanager
def latency_ttl(place: Place) -> Iterator[dict[str, Any]]:
    with slow(place, 0.03, ttl=0.5) as given:
        yield given


@contextmanager
def latency_timeout(place: Place) -> Iterator[dict[str, Any]]:
    with slow(place, 0.8, timeout=1.5) as given:
        yield given


@contextmanager
def cluster_slots(place: Place) -> Iterator[dict[str, Any]]:
    cluster = place.cluster
    for node in cluster.nodes:
        node.command("CLUSTER", "DELSLOTS", SLOT_WITHOUT_BUCKET)
    try:
        yield {"url": cluster.url}
    finally:
        cluster.nodes[0].command("CLUSTER", "ADDSLOTS", SLOT_WITHOUT_BUCKET)
        eventually(lambda: all("cluster_slots_ok:16384" in node.command("CLUSTER", "INFO") for node in cluster.nodes))


TROUBLES: dict[str, Trouble] = {
    "redis-no-persistence": no_persistence,
    "redis-snapshots-only": snapshots_only,
    "redis-log-every-second": log_every_second,
    "redis-log-not-synced": log_not_synced,
    "redis-writing-fails": writing_fails,
    "redis-eviction": eviction,
    "redis-eviction-ready": eviction_ready,
    "redis-shared-with-a-cache": cache,
    "redis-memory-nearly-full": memory_nearly_full,
    "redis-replicas-unconfirmed": replicas_unconfirmed,
    "redis-cut-off-master": cut_off_master,
    "redis-replicas-missing": replicas_missing,
    "redis-clients-nearly-full": clients_nearly_full,
    "redis-replication-bug": replication_bug,
    "redis-lua-bug": lua_bug,
    "redis-cluster-slots": cluster_slots,
    "permission": permission,
    "verb-fails": memory_full,
    "latency-ttl": latency_ttl,
    "latency-timeout": latency_timeout,
}
# What cannot but come along.
ALSO = {
    "verb-fails": ("redis-memory-nearly-full",),
    "redis-replicas-missing": ("verb-fails",),
    "redis-replication-bug": ("redis-lua-bug",),
}


@pytest.mark.parametrize("code", TROUBLES)
def test_each_trouble_is_found_and_no_other(code: str, place: Place, healthy: Report) -> None:
    # Nodes of a Cluster name each other, so no proxy stands between: they have the version they have.
    also = known_faults(place) if code == "redis-cluster-slots" else ALSO.get(code, ())
    check_trouble(code, TROUBLES[code](place), healthy, also)


def known_faults(place: Place) -> tuple[str, ...]:
    version = tuple(map(int, place.version.split(".")))
    return tuple(bug.code for bug in REDIS if bug.affects(version))


def test_speed_is_measured_against_the_ttl_that_the_command_is_given(place: Place) -> None:
    with latency_ttl(place) as given:
        quick, slow = (doctor("--store", given["url"], "--json", "--ttl", ttl) for ttl in ("30", "0.5"))
    assert json.loads(quick.stdout)["findings"] == []
    assert [found["code"] for found in json.loads(slow.stdout)["findings"]] == ["latency-ttl"]
    assert (quick.returncode, slow.returncode) == (0, WARNED)


def test_a_user_with_the_documented_rights_learns_what_was_not_examined(place: Place) -> None:
    with user(place, *MINIMAL_ACL.split()) as given:
        report = examine(**given)
    assert codes(report) == {"not-examined"}
    assert "CONFIG GET" in report.findings[0].remedy


def test_a_server_without_the_commands_of_administrators_can_be_examined(place: Place) -> None:
    with RedisServer(config={"rename-command": 'CONFIG ""'}) as managed:
        report = examine(managed.url)
    assert codes(report) == {"not-examined", *known_faults(place)}


def test_what_to_do_about_missing_rights_can_be_done(place: Place, healthy: Report) -> None:
    with permission(place) as given:
        (found,) = examine(**given).findings
        command = found.remedy.partition("as an administrator: ")[2]
        place.server.command(*command.split())
        assert "permission" not in codes(examine(**given))
    assert found.code == "permission"
    assert "swap: " in found.value


@contextmanager
def opened(url: str) -> Iterator[Store]:
    store = open_store(url, timeout=5.0, colour=BlockingRuntime(system_clock()))
    drive(store.open())
    yield store
    drive(store.close())


def test_live_and_expired_records_are_counted_over_all_buckets(place: Place) -> None:
    keys = [Key(f"doctor//name/{number}", "lock") for number in range(150)]
    with opened(place.server.url) as store:
        for key in keys:
            drive(store.swap(key, None, b"", 60.0 if key in keys[:100] else 0.5))
        eventually(lambda: not any(drive(store.load(key)) for key in keys[100:]))
    facts = examine(place.url).facts
    place.server.command("FLUSHALL")
    assert isinstance(facts, RedisFacts)
    assert facts.contents is not None
    # Whoever grants also clears some away.
    assert 0 < facts.contents.expired <= 50
    assert facts.contents.records - facts.contents.expired == 100


def test_a_cluster_is_looked_at_on_every_master(place: Place) -> None:
    with opened(place.cluster.url) as store:
        for number in range(20):
            drive(store.swap(Key(f"doctor//name/{number}", "lock"), None, b"", 60.0))
    report = examine(place.cluster.url)
    assert codes(report) == set(known_faults(place))
    assert isinstance(report.facts, RedisFacts)
    assert {node.address for node in report.facts.nodes} == {f"127.0.0.1:{n.port}" for n in place.cluster.nodes}
    assert report.facts.contents == Contents(20, 0)
