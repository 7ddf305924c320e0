"""The documented ACL is enough, and none of it is too much."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from leasehold.errors import PermissionDenied, StoreError
from leasehold.rules.addresses import Address
from leasehold.stores.redis import MINIMAL_ACL, MINIMAL_ACL_CLUSTER
from leasehold.testing.servers import RedisCluster, RedisServer
from leasehold.wires.redis_line import RedisLine
from leasehold.wires.redis_url import RedisConfig
from tests.stores.redis_support import KEY, ROOT_OF_KEYS, driven, key
from tests.support import ROOT, eventually

PAGE = ROOT / "docs" / "stores" / "redis.md"
COMMANDS = [word for word in MINIMAL_ACL.split() if word.startswith("+")]


@pytest.fixture(scope="module")
def guarded() -> Iterator[RedisServer]:
    with RedisServer(aof="no", acl=["user default off", f"user app on >secret {MINIMAL_ACL}"]) as server:
        yield server


def everything(server: RedisServer) -> None:
    """Whatever Leasehold can ask of a Redis."""
    with driven(server.url_for("app", "secret")) as store:
        for number in range(200):
            # So many that names are looked at now and then.
            store.grant(key(number))
        mine = store.grant()
        ((_, mine),) = store.touch([(mine, 60.0)])
        assert store.load(KEY).ttl == 60.0
        assert len(store.scan(KEY.family)) == 1
        assert len(store.page(ROOT_OF_KEYS, None, 500)) == 201
        assert store.collect(10) == 0
        assert store.swap(KEY, mine, None, None) == mine
    server.command("SCRIPT", "FLUSH")
    with driven(server.url_for("app", "secret")) as store:
        server.command("SCRIPT", "FLUSH")
        assert store.load(KEY) is None
        line = RedisLine(
            RedisConfig("single", (Address(server.host, server.port),), user="app", password="secret"),  # noqa: S106
            5.0,
        )
        line.connect()
        try:
            line.listen(f"leasehold:{KEY.family}\0{KEY.member}")
            line.ping()
            store.grant()
            eventually(line.drain)
            line.unlisten([f"leasehold:{KEY.family}\0{KEY.member}"])
        finally:
            line.close()


@pytest.fixture(autouse=True)
def _clean(guarded: RedisServer) -> None:
    guarded.command("FLUSHALL")
    guarded.command("SCRIPT", "FLUSH")


def test_the_documented_rights_are_enough(guarded) -> None:
    everything(guarded)


@pytest.mark.parametrize("command", COMMANDS)
def test_without_any_of_them_something_is_refused_and_named(guarded, command) -> None:
    name = command[1:]
    guarded.command("ACL", "SETUSER", "app", f"-{name}")
    try:
        with pytest.raises(PermissionDenied, match=f"(?i){name.partition('|')[0]}"):
            everything(guarded)
    finally:
        guarded.command("ACL", "SETUSER", "app", command)


@pytest.mark.parametrize("taken", ["resetkeys ~other:*", "resetchannels &other:*"])
def test_without_the_keys_or_channels_something_is_refused(guarded, taken) -> None:
    guarded.command("ACL", "SETUSER", "app", *taken.split())
    try:
        with pytest.raises(PermissionDenied):
            everything(guarded)
    finally:
        guarded.command("ACL", "SETUSER", "app", "resetkeys", "~leasehold:*", "resetchannels", "&leasehold:*")


def test_nothing_else_in_the_database_can_be_reached(guarded) -> None:
    guarded.command("SET", "somebody", "else's")
    with driven(guarded.url_for("app", "secret")) as store:
        replies = store.wait(store.store._wire.command(None, [("HGET", "somebody", "x"), ("GET", "somebody")]))
    assert all(str(reply).startswith("NOPERM") for reply in replies)


def test_a_cluster_needs_two_more() -> None:
    users = ["user default off", f"user app on >secret {MINIMAL_ACL_CLUSTER}", f"user poor on >secret {MINIMAL_ACL}"]
    with RedisCluster(aof="no", acl=users) as group:
        with driven(group.url.replace("//", "//app:secret@")) as store:
            for number in range(100):
                store.grant(key(number))
            assert len(store.page(ROOT_OF_KEYS, None, 500)) == 100
        with pytest.raises(StoreError, match=r"cluster\|slots"), driven(group.url.replace("//", "//poor:secret@")):
            pass


def test_the_page_says_exactly_these_rights() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert MINIMAL_ACL in page
    assert MINIMAL_ACL_CLUSTER.removeprefix(MINIMAL_ACL).strip() in page
