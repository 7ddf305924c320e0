"""Redis: acquire and release, against the two bare calls nobody could do without, and against redis-py's own Lock.

The bare calls go through the same client library: one EVALSHA that sets a key with
an end unless it is there, one that deletes it if it is ours. No names, no index, no
token that outlives the key, no heartbeat, no news of a loss. The Lock has none of
these either; it is what people would use instead.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable
from typing import Any

import redis
import redis.asyncio
from redis.backoff import NoBackoff

import leasehold
from benchmarks.harness import Figure, medians, micro, seconds_each
from leasehold.testing.servers import RedisServer

ROUNDS = 41
TIMES = 100
TARGET_FLOOR = 1.3
TARGET_LOCK = 1.0

TAKE = "return redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])"
GIVE = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"
VALUE = b'{"scope":"invoice/42","holder":"host:12345:abcdef","secret":"0123456789abcdef0123456789abcdef","since":1.7e9}'


def figures() -> list[Figure]:
    """Both colours, each against its floor and its peer, on one server without persistence: nothing hides our cost."""
    with RedisServer(aof="no") as server:
        found = _blocking(server) | asyncio.run(_looped(server))
    return [
        Figure(
            f"Redis {colour}: acquire + release ÷ {against}",
            micro(found[f"{colour} ours"]),
            micro(found[f"{colour} {against}"]),
            found[f"{colour} ours"] / found[f"{colour} {against}"],
            target,
        )
        for colour in ("blocking", "asyncio")
        for against, target in (("two bare calls", TARGET_FLOOR), ("redis-py's Lock", TARGET_LOCK))
    ]


def _options(server: RedisServer) -> dict[str, Any]:
    return {"host": server.host, "port": server.port, "protocol": 2, "retry": redis.retry.Retry(NoBackoff(), 0)}


def _blocking(server: RedisServer) -> dict[str, float]:
    bare = redis.Redis(**_options(server))
    take, give = str(bare.script_load(TAKE)), str(bare.script_load(GIVE))
    lock = redis.Redis(**_options(server)).lock("lock", timeout=30)

    def floor() -> None:
        bare.evalsha(take, 1, "bare", VALUE, 30_000)
        bare.evalsha(give, 1, "bare", VALUE)

    def peer() -> None:
        lock.acquire()
        lock.release()

    with leasehold.connect(server.url) as locks:
        works: dict[str, Callable[[], object]] = {
            "ours": lambda: locks.acquire("invoice/42").release(),
            "two bare calls": floor,
            "redis-py's Lock": peer,
        }
        cases = {f"blocking {name}": functools.partial(seconds_each, work, TIMES) for name, work in works.items()}
        return medians(cases, ROUNDS)


async def _looped(server: RedisServer) -> dict[str, float]:
    bare = redis.asyncio.Redis(**_options(server))
    take, give = str(await bare.script_load(TAKE)), str(await bare.script_load(GIVE))
    other = redis.asyncio.Redis(**_options(server))
    lock = other.lock("lock", timeout=30)

    async def floor() -> None:
        await bare.evalsha(take, 1, "bare", VALUE, 30_000)
        await bare.evalsha(give, 1, "bare", VALUE)

    async def peer() -> None:
        await lock.acquire()
        await lock.release()

    async with await leasehold.aio.connect(server.url) as locks:

        async def ours() -> None:
            await (await locks.acquire("invoice/42")).release()

        works = {"ours": ours, "two bare calls": floor, "redis-py's Lock": peer}
        found = await _medians({f"asyncio {name}": work for name, work in works.items()})
    await bare.aclose()
    await other.aclose()
    return found


async def _medians(works: dict[str, Callable[[], Awaitable[None]]]) -> dict[str, float]:
    """As `harness.medians`, inside a loop: one round of each at a time, in a thread's rhythm but on this loop."""
    seen: dict[str, list[float]] = {name: [] for name in works}
    for number in range(ROUNDS + 1):
        for name in list(works)[:: 1 if number % 2 else -1]:
            begin = time.perf_counter()
            for _ in range(TIMES):
                await works[name]()
            seen[name].append((time.perf_counter() - begin) / TIMES)
    return {name: sorted(values[1:])[ROUNDS // 2] for name, values in seen.items()}
