"""What a part of something costs, counted where requests arrive: two flights, whoever else comes at the same time."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from leasehold import Shared, aio
from tests.support import note
from tests.test_line_costs import STORES

READERS = 40
DOC = Shared("report")


@pytest.mark.parametrize("store", [store for store in STORES if store != "sqlite"])
def test_readers_who_come_together_cost_two_flights_each_at_most(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(url: str, counted) -> float:
        async with await aio.connect(url, timeout=30) as locks:
            # Connections, sessions and leases of the store that all of them share.
            warm = await asyncio.gather(*(locks.acquire(DOC, ttl=60, mode="shared") for _ in range(READERS)))
            await asyncio.gather(*(lease.release() for lease in warm))
            before = counted()
            leases = await asyncio.gather(*(locks.acquire(DOC, ttl=60, mode="shared") for _ in range(READERS)))
            calls = (counted() - before) / READERS
            assert all(lease.held for lease in leases)
            assert len({lease.token for lease in leases}) == READERS
            return calls

    with STORES[store](tmp_path, monkeypatch) as (url, counted):
        calls = asyncio.run(story(url, counted))
    note(f"{store}: {calls:.2f} calls for each of {READERS} readers who came together")
    assert 0 < calls <= 2
