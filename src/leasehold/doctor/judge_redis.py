"""Judgements about Redis and Valkey. In a Cluster each rule looks at every master."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from leasehold.doctor import judge_common as common
from leasehold.doctor.facts import Client, RedisFacts, RedisNode
from leasehold.doctor.findings import Check, Finding, check, finding
from leasehold.doctor.versions import REDIS, VALKEY, Bug, shown

SLOTS = 16384
NEARLY_FULL = 0.9


def judge(facts: RedisFacts, client: Client) -> list[Check]:
    """Everything there is to say about the servers."""
    nodes = facts.nodes
    return [
        _each("version", nodes, _version, *(partial(version, bug=bug) for bug in (*REDIS, *VALKEY))),
        common.latency(facts.trips, client),
        common.clocks(facts.times),
        common.verbs(facts.refusals, cure=f"as an administrator: ACL SETUSER {facts.user} {facts.rights}"),
        _each("persistence", nodes, _persistence, persistence, writing),
        _each("memory", nodes, _memory, eviction, volatile, memory),
        _each("replicas", nodes, _replicas, lambda node: unconfirmed(node, facts.confirmed_by), missing, cut_off),
        *([cluster(facts.slots)] if facts.slots is not None else []),
        _each("clients", nodes, _clients, lambda node: clients(node, facts.pool)),
        *([common.contents(facts.contents)] if facts.contents else []),
        common.unseen(facts.unseen),
    ]


def version(node: RedisNode, bug: Bug) -> Finding | None:
    """Does the version have a known fault?"""
    if node.software != bug.software or not bug.affects(node.version):
        return None
    return finding(bug.code, bug.what, _version(node), bug.cure(node.version))


def persistence(node: RedisNode) -> Finding | None:
    """What does the server still know after a crash, and after a power cut?"""
    cure = "in redis.conf, and with CONFIG SET: appendonly yes, appendfsync always"
    if not node.log and not node.snapshots and node.snapshots is not None:
        return finding(
            "redis-no-persistence",
            "a restart forgets every lease: the next client gets what another still holds. Tokens grow nevertheless, "
            "as long as the server's clock is not set back",
            "appendonly no, no snapshots",
            cure,
        )
    if not node.log:
        return finding(
            "redis-snapshots-only",
            "a crash forgets every lease since the last snapshot: the next client gets what another still holds",
            f"appendonly no, save {node.snapshots or 'unknown'}",
            cure,
        )
    if node.log_sync == "everysec":
        return finding(
            "redis-log-every-second",
            "a power cut can lose the leases of the last second or two; "
            "a crash of the server alone as a rule loses none",
            "appendfsync everysec",
            "set appendfsync always, or accept it where a machine that fails takes its clients along",
        )
    if node.log_sync == "no":
        return finding(
            "redis-log-not-synced",
            "a power cut can lose the leases of the last half minute; a crash of the server alone as a rule loses none",
            "appendfsync no",
            "set appendfsync always",
        )
    return None


def writing(node: RedisNode) -> Finding | None:
    """Does what should reach the disk reach it?"""
    if not node.writing_fails:
        return None
    return finding(
        "redis-writing-fails",
        "the server cannot write its data to disk, and may refuse every change until it can",
        ", ".join(node.writing_fails),
        "look into the server's log; usually the disk is full or the folder is not writable",
    )


def eviction(node: RedisNode) -> Finding | None:
    """Can the server throw leases away? They carry no ttl of Redis's own, so only policies for all keys can."""
    if not node.eviction.startswith("allkeys"):
        return None
    cure = "set maxmemory-policy noeviction, or give the leases a server of their own"
    if node.memory_limit:
        return finding(
            "redis-eviction",
            "when memory is full the server deletes leases that are held",
            f"maxmemory-policy {node.eviction}, maxmemory {_mib(node.memory_limit)}",
            cure,
        )
    return finding(
        "redis-eviction-ready",
        "as soon as somebody limits its memory the server may delete leases that are held",
        f"maxmemory-policy {node.eviction}, no maxmemory",
        cure,
    )


def volatile(node: RedisNode) -> Finding | None:
    """Does it throw other things away?"""
    if not node.eviction.startswith("volatile"):
        return None
    return finding(
        "redis-shared-with-a-cache",
        "the server deletes keys that have a ttl when memory is full. Leases have none and stay, "
        "but nothing is granted once they are all that is left to delete",
        f"maxmemory-policy {node.eviction}",
        "better a server of their own for leases, with maxmemory-policy noeviction",
    )


def memory(node: RedisNode) -> Finding | None:
    """Will writes soon be refused?"""
    if node.eviction.startswith("allkeys") or node.memory_used <= NEARLY_FULL * (node.memory_limit or float("inf")):
        return None
    return finding(
        "redis-memory-nearly-full",
        "memory is nearly used up; once it is, nothing is granted",
        f"{_mib(node.memory_used)} of {_mib(node.memory_limit)}",
        "raise maxmemory, or move other data away",
    )


def unconfirmed(node: RedisNode, confirmed_by: int) -> Finding | None:
    """Would a failover forget what was just granted?"""
    if not node.replicas or confirmed_by:
        return None
    return finding(
        "redis-replicas-unconfirmed",
        "replication is asynchronous: a failover can forget the last grants, and two clients hold the same lease",
        f"{node.replicas} replicas, no wait=",
        "add ?wait=1 (or more) to the URL: a grant then counts once so many replicas have it",
    )


def missing(node: RedisNode) -> Finding | None:
    """Does the server refuse writes for want of replicas?"""
    if not node.replicas_needed or node.replicas_good is None or node.replicas_good >= node.replicas_needed:
        return None
    return finding(
        "redis-replicas-missing",
        "the server takes no writes, because too few replicas are connected",
        f"min-replicas-to-write {node.replicas_needed}, {node.replicas_good} there",
        "bring the replicas back, or lower min-replicas-to-write",
    )


def cut_off(node: RedisNode) -> Finding | None:
    """Would a master that lost its replicas go on granting?"""
    if not node.replicas or node.replicas_needed != 0:
        return None
    return finding(
        "redis-cut-off-master",
        "a master that is cut off from its replicas goes on granting while one of them takes over",
        "min-replicas-to-write 0",
        "set min-replicas-to-write 1, with min-replicas-max-lag below your shortest ttl",
    )


def cluster(slots: int) -> Check:
    """Does a server answer for every key?"""
    seen = f"{slots} of {SLOTS} slots served"
    if slots == SLOTS:
        return check("cluster", seen)
    return check(
        "cluster",
        seen,
        finding(
            "redis-cluster-slots",
            "no server answers for some of the slots. They hold no leases, or the store would not have opened; "
            "but with cluster-require-full-coverage yes the whole Cluster would refuse every request",
            seen,
            "see redis-cli --cluster check; bring the missing master back, or run redis-cli --cluster fix",
        ),
    )


def clients(node: RedisNode, pool: int) -> Finding | None:
    """Is there room for one more program?"""
    if node.clients_limit is None or node.clients + pool <= node.clients_limit:
        return None
    return finding(
        "redis-clients-nearly-full",
        "one more program with a full pool would find no connection left",
        f"{node.clients} of {node.clients_limit} connections in use, a pool has {pool}",
        "raise maxclients, or lower ?pool= in the URLs",
    )


def _version(node: RedisNode) -> str:
    return f"{node.software} {shown(node.version)}"


def _persistence(node: RedisNode) -> str:
    log = f"log synced {node.log_sync or 'unknown'}" if node.log else "no log"
    return f"{log}, snapshots {'unknown' if node.snapshots is None else node.snapshots or 'off'}"


def _memory(node: RedisNode) -> str:
    limit = _mib(node.memory_limit) if node.memory_limit else "unlimited memory"
    return f"{_mib(node.memory_used)} of {limit}, {node.eviction}"


def _replicas(node: RedisNode) -> str:
    return f"{node.replicas}, {'unknown' if node.replicas_needed is None else node.replicas_needed} needed for a write"


def _clients(node: RedisNode) -> str:
    return f"{node.clients} of {'unknown' if node.clients_limit is None else node.clients_limit} connections in use"


def _mib(size: int) -> str:
    return f"{size / 1024 / 1024:.1f} MiB"


def _each(
    name: str,
    nodes: Sequence[RedisNode],
    describe: Callable[[RedisNode], str],
    *rules: Callable[[RedisNode], Finding | None],
) -> Check:
    """One check over all nodes. What is alike is told once; of several servers, what is found names its own."""
    seen = list(dict.fromkeys(describe(node) for node in nodes))
    found: dict[Finding, list[str]] = {}
    for node in nodes:
        for rule in rules:
            if each := rule(node):
                found.setdefault(each, []).append(node.address)
    if len(nodes) == 1:
        return check(name, seen[0], *found)
    named = (finding(each.code, each.what, f"{', '.join(at)}: {each.value}", each.remedy) for each, at in found.items())
    return check(name, " | ".join(seen), *named)
