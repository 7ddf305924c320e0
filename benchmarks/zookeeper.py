"""ZooKeeper: acquire and release, against the two bare calls nobody could do without, kazoo's Lock, and tooz.

The bare calls are kazoo's: create an ephemeral node with the same bytes, delete it
again. No witness, no verified owner, no heartbeat, no news of a loss. kazoo's Lock
and tooz are what people would use instead. On an event loop the bare calls are
kazoo's too, each result handed over to the loop, as kazoo has no asyncio of its own.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable
from typing import Any

from kazoo.client import KazooClient

import leasehold
from benchmarks.harness import Figure, medians, micro, seconds_each
from benchmarks.peers import TOOZ, Peer
from leasehold.testing.servers import ZooKeeperServer

ROUNDS = 31
TIMES = 30
TARGET_FLOOR = 1.25
TARGET_PEER = 1.0

PATH = "/bare"
VALUE = b'{"scope":"invoice/42","holder":"host:12345:abcdef","secret":"0123456789abcdef0123456789abcdef","since":1.7e9}'
BARE, LOCK, PEER = "bare create + delete", "kazoo's Lock", "tooz"


def figures() -> list[Figure]:
    """Both colours, on one server that syncs every change, as ZooKeeper does by default."""
    with ZooKeeperServer() as server:
        bare = KazooClient(hosts=f"{server.host}:{server.port}")
        bare.start()
        try:
            found = _blocking(server, bare) | asyncio.run(_looped(server, bare))
        finally:
            bare.stop()
            bare.close()
    against = {"blocking": (BARE, LOCK, PEER), "asyncio": (BARE,)}
    return [
        Figure(
            f"ZooKeeper {colour}: acquire + release ÷ {other}",
            micro(found[f"{colour} ours"]),
            micro(found[f"{colour} {other}"]),
            found[f"{colour} ours"] / found[f"{colour} {other}"],
            TARGET_FLOOR if other == BARE else TARGET_PEER,
        )
        for colour, others in against.items()
        for other in others
    ]


def _blocking(server: ZooKeeperServer, bare: Any) -> dict[str, float]:
    lock = bare.Lock("/lock", "peer")

    def floor() -> None:
        bare.create(PATH, VALUE, ephemeral=True)
        bare.delete(PATH)

    def peer() -> None:
        lock.acquire()
        lock.release()

    with leasehold.connect(server.url) as locks, Peer(TOOZ, server.url) as tooz:
        works: dict[str, Callable[[], object]] = {
            "ours": lambda: locks.acquire("invoice/42").release(),
            BARE: floor,
            LOCK: peer,
        }
        cases = {f"blocking {name}": functools.partial(seconds_each, work, TIMES) for name, work in works.items()}
        cases[f"blocking {PEER}"] = functools.partial(tooz.seconds_each, TIMES)
        return medians(cases, ROUNDS)


async def _looped(server: ZooKeeperServer, bare: Any) -> dict[str, float]:
    loop = asyncio.get_running_loop()

    def handed_over(result: Any) -> asyncio.Future[None]:
        done: asyncio.Future[None] = loop.create_future()
        result.rawlink(lambda _: loop.call_soon_threadsafe(done.set_result, None))
        return done

    async def floor() -> None:
        await handed_over(bare.create_async(PATH, VALUE, ephemeral=True))
        await handed_over(bare.delete_async(PATH))

    async with await leasehold.aio.connect(server.url) as locks:

        async def ours() -> None:
            await (await locks.acquire("invoice/42")).release()

        return await _medians({"asyncio ours": ours, f"asyncio {BARE}": floor})


async def _medians(works: dict[str, Callable[[], Awaitable[None]]]) -> dict[str, float]:
    """As `harness.medians`, inside a loop."""
    seen: dict[str, list[float]] = {name: [] for name in works}
    for number in range(ROUNDS + 1):
        for name in list(works)[:: 1 if number % 2 else -1]:
            begin = time.perf_counter()
            for _ in range(TIMES):
                await works[name]()
            seen[name].append((time.perf_counter() - begin) / TIMES)
    return {name: sorted(values[1:])[ROUNDS // 2] for name, values in seen.items()}
