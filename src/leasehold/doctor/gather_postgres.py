"""What can be seen of a PostgreSQL database, with the rights of the programs or with more.

Every question is answered by one JSON text, whatever way the wire takes values.
"""

from __future__ import annotations

import json
from typing import Any

from leasehold.doctor.facts import Contents, PostgresFacts, Unseen
from leasehold.doctor.gather_common import ClockReader, time_trips, try_verbs
from leasehold.errors import PermissionDenied
from leasehold.stores.postgres import SCHEMA, PostgresStore
from leasehold.wires.colour import Colour
from leasehold.wires.postgres_link import TEXT, Statement

_CLOCK = "SELECT to_json(extract(epoch FROM clock_timestamp()))::text"

# No right is needed for any of this. Connections are those of all databases together.
_SETTINGS = """
SELECT json_build_object(
    'version', current_setting('server_version_num')::integer,
    'fsync', current_setting('fsync')::boolean,
    'full_page_writes', current_setting('full_page_writes')::boolean,
    'synchronous_commit', current_setting('synchronous_commit'),
    'synchronous_standbys', current_setting('synchronous_standby_names'),
    'autovacuum', current_setting('autovacuum')::boolean,
    'standbys', (SELECT count(*) FROM pg_stat_replication),
    'connections', (SELECT sum(numbackends) FROM pg_stat_database),
    'connections_limit', least(
        current_setting('max_connections')::integer - current_setting('superuser_reserved_connections')::integer,
        (SELECT nullif(rolconnlimit, -1) FROM pg_roles WHERE rolname = current_user)),
    'sees_all', pg_has_role(current_user, 'pg_read_all_stats', 'USAGE')
)::text
"""

_TABLE = """
SELECT json_build_object(
    'live', pg_stat_get_live_tuples(c.oid),
    'dead', pg_stat_get_dead_tuples(c.oid),
    'autovacuum', coalesce(
        (SELECT o.option_value::boolean FROM pg_options_to_table(c.reloptions) AS o
         WHERE o.option_name = 'autovacuum_enabled'), true)
)::text
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND c.relname = 'leases'
"""

# Clients call only those that act as their owner.
_MISSING = """
SELECT coalesce(json_agg(format('EXECUTE ON FUNCTION %s', p.oid::regprocedure) ORDER BY p.proname), '[]')::text
FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace
WHERE n.nspname = $1 AND p.prosecdef AND NOT has_function_privilege(p.oid, 'EXECUTE')
"""

# A transaction with neither an id nor a snapshot holds nothing back.
_OLDEST = """
SELECT coalesce(to_json(extract(epoch FROM clock_timestamp() - min(xact_start))), 'null')::text
FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
    AND (backend_xid IS NOT NULL OR backend_xmin IS NOT NULL)
"""

_CONTENTS = """
SELECT json_build_object(
    'records', count(*), 'expired', count(*) FILTER (WHERE ends <= clock_timestamp())
)::text FROM {schema}.leases
"""


async def gather(store: PostgresStore, colour: Colour) -> PostgresFacts:
    """Look at the server, the database and the table of leases."""
    wire = store._wire  # noqa: SLF001  the doctor looks behind the verbs, over the store's own wire

    async def ask(sql: str, *words: str) -> Any:
        statement = Statement(b"", sql.encode(), (TEXT,) * len(words))
        ((answer,),) = await wire.ask(statement, [word.encode() for word in words])
        return json.loads(answer or b"null")

    async def server_time() -> float:
        return float(await ask(_CLOCK))

    times = ClockReader(server_time, colour)
    await times.start()
    schema = wire.config.schema
    unseen: list[Unseen] = []
    settings = await ask(_SETTINGS)
    table = await ask(_TABLE, schema)
    contents = None
    try:
        contents = Contents(**await ask(_CONTENTS.format(schema=schema)))
    except PermissionDenied:
        unseen.append(Unseen("the number of records", f"SELECT ON TABLE {schema}.leases"))
    if not settings["sees_all"]:
        unseen.append(Unseen("the transactions of other roles", "the role pg_read_all_stats"))
    return PostgresFacts(
        contents=contents,
        missing=tuple(await ask(_MISSING, schema)),
        version=divmod(settings["version"], 10_000),
        schema=schema,
        # Another one would have been migrated or refused at opening.
        schema_version=SCHEMA,
        fsync=settings["fsync"],
        full_page_writes=settings["full_page_writes"],
        # What the store asks for in each write, if it asks.
        synchronous_commit=(store._commit or settings["synchronous_commit"].encode()).decode(),  # noqa: SLF001  the same
        standbys=settings["standbys"],
        synchronous_standbys=settings["synchronous_standbys"],
        pooler=wire.pooled,
        hears=store._ears is not None,  # noqa: SLF001  the same
        wake_up=store.guarantees.wake_up,
        rows_live=table["live"],
        rows_dead=table["dead"],
        autovacuum=settings["autovacuum"] and table["autovacuum"],
        oldest_transaction=await ask(_OLDEST),
        connections=settings["connections"],
        connections_limit=settings["connections_limit"],
        pool=wire.config.pool,
        unseen=tuple(unseen),
        refusals=await try_verbs(store, colour.clock),
        trips=await time_trips(store),
        times=await times.finish(),
    )
