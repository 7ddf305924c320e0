"""Whatever can be wrong with a Redis server is one clear error of our tree, with the remedy, and loses nothing."""

from __future__ import annotations

import http.server
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import hiredis
import pytest
import redis

from leasehold.errors import InvalidInput, MissingExtra, PermissionDenied, StoreDamaged, StoreError, StoreUnavailable
from leasehold.model import Conflict, Record
from leasehold.testing.proxy import Proxy
from leasehold.testing.servers import RedisServer
from leasehold.testing.servers.shared import shared
from leasehold.wires.redis_errors import reply_error
from leasehold.wires.redis_finder import BUCKETS, bucket_keys
from tests.stores.redis_support import KEY, Driven, behind, driven, server
from tests.support import eventually

COLOURS = pytest.mark.parametrize("colour", ["blocking", "asyncio"])


def fails(url: str, colour: str = "blocking", timeout: float = 5.0) -> StoreError:
    """What opening a store raises."""
    with pytest.raises(StoreError) as caught, driven(url, colour, timeout=timeout):
        pass
    return caught.value


def refuses(store: Driven, code: str) -> StoreUnavailable:
    """What a grant raises, when it certainly changed nothing."""
    with pytest.raises(StoreUnavailable, match=code) as caught:
        store.swap(KEY, None, b"mine", 30.0)
    assert caught.value.applied is False
    return caught.value


# Nobody, or somebody else, behind the port.


@COLOURS
def test_nobody_listening_is_told(colour) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        error = fails(f"redis://127.0.0.1:{unused.getsockname()[1]}", colour)
    assert isinstance(error, StoreUnavailable)
    assert error.applied is False
    assert "nobody listens there" in str(error)


@COLOURS
def test_an_unknown_host_is_told(colour) -> None:
    assert "this host name is not known" in str(fails("redis://no-such-host.invalid", colour))


@COLOURS
def test_another_server_behind_the_port_is_told(colour) -> None:
    class Quiet(http.server.BaseHTTPRequestHandler):
        def log_message(self, *words) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as web:
        threading.Thread(target=web.serve_forever, daemon=True).start()
        error = fails(f"redis://127.0.0.1:{web.server_port}", colour)
        web.shutdown()
    assert "this is no Redis server" in str(error)


@COLOURS
def test_a_server_that_says_nothing_is_given_up_on(colour) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        error = fails(f"redis://127.0.0.1:{silent.getsockname()[1]}", colour, timeout=0.2)
    assert isinstance(error, StoreUnavailable)
    assert error.applied is False
    assert "no answer in 0.2 s" in str(error)


def test_a_server_that_is_too_old_is_refused() -> None:
    found = server()
    with Proxy(found.host, found.port) as proxy:
        proxy.replies.alter = lambda said: said.replace(b"redis_version:7", b"redis_version:5")
        assert "Leasehold needs 6.0 or newer" in str(fails(behind(proxy)))
    with Proxy(found.host, found.port) as proxy, driven(behind(proxy)) as store:
        assert store.load(KEY) is None


# Who may come in.


@pytest.fixture(scope="module")
def guarded() -> RedisServer:
    users = ["user default off", "user app on >right ~* &* +@all", "user poor on >right ~* &* +@all -hset"]
    return shared("redis with users", RedisServer(aof="no", acl=users))


@COLOURS
def test_a_wrong_password_is_told(guarded, colour) -> None:
    error = fails(guarded.url_for("app", "hunter2"), colour)
    assert isinstance(error, PermissionDenied)
    assert "WRONGPASS" in str(error)
    assert "hunter2" not in str(error)


def test_a_missing_password_is_told(guarded) -> None:
    error = fails(guarded.url)
    assert isinstance(error, PermissionDenied)
    assert "put user and password into the URL" in str(error)


def test_a_password_nobody_asked_for_is_told() -> None:
    error = fails(server().url.replace("//", "//:secret@"))
    assert isinstance(error, PermissionDenied)
    assert "secret@" not in str(error)


def test_a_missing_permission_names_the_command_and_grants_nothing(guarded) -> None:
    guarded.command("FLUSHALL")
    with driven(guarded.url_for("poor", "right")) as poor, driven(guarded.url_for("app", "right")) as other:
        with pytest.raises(PermissionDenied, match="the command hset"):
            poor.swap(KEY, None, b"mine", 30.0)
        assert poor.load(KEY) is None
        assert poor.scan(KEY.family) == []
        assert isinstance(other.grant(), Record)


# TLS.


@pytest.fixture(scope="module")
def secure() -> RedisServer:
    return shared("redis with TLS", RedisServer(aof="no", tls=True))


@COLOURS
def test_tls_with_the_authority_works(secure, colour) -> None:
    with driven(f"{secure.url}?ca={secure.ca}", colour) as store:
        assert store.swap(KEY, store.grant(), None, None)


@COLOURS
def test_an_unknown_authority_is_refused(secure, colour) -> None:
    error = fails(secure.url, colour)
    assert "CERTIFICATE_VERIFY_FAILED" in str(error)
    assert "give its authority as ca=" in str(error)


@COLOURS
def test_a_wrong_name_is_refused(secure, colour) -> None:
    with RedisServer(aof="no", tls=True, tls_name="elsewhere.example") as other:
        error = fails(f"{other.url}?ca={other.ca}", colour)
    assert "connect by the name its certificate was made for" in str(error)


def test_plain_to_a_tls_server_is_told(secure) -> None:
    assert "if it wants TLS" in str(fails(secure.url.replace("rediss:", "redis:")))


@COLOURS
def test_tls_to_a_plain_server_is_told(secure, colour) -> None:
    error = fails(f"{server().url.replace('redis:', 'rediss:')}?ca={secure.ca}", colour, timeout=0.5)
    assert isinstance(error, StoreUnavailable)
    assert error.applied is False
    assert "speak no TLS" in str(error)


def test_an_unreadable_authority_is_bad_input(secure) -> None:
    with pytest.raises(InvalidInput, match="readable PEM"), driven(f"{secure.url}?ca=/no/such/file"):
        pass


# A server of another kind than the URL says.


def test_a_replica_is_refused_and_a_master_that_becomes_one_too() -> None:
    with RedisServer(aof="no") as other, driven(other.url) as store:
        master = server()
        master.command("CONFIG", "SET", "repl-diskless-sync-delay", 0)
        other.command("REPLICAOF", master.host, master.port)
        assert "is a replica" in str(fails(other.url))
        eventually(lambda: other.command("INFO", "replication")["master_link_status"] == "up")
        # On the connection it had, and on a new one.
        refuses(store, "READONLY")
        refuses(store, "is a replica")
        other.command("CONFIG", "SET", "replica-serve-stale-data", "no")
        other.command("REPLICAOF", "127.0.0.1", 1)
        assert "is a replica" in str(fails(other.url))
        other.command("REPLICAOF", "NO", "ONE")
        assert isinstance(store.grant(), Record)


def test_a_server_that_is_no_cluster_is_told() -> None:
    assert "is no Redis Cluster; use redis://" in str(fails(server().url.replace("redis:", "redis+cluster:")[:-2]))


# A server that cannot just now.


def test_a_server_that_reads_its_data_is_not_believed() -> None:
    options = {"enable-debug-command": "yes", "loading-process-events-interval-bytes": 1024}
    with RedisServer(aof="no", config=options) as slow, driven(slow.url) as store:
        slow.command("DEBUG", "POPULATE", 4000)
        slow.command("CONFIG", "SET", "key-load-delay", 3000)
        reading = threading.Thread(target=slow.command, args=("DEBUG", "RELOAD", "NOSAVE", "NOFLUSH", "MERGE"))
        slow.command("SAVE")
        reading.start()
        eventually(lambda: slow.command("INFO", "persistence")["loading"])
        refuses(store, "LOADING")
        assert "still reading its data" in str(fails(slow.url))
        slow.command("CONFIG", "SET", "key-load-delay", 0)
        reading.join()
        assert isinstance(store.grant(), Record)


def test_a_full_server_refuses_grants_and_takes_releases() -> None:
    found = server()
    with driven(found.url) as store, setting(found, "maxmemory", "1", "0"):
        assert "raise it or remove other data" in str(refuses(store, "OOM"))
        assert store.load(KEY) is None
        found.command("CONFIG", "SET", "maxmemory", "0")
        mine = store.grant()
        found.command("CONFIG", "SET", "maxmemory", "1")
        assert store.swap(KEY, mine, None, None) == mine
        assert store.scan(KEY.family) == []


def test_a_server_that_cannot_write_its_data_grants_nothing() -> None:
    config = {"save": "3600 1", "enable-protected-configs": "yes"}
    with RedisServer(aof="no", config=config) as stuck, driven(stuck.url) as store:
        stuck.command("CONFIG", "SET", "dir", "/proc")
        stuck.command("BGSAVE")
        eventually(lambda: stuck.command("INFO", "persistence")["rdb_last_bgsave_status"] == "err")
        assert "free disk space" in str(refuses(store, "MISCONF"))
        stuck.command("CONFIG", "SET", "stop-writes-on-bgsave-error", "no")
        assert isinstance(store.grant(), Record)


def test_missing_replicas_are_told_where_the_server_wants_some() -> None:
    found = server()
    with driven(found.url) as store, setting(found, "min-replicas-to-write", "1", "0"):
        assert "bring them back" in str(refuses(store, "NOREPLICAS"))


def test_a_script_of_somebody_else_that_never_ends_is_told() -> None:
    found = server()
    with driven(found.url) as store, setting(found, "busy-reply-threshold", "1", "5000"):
        endless = threading.Thread(target=run_for_ever, args=(found,))
        endless.start()

        def is_busy() -> bool:
            try:
                return store.load(KEY) is not None
            except StoreUnavailable as error:
                return "SCRIPT KILL" in str(error)

        eventually(is_busy)
        refuses(store, "BUSY")
        found.command("SCRIPT", "KILL")
        endless.join()
        assert isinstance(store.grant(), Record)


def run_for_ever(found: RedisServer) -> None:
    with pytest.raises(redis.exceptions.ResponseError, match="killed"):
        found.command("EVAL", "while 1 do end", 0)


def test_too_many_clients_are_told() -> None:
    with RedisServer(aof="no") as small:
        small.command("CONFIG", "SET", "maxclients", "1")
        with driven(small.url):
            assert "raise maxclients" in str(fails(small.url))


def test_a_database_that_does_not_exist_is_told() -> None:
    assert "use a database that exists" in str(fails(server().url.replace("/0", "/99")))


@COLOURS
def test_a_paused_server_leaves_the_outcome_open(colour) -> None:
    with RedisServer(aof="no") as paused, driven(paused.url, colour, timeout=0.2) as store:
        paused.pause()
        with pytest.raises(StoreUnavailable, match=r"no answer in 0\.2 s") as caught:
            store.swap(KEY, None, b"mine", 30.0)
        paused.go_on()
        assert caught.value.applied is None
        # It was applied after all: the retry with the same value meets it.
        eventually(lambda: store.load(KEY) is not None)
        again = store.swap(KEY, None, b"mine", 30.0)
        assert isinstance(again, Conflict)
        assert again.record is not None
        assert again.record.value == b"mine"


# Data that is not ours.


def test_a_key_of_another_type_grants_nothing() -> None:
    found = server()
    for bucket in range(BUCKETS):
        found.command("MSET", *(word for name in bucket_keys(bucket) for word in (name, "somebody else's")))
    with driven(found.url) as store:
        for verb, given in (("load", KEY), ("scan", KEY.family)):
            with pytest.raises(StoreDamaged, match="WRONGTYPE"):
                getattr(store, verb)(given)
        with pytest.raises(StoreDamaged, match="nothing is granted"):
            store.swap(KEY, None, b"mine", 30.0)


@pytest.mark.parametrize("text", ["", "gibberish", "1 2", "x 1 2 3 value", "1 1 1000000 nonsense value"])
def test_a_record_that_leasehold_did_not_write_grants_nothing(text) -> None:
    found = server()
    with driven(found.url) as store:
        mine = store.grant()
        name = f"{KEY.family}\0{KEY.member}"
        for bucket in range(BUCKETS):
            if found.command("HEXISTS", bucket_keys(bucket)[0], name):
                found.command("HSET", bucket_keys(bucket)[0], name, text)
        for call in (lambda: store.load(KEY), lambda: store.swap(KEY, mine, None, None), store.grant):
            with pytest.raises(StoreDamaged):
                call()
        with pytest.raises(StoreDamaged):
            store.touch([(mine, 30.0)])
        # Not even the collector takes it for an ended one.
        assert store.collect(100) == 0


def test_a_counter_that_is_no_number_grants_nothing() -> None:
    found = server()
    with driven(found.url) as store:
        for bucket in range(BUCKETS):
            found.command("HSET", bucket_keys(bucket)[0], "", "many")
        with pytest.raises(StoreDamaged):
            store.grant()
        assert store.load(KEY) is None


# Before anything is sent.


def test_a_value_that_is_too_large_is_refused_before_it_is_sent() -> None:
    found = server()
    with Proxy(found.host, found.port) as proxy, driven(behind(proxy)) as store:
        largest = bytes(store.store.guarantees.value_max)
        proxy.reset_counters()
        with pytest.raises(InvalidInput, match="value"):
            store.swap(KEY, None, largest + b"x", 30.0)
        assert proxy.requests.bytes == 0
        assert store.grant(value=largest).value == largest
        assert store.load(KEY).value == largest


def test_a_missing_package_names_the_command_that_installs_it(monkeypatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "hiredis", None)
    with pytest.raises(MissingExtra, match=r"pip install 'leasehold\[redis\]'"), driven("redis://localhost"):
        pass


# How older servers tell of an error inside a script.


@pytest.mark.parametrize(
    ("said", "kind", "words"),
    [
        (
            "ERR Error running script (call to f_01ab): @user_script:9: @user_script: 9: -OOM command not allowed",
            StoreUnavailable,
            "maxmemory",
        ),
        (
            "ERR Error running script (call to f_01ab): @user_script:3: user_script:3: LEASEHOLD-DAMAGED ",
            StoreDamaged,
            "did not write",
        ),
        ("ERR unknown command 'EVALSHA'", StoreUnavailable, "lacks a command"),
        ("ODD never seen before", StoreUnavailable, "look into the server's log"),
    ],
)
def test_an_error_is_known_by_its_words(said, kind, words) -> None:
    error = reply_error("h:1", hiredis.ReplyError(said))
    assert type(error) is kind
    assert words in str(error)


@contextmanager
def setting(found: RedisServer, name: str, value: str, back: str) -> Iterator[None]:
    """A setting of the shared server, put back at the end."""
    found.command("CONFIG", "SET", name, value)
    try:
        yield
    finally:
        found.command("CONFIG", "SET", name, back)
