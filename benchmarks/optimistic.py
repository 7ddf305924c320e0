"""A lease with a fence, an optimistic update, or a row lock: correct updates a second, and what they waste.

Processes add one to a total: read it, work for a while, write it back. All want one item, or each time
one of many. After every run the totals must be what was acknowledged, or nothing is printed. `python -m
benchmarks.optimistic` runs the whole sweep and puts table and plot into docs/howto.
"""

from __future__ import annotations

import multiprocessing
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import psycopg
import redis

import leasehold
from benchmarks import plot
from benchmarks.harness import Figure
from benchmarks.plot import Row as Line
from benchmarks.versioned import SCHEMA, Hash, Row
from leasehold import fence, optimistic
from leasehold.testing.servers import PostgresServer, RedisServer

WRITERS = (1, 2, 4, 8, 16, 32)
SPREAD = (8, 32)
MANY = 256
WORKS = (0.0, 0.01)
SECONDS = 1.0
ROUNDS = 3
WAYS = {"PostgreSQL": ("lease", "optimistic", "row lock"), "Redis": ("lease", "optimistic")}


class Order(NamedTuple):
    """What the writers of one run do, and when they begin and end on the clock that all processes share."""

    way: str
    items: int
    work: float
    begin: float
    end: float


class Counted(NamedTuple):
    """What one writer came to: updates in time and in all, attempts, and updates given up."""

    in_time: int
    done: int
    attempts: int
    given_up: int


class Cell(NamedTuple):
    """One way under one load: updates a second, attempts for each, those given up, and how equally writers were served.

    Jain's index: 1 is equally, 1 ÷ writers is one alone.
    """

    rate: float
    attempts: float
    given_up: float
    jain: float


def figures() -> list[Figure]:
    """The ends of the sweep: alone, and in a crowd that works for 10 ms each."""
    found = []
    for store in WAYS:
        with _crowd(store, WRITERS[-1]) as crowd:
            for writers, work in ((1, 0.0), (WRITERS[-1], WORKS[-1])):
                cells = _measure(crowd, store, writers, 1, work)
                ours, other = cells["optimistic"].rate, cells["lease"].rate
                what = f"{store}, {writers} on one item, work {work * 1e3:.0f} ms, updates a second: lease ÷ optimistic"
                found.append(Figure(what, f"{ours:.0f}/s", f"{other:.0f}/s", other / ours, None))
    return found


def sweep() -> list[Line]:
    """Every load, as lines of the table."""
    found = []
    for store in WAYS:
        with _crowd(store, WRITERS[-1]) as crowd:
            for items, counts in ((1, WRITERS), (MANY, SPREAD)):
                for work in WORKS:
                    for writers in counts:
                        cells = _measure(crowd, store, writers, items, work)
                        found.append(_line(store, items, work, writers, cells))
                        print(f"{store}: {items} items, {work * 1e3:.0f} ms, {writers} writers", file=sys.stderr)
    return found


def _line(store: str, items: int, work: float, writers: int, cells: dict[str, Cell]) -> Line:
    rates = [f"{cells[way].rate:.0f}" if way in cells else "–" for way in ("lease", "optimistic", "row lock")]
    raced = cells["optimistic"]
    return Line(
        store,
        str(items),
        f"{work * 1e3:.0f} ms",
        str(writers),
        *rates,
        f"{raced.rate / cells['lease'].rate:.2f}",
        f"{raced.attempts:.2f}",
        f"{raced.given_up:.1%}",
        f"{cells['lease'].jain:.2f}",
        f"{raced.jain:.2f}",
    )


def _measure(crowd: Crowd, store: str, writers: int, items: int, work: float) -> dict[str, Cell]:
    """The median of a few runs of each way, in turns."""
    seen: dict[str, list[Cell]] = {way: [] for way in WAYS[store]}
    for _ in range(ROUNDS):
        for way, cells in seen.items():
            cells.append(_cell(crowd.run(way, writers, items, work)))
    return {way: Cell(*map(statistics.median, zip(*cells, strict=True))) for way, cells in seen.items()}


def _cell(told: list[Counted]) -> Cell:
    in_time, done, attempts, given_up = map(sum, zip(*told, strict=True))
    return Cell(
        rate=in_time / SECONDS,
        attempts=attempts / done,
        given_up=given_up / (done + given_up),
        jain=done**2 / (len(told) * sum(each.done**2 for each in told)),
    )


class Crowd:
    """Writers in processes of their own, which stay; each run takes as many of them as it wants."""

    def __init__(self, pipes: list[Connection], total: Callable[[], int]) -> None:
        self.pipes = pipes
        self.total = total

    def run(self, way: str, writers: int, items: int, work: float) -> list[Counted]:
        before = self.total()
        begin = time.monotonic() + 0.1
        for pipe in self.pipes[:writers]:
            pipe.send(Order(way, items, work, begin, begin + SECONDS))
        told = [pipe.recv() for pipe in self.pipes[:writers]]
        acknowledged, there = sum(each.done for each in told), self.total() - before
        if acknowledged != there:
            raise AssertionError(f"{way}: {acknowledged} acknowledged, {there} there")
        return told


@contextmanager
def _crowd(store: str, writers: int) -> Iterator[Crowd]:
    with ExitStack() as stack:
        if store == "Redis":
            server: Any = stack.enter_context(RedisServer(aof="no"))
            total = _fill_redis(redis.Redis(host=server.host, port=server.port))
        else:
            server = stack.enter_context(PostgresServer(config={"max_connections": 300}))
            total = _fill_postgres(server)
        with leasehold.connect(server.url) as locks:
            locks.acquire("made before the crowd comes").release()
        fresh = multiprocessing.get_context("spawn")
        pipes = []
        for _ in range(writers):
            mine, theirs = fresh.Pipe()
            process = fresh.Process(target=write, args=(theirs, store, server.url), daemon=True)
            process.start()
            stack.callback(process.join, 20)
            pipes.append(mine)
        for pipe in pipes:
            pipe.recv()
        yield Crowd(pipes, total)
        for pipe in pipes:
            pipe.send(None)


def _fill_redis(client: redis.Redis) -> Callable[[], int]:
    for number in range(MANY):
        client.hset(f"item/{number}", mapping={"total": 0, "version": 0, "mark": "0" * 19})
    return lambda: sum(int(client.hget(f"item/{number}", "total") or 0) for number in range(MANY))


def _fill_postgres(server: PostgresServer) -> Callable[[], int]:
    server.execute(SCHEMA)
    server.execute("INSERT INTO item SELECT n, 0, 0, 0 FROM generate_series(0, %s - 1) AS n", MANY)
    return lambda: int(server.execute("SELECT sum(total) FROM item")[0][0])


def write(pipe: Connection, store: str, url: str) -> None:
    """One writer: does what it is told until it is told nothing more."""
    with leasehold.connect(url) as locks, ExitStack() as stack:
        if store == "Redis":
            client = redis.Redis.from_url(url)
            items: list[Any] = [Hash(client, number) for number in range(MANY)]
        else:
            db = stack.enter_context(psycopg.connect(url, autocommit=True, prepare_threshold=0))
            items = [Row(db, number) for number in range(MANY)]
        pipe.send("ready")
        while (order := pipe.recv()) is not None:
            pipe.send(_written(Writer(locks, order.work), items, order))


def _written(writer: Writer, items: list[Any], order: Order) -> Counted:
    way = {"lease": writer.lease, "optimistic": writer.optimistic, "row lock": writer.row_lock}[order.way]
    in_time = done = given_up = 0
    time.sleep(max(order.begin - time.monotonic(), 0))
    while time.monotonic() < order.end:
        try:
            way(items[random.randrange(order.items)])
        except leasehold.TooContended:
            given_up += 1
        else:
            done += 1
            in_time += time.monotonic() < order.end
    return Counted(in_time, done, writer.attempts, given_up)


class Writer:
    """The three ways to add one."""

    def __init__(self, locks: leasehold.Locks, work: float) -> None:
        self.locks, self.work, self.attempts = locks, work, 0

    def lease(self, item: Any) -> None:
        with self.locks.hold(item.name, ttl=30) as lease:
            opened: fence.Opened[int] = fence.Fenced(item, scope=item.name).open(lease)
            opened.write(self.more(opened.read()))

    def optimistic(self, item: Any) -> None:
        optimistic.update(item, self.more)

    def row_lock(self, item: Row) -> None:
        with item.db.transaction():
            total = item.db.execute("SELECT total FROM item WHERE id = %s FOR UPDATE", (item.number,)).fetchone()
            more = self.more(total[0] if total else 0)
            item.db.execute("UPDATE item SET total = %s WHERE id = %s", (more, item.number))

    def more(self, total: int) -> int:
        """The work that is wasted when somebody else is quicker."""
        self.attempts += 1
        if self.work:
            time.sleep(self.work)
        return total + 1


if __name__ == "__main__":
    plot.publish(sweep())
