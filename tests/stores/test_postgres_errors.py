"""Every way a PostgreSQL can refuse, in the words of our tree: what was wrong, and what to do."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import psycopg
import pytest

import leasehold
from leasehold.errors import InvalidInput, PermissionDenied, StoreDamaged, StoreUnavailable
from leasehold.model import Key
from leasehold.stores.postgres import SCHEMA
from leasehold.testing.proxy import Proxy
from leasehold.testing.servers import PostgresServer
from leasehold.wires.postgres_url import postgres_config
from tests.stores.postgres_support import KEY, LONG, driven, fresh, postgres, role, schema_of
from tests.support import eventually


def message(url: str, kind: type[leasehold.LeaseholdError], timeout: float = 20.0) -> str:
    """What connecting there says; never with the password in it."""
    with pytest.raises(kind) as caught:
        leasehold.connect(url, timeout=timeout)
    if isinstance(caught.value, StoreUnavailable):
        assert caught.value.applied is False
    password = urlsplit(url).password
    assert not password or password not in str(caught.value)
    return str(caught.value)


# Reaching it.


def test_a_wrong_password() -> None:
    assert "check user and password" in message(postgres().url_for("postgres", "wrong-one"), PermissionDenied)


def test_an_unknown_role() -> None:
    assert "check user and password" in message(postgres().url_for("nobody-here", "wrong-one"), PermissionDenied)


def test_an_unknown_database() -> None:
    said = message(postgres().url_for("postgres", postgres().password, "nowhere"), StoreUnavailable)
    assert 'database "nowhere" does not exist' in said
    assert "correct the URL" in said


def test_an_unknown_host() -> None:
    assert "check the host name" in message("postgresql://me:hidden@no-such-host.invalid/db", StoreUnavailable)


def test_a_port_nobody_listens_on() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    assert "that the server runs" in message(f"postgresql://me:hidden@127.0.0.1:{port}/db", StoreUnavailable)


def test_a_port_that_never_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql://me:hidden@127.0.0.1:{silent.getsockname()[1]}/db"
        assert "no answer within 0.3 s" in message(url, StoreUnavailable, timeout=0.3)


def test_another_server_behind_the_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as web:

        def answer() -> None:
            client, _ = web.accept()
            with client:
                client.recv(1024)
                client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        threading.Thread(target=answer, daemon=True).start()
        url = f"postgresql://me:hidden@127.0.0.1:{web.getsockname()[1]}/db?sslmode=disable"
        assert "does not look like a PostgreSQL server" in message(url, StoreUnavailable)


def test_the_second_host_is_used_when_the_first_is_down_or_silent() -> None:
    server = postgres()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        url = server.url.replace(f"@{server.host}:{server.port}", f"@127.0.0.1:{port},{server.host}:{server.port}")
        with leasehold.connect(fresh(url), timeout=6.0) as locks:
            assert locks.try_acquire("job") is not None


# TLS.


@pytest.fixture(scope="module")
def tls() -> Iterator[PostgresServer]:
    with PostgresServer(tls=True, tls_name="db.example") as server:
        yield server


def test_a_certificate_for_another_name(tls: PostgresServer) -> None:
    said = message(f"{tls.url}?sslmode=verify-full&sslrootcert={tls.ca}", StoreUnavailable)
    assert "check the host name in the URL, sslrootcert and sslmode" in said


def test_a_certificate_nobody_vouches_for(tls: PostgresServer) -> None:
    said = message(f"{tls.url}?sslmode=verify-ca&sslrootcert=/dev/null", StoreUnavailable)
    assert "sslrootcert" in said


def test_a_certificate_that_fits_is_accepted(tls: PostgresServer) -> None:
    """The control of the two above."""
    with leasehold.connect(f"{tls.url}?sslmode=verify-ca&sslrootcert={tls.ca}") as locks:
        assert locks.try_acquire("job") is not None


def test_tls_asked_of_a_server_without() -> None:
    assert "check sslmode" in message(f"{postgres().url}?sslmode=require", StoreUnavailable)


# What it is.


def test_a_server_that_is_too_old() -> None:
    server = postgres()
    ((version,),) = server.execute("SHOW server_version_num")
    with Proxy(server.host, server.port) as proxy:
        proxy.replies.alter = lambda said: said.replace(version.encode(), b"120022")
        url = server.url.replace(f":{server.port}/", f":{proxy.port}/")
        assert "PostgreSQL 12 is too old; Leasehold needs 13 or newer" in message(url, StoreUnavailable)


def test_a_standby_is_refused_with_the_remedy() -> None:
    with PostgresServer() as server:
        server.stop()
        server.make_standby()
        server.start()
        assert "of all hosts: postgresql://a,b/db" in message(server.url, StoreUnavailable)


def test_a_database_that_cannot_hold_every_key() -> None:
    postgres().execute("DROP DATABASE IF EXISTS latin")
    postgres().execute("CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0 LOCALE 'C'")
    said = message(postgres().url_for("postgres", postgres().password, "latin"), StoreUnavailable)
    assert "ENCODING 'UTF8'" in said


# What we may do there.


def test_a_role_that_may_not_create_and_finds_no_schema() -> None:
    name, password = role(postgres())
    said = message(fresh(postgres().url_for(name, password)), PermissionDenied)
    assert "python -m leasehold.stores.postgres" in said
    assert "GRANT USAGE ON SCHEMA test_" in said


def test_a_role_without_grants_is_told_which() -> None:
    url = fresh(postgres().url)
    with driven(url):
        name, password = role(postgres())
    said = message(f"{postgres().url_for(name, password)}?schema={schema_of(url)}", PermissionDenied)
    assert f'GRANT USAGE ON SCHEMA "{schema_of(url)}"' in said
    assert "GRANT EXECUTE ON ALL FUNCTIONS" in said


def test_a_right_taken_away_while_working() -> None:
    url = fresh(postgres().url)
    with driven(url):
        schema = schema_of(url)
        name, password = role(postgres(), schema)
        with driven(f"{postgres().url_for(name, password)}?schema={schema}") as store:
            store.grant()
            postgres().execute(f"REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA {schema} FROM {name}")
            with pytest.raises(PermissionDenied, match="GRANT EXECUTE"):
                store.load(KEY)


def test_a_role_that_is_read_only() -> None:
    url = fresh(postgres().url)
    with driven(url):
        name, password = role(postgres(), schema_of(url))
        postgres().execute(f"ALTER ROLE {name} SET default_transaction_read_only = on")
    said = message(f"{postgres().url_for(name, password)}?schema={schema_of(url)}", StoreUnavailable)
    assert "default_transaction_read_only = off" in said


def test_no_connection_left() -> None:
    url = fresh(postgres().url)
    with driven(url):
        name, password = role(postgres(), schema_of(url))
        postgres().execute(f"ALTER ROLE {name} CONNECTION LIMIT 0")
    said = message(f"{postgres().url_for(name, password)}?schema={schema_of(url)}", StoreUnavailable)
    assert "smaller pool=" in said


def test_a_role_whose_transactions_are_serializable_works_on_a_session_of_its_own() -> None:
    url = fresh(postgres().url)
    with driven(url):
        name, password = role(postgres(), schema_of(url))
        postgres().execute(f"ALTER ROLE {name} SET default_transaction_isolation = 'serializable'")
        with driven(f"{postgres().url_for(name, password)}?schema={schema_of(url)}") as store:
            store.grant()
            store.refused()


# What is in it.


def test_a_schema_that_is_newer_than_ours() -> None:
    url = fresh(postgres().url)
    with driven(url):
        postgres().execute(f"UPDATE {schema_of(url)}.state SET version = 99")  # noqa: S608  a test's own schema
    assert f"has version 99, this Leasehold knows up to {SCHEMA}; update Leasehold" in message(url, StoreDamaged)


def test_a_schema_of_somebody_else() -> None:
    url = fresh(postgres().url)
    postgres().execute(f"CREATE SCHEMA {schema_of(url)}")
    postgres().execute(f"CREATE TABLE {schema_of(url)}.leases (tenant text, monthly_rent numeric)")
    assert "name another with schema=" in message(url, StoreDamaged)


def test_a_table_dropped_while_in_use() -> None:
    url = fresh(postgres().url)
    with driven(url) as store:
        store.grant()
        postgres().execute(f"DROP TABLE {schema_of(url)}.leases")
        for call in (lambda: store.load(KEY), lambda: store.swap(KEY, None, b"x", LONG)):
            with pytest.raises(StoreDamaged, match="drop the schema"):
                call()
    assert "drop the schema" in message(url, StoreDamaged)


def test_a_value_that_is_too_large_is_refused_before_anything_is_sent() -> None:
    with driven(fresh(postgres().url)) as store:
        with pytest.raises(InvalidInput, match="value"):
            store.swap(KEY, None, b"x" * (store.store.guarantees.value_max + 1), LONG)
        assert store.load(KEY) is None
        assert len(store.grant(value=b"x" * store.store.guarantees.value_max).value) == 1024 * 1024
        assert len(store.load(KEY).value) == 1024 * 1024


def test_every_kind_of_key_and_value_comes_back_as_it_was() -> None:
    awkward = ['a"b', "a\\b", "{a,b}", "'; DROP SCHEMA public; --", "NULL", "ü€😀", "a b\tc\nd", "%s $1", "😀" * 1024]
    with driven(fresh(postgres().url)) as store:
        keys = [Key(f"app//name/{text}", text) for text in awkward]
        made = [store.grant(key, value=bytes(range(256))) for key in keys]
        assert [store.load(key).value for key in keys] == [bytes(range(256))] * len(keys)
        assert [found for renewed, found in store.touch([(record, LONG) for record in made]) if not renewed] == []
        assert [store.scan(key.family)[0].key for key in keys] == keys
        assert [record.key for record in store.page("app//", None, 100)] == sorted(keys)
        assert [store.swap(record.key, record, None, None) for record in made] == made


# While it works.


def test_a_session_ended_by_the_administrator_while_idle_is_not_noticed() -> None:
    url = fresh(postgres().url)
    with driven(url) as store:
        store.grant()
        sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'leasehold'"
        postgres().execute(sql)
        eventually(lambda: not postgres().execute(f"{sql} AND state IS NOT NULL"))
        store.refused()


@contextmanager
def somebody_writes(url: str) -> Iterator[psycopg.Connection]:
    """Another session in the middle of a write of the same family."""
    with psycopg.connect(postgres().url) as other:
        other.execute(f"SELECT {schema_of(url)}.draw(%s)", (KEY.family,))
        yield other


def test_a_session_ended_in_the_middle_of_a_request_leaves_its_fate_unknown() -> None:
    url = fresh(postgres().url)
    with driven(url) as store, somebody_writes(url):
        waiting = (
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE wait_event_type = 'Lock' AND application_name = 'leasehold'"
        )
        ended = threading.Thread(target=lambda: eventually(lambda: postgres().execute(waiting)))
        ended.start()
        with pytest.raises(StoreUnavailable, match="shutting down") as caught:
            store.swap(KEY, None, b"x", LONG)
        ended.join()
        assert caught.value.applied is None


def test_a_server_that_waits_too_long_gives_up_and_nothing_is_changed() -> None:
    url = fresh(postgres().url)
    with driven(url, timeout=2.0) as store:
        with somebody_writes(url), pytest.raises(StoreUnavailable, match=r"did not answer within|gave up"):
            store.swap(KEY, None, b"x", LONG)
        assert store.load(KEY) is None


# URLs.


@pytest.mark.parametrize(
    ("url", "remedy"),
    [
        ("postgresql://u:hidden@h/db?colour=blue", "this store has schema, pool, synchronous_commit"),
        ("postgresql://u:hidden@h/db?pool=8&pool=9", "repeated"),
        ("postgresql://u:hidden@h/db?pool=0", "from 1 to 1000"),
        ("postgresql://u:hidden@h/db?pool=many", "whole number"),
        ("postgresql://u:hidden@h/db?schema=Bad-Name", "schema must be"),
        ("postgresql://u:hidden@h/db?schema=pg_mine", "schema must be"),
        ("postgresql://u:hidden@h/db?synchronous_commit=maybe", "must be one of on, remote_apply"),
        ("postgresql://u:hidden@h/db?client_encoding=latin1", "leave it out"),
        ("postgresql://u:hidden@h1:1,h2:2,h3:3/db?port=1,2", "one port, or one for each host"),
        ("postgresql://u:hidden@h:port/db", "must be a number"),
        ("postgresql://u:hidden@h/%zz", "cannot be read"),
    ],
)
def test_a_url_that_cannot_work_is_refused_before_anything_is_reached(url: str, remedy: str) -> None:
    with pytest.raises(InvalidInput, match=remedy) as caught:
        leasehold.connect(url)
    assert "hidden" not in str(caught.value)


def test_a_url_names_hosts_schema_and_pool() -> None:
    config = postgres_config(urlsplit("postgres://me:pw@h1:1,h2:2/db?schema=mine&pool=3&sslmode=require"), 5.0)
    assert [(words["host"], words["port"]) for words in config.hosts] == [("h1", "1"), ("h2", "2")]
    assert {words["target_session_attrs"] for words in config.hosts} == {"primary"}
    assert (config.schema, config.pool, config.place) == ("mine", 3, "h1:1,h2:2/db")
    assert "pw" not in repr(config)
