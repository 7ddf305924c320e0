"""What the doctor can say, and how grave it is. Every code stands in `CATALOGUE`, and nowhere else.

A note is good to know. A warning can cost exclusion, tokens or service after
something rare: a power cut, a failover, growth. An error does after something
ordinary, such as a crash of the server, or already has.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import msgspec


class Severity(IntEnum):
    """How grave a finding is; the greater the graver."""

    NOTE = 1
    WARNING = 2
    ERROR = 3


NOTE, WARNING, ERROR = Severity.NOTE, Severity.WARNING, Severity.ERROR

CATALOGUE: Final[dict[str, Severity]] = {
    # every store
    "permission": ERROR,
    "verb-fails": ERROR,
    "latency-timeout": ERROR,
    "latency-ttl": WARNING,
    "clock-rate": ERROR,
    "clock-differs": NOTE,
    "expired-records": NOTE,
    "not-examined": NOTE,
    # SQLite
    "sqlite-memory-file-system": NOTE,
    "sqlite-synchronous-normal": NOTE,
    "sqlite-damaged": ERROR,
    "sqlite-log-large": WARNING,
    "sqlite-free-space": NOTE,
    "sqlite-world-writable": WARNING,
    # Redis
    "redis-replication-bug": WARNING,
    "redis-lua-bug": NOTE,
    "redis-no-persistence": ERROR,
    "redis-snapshots-only": ERROR,
    "redis-log-every-second": WARNING,
    "redis-log-not-synced": WARNING,
    "redis-writing-fails": ERROR,
    "redis-eviction": ERROR,
    "redis-eviction-ready": WARNING,
    "redis-shared-with-a-cache": NOTE,
    "redis-memory-nearly-full": WARNING,
    "redis-replicas-unconfirmed": WARNING,
    "redis-replicas-missing": ERROR,
    "redis-cut-off-master": NOTE,
    "redis-cluster-slots": WARNING,
    "redis-clients-nearly-full": WARNING,
    # PostgreSQL
    "postgres-index-bug": WARNING,
    "postgres-notify-bug": NOTE,
    "postgres-fsync-off": ERROR,
    "postgres-commits-lost": ERROR,
    "postgres-full-page-writes-off": WARNING,
    "postgres-standbys-unconfirmed": WARNING,
    "postgres-pooler": NOTE,
    "postgres-bloat": WARNING,
    "postgres-autovacuum-off": WARNING,
    "postgres-long-transaction": WARNING,
    "postgres-connections-nearly-full": WARNING,
    # Kubernetes
    "kubernetes-old": WARNING,
    "kubernetes-revisions": NOTE,
    "kubernetes-skew": ERROR,
    "kubernetes-no-watch": NOTE,
    "kubernetes-no-election": NOTE,
    "kubernetes-many-leases": NOTE,
    "kubernetes-names-cut": NOTE,
    # ZooKeeper
    "zookeeper-sync-bug": WARNING,
    "zookeeper-gap-bug": ERROR,
    "zookeeper-server-missing": WARNING,
    "zookeeper-ttl-refused": ERROR,
    "zookeeper-connections-nearly-full": WARNING,
    "zookeeper-world-writable": WARNING,
    # etcd
    "etcd-early-revocation": WARNING,
    "etcd-stale-reads": NOTE,
    "etcd-lease-rights": WARNING,
    "etcd-member-down": WARNING,
    "etcd-single-member": NOTE,
    "etcd-members-unnamed": WARNING,
    "etcd-slow-disk": WARNING,
    "etcd-alarm": ERROR,
    "etcd-space-nearly-full": WARNING,
    "etcd-open": WARNING,
}


class Finding(msgspec.Struct, frozen=True):
    """One thing that is not as it should be: what, the value it was seen by, and what to do."""

    code: str
    severity: Severity
    what: str
    value: str
    remedy: str


class Check(msgspec.Struct, frozen=True):
    """One thing that was looked at, what was seen, and what was found; nothing found is healthy."""

    name: str
    value: str
    findings: tuple[Finding, ...] = ()


def finding(code: str, what: str, value: str, remedy: str) -> Finding:
    """A finding with the severity its code has."""
    return Finding(code, CATALOGUE[code], what, value, remedy)


def check(name: str, value: str, *found: Finding | None) -> Check:
    """A check and those of its possible findings that came true."""
    return Check(name, value, tuple(each for each in found if each is not None))
