"""Fenced keys of Redis: the laws in both colours, one call a verb, and what the mark survives."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
import redis.asyncio
from hypothesis import given
from hypothesis import strategies as st
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.retry import Retry

import leasehold
from leasehold import fence
from leasehold.fence import aio
from leasehold.fence.redis import WORDS_MAX, RedisResource, mark_of
from leasehold.testing.fences import FenceLaws
from leasehold.testing.servers import RedisCluster, RedisServer
from tests import servers
from tests.fence.support import Driven, Face, LoopThread
from tests.support import note


class Place:
    """A fresh key, and clients of one colour, closed at the end."""

    def __init__(self, colour: str) -> None:
        self.key = f"total-{secrets.token_hex(4)}"
        self.url = servers.redis().url
        self.awaited = colour == "asyncio"
        self._loop = LoopThread() if self.awaited else None
        self._clients: list[Any] = []

    def client(self, **options: Any) -> Any:
        kind: Any = redis.asyncio.Redis if self.awaited else redis.Redis
        self._clients.append(kind.from_url(self.url, **options))
        return self._clients[-1]

    def resource(self) -> Any:
        """The core below both facades."""
        core = RedisResource(self.client(), self.key, awaited=self.awaited)
        return Driven(core) if self._loop is None else Face(core, self._loop)

    def fenced(self, **options: Any) -> Any:
        kind: Any = aio.RedisKey if self.awaited else fence.RedisKey
        made = kind(self.client(**options), self.key)
        return made if self._loop is None else Face(made, self._loop)

    def close(self) -> None:
        for client in self._clients:
            if self._loop is None:
                client.close()
            else:
                self._loop.run(client.aclose())
        if self._loop is not None:
            self._loop.close()


@pytest.fixture(params=["blocking", "asyncio"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    made = Place(request.param)
    yield made
    made.close()


class TestRedis(FenceLaws):
    """The laws, on the resource below both facades."""

    @pytest.fixture
    def reach(self, place: Place) -> Callable[[], Any]:
        return place.resource


def test_every_verb_is_one_call(place: Place) -> None:
    """Counted by the server itself, which shows what reached it and from where."""
    fenced = place.fenced()
    fenced.open(1).write(b"0")
    sent = Sent(servers.redis(), place.key)
    opened = fenced.open(2)
    opened.write(b"1")
    assert opened.read() == b"1"
    assert opened.call("APPEND", "2") == 2
    found = sent.stop()
    note(f"calls to Redis for open, write, read and call of a fenced key: {len(found)}")
    assert found == ["EVALSHA"] * 4


def test_a_server_that_forgot_the_script_is_told_it_again(place: Place) -> None:
    fenced = place.fenced()
    opened = fenced.open(1)
    servers.redis().command("SCRIPT", "FLUSH")
    sent = Sent(servers.redis(), place.key)
    opened.write(b"1")
    opened.write(b"2")
    assert sent.stop() == ["EVALSHA", "EVAL", "EVALSHA"]
    assert opened.read() == b"2"


class Sent:
    """The commands on a key that clients send from now on, as the server sees them; not what scripts do."""

    def __init__(self, server: RedisServer, key: str) -> None:
        self._server = server
        self._key = key
        self._client = redis.Redis.from_url(server.url)
        self._monitor = self._client.monitor()
        self._monitor.__enter__()
        self._end = secrets.token_hex(8)

    def stop(self) -> list[str]:
        self._server.command("ECHO", self._end)
        found = []
        for seen in iter(self._monitor.next_command, None):
            if self._end in seen["command"]:
                break
            if seen["client_type"] != "lua" and self._key in seen["command"]:
                found.append(seen["command"].split()[0].upper())
        self._monitor.__exit__(None, None, None)
        self._client.close()
        return found


def test_any_command_with_one_key_runs_under_the_token(place: Place) -> None:
    fenced = place.fenced()
    opened = fenced.open(5)
    assert opened.call("HSET", "field", "1") == 1
    assert opened.call("hincrby", "field", 41) == 42
    assert opened.call("HGETALL") == [b"field", b"42"]
    assert opened.call("HGET", "none") is None
    fenced.open(6)
    for command in (("HSET", "field", "2"), ("HGETALL",), ("DEL",)):
        with pytest.raises(leasehold.StaleToken) as refusal:
            opened.call(*command)
        assert (refusal.value.token, refusal.value.mark) == (5, 6)
    assert fenced.open(6).call("HGETALL") == [b"field", b"42"]


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (("RENAME", "other"), "must have one key"),
        (("MSET", "1", "other", "2"), "must have one key"),
        (("FLUSHALL",), "must have one key"),
        (("EVAL", "0"), "must have one key"),
        (("SORT", "STORE", "other"), "must have one key"),
        (("NOSUCH",), "unknown to this server"),
        (("NO.SUCH_ONE", "1"), "unknown to this server"),
        (("SET KEY",), "the name of a command"),
        (("",), "the name of a command"),
        ((b"SET", "1"), "the name of a command"),
        (("SET", None), "as Redis takes them"),
        (("SET", True), "as Redis takes them"),
        (("RPUSH", *["1"] * (WORDS_MAX + 1)), f"at most {WORDS_MAX}"),
    ],
    ids=lambda given: str(given[0])[:20],
)
def test_a_command_that_reaches_further_is_refused_and_changes_nothing(place: Place, command: Any, why: str) -> None:
    fenced = place.fenced()
    fenced.open(5).write(b"1")
    with pytest.raises(leasehold.InvalidInput, match=why):
        fenced.open(5).call(*command)
    assert fenced.open(5).read() == b"1"


def test_as_many_words_as_are_allowed_arrive(place: Place) -> None:
    assert place.fenced().open(5).call("RPUSH", *["1"] * WORDS_MAX) == WORDS_MAX


def test_a_command_that_redis_refuses_is_one_error_of_ours(place: Place) -> None:
    opened = place.fenced().open(5)
    opened.write(b"text")
    with pytest.raises(leasehold.StoreError, match="WRONGTYPE") as refusal:
        opened.call("HSET", "field", "1")
    assert isinstance(refusal.value.__cause__, redis.ResponseError)
    assert opened.read() == b"text"


def test_bytes_come_back_whatever_the_client_decodes(place: Place) -> None:
    value = bytes(range(256))
    for options in ({"decode_responses": True}, {"protocol": 3}, {"protocol": 2}):
        opened = place.fenced(**options).open(5)
        opened.write(value)
        assert opened.read() == value
        assert opened.call("GETRANGE", 0, 3) == b"\x00\x01\x02\x03"


def test_a_sharer_reads_with_any_command_and_writes_with_none(place: Place) -> None:
    scope = leasehold.Shared("total")
    with leasehold.connect("memory://fences") as locks, redis.Redis.from_url(place.url) as client:
        fenced = fence.RedisKey(client, place.key)
        with locks.hold(scope) as writer:
            fenced.open(writer).call("SADD", "a")
        with locks.hold(scope, mode="shared") as sharer:
            opened = fenced.open(sharer)
            assert opened.call("SISMEMBER", "a") == 1
            with pytest.raises(leasehold.ScopeMismatch, match="reading"):
                opened.call("SADD", "b")
        with locks.hold(scope) as writer:
            assert fenced.open(writer).call("SCARD") == 1


def test_the_mark_has_no_end_even_if_the_key_has(place: Place) -> None:
    opened = place.fenced().open(5)
    opened.write(b"1")
    opened.call("PEXPIRE", 1)
    mark = mark_of(place.key.encode())
    assert servers.redis().command("PTTL", mark) == -1
    assert servers.redis().command("GET", mark) == "5"


def test_a_mark_that_is_no_token_lets_nobody_in(place: Place) -> None:
    servers.redis().command("SET", mark_of(place.key.encode()), "something else")
    with pytest.raises(leasehold.StoreDamaged, match="leasehold-mark"):
        place.fenced().open(5)


def test_there_is_nothing_to_read_before_something_was_written(place: Place) -> None:
    opened = place.fenced().open(5)
    with pytest.raises(leasehold.NoSuchResource, match="write it first"):
        opened.read()


def test_a_mark_is_as_durable_as_redis_is(place: Place) -> None:
    """What is lost is lost with its data: until a later holder opens again, nobody knows who was overtaken."""
    fenced = place.fenced()
    old = fenced.open(5)
    fenced.open(6).write(b"6")
    servers.redis().command("DEL", place.key, mark_of(place.key.encode()))
    old.write(b"5")
    fenced.open(7)
    with pytest.raises(leasehold.StaleToken):
        old.write(b"5")


def test_a_mark_and_its_data_survive_a_kill_where_redis_writes_every_change_down() -> None:
    with RedisServer(aof="always") as server:
        with redis.Redis.from_url(server.url) as client:
            fence.RedisKey(client, "total").open(6).write(b"6")
        server.kill()
        server.start()
        with redis.Redis.from_url(server.url) as client:
            with pytest.raises(leasehold.StaleToken):
                fence.RedisKey(client, "total").open(5)
            assert fence.RedisKey(client, "total").open(6).read() == b"6"


def test_what_was_loaded_is_replaced_if_it_is_still_there(place: Place) -> None:
    one = place.resource()
    with pytest.raises(leasehold.NoSuchResource):
        one.load()
    one.write(5, b"1")
    value, version = one.load()
    assert value == b"1"
    assert one.replace(b"2", version)
    assert not one.replace(b"3", version)
    assert one.load()[0] == b"2"


def test_a_cluster_keeps_key_and_mark_together() -> None:
    with RedisCluster(aof="no") as group:
        node = group.nodes[0]
        with redis.RedisCluster(node.host, node.port, decode_responses=True) as client:
            for key in ("total", "{invoice}total", "in{vo}ice", "a{b", "é"):
                fenced = fence.RedisKey(client, key)
                opened = fenced.open(5)
                opened.write(b"\xff")
                assert opened.call("APPEND", "2") == 2
                assert fenced.open(6).read() == b"\xff2"
                with pytest.raises(leasehold.StaleToken):
                    opened.read()


KEYS = st.text(st.sampled_from("ab{}é:"), min_size=1, max_size=8)


@given(KEYS, KEYS)
def test_a_mark_is_in_the_slot_of_its_key_and_no_other_keys(key: str, other: str) -> None:
    marks = {}
    for each in {key, other}:
        try:
            marks[each] = mark_of(each.encode())
        except leasehold.InvalidInput:
            assert "}" in each
        else:
            assert key_slot(marks[each]) == key_slot(each.encode())
            assert marks[each] not in {key.encode(), other.encode()}
    assert len(set(marks.values())) == len(marks)


def test_a_client_of_the_other_colour_or_none_at_all_is_refused() -> None:
    blocking, awaited = redis.Redis(), redis.asyncio.Redis()
    for kind, client in (
        (fence.RedisKey, awaited),
        (aio.RedisKey, blocking),
        (fence.RedisKey, blocking.pipeline()),
        (fence.RedisKey, "redis://127.0.0.1"),
        (fence.RedisKey, None),
    ):
        with pytest.raises(leasehold.InvalidInput, match="client: must be"):
            kind(client, "total")
    with pytest.raises(leasehold.InvalidInput, match="hash tag"):
        fence.RedisKey(blocking, "a}b")


def test_a_server_that_is_gone_or_refuses_us_is_told_apart() -> None:
    users = ["user writer on >secret ~total &* +@all -set", "user caller on >secret ~* &* +@all -evalsha"]
    with RedisServer(aof="no", acl=users) as server:
        for user in ("writer", "caller"):
            with redis.Redis.from_url(server.url_for(user, "secret"), retry=Retry(NoBackoff(), 0)) as client:
                with pytest.raises(leasehold.PermissionDenied):
                    fence.RedisKey(client, "total").open(5)
                with pytest.raises(leasehold.PermissionDenied):
                    fence.RedisKey(client, "other").open(5)
        with redis.Redis.from_url(server.url, retry=Retry(NoBackoff(), 0)) as client:
            total = fence.RedisKey(client, "total")
            total.open(5)
            server.stop()
            with pytest.raises(leasehold.StoreUnavailable):
                total.open(5)


def test_no_token_that_was_made_up_moves_the_mark(place: Place) -> None:
    seal = fence.Seal(b"k" * 32)
    with redis.Redis.from_url(place.url) as client:
        total = fence.RedisKey(client, place.key, scope="total", seal=seal)
        total.open(seal.seal("total", 5)).write(b"1")
        for forged in (2**62, str(2**62), fence.Seal(b"o" * 32).seal("total", 2**62), seal.seal("other", 2**62)):
            with pytest.raises(leasehold.TokenRefused):
                total.open(forged)
        assert servers.redis().command("GET", mark_of(place.key.encode())) == "5"
        assert total.open(seal.seal("total", 5)).read() == b"1"


def test_a_lease_opens_what_it_protects(place: Place) -> None:
    with leasehold.connect(place.url) as locks:
        with locks.hold(place.key) as first:
            opened = place.fenced().open(first.token)
            opened.write(b"1")
        with locks.hold(place.key) as second:
            assert place.fenced().open(second.token).read() == b"1"
    with pytest.raises(leasehold.StaleToken, match=f"token {first.token} comes too late"):
        opened.write(b"2")
