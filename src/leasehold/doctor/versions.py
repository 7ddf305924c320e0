"""Which versions of the servers have a fault that matters to leases, and where it was mended.

From the projects' release notes and, for PostgreSQL's NOTIFY, from the date of the
commit. Distributions mend older versions without changing the number, so a version
alone is no proof.
"""

from __future__ import annotations

import msgspec

Version = tuple[int, ...]


class Bug(msgspec.Struct, frozen=True):
    """A fault, and the first version without it of each branch that was mended.

    A branch older than the newest mended one that does not stand here was never
    mended; a newer one never had the fault.
    """

    code: str
    software: str
    what: str
    since: Version
    mended: tuple[Version, ...]
    branch: int
    """How many leading numbers name a branch."""

    def affects(self, version: Version) -> bool:
        """Whether a version has it, as far as its number tells."""
        if version < self.since:
            return False
        branches = {mended[: self.branch]: mended for mended in self.mended}
        mine = version[: self.branch]
        return version < branches[mine] if mine in branches else mine < max(branches)

    def cure(self, version: Version) -> str:
        """What to do about it: the nearest version without it."""
        nearest = min(mended for mended in self.mended if mended > version)
        return f"update to {self.software} {shown(nearest)} or newer"


LUA = (
    "whoever may run scripts, as every user of Leasehold must, can take over the server (CVE-2025-49844 in Lua), "
    "unless your distribution has mended it without changing the number"
)
REDIS = (
    Bug(
        "redis-replication-bug",
        "Redis",
        "replicas of replicas can be left with other data than their master",
        since=(6, 0, 0),
        mended=((6, 0, 4),),
        branch=2,
    ),
    Bug(
        "redis-lua-bug",
        "Redis",
        LUA,
        since=(2, 6, 0),
        mended=((6, 2, 20), (7, 2, 11), (7, 4, 6), (8, 0, 4), (8, 2, 2)),
        branch=2,
    ),
)
VALKEY = (Bug("redis-lua-bug", "Valkey", LUA, since=(7, 2, 0), mended=((7, 2, 11), (8, 0, 6), (8, 1, 4)), branch=2),)
POSTGRES = (
    Bug(
        "postgres-index-bug",
        "PostgreSQL",
        "CREATE INDEX and REINDEX with CONCURRENTLY can leave rows out of an index: a held lease would look free",
        since=(14, 0),
        mended=((14, 4),),
        branch=1,
    ),
    Bug(
        "postgres-notify-bug",
        "PostgreSQL",
        "LISTEN can fail after VACUUM removed what it still needs (could not access status of transaction); "
        "waiters then poll instead of being woken",
        since=(9, 0),
        mended=((14, 21), (15, 16), (16, 12), (17, 8), (18, 2)),
        branch=1,
    ),
)
ZOOKEEPER = (
    Bug(
        "zookeeper-sync-bug",
        "ZooKeeper",
        "a follower that crashes right after it caught up with its leader can forget what was answered "
        "(ZOOKEEPER-4785), and with it a lease that is held",
        since=(3, 5, 3),
        mended=((3, 9, 2),),
        branch=2,
    ),
    Bug(
        "zookeeper-gap-bug",
        "ZooKeeper",
        "a server that fell behind hands on a log with a gap once it leads (ZOOKEEPER-4925): leases that are held, "
        "and tokens that were given, are forgotten",
        since=(3, 9, 3),
        mended=((3, 9, 4),),
        branch=2,
    ),
)
ETCD = (
    Bug(
        "etcd-early-revocation",
        "etcd",
        "a leader that was paused or whose disk stood still, and that was replaced meanwhile, can end leases that "
        "others renewed: the next client gets what another still holds",
        since=(3, 0, 0),
        mended=((3, 4, 31), (3, 5, 13)),
        branch=2,
    ),
    Bug(
        "etcd-stale-reads",
        "etcd",
        "a member that was paused can answer reads from the past. Leasehold does not rely on such reads: it confirms "
        "what it reads through the members' log; other programs on this cluster may",
        since=(3, 4, 20),
        mended=((3, 4, 42), (3, 5, 28), (3, 6, 9)),
        branch=2,
    ),
    Bug(
        "etcd-lease-rights",
        "etcd",
        "whoever reaches the members can end other people's leases, users or not (CVE-2026-33413), "
        "unless your distribution has mended it without changing the number",
        since=(3, 0, 0),
        mended=((3, 4, 42), (3, 5, 28), (3, 6, 9)),
        branch=2,
    ),
)


def shown(version: Version) -> str:
    """A version as people write it."""
    return ".".join(map(str, version))
