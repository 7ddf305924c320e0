"""Heartbeat: how many store calls keep 1,000 leases of one client alive for one renewal period.

Time is a virtual clock's, moved from one due renewal to the next once the
heartbeat's thread has done its work: the figure is a count, the same on every machine.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from benchmarks.harness import Figure
from leasehold.client import Locks
from leasehold.engine.blocking import BlockingRuntime
from leasehold.engine.engine import Engine
from leasehold.model import Record, Renewal
from leasehold.rules.names import Names
from leasehold.rules.timing import RENEW
from leasehold.stores.memory import Memory, MemoryStore
from leasehold.testing.clock import VirtualClock

LEASES = 1000
TTL = 30.0
PERIOD = RENEW * TTL
CYCLES = 5
TARGET = 20
PATIENCE = 60.0


def figures() -> list[Figure]:
    """The most store calls a period took, for leases acquired at one moment and spread over a whole period."""
    at_once, spread = max(store_calls(0.0)), max(store_calls(PERIOD))
    name = f"heartbeat: store calls a period for {LEASES} leases"
    return [
        Figure(f"{name}, acquired at once", str(at_once), "", at_once, TARGET),
        Figure(f"{name}, acquired over a period", str(spread), "", spread, TARGET),
    ]


def store_calls(spread: float) -> list[int]:
    """How many store calls each of a few renewal periods took, for leases acquired over `spread` seconds."""
    clock = VirtualClock()
    runtime = BlockingRuntime(clock)
    store = CountingStore(Memory(clock), runtime)
    engine = Engine(store, runtime, Names(None, None), holder="benchmark", timeout=5.0, observers=())
    counts = []
    with Locks(engine) as locks:
        leases = []
        for number in range(LEASES):
            leases.append(locks.acquire(f"lease/{number}", ttl=TTL))
            _pass(engine, clock, spread / LEASES)
        store.renewed = 0
        for _ in range(CYCLES):
            store.calls = 0
            _pass(engine, clock, PERIOD)
            counts.append(store.calls)
        # The count means something only if it kept everything alive: a first renewal may fall after the first period.
        if store.renewed < LEASES * (CYCLES - 1) / 1.1 or not all(lease.held for lease in leases):
            raise AssertionError(f"only {store.renewed} renewals in {CYCLES} periods: leases were not kept alive")
    return counts


class CountingStore(MemoryStore):
    """A memory store that counts its renewals, and the calls that brought them."""

    calls = 0
    renewed = 0

    async def touch(self, holds: Sequence[tuple[Record, float]]) -> list[tuple[Renewal, Record | None]]:
        self.calls += 1
        self.renewed += len(holds)
        return await super().touch(holds)


def _pass(engine: Engine, clock: VirtualClock, seconds: float) -> None:
    """Let time pass, stopping at every due renewal until it is done."""
    end = clock.now() + seconds
    while (due := min(grant.due for grant in engine.heartbeat.held())) < end:
        clock.advance(max(due - clock.now(), 0.0) + 1e-6)
        _settle(engine, clock)
    clock.advance(max(end - clock.now(), 0.0))


def _settle(engine: Engine, clock: VirtualClock) -> None:
    patience = time.monotonic() + PATIENCE
    while any(grant.busy or grant.due <= clock.now() for grant in engine.heartbeat.held()):
        if time.monotonic() > patience:
            raise AssertionError("the heartbeat did not renew what was due")
        time.sleep(0.0005)
