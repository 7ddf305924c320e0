"""Our schema in somebody's database: installed once, by one of many, and used with few rights."""

from __future__ import annotations

import subprocess

import psycopg
import pytest

from leasehold.errors import StoreDamaged
from leasehold.stores.postgres import installation
from tests.stores.postgres_support import KEY, LONG, all_at_once, driven, fresh, postgres, role, schema_of
from tests.support import PYTHON, count


def test_many_starters_install_once() -> None:
    for _ in range(count(20)):
        url = fresh(postgres().url)

        def start(url: str = url) -> None:
            with driven(url) as store:
                store.load(KEY)

        all_at_once([start] * 8)
        assert postgres().execute(f"SELECT version FROM {schema_of(url)}.state") == [(1,)]  # noqa: S608  ours


def test_an_installation_that_fails_leaves_nothing_and_can_be_repeated() -> None:
    url = fresh(postgres().url)
    schema = schema_of(url)
    with psycopg.connect(postgres().url, autocommit=True) as admin:
        with pytest.raises(psycopg.Error):
            admin.execute(installation(schema) + "SELECT 1 / 0;")
        assert admin.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (schema,)).fetchone() is None
    with driven(url) as store:
        store.grant()


def test_steps_that_begin_at_another_version_than_the_schema_has_change_nothing() -> None:
    url = fresh(postgres().url)
    with driven(url) as store:
        made = store.grant()
        with (
            psycopg.connect(postgres().url, autocommit=True) as admin,
            pytest.raises(psycopg.errors.RaiseException, match="has version 1, not 0"),
        ):
            admin.execute(installation(schema_of(url)))
        assert store.load(KEY).revision == made.revision


def test_what_is_left_of_a_schema_is_refused() -> None:
    url = fresh(postgres().url)
    with driven(url):
        postgres().execute(f"DROP FUNCTION {schema_of(url)}.hello()")
    with pytest.raises(StoreDamaged, match="has tables of Leasehold's names and not its functions"), driven(url):
        pass


def test_the_printed_script_and_two_grants_are_all_a_program_needs() -> None:
    schema = schema_of(fresh(postgres().url))
    printed = subprocess.run(
        [PYTHON, "-m", "leasehold.stores.postgres", schema], check=True, capture_output=True, text=True
    ).stdout
    with psycopg.connect(postgres().url, autocommit=True) as admin:
        admin.execute(printed.encode())
    name, password = role(postgres(), schema)
    with driven(f"{postgres().url_for(name, password)}?schema={schema}") as store:
        made = store.grant()
        assert store.touch([(made, LONG)])[0][0]
        assert [record.key for record in store.page("app//", None, 10)] == [KEY]
        assert [record.key for record in store.scan(KEY.family)] == [KEY]
        changed = store.swap(KEY, made, b"changed", LONG)
        assert store.swap(KEY, changed, None, None) == changed
        assert store.collect(10) == 0
    with psycopg.connect(postgres().url_for(name, password), autocommit=True) as program:
        for forbidden in ("SELECT * FROM {}.leases", "DELETE FROM {}.leases", "SELECT nextval('{}.revisions')"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                program.execute(forbidden.format(schema))


def test_a_role_without_grants_can_call_nothing() -> None:
    """The control of the test above: a function is anybody's unless that is taken away."""
    url = fresh(postgres().url)
    with driven(url):
        name, password = role(postgres())
        postgres().execute(f"GRANT USAGE ON SCHEMA {schema_of(url)} TO {name}")
        with (
            psycopg.connect(postgres().url_for(name, password), autocommit=True) as program,
            pytest.raises(psycopg.errors.InsufficientPrivilege),
        ):
            program.execute(f"SELECT {schema_of(url)}.hello()")


def test_nobody_bends_the_functions_to_operators_of_their_own() -> None:
    """They act as their owner: an operator found through the caller's search path would, too."""
    url = fresh(postgres().url)
    with driven(url):
        schema = schema_of(url)
        name, password = role(postgres(), schema)
        postgres().execute(f"CREATE SCHEMA {name} AUTHORIZATION {name}")
        with psycopg.connect(postgres().url_for(name, password), autocommit=True) as program:
            program.execute(f"SET search_path = {name}, pg_catalog")
            program.execute(
                "CREATE FUNCTION trap(bytea, bytea) RETURNS boolean LANGUAGE plpgsql AS "
                "$$ BEGIN RAISE 'trapped as %', current_user; END $$"
            )
            program.execute("CREATE OPERATOR = (LEFTARG = bytea, RIGHTARG = bytea, FUNCTION = trap)")
            with pytest.raises(psycopg.errors.RaiseException, match="trapped"):
                program.execute(r"SELECT '\x01'::bytea = '\x01'::bytea")
            put = f"SELECT ({schema}.put('a', '', 'm', '\\x01', 'v', 60, NULL)).done"
            assert program.execute(put).fetchone() == (True,)
            assert program.execute(put).fetchone() == (False,)


def test_a_server_that_does_not_wait_for_its_disk_is_made_to_unless_the_url_says_so() -> None:
    url = fresh(postgres().url)
    with driven(url):
        schema = schema_of(url)
        name, password = role(postgres(), schema)
        postgres().execute(f"ALTER ROLE {name} SET synchronous_commit = off")
        theirs = f"{postgres().url_for(name, password)}?schema={schema}"
        with driven(theirs) as store:
            assert "(synchronous_commit=on)" in store.store.guarantees.persistence
            store.grant()
        with driven(f"{theirs}&synchronous_commit=off") as store:
            assert "can forget the last changes" in store.store.guarantees.persistence
            store.refused()
