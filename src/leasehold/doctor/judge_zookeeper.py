"""Judgements about a ZooKeeper ensemble."""

from __future__ import annotations

from leasehold.doctor import judge_common as common
from leasehold.doctor.facts import Client, ZooKeeperFacts
from leasehold.doctor.findings import Check, Finding, check, finding
from leasehold.doctor.versions import ZOOKEEPER, shown

NEARLY_FULL = 0.8
SERVES = {"leader", "follower", "observer", "standalone"}


def judge(facts: ZooKeeperFacts, client: Client) -> list[Check]:
    """Everything there is to say about the servers."""
    return [
        version(facts),
        common.latency(facts.trips, client),
        common.clocks(facts.times),
        common.verbs(
            facts.refusals, cure="log in as the user who made the nodes, or let an administrator set their ACL"
        ),
        quorum(facts),
        sessions(facts, client),
        connections(facts),
        acl(facts),
        *([common.contents(facts.contents)] if facts.contents else []),
        common.unseen(facts.unseen),
    ]


def version(facts: ZooKeeperFacts) -> Check:
    """Does a version have a known fault?"""
    versions = sorted({each.version for each in facts.servers if each.version is not None})
    found: dict[str, Finding] = {}
    for number in versions:
        for bug in ZOOKEEPER:
            if bug.affects(number):
                found[bug.code] = finding(bug.code, bug.what, f"ZooKeeper {shown(number)}", bug.cure(number))
    return check("version", ", ".join(map(shown, versions)) or "unknown", *found.values())


def quorum(facts: ZooKeeperFacts) -> Check:
    """Does every server that the URL names serve?"""
    missing = [each.address for each in facts.servers if each.mode not in SERVES]
    seen = ", ".join(f"{each.address} {each.mode or 'does not serve'}" for each in facts.servers)
    if not missing:
        return check("quorum", seen)
    return check(
        "quorum",
        seen,
        finding(
            "zookeeper-server-missing",
            "a server that the URL names does not serve: the next one to fail may cost the majority, and with it all "
            "renewals",
            ", ".join(missing),
            "bring it back, or take it out of the URL; a server that reads only has lost the others",
        ),
    )


def sessions(facts: ZooKeeperFacts, client: Client) -> Check:
    """Can a session last as long as the shortest ttl?"""
    seen = f"sessions of {facts.shortest:g} to {facts.longest:g} s"
    if facts.shortest <= client.ttl <= facts.longest:
        return check("sessions", seen)
    return check(
        "sessions",
        seen,
        finding(
            "zookeeper-ttl-refused",
            "the servers grant no session as short or as long as this ttl: such a lease is refused",
            f"ttl {client.ttl:g} s, {seen}",
            "choose a ttl between, or set minSessionTimeout and maxSessionTimeout on every server",
        ),
    )


def connections(facts: ZooKeeperFacts) -> Check:
    """Will the servers take one more client from the same address?"""
    known = [each for each in facts.servers if each.limit]
    full = [each for each in known if each.connections > NEARLY_FULL * (each.limit or 0)]
    seen = ", ".join(f"{each.connections} of {each.limit} from one address at {each.address}" for each in known)
    if not full:
        return check("connections", seen or "no limit seen")
    return check(
        "connections",
        seen,
        finding(
            "zookeeper-connections-nearly-full",
            "one address has nearly as many connections as it may have; beyond that, new clients are hung up on",
            ", ".join(f"{each.address}: {each.connections} of {each.limit}" for each in full),
            "raise maxClientCnxns on every server; a client has one connection and one more for each ttl it uses",
        ),
    )


def acl(facts: ZooKeeperFacts) -> Check:
    """May anybody take or free any lease?"""
    if not facts.open_to_all:
        return check("acl", "our nodes are closed to others")
    return check(
        "acl",
        "our nodes are open to everybody",
        finding(
            "zookeeper-world-writable",
            "everybody who reaches a server can take, free or forge any lease",
            "world:anyone may change /leasehold",
            "put user and password into the URL of all clients, and begin with a fresh chroot or set the ACL of "
            "/leasehold and all below",
        ),
    )
