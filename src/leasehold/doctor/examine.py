"""From a URL to a report: open the store, gather, judge."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from leasehold.doctor.facts import Client
from leasehold.doctor.findings import Check, Finding, Severity, check
from leasehold.engine.blocking import BlockingRuntime, drive
from leasehold.rules.timing import DEFAULT_TTL, TIMEOUT_MAX, granted_ttl, seconds
from leasehold.stores.base import Store
from leasehold.stores.open import open_store
from leasehold.wires.clock import Clock, system_clock
from leasehold.wires.colour import Colour


class Report(msgspec.Struct, frozen=True):
    """What was looked at, what was found, and the facts behind it (None where there is nothing to examine)."""

    store: str
    checks: tuple[Check, ...]
    facts: msgspec.Struct | None

    @property
    def findings(self) -> list[Finding]:
        """All findings, the gravest first."""
        found = [each for check in self.checks for each in check.findings]
        return sorted(found, key=lambda each: -each.severity)

    @property
    def severity(self) -> Severity | None:
        """That of the gravest finding; None for a healthy store."""
        return max((each.severity for each in self.findings), default=None)


def examine(url: str, *, timeout: float = 5.0, ttl: float = DEFAULT_TTL, clock: Clock | None = None) -> Report:
    """Examine the store a URL names, as a client with this timeout and this shortest ttl would use it.

    Blocks. Raises the errors of `connect()` where the store cannot be reached at all.
    """
    patience = seconds("timeout", timeout, 0.01, TIMEOUT_MAX)
    runtime = BlockingRuntime(clock or system_clock())
    store = open_store(url, timeout=patience, colour=runtime)
    return drive(_examine(store, Client(patience, granted_ttl(ttl, store.guarantees)), runtime))


async def _examine(store: Store, client: Client, colour: Colour) -> Report:
    kind = store.guarantees.store
    if kind not in DOCTORS:
        return Report(kind, (check("store", "lives inside one process: there is nothing to examine"),), None)
    await store.open()
    try:
        facts, checks = await DOCTORS[kind](store, client, colour)
    finally:
        await store.close()
    return Report(kind, tuple(checks), facts)


Doctor = Callable[[Any, Client, Colour], Awaitable[tuple[msgspec.Struct, list[Check]]]]


async def _sqlite(store: Any, client: Client, colour: Colour) -> tuple[msgspec.Struct, list[Check]]:
    from leasehold.doctor import gather_sqlite, judge_sqlite  # noqa: PLC0415  brings apsw along; others have none

    facts = await gather_sqlite.gather(store, colour)
    return facts, judge_sqlite.judge(facts, client)


async def _redis(store: Any, client: Client, colour: Colour) -> tuple[msgspec.Struct, list[Check]]:
    from leasehold.doctor import gather_redis, judge_redis  # noqa: PLC0415  the same with redis

    facts = await gather_redis.gather(store, colour)
    return facts, judge_redis.judge(facts, client)


async def _postgres(store: Any, client: Client, colour: Colour) -> tuple[msgspec.Struct, list[Check]]:
    from leasehold.doctor import gather_postgres, judge_postgres  # noqa: PLC0415  the same with psycopg

    facts = await gather_postgres.gather(store, colour)
    return facts, judge_postgres.judge(facts, client)


async def _kubernetes(store: Any, client: Client, colour: Colour) -> tuple[msgspec.Struct, list[Check]]:
    from leasehold.doctor import gather_kubernetes, judge_kubernetes  # noqa: PLC0415  the same with h11

    facts = await gather_kubernetes.gather(store, colour)
    return facts, judge_kubernetes.judge(facts, client)


async def _zookeeper(store: Any, client: Client, colour: Colour) -> tuple[msgspec.Struct, list[Check]]:
    from leasehold.doctor import gather_zookeeper, judge_zookeeper  # noqa: PLC0415  the same with kazoo

    facts = await gather_zookeeper.gather(store, colour)
    return facts, judge_zookeeper.judge(facts, client)


async def _etcd(store: Any, client: Client, colour: Colour) -> tuple[msgspec.Struct, list[Check]]:
    from leasehold.doctor import gather_etcd, judge_etcd  # noqa: PLC0415  the same with gRPC

    facts = await gather_etcd.gather(store, colour)
    return facts, judge_etcd.judge(facts, client)


DOCTORS: dict[str, Doctor] = {
    "sqlite": _sqlite,
    "redis": _redis,
    "postgres": _postgres,
    "kubernetes": _kubernetes,
    "zookeeper": _zookeeper,
    "etcd": _etcd,
}
