"""Several Redis servers together: Sentinel, Cluster, and replicas that must confirm."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from leasehold.errors import PermissionDenied, StoreError, StoreUnavailable
from leasehold.model import Conflict, Record, Renewal
from leasehold.stores.redis import _bucket
from leasehold.testing.servers import RedisCluster, RedisSentinels, RedisServer
from leasehold.wires.redis_finder import bucket_keys
from tests.stores.redis_support import KEY, Driven, driven, key, server
from tests.support import eventually

COLOURS = pytest.mark.parametrize("colour", ["blocking", "asyncio"])


@pytest.fixture(scope="module")
def sentinels() -> Iterator[RedisSentinels]:
    with RedisSentinels(replicas=1) as group:
        yield group


# Sentinel.


@COLOURS
def test_a_failover_is_followed_and_tokens_grow(sentinels, colour) -> None:
    with driven(f"{sentinels.url}?wait=1", colour) as confirmed, driven(sentinels.url, colour) as store:
        mine = confirmed.grant()
        assert "Sentinel" in store.store.guarantees.failover
        assert store.load(KEY).revision == mine.revision
        former = sentinels.master
        sentinels.failover()
        # What a sentinel does to the former master, some seconds later.
        former.command("REPLICAOF", sentinels.master.host, sentinels.master.port)
        former.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        found: list[Record] = []
        eventually(lambda: swapped(store, mine, found))
        assert found[0].revision > mine.revision
        # Confirmed again as soon as the former master follows the new one.
        eventually(lambda: touched(confirmed, found[0]))
        assert store.swap(KEY, found[0], None, None) == found[0]


def swapped(store: Driven, mine: Record, found: list[Record]) -> bool:
    """Rewrite what was confirmed by the replica that is master now."""
    try:
        answer = store.swap(KEY, mine, b"still mine", 30.0)
    except StoreUnavailable:
        return False
    assert isinstance(answer, Record), answer
    found.append(answer)
    return True


def touched(store: Driven, *records: Record) -> list[tuple[Renewal, Record | None]]:
    """What a renewal comes to; nothing while the store cannot answer at all."""
    try:
        answers: list[tuple[Renewal, Record | None]] = store.touch([(record, 30.0) for record in records])
    except StoreUnavailable:
        return []
    return answers


def test_a_sentinel_that_is_down_is_passed_over(sentinels) -> None:
    sentinels.sentinels[0].stop()
    try:
        with driven(sentinels.url) as store:
            assert store.load(key(1)) is None
    finally:
        sentinels.sentinels[0].start()


def test_a_master_no_sentinel_knows_is_told(sentinels) -> None:
    url = sentinels.url.replace(f"/{sentinels.name}/", "/stranger/")
    with pytest.raises(StoreUnavailable, match="knows no master 'stranger'"), driven(url):
        pass


def test_sentinels_that_want_a_password_are_given_it_on_demand(sentinels) -> None:
    everybody = [*sentinels.servers, *sentinels.sentinels]
    for each in everybody:
        each.command("ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all")
    url = sentinels.url.replace("//", "//app:secret@")
    try:
        for sentinel in sentinels.sentinels:
            sentinel.command("ACL", "SETUSER", "default", "off")
        with pytest.raises(PermissionDenied, match="sentinel_login=yes"), driven(url):
            pass
        with driven(f"{url}?sentinel_login=yes") as store:
            assert store.load(key(1)) is None
    finally:
        for sentinel in sentinels.sentinels:
            sentinel.command("ACL", "SETUSER", "default", "on")


def test_servers_that_are_no_sentinels_are_told() -> None:
    url = server().url.replace("redis:", "redis+sentinel:").replace("/0", "/main")
    with pytest.raises(StoreUnavailable, match="no sentinel led to a master"), driven(url):
        pass


def test_a_sentinel_in_place_of_a_server_is_told(sentinels) -> None:
    sentinel = sentinels.sentinels[1]
    with pytest.raises(StoreError, match="sentinel"), driven(f"redis://{sentinel.host}:{sentinel.port}"):
        pass


# Replicas that must confirm.


@COLOURS
def test_what_too_few_replicas_confirmed_does_not_count(sentinels, colour) -> None:
    master = sentinels.master
    (replica,) = sentinels.replicas
    eventually(lambda: master.command("INFO", "replication")["connected_slaves"] == 1)
    with driven(f"{master.url}?wait=1", colour, timeout=1.0) as store:
        assert store.swap(KEY, store.grant(), None, None)
        replica.pause()
        try:
            with pytest.raises(StoreUnavailable, match="0 of 1 replicas") as caught:
                store.swap(KEY, None, b"mine", 30.0)
            assert caught.value.applied is None
            # A conflict changes nothing, so nothing need be confirmed; it shows that the write was applied.
            again = store.swap(KEY, None, b"mine", 30.0)
            assert isinstance(again, Conflict)
            assert again.record is not None
            with pytest.raises(StoreUnavailable, match="0 of 1 replicas"):
                store.touch([(again.record, 30.0)])
        finally:
            replica.go_on()
        eventually(lambda: touched(store, again.record))
        assert store.swap(KEY, again.record, None, None)


# Cluster.


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisCluster]:
    with RedisCluster(config={"cluster-require-full-coverage": "no"}) as group:
        yield group


@pytest.fixture
def empty(cluster: RedisCluster) -> RedisCluster:
    for node in cluster.nodes:
        node.command("FLUSHALL")
    return cluster


def many(store: Driven) -> list[Record]:
    """Records in nearly every bucket, so on every master."""
    return [store.grant(key(number)) for number in range(150)]


@COLOURS
def test_a_cluster_has_its_records_on_all_masters_and_shows_them_as_one(empty, colour) -> None:
    with driven(empty.url, colour) as store:
        made = many(store)
        assert all(node.command("DBSIZE") > 0 for node in empty.nodes)
        assert [answer for answer, _ in store.touch([(record, 30.0) for record in made])] == [Renewal.RENEWED] * 150
        found = []
        while page := store.page("app//", found[-1] if found else None, 40):
            found += [record.key for record in page]
        assert found == [record.key for record in made]
        assert store.scan(made[7].key.family)[0].revision == made[7].revision
        assert store.collect(100) == 0
        assert store.swap(made[0].key, made[0], None, None) == made[0]


def slot_of(node: RedisServer, bucket: int) -> int:
    return int(node.command("CLUSTER", "KEYSLOT", bucket_keys(bucket)[0]))


def buckets_of(node: RedisServer) -> list[int]:
    """The buckets with records that this master has."""
    tags = (str(name).partition("{")[2].partition("}")[0] for name in node.command("KEYS", "leasehold:*:records"))
    return [int(tag) for tag in tags]


@COLOURS
def test_a_bucket_that_moves_to_another_master_is_served_all_the_way(empty, colour) -> None:
    source, target = empty.nodes[0], empty.nodes[1]
    with driven(empty.url, colour) as store, driven(empty.url) as late:
        made = many(store)
        bucket = buckets_of(source)[0]
        slot = slot_of(source, bucket)
        inside = [record for record in made if _bucket(record.key.family) == bucket]
        assert inside
        ids = [node.command("CLUSTER", "MYID") for node in (source, target)]

        def renewed() -> bool:
            return all(answer for answer, _ in store.touch([(record, 30.0) for record in inside]))

        target.command("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[0])
        source.command("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[1])
        assert renewed()
        # With both keys gone, the source says ASK.
        login = ("AUTH2", "leasehold-testing", source._password)
        source.command("MIGRATE", target.host, target.port, "", 0, 5000, *login, "KEYS", *bucket_keys(bucket))
        assert renewed()
        assert store.swap(inside[0].key, None, b"theirs", 30.0).record.revision == inside[0].revision
        # When it is over, it says MOVED, to those who knew the old place and have no reason to ask again.
        for node in (target, source, empty.nodes[2]):
            node.command("CLUSTER", "SETSLOT", slot, "NODE", ids[1])
        assert renewed()
        assert late.load(inside[0].key).revision == inside[0].revision
        fresh = late.swap(inside[0].key, inside[0], b"changed", 30.0)
        assert fresh.revision > inside[0].revision


def test_a_dead_master_costs_only_its_own_buckets_until_it_is_back(empty) -> None:
    with driven(empty.url) as store:
        made = many(store)
        victim = empty.nodes[2]
        victim.kill()
        answers = [answer for answer, _ in store.touch([(record, 30.0) for record in made])]
        assert set(answers) == {Renewal.RENEWED, Renewal.UNKNOWN}
        lost = next(record for record, answer in zip(made, answers, strict=True) if answer is Renewal.UNKNOWN)
        with pytest.raises(StoreUnavailable) as caught:
            store.swap(lost.key, lost, None, None)
        assert caught.value.applied is False
        victim.start()
        eventually(lambda: victim.command("CLUSTER", "INFO").find("cluster_state:ok") >= 0)
        # It had written everything down before it answered.
        eventually(lambda: [answer for answer, _ in touched(store, *made)] == [Renewal.RENEWED] * len(made))


def test_a_replica_that_takes_over_is_found() -> None:
    with RedisCluster(replicas=1) as group, driven(group.url) as store:
        with driven(f"{group.url}?wait=1") as confirmed:
            made = many(confirmed)
        assert len(touched(store, *made)) == len(made)
        victim, heir = group.nodes[0], group.nodes[group.masters]
        lost = [record for record in made if _bucket(record.key.family) in buckets_of(victim)]
        assert lost
        victim.kill()
        assert Renewal.UNKNOWN in [answer for answer, _ in touched(store, *made)]
        heir.command("CLUSTER", "FAILOVER", "TAKEOVER")
        eventually(lambda: {answer for answer, _ in touched(store, *made)} == {Renewal.RENEWED})
        for record in lost:
            assert store.swap(record.key, record, b"changed", 30.0).revision > record.revision


def test_a_cluster_in_place_of_one_server_is_told(cluster) -> None:
    node = cluster.nodes[0]
    with pytest.raises(StoreUnavailable, match=r"is a Redis Cluster; use redis\+cluster://"), driven(node.url):
        pass


def test_a_cluster_of_which_nobody_answers_is_told() -> None:
    with pytest.raises(StoreUnavailable, match="nobody listens") as caught, driven("redis+cluster://127.0.0.1:1"):
        pass
    assert caught.value.applied is False
