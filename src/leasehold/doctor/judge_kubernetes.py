"""Judgements about Leases in Kubernetes."""

from __future__ import annotations

from leasehold.doctor import judge_common as common
from leasehold.doctor.facts import Client, KubernetesFacts
from leasehold.doctor.findings import Check, check, finding
from leasehold.doctor.versions import shown
from leasehold.rules.kubernetes_names import NAME_MAX
from leasehold.rules.kubernetes_roles import ELECTIONS, LOCKS, WAKE_UP

OLDEST = (1, 20)
ORDERED = (1, 35)
# Each is renewed three times a ttl, one write each: from here on that is worth a thought.
MANY_LEASES = 1000


def judge(facts: KubernetesFacts, client: Client) -> list[Check]:
    """Everything there is to say about the server and the namespace."""
    return [
        version(facts),
        *([common.latency(facts.trips, client)] if facts.trips else []),
        clock(facts),
        rights(facts),
        common.verbs([each for each in facts.refusals if not each.denied]),
        *([common.contents(facts.contents), leases(facts, client)] if facts.contents else []),
        names(facts),
        common.unseen(facts.unseen),
    ]


def version(facts: KubernetesFacts) -> Check:
    """Is it one we know, and does it promise that its revisions grow?"""
    old, unordered = None, None
    if facts.version is not None and facts.version < OLDEST:
        old = finding(
            "kubernetes-old",
            f"Leasehold is tested with Kubernetes {shown(OLDEST)} and newer",
            facts.version_text,
            "update the cluster",
        )
    elif facts.version is not None and facts.version < ORDERED:
        unordered = finding(
            "kubernetes-revisions",
            f"that resourceVersions grow, of which tokens are made, is promised from Kubernetes {shown(ORDERED)} on; "
            "before that it is so wherever etcd keeps the objects",
            facts.version_text,
            "nothing, if this is a usual cluster; after a restore of etcd from a backup use --bump-revision",
        )
    return check("version", f"Kubernetes {facts.version_text or 'of unknown version'}", old, unordered)


def clock(facts: KubernetesFacts) -> Check:
    """Do the wall clocks agree, as far as anything rests on them?"""
    apart = abs(facts.difference) - facts.difference_error
    seen = f"{facts.difference:+.1f} s against this machine, give or take {facts.difference_error:.1f} s"
    if facts.newcomers:
        seen += f"; {facts.newcomers}"
    if facts.max_skew is not None and apart > facts.max_skew:
        return check(
            "clock",
            seen,
            finding(
                "kubernetes-skew",
                "the wall clocks differ by more than max_skew allows: "
                "a lease can be taken over while its holder still trusts it",
                f"{facts.difference:+.1f} s, max_skew={facts.max_skew:g}",
                "let all machines keep their time by NTP, or leave max_skew out of the URL",
            ),
        )
    if apart <= common.CLOCKS_AGREE:
        return check("clock", seen)
    return check("clock", seen, common.clock_differs(facts.difference))


def rights(facts: KubernetesFacts) -> Check:
    """Does RBAC allow what is needed?"""
    denied = [each for each in facts.refusals if each.denied]
    locks = [verb for verb in LOCKS if verb in facts.lacking]
    cure = f"leasehold manifests rbac --namespace {facts.namespace} --service-account … | kubectl apply -f -"
    place = f"leases in the namespace {facts.namespace}"
    may_not, no_watch, no_election = None, None, None
    if locks or denied:
        may_not = finding(
            "permission",
            "this user may not do everything that leases need; elections in Leases made beforehand need less",
            f"{', '.join(locks)} of {place}" if locks else "; ".join(f"{each.verb}: {each.message}" for each in denied),
            cure,
        )
    if set(WAKE_UP) & set(facts.lacking):
        no_watch = finding(
            "kubernetes-no-watch",
            "this user may not watch, so whoever waits asks again and again, every half second to five seconds",
            f"{', '.join(WAKE_UP)} of {place}",
            cure,
        )
    if set(ELECTIONS) & set(facts.lacking):
        no_election = finding(
            "kubernetes-no-election",
            "this user may not update: locks do not need it, elections do",
            f"{', '.join(ELECTIONS)} of {place}",
            f"nothing, if nobody uses Election; else {cure}",
        )
    seen = f"{', '.join(facts.lacking) or 'nothing'} of {place} is missing"
    return check("rights", seen, may_not, no_watch, no_election)


def leases(facts: KubernetesFacts, client: Client) -> Check:
    """Are there so many that their renewals are a load?"""
    live = facts.contents.records - facts.contents.expired if facts.contents else 0
    seen = f"{live} live Leases"
    if live <= MANY_LEASES:
        return check("leases", seen)
    return check(
        "leases",
        seen,
        finding(
            "kubernetes-many-leases",
            "every lease is an object of its own, and every renewal a write to etcd",
            f"{seen}, about {3 * live / client.ttl:.0f} writes a second if all have a ttl of {client.ttl:g} s",
            "longer ttls, or another store for short locks; see how the API server bears it",
        ),
    )


def names(facts: KubernetesFacts) -> Check:
    """Did keys have to be cut to fit into a name?"""
    seen = f"{facts.names_cut} at the limit of {NAME_MAX} characters"
    if not facts.names_cut:
        return check("names", seen)
    return check(
        "names",
        seen,
        finding(
            "kubernetes-names-cut",
            "some keys are too long for a name of Kubernetes: kubectl shows their beginning and a hash",
            seen,
            "shorter prefixes and keys; `leasehold ls` shows every key whole",
        ),
    )
