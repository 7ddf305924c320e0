"""The mark of a table: its column, and the triggers with which even plain SQL obeys it.

A trigger looks for the token in a setting of the transaction (PostgreSQL) or in a function of the connection (SQLite),
which `under` gives it. It sees neither TRUNCATE nor what a superuser does with triggers switched off. On SQLite,
INSERT OR REPLACE is checked by the primary key alone: rows that it removes for another unique column are not seen,
unless `PRAGMA recursive_triggers` is on.
"""

from __future__ import annotations

from leasehold.errors import InvalidInput, StaleToken
from leasehold.fence.sql_connections import NOT_SHOWN, SAID, TOO_LATE, Database, qualified, quoted
from leasehold.rules.fencing import checked_token
from leasehold.rules.names import check_text

UNSHOWN = f"{SAID}no token was shown; change fenced rows inside leasehold.fence.under(connection, lease)"
LATE = f"{SAID}the token comes too late, a later holder was there"
# PostgreSQL cuts names off after 63 bytes, and then two functions would be one.
MARK_MAX = 40

# A mark that the statement itself names is a token that is shown: Row does that. Only a trigger on that
# column can tell it from a mark that merely stays, so it turns the sign for the other, which comes after it.
POSTGRES = """
CREATE OR REPLACE FUNCTION {named}() RETURNS trigger LANGUAGE plpgsql AS $leasehold$
BEGIN
    NEW.{mark} := -NEW.{mark};
    RETURN NEW;
END
$leasehold$;

CREATE OR REPLACE FUNCTION {fence}() RETURNS trigger LANGUAGE plpgsql AS $leasehold$
DECLARE
    token bigint := nullif(current_setting('leasehold.token', true), '');
    named bigint;
BEGIN
    IF TG_OP = 'INSERT' THEN
        NEW.{mark} := coalesce(token, NEW.{mark});
        RETURN NEW;
    END IF;
    IF TG_OP = 'UPDATE' AND NEW.{mark} < 0 THEN
        named := -NEW.{mark};
    END IF;
    IF coalesce(token, named) IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = '{not_shown}', MESSAGE = '{unshown}', TABLE = TG_TABLE_NAME;
    END IF;
    IF least(token, named) < OLD.{mark} THEN
        RAISE EXCEPTION USING ERRCODE = '{too_late}', MESSAGE = '{late}', TABLE = TG_TABLE_NAME,
            DETAIL = least(token, named) || ' ' || OLD.{mark};
    END IF;
    IF TG_OP = 'DELETE' THEN
        RETURN OLD;
    END IF;
    NEW.{mark} := greatest(token, named);
    RETURN NEW;
END
$leasehold$;

DROP TRIGGER IF EXISTS leasehold_1_named ON {table};
DROP TRIGGER IF EXISTS leasehold_2_fence ON {table};
CREATE TRIGGER leasehold_1_named BEFORE UPDATE OF {mark} ON {table} FOR EACH ROW EXECUTE FUNCTION {named}();
CREATE TRIGGER leasehold_2_fence BEFORE INSERT OR UPDATE OR DELETE ON {table} FOR EACH ROW EXECUTE FUNCTION {fence}()
"""

# A trigger of SQLite's cannot change the new row, only the table afterwards.
SQLITE_CHECK = """
CREATE TRIGGER IF NOT EXISTS {name} BEFORE {event} ON {table} BEGIN
    SELECT RAISE(ABORT, '{unshown}') WHERE leasehold_token(NULL) IS NULL;
    SELECT RAISE(ABORT, '{late}') WHERE leasehold_token(OLD.{mark}) < OLD.{mark};
END
"""
# INSERT OR REPLACE tells no trigger of DELETE.
SQLITE_REPLACE = """
CREATE TRIGGER IF NOT EXISTS {name} BEFORE {event} ON {table} WHEN EXISTS (SELECT 1 FROM {table} WHERE {same}) BEGIN
    SELECT RAISE(ABORT, '{unshown}') WHERE leasehold_token(NULL) IS NULL;
    SELECT RAISE(ABORT, '{late}') FROM {table} WHERE {same} AND leasehold_token({mark}) < {mark};
END
"""
SQLITE_RAISE = """
CREATE TRIGGER IF NOT EXISTS {name} AFTER {event} ON {table} WHEN NEW.{mark} < leasehold_token(NULL) BEGIN
    UPDATE {table} SET {mark} = leasehold_token(NULL) WHERE {same};
END
"""


async def add_mark(database: Database, table: str, mark: str, *, trigger: bool) -> None:
    """The column, and the triggers if they are wanted; what is there already stays."""
    if len(check_text("mark", mark).encode()) > MARK_MAX:
        raise InvalidInput("mark", mark, f"must be at most {MARK_MAX} bytes long")
    await (_add_on_postgres if database.postgres else _add_on_sqlite)(database, table, mark, trigger)


async def add_marks_table(database: Database, table: str) -> None:
    """The table of `Marks`."""
    name = qualified(table, postgres=database.postgres)
    await database.rows(f"CREATE TABLE IF NOT EXISTS {name} (name TEXT PRIMARY KEY, mark BIGINT NOT NULL)", ())


class Under:
    """A block in which triggers are shown a token."""

    def __init__(self, database: Database, token: int) -> None:
        self._database = database
        self._token = checked_token(token)
        self._before: int | None = None

    async def enter(self) -> None:
        """Show it."""
        self._before = await self._database.show(self._token)

    async def leave(self, error: BaseException | None) -> None:
        """Show what was shown before; raises StaleToken for a trigger's refusal."""
        refused = None if error is None else await self._database.refused(error)
        await self._database.restore(self._before)
        if refused is not None:
            raise StaleToken("a fenced row", *refused) from error


async def _add_on_postgres(database: Database, table: str, mark: str, trigger: bool) -> None:  # noqa: FBT001  as its twin
    on, column = qualified(table, postgres=True), quoted("mark", mark, postgres=True)
    await database.rows(f"ALTER TABLE {on} ADD COLUMN IF NOT EXISTS {column} BIGINT NOT NULL DEFAULT 0", ())
    if not trigger:
        return
    within = on[: on.rindex(".") + 1] if "." in table else ""
    words = {
        "table": on,
        "mark": column,
        "named": within + quoted("mark", f"leasehold_named_{mark}", postgres=True),
        "fence": within + quoted("mark", f"leasehold_fence_{mark}", postgres=True),
        "not_shown": NOT_SHOWN,
        "too_late": TOO_LATE,
        "unshown": UNSHOWN,
        "late": LATE,
    }
    for statement in POSTGRES.format(**words).split(";\n\n"):
        for single in [statement] if "$leasehold$" in statement else statement.split(";\n"):
            await database.rows(single, ())


async def _add_on_sqlite(database: Database, table: str, mark: str, trigger: bool) -> None:  # noqa: FBT001  as its twin
    schema, dot, bare = table.rpartition(".")
    within = f"{quoted('table', schema, postgres=False)}." if dot else ""
    on, column = quoted("table", bare, postgres=False), quoted("mark", mark, postgres=False)
    columns = await database.rows(f"PRAGMA {within}table_info({on})", ())
    if mark not in {each["name"] for each in columns}:
        await database.rows(f"ALTER TABLE {within}{on} ADD COLUMN {column} INTEGER NOT NULL DEFAULT 0", ())
    if not trigger:
        return
    keys = [quoted("table", each["name"], postgres=False) for each in columns if each["pk"]] or ["rowid"]
    words = {
        "table": on,
        "mark": column,
        "same": " AND ".join(f"{key} = NEW.{key}" for key in keys),
        "unshown": UNSHOWN,
        "late": LATE,
    }
    for event, text in (
        ("UPDATE", SQLITE_CHECK),
        ("DELETE", SQLITE_CHECK),
        ("INSERT", SQLITE_REPLACE),
        ("UPDATE", SQLITE_RAISE),
        ("INSERT", SQLITE_RAISE),
    ):
        step = "raise" if text is SQLITE_RAISE else "check"
        name = quoted("table", f"leasehold_{bare}_{event.lower()}_{step}", postgres=False)
        await database.rows(text.format(**words, event=event, name=within + name), ())
