"""The judgements at their limits: facts in, findings out."""

from __future__ import annotations

import msgspec
import pytest

from leasehold.doctor import judge_common as common
from leasehold.doctor import judge_postgres, judge_redis
from leasehold.doctor.facts import Client, Contents, RedisNode, Refusal, Times, Trips, Unseen
from leasehold.doctor.findings import Check

CLIENT = Client(timeout=5.0, ttl=30.0)


def codes(check: Check) -> list[str]:
    return [found.code for found in check.findings]


@pytest.mark.parametrize(
    ("p99", "found"),
    [
        (0.001, []),
        (1.5, []),
        (1.6, ["latency-ttl"]),
        (2.5, ["latency-ttl"]),
        (2.6, ["latency-timeout", "latency-ttl"]),
    ],
)
def test_a_round_trip_may_take_half_the_timeout_and_a_twentieth_of_the_ttl(p99: float, found: list[str]) -> None:
    assert codes(common.latency(Trips(20, 0.001, p99), CLIENT)) == found


@pytest.mark.parametrize(
    ("rate", "error", "found"),
    [
        (1.0, 0.0, []),
        (1.1, 0.0, []),
        (1.11, 0.0, ["clock-rate"]),
        (0.92, 0.0, []),
        (0.9, 0.0, ["clock-rate"]),
        (0.0, 0.2, ["clock-rate"]),
        (-1.0, 0.0, ["clock-rate"]),
        (1.5, 0.5, []),  # messages took too long to tell
        (2.0, 0.5, ["clock-rate"]),
    ],
)
def test_a_rate_is_wrong_only_beyond_what_messages_may_blur(rate: float, error: float, found: list[str]) -> None:
    assert codes(common.clocks(Times(0.0, 0.0, rate, error))) == found


@pytest.mark.parametrize(
    ("difference", "error", "found"),
    [(0.9, 0.0, []), (-1.1, 0.0, ["clock-differs"]), (1.1, 0.0, ["clock-differs"]), (1.1, 0.2, [])],
)
def test_clocks_differ_only_beyond_what_messages_may_blur(difference: float, error: float, found: list[str]) -> None:
    assert codes(common.clocks(Times(difference, error, 1.0, 0.0))) == found


@pytest.mark.parametrize(
    ("records", "expired", "found"),
    [(1001, 1000, []), (1001, 1001, ["expired-records"]), (10_000, 5000, []), (10_000, 5001, ["expired-records"])],
)
def test_expired_records_count_when_they_are_many_and_the_majority(
    records: int, expired: int, found: list[str]
) -> None:
    assert codes(common.contents(Contents(records, expired))) == found


def test_a_store_that_refuses_and_one_that_cannot_are_two_things() -> None:
    denied, failed = Refusal("swap", True, "you may not"), Refusal("touch", False, "it cannot")
    check = common.verbs([denied, failed])
    assert codes(check) == ["permission", "verb-fails"]
    assert [found.remedy for found in check.findings] == ["you may not", "it cannot"]
    assert codes(common.verbs([])) == []
    assert codes(common.verbs([], ["EXECUTE ON FUNCTION f()"])) == ["permission"]


def test_everything_that_could_not_be_seen_is_told() -> None:
    check = common.unseen([Unseen("a", "x"), Unseen("b", "y")])
    assert [found.value for found in check.findings] == ["a", "b"]


NODE = RedisNode(
    address="h:1",
    software="Redis",
    version=(9, 9, 9),
    log=True,
    log_sync="always",
    snapshots="",
    writing_fails=(),
    memory_used=1,
    memory_limit=0,
    eviction="noeviction",
    replicas=0,
    replicas_needed=0,
    replicas_good=None,
    clients=1,
    clients_limit=100,
)


def test_what_this_user_may_not_see_of_redis_is_no_finding() -> None:
    blind = msgspec.structs.replace(NODE, log_sync=None, snapshots=None, replicas_needed=None, clients_limit=None)
    rules = (judge_redis.persistence, judge_redis.missing, judge_redis.cut_off)
    assert [rule(blind) for rule in rules] == [None] * 3
    assert judge_redis.clients(blind, 16) is None


def test_no_log_is_grave_also_where_snapshots_cannot_be_seen() -> None:
    found = judge_redis.persistence(msgspec.structs.replace(NODE, log=False, snapshots=None))
    assert found is not None
    assert found.code == "redis-snapshots-only"


def test_valkey_is_judged_by_its_own_version() -> None:
    valkey = msgspec.structs.replace(NODE, software="Valkey", version=(8, 0, 5))
    assert [bool(judge_redis.version(valkey, bug)) for bug in judge_redis.REDIS] == [False, False]
    assert [bool(judge_redis.version(valkey, bug)) for bug in judge_redis.VALKEY] == [True]


def test_a_finding_names_the_server_of_a_cluster_and_what_is_alike_is_told_once() -> None:
    bad, worse = (msgspec.structs.replace(NODE, address=f"h:{port}", log_sync="no") for port in (2, 3))
    check = judge_redis._each("persistence", [NODE, bad, worse], judge_redis._persistence, judge_redis.persistence)
    assert [found.value for found in check.findings] == ["h:2, h:3: appendfsync no"]
    assert check.value == "log synced always, snapshots off | log synced no, snapshots off"


def test_dead_rows_are_many_only_beside_few_live_ones() -> None:
    limit = judge_postgres.DEAD_MANY
    assert judge_postgres.is_bloated(dead=limit + 1, live=10)
    assert not judge_postgres.is_bloated(dead=limit, live=0)
    assert not judge_postgres.is_bloated(dead=limit + 1, live=limit)
