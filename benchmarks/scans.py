"""Scans of a part: what an acquire of a range asks of its store, in a file with many holders against one with few.

One record is created and 17 windows are looked at, together; a few of the others lie in
them, the same few in both files. What is taken is the median of single calls.
"""

from __future__ import annotations

import functools
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from benchmarks.harness import Figure, medians, micro
from leasehold.engine.blocking import BlockingRuntime, drive
from leasehold.model import Key, Record, Scan, Swap
from leasehold.rules.overlap import Claim, Part, place, windows
from leasehold.stores.base import Store
from leasehold.stores.open import open_store
from leasehold.testing.servers import PostgresServer, RedisServer
from leasehold.wires.clock import system_clock

ROUNDS = 401
FEW, MANY = 100, 10_000
BLOCK = 4096
TARGET = 3.0
VALUE = b'{"scope":"inode:7[0,4096)","holder":"host:12345:abcdef","secret":"0123456789abcdef0123456789abcdef"}'
# A stretch that a few others hold something of.
CLAIM = Claim((Part(8 * BLOCK, 12 * BLOCK),))
# One in each of its blocks, and whoever asks.
SEEN = 5


def figures() -> list[Figure]:
    """Servers as they are by default, and PostgreSQL also without waiting for its disk, which would hide the rest."""
    found = []
    with ExitStack() as stack:
        redis = stack.enter_context(RedisServer(aof="no"))
        postgres = stack.enter_context(PostgresServer())
        # Not /tmp, which is often no disk.
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="leasehold-bench-", dir="/var/tmp"))
        for name, url in (
            ("Redis", redis.url),
            ("PostgreSQL", postgres.url),
            ("PostgreSQL synchronous_commit=off", f"{postgres.url}?schema=hurried&synchronous_commit=off"),
            ("SQLite", f"sqlite://{folder}/leases.db"),
        ):
            with _opened(url) as store:
                found.append(_ratio(name, store))
    return found


def _ratio(name: str, store: Store) -> Figure:
    families = {size: f"//inode/{size}" for size in (FEW, MANY)}
    for size, family in families.items():
        _fill(store, family, size)
    cases = {str(size): functools.partial(_seconds, store, family) for size, family in families.items()}
    taken = medians(cases, ROUNDS)
    ours, floor = taken[str(MANY)], taken[str(FEW)]
    what = f"{name}: create + scan of {len(windows(CLAIM))} windows, among {MANY} ÷ among {FEW}"
    return Figure(what, micro(ours), micro(floor), ours / floor, TARGET)


def _fill(store: Store, family: str, size: int) -> None:
    """So many hold the first bytes of a block each."""
    claims = [Claim((Part(number * BLOCK, number * BLOCK + 100),)) for number in range(size)]
    asks = [Swap(Key(family, f"{place(claim)}{nth}"), None, VALUE, None) for nth, claim in enumerate(claims)]
    for start in range(0, size, 500):
        drive(store.together(asks[start : start + 500]))


def _seconds(store: Store, family: str) -> float:
    """One acquire; what follows is not counted."""
    key = Key(family, f"{place(CLAIM)}mine")
    begin = time.perf_counter()
    made, found = drive(store.together([Swap(key, None, VALUE, 30.0), Scan(family, windows(CLAIM))]))
    taken = time.perf_counter() - begin
    if not isinstance(made, Record) or not isinstance(found, list) or len(found) != SEEN:
        raise AssertionError(f"not what was put there: {found}")
    drive(store.swap(key, made, None, None))
    return taken


@contextmanager
def _opened(url: str) -> Iterator[Store]:
    store = open_store(url, timeout=60.0, colour=BlockingRuntime(system_clock()))
    drive(store.open())
    try:
        yield store
    finally:
        drive(store.close())
