"""Judgements about a PostgreSQL database."""

from __future__ import annotations

from leasehold.doctor import judge_common as common
from leasehold.doctor.facts import Client, PostgresFacts
from leasehold.doctor.findings import Check, check, finding
from leasehold.doctor.versions import POSTGRES, shown

DEAD_MANY = 10_000
DEAD_TO_LIVE = 5
# Renewals leave dead rows all the time; a transaction this old keeps them all.
TRANSACTION_OLD = 300.0


def judge(facts: PostgresFacts, client: Client) -> list[Check]:
    """Everything there is to say about the database."""
    return [
        version(facts),
        common.latency(facts.trips, client),
        common.clocks(facts.times),
        common.verbs(facts.refusals, facts.missing),
        check("schema", f"{facts.schema}, version {facts.schema_version}"),
        persistence(facts),
        standbys(facts),
        waking(facts),
        bloat(facts),
        transactions(facts),
        connections(facts),
        *([common.contents(facts.contents)] if facts.contents else []),
        common.unseen(facts.unseen),
    ]


def version(facts: PostgresFacts) -> Check:
    """A version with known faults?"""
    seen = f"PostgreSQL {shown(facts.version)}"
    return check(
        "version",
        seen,
        *(finding(bug.code, bug.what, seen, bug.cure(facts.version)) for bug in POSTGRES if bug.affects(facts.version)),
    )


def persistence(facts: PostgresFacts) -> Check:
    """Is a grant on disk before it is told, and does the disk survive a power cut?"""
    seen = (
        f"fsync {_on(facts.fsync)}, synchronous_commit {facts.synchronous_commit}, "
        f"full_page_writes {_on(facts.full_page_writes)}"
    )
    fsync, commits, pages = None, None, None
    if not facts.fsync:
        fsync = finding(
            "postgres-fsync-off",
            "a power cut can destroy the whole database, leases and all",
            "fsync off",
            "ALTER SYSTEM SET fsync = on; SELECT pg_reload_conf()",
        )
    if facts.synchronous_commit == "off":
        commits = finding(
            "postgres-commits-lost",
            "a crash of the server forgets the last grants: the next client gets what another still holds",
            "synchronous_commit off",
            "leave synchronous_commit=off out of the URL",
        )
    if not facts.full_page_writes:
        pages = finding(
            "postgres-full-page-writes-off",
            "a power cut can leave half-written pages, unless the file system prevents it",
            "full_page_writes off",
            "ALTER SYSTEM SET full_page_writes = on; SELECT pg_reload_conf()",
        )
    return check("persistence", seen, fsync, commits, pages)


def standbys(facts: PostgresFacts) -> Check:
    """Would a failover forget what was just granted?"""
    seen = f"{facts.standbys} connected, synchronous: {facts.synchronous_standbys or 'none'}"
    waits = facts.synchronous_standbys and facts.synchronous_commit not in {"off", "local"}
    if not facts.standbys or waits:
        return check("standbys", seen)
    return check(
        "standbys",
        seen,
        finding(
            "postgres-standbys-unconfirmed",
            "replication is asynchronous: a failover can forget the last grants, and two clients hold the same lease",
            seen,
            "name a standby in synchronous_standby_names, or never fail over to one without fencing",
        ),
    )


def waking(facts: PostgresFacts) -> Check:
    """Is there a pooler between us, and can waiters be woken through it?"""
    seen = f"{'one in front of the server' if facts.pooler else 'none'}; a waiter is woken by {facts.wake_up}"
    if not facts.pooler or facts.hears:
        return check("pooler", seen)
    return check(
        "pooler",
        seen,
        finding(
            "postgres-pooler",
            "waiters look again and again, because they cannot be woken through the pooler in front of the server",
            facts.wake_up,
            "nothing, if that is quick enough for you; else connect past the pooler, or to one in session mode",
        ),
    )


def bloat(facts: PostgresFacts) -> Check:
    """Are dead rows cleared away?"""
    seen = f"{facts.rows_dead} dead rows, {facts.rows_live} live; autovacuum {_on(facts.autovacuum)}"
    many, off = None, None
    if is_bloated(facts.rows_dead, facts.rows_live):
        many = finding(
            "postgres-bloat",
            "the table of leases is mostly dead rows; every call reads through them",
            f"{facts.rows_dead} dead rows, {facts.rows_live} live",
            f"VACUUM {facts.schema}.leases; then see why autovacuum did not: it is off, or an old transaction is open",
        )
    if not facts.autovacuum:
        off = finding(
            "postgres-autovacuum-off",
            "nothing clears the dead rows away that renewals leave: the table grows without end",
            "autovacuum off",
            "turn autovacuum on, for the server and for the table of leases",
        )
    return check("bloat", seen, many, off)


def is_bloated(dead: int, live: int) -> bool:
    """Whether dead rows are many, and many more than live ones."""
    return dead > max(DEAD_MANY, DEAD_TO_LIVE * live)


def transactions(facts: PostgresFacts) -> Check:
    """Does somebody keep old rows from being cleared away?"""
    age = facts.oldest_transaction
    seen = "none is open" if age is None else f"the oldest is {age:.0f} s old"
    if age is None or age <= TRANSACTION_OLD:
        return check("transactions", seen)
    return check(
        "transactions",
        seen,
        finding(
            "postgres-long-transaction",
            "a transaction has been open for long; until it ends no dead row of the database can be cleared away",
            f"{age:.0f} s",
            "see pg_stat_activity for who it is; end it with pg_terminate_backend, "
            "and set idle_in_transaction_session_timeout",
        ),
    )


def connections(facts: PostgresFacts) -> Check:
    """Is there room for one more program?"""
    seen = f"{facts.connections} of {facts.connections_limit} in use"
    if facts.connections + facts.pool <= facts.connections_limit:
        return check("connections", seen)
    return check(
        "connections",
        seen,
        finding(
            "postgres-connections-nearly-full",
            "one more program with a full pool would find no connection left",
            f"{seen}, a pool has {facts.pool}",
            "raise max_connections (or the role's limit), lower ?pool= in the URLs, or put a pooler in front",
        ),
    )


def _on(value: bool) -> str:  # noqa: FBT001  a word for a value
    return "on" if value else "off"
