"""Judgements that every store shares: how fast, which clock, how much waits to be deleted."""

from __future__ import annotations

from collections.abc import Sequence

from leasehold.doctor.facts import Client, Contents, Refusal, Times, Trips, Unseen
from leasehold.doctor.findings import Check, Finding, check, finding

# A renewal that failed is tried again every twentieth of the ttl: slower than that, tries pile up.
TRIPS_A_TTL = 20
# What the end of trust, 0.9 ttl after the send, can bear.
CLOCK_RATE = 1.1
# Further apart, people who compare logs are misled.
CLOCKS_AGREE = 1.0
EXPIRED_MANY = 1000


def latency(trips: Trips, client: Client) -> Check:
    """Fast enough for the timeout and for the shortest ttl?"""
    seen = f"p50 {_ms(trips.p50)}, p99 {_ms(trips.p99)} in {trips.count} round trips"
    too_slow, slow = None, None
    if trips.p99 > client.timeout / 2:
        too_slow = finding(
            "latency-timeout",
            "round trips take more than half of the client's timeout: soon some will fail",
            f"p99 {_ms(trips.p99)}, timeout {client.timeout:g} s",
            "bring client and store closer together, relieve the store, or give connect() a longer timeout",
        )
    if trips.p99 > client.ttl / TRIPS_A_TTL:
        slow = finding(
            "latency-ttl",
            "round trips are too slow for the shortest ttl: a renewal has no time for a second try",
            f"p99 {_ms(trips.p99)}, ttl {client.ttl:g} s",
            f"use ttls of at least {TRIPS_A_TTL * trips.p99:.1f} s, or make the store answer faster",
        )
    return check("latency", seen, too_slow, slow)


def clocks(times: Times) -> Check:
    """Does the server's clock run like ours, and does it show the same time?"""
    low, high = times.rate - times.rate_error, times.rate + times.rate_error
    seen = f"{times.difference:+.3f} s against this machine, {times.rate:.3f} s pass there in one second here"
    rate, differs = None, None
    if low > CLOCK_RATE or high < 1 / CLOCK_RATE:
        rate = finding(
            "clock-rate",
            "the server's clock runs at another rate than ours, or was set meanwhile: "
            "leases can be freed while their holders still trust them",
            f"{times.rate:.3f} s pass there in one second here, {CLOCK_RATE} is tolerated",
            "let both machines slew their clocks by NTP (chrony, systemd-timesyncd) and never step them; "
            "look for a paused or overloaded virtual machine; ask again to see whether it lasts",
        )
    if abs(times.difference) - times.difference_error > CLOCKS_AGREE:
        differs = clock_differs(times.difference)
    return check("clock", seen, rate, differs)


def clock_differs(difference: float) -> Finding:
    """The wall clocks are so far apart that people are misled."""
    return finding(
        "clock-differs",
        "the wall clocks of server and client differ; no lease rests on that, but logs are hard to compare",
        f"{difference:+.1f} s",
        "let both machines keep their time by NTP",
    )


def contents(found: Contents) -> Check:
    """Do expired records pile up?"""
    seen = f"{found.records} records, {found.expired} of them expired"
    if found.expired <= max(EXPIRED_MANY, found.records - found.expired):
        return check("records", seen)
    return check(
        "records",
        seen,
        finding(
            "expired-records",
            "more expired records than live ones wait to be deleted; they cost space, not safety",
            seen,
            "run: leasehold gc. Many holders that crash instead of releasing are the usual cause",
        ),
    )


def verbs(refusals: Sequence[Refusal], missing: Sequence[str] = (), cure: str = "") -> Check:
    """Did the store do everything a client asks for, with a record made for the purpose?

    `missing` names the rights that are known to be missing, `cure` is what gives all of them;
    otherwise the store's own words say what to do.
    """
    denied = [each for each in refusals if each.denied]
    failed = [each for each in refusals if not each.denied]
    may_not, cannot = None, None
    if denied or missing:
        may_not = finding(
            "permission",
            "this user may not do everything that leases need",
            "; ".join(missing) or "; ".join(f"{each.verb}: {each.message}" for each in denied),
            "; ".join(f"grant {each}" for each in missing) or cure or denied[0].message,
        )
    if failed:
        cannot = finding(
            "verb-fails",
            "the store answers, but cannot do everything that leases need",
            ", ".join(each.verb for each in failed),
            failed[0].message,
        )
    seen = ", ".join(f"{each.verb} refused" for each in refusals) or "every verb works"
    return check("verbs", seen, may_not, cannot)


def unseen(things: Sequence[Unseen]) -> Check:
    """Was there something this user may not look at?"""
    return check(
        "examination",
        f"{len(things)} things could not be looked at" if things else "complete",
        *(
            finding(
                "not-examined",
                f"{each.what} could not be examined: the store does not show it to this user",
                each.what,
                f"run the doctor as a user with {each.needs}; the programs need no such right",
            )
            for each in things
        ),
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.2f} ms"
