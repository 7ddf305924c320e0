"""Judgements about an etcd cluster. Each rule looks at every member the URL names."""

from __future__ import annotations

from leasehold.doctor import judge_common as common
from leasehold.doctor.facts import Client, EtcdFacts
from leasehold.doctor.findings import Check, Finding, check, finding
from leasehold.doctor.versions import ETCD, Bug, shown

# As long as the heartbeat between members, as packaged: slower disks cost leaders their office.
SLOW_SYNC = 0.1
NEARLY_FULL = 0.9
LEAST_VOTERS = 3


def judge(facts: EtcdFacts, client: Client) -> list[Check]:
    """Everything there is to say about the cluster."""
    return [
        check("version", _versions(facts), *(version(facts, bug) for bug in ETCD)),
        common.latency(facts.trips, client),
        clock(facts),
        common.verbs(facts.refusals),
        check("members", _members(facts), down(facts), single(facts), unnamed(facts)),
        check("disk", _disks(facts), slow(facts)),
        check("space", _space(facts), alarm(facts), nearly_full(facts)),
        access(facts),
        common.contents(facts.contents),
        common.unseen(facts.unseen),
    ]


def version(facts: EtcdFacts, bug: Bug) -> Finding | None:
    """Does a member's version have a known fault?"""
    ill = [one for one in facts.members if one.version is not None and bug.affects(one.version)]
    if not ill:
        return None
    oldest = min(one.version for one in ill if one.version is not None)
    return finding(bug.code, bug.what, f"etcd {shown(oldest)}", bug.cure(oldest))


def clock(facts: EtcdFacts) -> Check:
    """Do the wall clocks agree? Leases rest on the leader's monotonic clock, which nobody shows."""
    seen = f"{facts.difference:+.1f} s against this machine, give or take {facts.difference_error:.1f} s"
    if abs(facts.difference) - facts.difference_error <= common.CLOCKS_AGREE:
        return check("clock", seen)
    return check("clock", seen, common.clock_differs(facts.difference))


def down(facts: EtcdFacts) -> Finding | None:
    """Does everybody answer?"""
    missing = [one.address for one in facts.members if one.version is None]
    if not missing:
        return None
    return finding(
        "etcd-member-down",
        "a member does not answer: with one more lost there may be no majority, and nothing is granted",
        ", ".join(missing),
        "bring it back, or remove it from the cluster and from the URL",
    )


def single(facts: EtcdFacts) -> Finding | None:
    """Does one machine decide about everything?"""
    if facts.voters is None or facts.voters >= LEAST_VOTERS:
        return None
    return finding(
        "etcd-single-member",
        "while a member is down nothing is granted and nothing renewed",
        f"{facts.voters} members",
        "nothing, if that is meant; a cluster of three survives the loss of one",
    )


def unnamed(facts: EtcdFacts) -> Finding | None:
    """Can a client go elsewhere when a member is lost?"""
    if facts.voters is None or facts.voters < LEAST_VOTERS or len(facts.members) > 1:
        return None
    return finding(
        "etcd-members-unnamed",
        "the URL names one member of several: when that one is lost this client has nobody to ask",
        f"1 of {facts.voters} members",
        "name all of them in the URL: etcd://h1:2379,h2:2379,h3:2379",
    )


def slow(facts: EtcdFacts) -> Finding | None:
    """Do the disks keep up?"""
    ill = {one.address: one.sync_p99 for one in facts.members if one.sync_p99 is not None and one.sync_p99 > SLOW_SYNC}
    if not ill:
        return None
    return finding(
        "etcd-slow-disk",
        "writing the log takes as long as the members wait for each other: leaders are replaced, grants take seconds",
        ", ".join(f"{at}: p99 up to {seconds:g} s" for at, seconds in ill.items()),
        "give etcd a disk of its own, an SSD; see etcd_disk_wal_fsync_duration_seconds",
    )


def alarm(facts: EtcdFacts) -> Finding | None:
    """Has etcd stopped taking writes?"""
    troubles = sorted({each for one in facts.members for each in one.troubles})
    if not troubles:
        return None
    return finding(
        "etcd-alarm",
        "etcd itself raises an alarm: with NOSPACE nothing new is granted, with CORRUPT its members disagree",
        "; ".join(troubles),
        "NOSPACE: compact, defragment, then `etcdctl alarm disarm`; CORRUPT: replace the member that differs",
    )


def nearly_full(facts: EtcdFacts) -> Finding | None:
    """Will it soon?"""
    ill = [one for one in facts.members if one.quota and one.bytes > NEARLY_FULL * one.quota]
    if not ill:
        return None
    return finding(
        "etcd-space-nearly-full",
        "the database has nearly grown to its quota; beyond it nothing new is granted",
        ", ".join(f"{one.address}: {_mib(one.bytes)} of {_mib(one.quota or 0)}" for one in ill),
        "compact and defragment, turn on --auto-compaction-retention, or raise --quota-backend-bytes",
    )


def access(facts: EtcdFacts) -> Check:
    """Must one prove who one is?"""
    seen = "users or certificates" if facts.guarded else "open to everybody"
    if facts.guarded:
        return check("access", seen)
    return check(
        "access",
        seen,
        finding(
            "etcd-open",
            "whoever reaches the members may read, take and free every lease",
            "authentication is off, and this client showed no certificate",
            "`etcdctl auth enable`, with a user who may read and write the prefix of its keys; or client certificates",
        ),
    )


def _versions(facts: EtcdFacts) -> str:
    versions = sorted({one.version for one in facts.members if one.version is not None})
    return f"etcd {', '.join(map(shown, versions))}"


def _members(facts: EtcdFacts) -> str:
    alive = [one for one in facts.members if one.version is not None]
    leader = next((one.address for one in alive if one.leads), "none of them")
    return (
        f"{len(alive)} of {len(facts.members)} named answer, {leader} leads, {facts.voters or 'unknown'} in the cluster"
    )


def _disks(facts: EtcdFacts) -> str:
    known = [one.sync_p99 for one in facts.members if one.sync_p99 is not None]
    return f"p99 of a sync at most {max(known):g} s" if known else "unknown"


def _space(facts: EtcdFacts) -> str:
    quotas = [one.quota for one in facts.members if one.quota]
    return f"{_mib(max(one.bytes for one in facts.members))} of {_mib(min(quotas)) if quotas else 'unknown'}"


def _mib(size: int) -> str:
    return f"{size / 1024 / 1024:.1f} MiB"
