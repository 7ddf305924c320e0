"""A request that comes again: its replay against a bare look at the store, and against a peer's on the same Redis."""

from __future__ import annotations

import functools
import tempfile
from contextlib import ExitStack

import leasehold
from benchmarks.harness import Figure, medians, micro, seconds_each
from benchmarks.peers import POWERTOOLS, Peer
from leasehold.engine.blocking import drive
from leasehold.testing.servers import PostgresServer, RedisServer

ROUNDS = 41
TIMES = 50
TARGET = 2.0
KEY = "order/42"


def figures() -> list[Figure]:
    """Each store, and the peer on Redis. Without a fingerprint: that is measured in `canonical.py`."""
    found = []
    with ExitStack() as stack:
        redis = stack.enter_context(RedisServer(aof="no"))
        postgres = stack.enter_context(PostgresServer())
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="leasehold-bench-"))
        peer = stack.enter_context(Peer(POWERTOOLS, redis.url))
        for name, url in (
            ("memory", "memory://once"),
            ("SQLite", f"sqlite://{folder}/leases.db"),
            ("Redis", redis.url),
            ("PostgreSQL", postgres.url),
        ):
            with leasehold.connect(url) as locks:
                found += _figures(name, locks, peer if name == "Redis" else None)
    return found


def _figures(name: str, locks: leasehold.Locks, peer: Peer | None) -> list[Figure]:
    once = leasehold.Once(locks, "bench")
    once.run(KEY, lambda _work: {"charged": 1250, "number": 1})
    store, place = locks._engine.store, once._handling.key_of(KEY)  # noqa: SLF001  the floor is below every public verb
    works = {
        "replay": lambda: once.run(KEY, _never),
        "load": lambda: drive(store.load(place)),
    }
    cases = {each: functools.partial(seconds_each, work, TIMES) for each, work in works.items()}
    if peer is not None:
        cases["peer"] = functools.partial(peer.seconds_each, TIMES)
    taken = medians(cases, ROUNDS)
    ours, floor = taken["replay"], taken["load"]
    # To look into memory takes a microsecond, less than to decode a result: that is shown, and no measure.
    target = None if name == "memory" else TARGET
    told = [Figure(f"replay, {name}: ÷ store.load", micro(ours), micro(floor), ours / floor, target)]
    if peer is not None:
        theirs = taken["peer"]
        told.append(Figure(f"replay, {name}: ÷ Powertools", micro(ours), micro(theirs), ours / theirs, 1.0))
    return told


def _never(_work: leasehold.Work) -> None:
    raise AssertionError("a replay runs nothing")
