"""Our schema in somebody's database: installed once, by one of many, and used with few rights."""

from __future__ import annotations

import subprocess

import psycopg
import pytest

from leasehold.errors import PermissionDenied, StoreDamaged
from leasehold.model import Key
from leasehold.stores.postgres import SCHEMA, installation
from tests.stores.postgres_support import KEY, LONG, all_at_once, driven, fresh, postgres, role, schema_of
from tests.support import PYTHON, ROOT, count

SCRIPTS = ROOT / "src" / "leasehold" / "stores" / "sql"


def test_many_starters_install_once() -> None:
    for _ in range(count(20)):
        url = fresh(postgres().url)

        def start(url: str = url) -> None:
            with driven(url) as store:
                store.load(KEY)

        all_at_once([start] * 8)
        assert postgres().execute(f"SELECT version FROM {schema_of(url)}.state") == [(SCHEMA,)]  # noqa: S608  ours


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
            pytest.raises(psycopg.errors.RaiseException, match=f"has version {SCHEMA}, not 0"),
        ):
            admin.execute(installation(schema_of(url)))
        assert store.load(KEY).revision == made.revision


def test_a_schema_of_the_first_version_is_migrated_with_its_leases_and_whoever_may_use_it_goes_on() -> None:
    url, name, password = first_version()
    theirs = f"{postgres().url_for(name, password)}?schema={schema_of(url)}"
    with pytest.raises(PermissionDenied, match=f"stores.postgres {schema_of(url)} 1` prints"), driven(theirs):
        pass
    with psycopg.connect(postgres().url_for(name, password), autocommit=True) as program:
        put = f"SELECT ({schema_of(url)}.put('app//line/a', '', 'old', '\\x01', 'v', 60, NULL)).revision"
        old = program.execute(put).fetchone()[0]
        with driven(url) as store:
            assert postgres().execute(f"SELECT version FROM {schema_of(url)}.state") == [(SCHEMA,)]  # noqa: S608  ours
            assert store.grant(Key("app//line/a", "new")).revision > old
        with driven(theirs) as store:
            assert [record.key.member for record in store.scan("app//line/a", [("o", "p")])] == ["old"]
        # The connection of a process of the first version.
        scan = f"SELECT member FROM {schema_of(url)}.scan('app//line/a', '')"  # noqa: S608  ours
        assert program.execute(scan).fetchall() == [("old",), ("new",)]


def test_the_printed_migration_brings_a_schema_of_the_first_version_to_ours() -> None:
    url, *_ = first_version()
    command = [PYTHON, "-m", "leasehold.stores.postgres", schema_of(url), "1"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    with psycopg.connect(postgres().url, autocommit=True) as admin:
        admin.execute(printed.encode())
    assert postgres().execute(f"SELECT version FROM {schema_of(url)}.state") == [(SCHEMA,)]  # noqa: S608  ours


def test_windows_are_read_from_their_index_whatever_the_table_was_when_the_plan_was_made() -> None:
    """A plan that was made for an empty table must not read a full one from end to end."""
    url = fresh(postgres().url)
    with driven(url), psycopg.connect(postgres().url, autocommit=True) as program:
        windows = [[f"r{n}" for n in range(10)], [f"r{n}5" for n in range(10)]]
        for _ in range(10):
            assert rows_read(program, url, *windows) == (0, 0)
        program.execute(
            f"INSERT INTO {schema_of(url)}.leases "  # noqa: S608  ours
            "SELECT %s, '', 'r' || n, sha256(n::text::bytea), 'v', n, n FROM generate_series(1, 3000) AS n",
            [KEY.family],
        )
        for _ in range(10):
            found, read = rows_read(program, url, *windows)
            # And the one at the end of each window.
            assert 1000 < found <= read <= found + 10 < 2000
        # The control: what is read is counted, and those are not all.
        assert rows_read(program, url, None, None) == (3000, 3000)
        # No more than the limit is read, wherever it lies.
        assert rows_read(program, url, None, None, limit=50) == (50, 50)
        assert rows_read(program, url, ["q", "r"], ["r", "s"], limit=50) == (50, 50)


def test_a_family_and_members_that_no_index_could_hold_are_scanned_by_windows() -> None:
    family, long = "app//path/" + "日" * 1000, "/directory-日" * 400
    with driven(fresh(postgres().url)) as store:
        for member in (f"p{long}/a", f"p{long}/b", f"p{long}/c"):
            store.grant(Key(family, member))
        found = store.scan(family, [(f"p{long}/a", f"p{long}/b"), (f"p{long}/bb", f"p{long}0")])
        assert [record.key.member[-1] for record in found] == ["a", "c"]


def first_version() -> tuple[str, str, str]:
    """The URL of a schema as the first version installed it, and a role that may use it."""
    url = fresh(postgres().url)
    script = "".join((SCRIPTS / f"postgres_00{step}.sql").read_text(encoding="utf-8") for step in (0, 1))
    with psycopg.connect(postgres().url, autocommit=True) as admin:
        admin.execute(script.replace("@schema@", schema_of(url)).replace("@version@", "0").encode())
    return url, *role(postgres(), schema_of(url))


def rows_read(
    program: psycopg.Connection, url: str, *windows: list[str] | None, limit: int = 20_000
) -> tuple[int, int]:
    """How many records a scan finds, and how many rows of the table it looks at for that."""
    scan = f"SELECT count(*) FROM {schema_of(url)}.scan(%s, '', %s::text[], %s::text[], %s)"  # noqa: S608  ours
    counted = "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_all_tables WHERE relid = %s::regclass"
    with program.transaction():
        before = program.execute(counted, [f"{schema_of(url)}.leases"]).fetchone()[0]
        found = program.execute(scan, [KEY.family, *windows, limit], prepare=True).fetchone()[0]
        after = program.execute(counted, [f"{schema_of(url)}.leases"]).fetchone()[0]
    return found, after - before


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
