"""Waiting: grants a second, fairness and the time of a hand-over, in crowds, beside the locks people use instead.

Four processes want one lock and hold it for a millisecond. Jain's index says how equally they were
served: 1 is equally, 0.25 is one alone. A hand-over counts from when one was about to let go
until another process was granted. Then a burst: many threads of one process, each of which wants it
once, for no time at all.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from itertools import pairwise
from typing import NamedTuple

from benchmarks.harness import Figure
from benchmarks.peers import HERE, PYTHON
from leasehold.testing.servers import EtcdServer, RedisServer, ZooKeeperServer

PROCESSES = 4
SECONDS = 4.0
HOLD = 0.001
THREADS = 200
ROUNDS = 3
OURS = {"fair", "ours"}
# Larger is better here; a figure is the inverse of what is aimed at.
THROUGHPUT = 1 / 0.9
FAIRNESS = 1 / 0.97
LOCALLY = 1 / 20


class Crowd(NamedTuple):
    """What a crowd came to: grants a second, Jain's index over its processes, and 99 of 100 hand-overs, in seconds."""

    rate: float
    jain: float
    p99: float


def figures() -> list[Figure]:
    """Redis in full; ZooKeeper and etcd beside the lock of their usual client."""
    with RedisServer(aof="no") as server:
        found = _measure(server.url, "fair", "redis-py", "python-redis-lock")
        burst = _measure(server.url, "ours", "redis-py", processes=1, threads=THREADS, hold=0.0, seconds=0.0)
    with ZooKeeperServer(sync=False) as server:
        zookeeper = _measure(server.url, "fair", "kazoo")
    with EtcdServer() as server:
        etcd = _measure(server.url, "fair", "etcd3")
    fair = found["fair"]
    return [
        _grants("Redis fair, grants a second: redis-py's Lock ÷ ours", found["redis-py"], fair, THROUGHPUT),
        _grants("Redis fair, grants a second: python-redis-lock ÷ ours", found["python-redis-lock"], fair, 1.0),
        Figure("Redis fair: 1 ÷ Jain's index of four processes", f"{fair.jain:.3f}", "1", 1 / fair.jain, FAIRNESS),
        _hand_over("Redis fair, hand-over p99: ours ÷ redis-py's Lock", found["redis-py"], fair),
        _hand_over("Redis fair, hand-over p99: ours ÷ python-redis-lock", found["python-redis-lock"], fair),
        _grants(
            f"Redis, a burst of {THREADS} threads of one process, grants a second: redis-py's Lock ÷ ours",
            burst["redis-py"],
            burst["ours"],
            LOCALLY,
        ),
        _grants("ZooKeeper fair, grants a second: kazoo's Lock ÷ ours", zookeeper["kazoo"], zookeeper["fair"], None),
        _hand_over("ZooKeeper fair, hand-over p99: ours ÷ kazoo's Lock", zookeeper["kazoo"], zookeeper["fair"], None),
        _grants("etcd fair, grants a second: etcd3's Lock ÷ ours", etcd["etcd3"], etcd["fair"], None),
        _hand_over("etcd fair, hand-over p99: ours ÷ etcd3's Lock", etcd["etcd3"], etcd["fair"], None),
    ]


def _grants(name: str, peer: Crowd, mine: Crowd, target: float | None) -> Figure:
    return Figure(name, f"{mine.rate:.0f}/s", f"{peer.rate:.0f}/s", peer.rate / mine.rate, target)


def _hand_over(name: str, peer: Crowd, mine: Crowd, target: float | None = 1.0) -> Figure:
    return Figure(name, f"{mine.p99 * 1e3:.1f} ms", f"{peer.p99 * 1e3:.1f} ms", mine.p99 / peer.p99, target)


def _measure(
    url: str,
    *names: str,
    processes: int = PROCESSES,
    threads: int = 1,
    hold: float = HOLD,
    seconds: float = SECONDS,
) -> dict[str, Crowd]:
    """The median of a few rounds of each, in turns."""
    seen: dict[str, list[Crowd]] = {name: [] for name in names}
    for _ in range(ROUNDS):
        for name in names:
            seen[name].append(_crowd([name, url, str(seconds), str(hold), str(threads)], processes))
    return {name: Crowd(*map(statistics.median, zip(*found, strict=True))) for name, found in seen.items()}


def _crowd(order: list[str], processes: int) -> Crowd:
    name = order[0]
    python = sys.executable if name in OURS else str(PYTHON)
    # -P: benchmarks here are named like the libraries they measure.
    command = [python, "-P", str(HERE / "contender.py"), *order]
    pipe = subprocess.PIPE
    people = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) for _ in range(processes)]
    for each in people:
        if each.stdout is None or each.stdout.readline() != "ready\n":
            raise SystemExit(f"{name} did not start; its traceback is above")
    told = [each.communicate()[0] for each in _started(people)]
    turns = [[tuple(turn) for turn in json.loads(text)] for text in told]
    counts = [len(each) for each in turns]
    everybody = sorted((granted, ended, who) for who, each in enumerate(turns) for granted, ended in each)
    gaps = [later[0] - one[1] for one, later in pairwise(everybody) if processes == 1 or one[2] != later[2]]
    return Crowd(
        rate=sum(counts) / (everybody[-1][1] - everybody[0][0]),
        jain=sum(counts) ** 2 / (len(counts) * sum(count * count for count in counts)),
        p99=statistics.quantiles(gaps, n=100)[98] if len(gaps) > 1 else float("inf"),
    )


def _started(people: list[subprocess.Popen[str]]) -> list[subprocess.Popen[str]]:
    """All told to begin before any is waited for."""
    for each in people:
        if each.stdin is not None:
            each.stdin.write("\n")
            each.stdin.flush()
    return people
