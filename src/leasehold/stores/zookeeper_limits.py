"""What ZooKeeper promises, and the limits that its servers set."""

from __future__ import annotations

from leasehold.model import Guarantees

# A packet is 1,048,575 bytes at most, unless the server was told otherwise; names and header go along.
VALUE_MAX = 1_000_000
DAY = 86_400.0
# Before any server was asked: what a ttl may be at all.
ANY_LIMITS = (0.1, DAY)


def guarantees_of(shortest: float, longest: float) -> Guarantees:
    return Guarantees(
        store="zookeeper",
        clock="the leader's monotonic clock ends sessions and with them leases; its wall clock only what outlasts them",
        persistence="every change is on the disks of a majority before it is answered, unless forceSync=no",
        failover="a new leader gives every session its whole timeout again: leases may end later, never earlier",
        token_source="the zxid of the granting write, which grows for the whole ensemble",  # noqa: S106  no password
        wake_up="watch",
        ttl_min=shortest,
        ttl_max=min(longest, DAY),
        ttl_step=1.0,
        batch=500,
        value_max=VALUE_MAX,
        left_is_bound=True,
        unrenewed_max=DAY,
    )
