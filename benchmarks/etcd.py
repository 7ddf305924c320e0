"""etcd: acquire and release, against the two bare calls nobody could do without, and against etcd3's Lock and tooz.

The bare calls go through the same gRPC: one transaction that puts a key on a lease
unless it is there, one that deletes it. No names, no proof of ownership, no
heartbeat, no news of a loss. etcd3's Lock and tooz are what people would use instead.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

import leasehold
from benchmarks.harness import Figure, medians, micro, seconds_each
from benchmarks.peers import ETCD3, TOOZ, Peer
from leasehold.rules import etcd_messages as messages
from leasehold.testing.servers import EtcdServer

ROUNDS = 41
TIMES = 50
TARGET_FLOOR = 1.25
TARGET_PEER = 1.0

KEY = b"bare/invoice/42"
VALUE = b'{"scope":"invoice/42","holder":"host:12345:abcdef","secret":"0123456789abcdef0123456789abcdef","since":1.7e9}'


def figures() -> list[Figure]:
    """Both colours against the floor, the blocking one against its peers, on one server that syncs every write."""
    with EtcdServer() as server:
        found = _blocking(server) | asyncio.run(_looped(server))
    against = [("two bare calls", TARGET_FLOOR), ("etcd3's Lock", TARGET_PEER), ("tooz", TARGET_PEER)]
    return [
        Figure(
            f"etcd {colour}: acquire + release ÷ {other}",
            micro(found[f"{colour} ours"]),
            micro(found[f"{colour} {other}"]),
            found[f"{colour} ours"] / found[f"{colour} {other}"],
            target,
        )
        for colour, others in (("blocking", against), ("asyncio", against[:1]))
        for other, target in others
    ]


def _asked(lease: int) -> tuple[bytes, bytes]:
    """What is sent to take and to give back."""
    put = messages.put(KEY, VALUE, lease)
    take = messages.txn([messages.is_absent(KEY)], [put], [messages.get(KEY)])
    return take, messages.txn([], [messages.delete(KEY)], [])


def _blocking(server: EtcdServer) -> dict[str, float]:
    channel = grpc.insecure_channel(f"{server.host}:{server.port}")
    granted = channel.unary_unary(messages.GRANT)(messages.grant(3600))
    take, give = _asked(messages.read_grant(granted).lease)
    txn = channel.unary_unary(messages.TXN)

    def floor() -> None:
        txn(take, timeout=5)
        txn(give, timeout=5)

    with (
        leasehold.connect(server.url) as locks,
        Peer(ETCD3, server.host, str(server.port)) as etcd3,
        Peer(TOOZ, f"etcd3+http://{server.host}:{server.port}") as tooz,
    ):
        cases = {
            "blocking ours": functools.partial(seconds_each, lambda: locks.acquire("invoice/42").release(), TIMES),
            "blocking two bare calls": functools.partial(seconds_each, floor, TIMES),
            "blocking etcd3's Lock": functools.partial(etcd3.seconds_each, TIMES),
            "blocking tooz": functools.partial(tooz.seconds_each, TIMES),
        }
        found = medians(cases, ROUNDS)
    channel.close()
    return found


async def _looped(server: EtcdServer) -> dict[str, float]:
    channel: Any = grpc.aio.insecure_channel(f"{server.host}:{server.port}")
    granted = await channel.unary_unary(messages.GRANT)(messages.grant(3600))
    take, give = _asked(messages.read_grant(granted).lease)
    txn = channel.unary_unary(messages.TXN)

    async def floor() -> None:
        await txn(take, timeout=5)
        await txn(give, timeout=5)

    async with await leasehold.aio.connect(server.url) as locks:

        async def ours() -> None:
            await (await locks.acquire("invoice/42")).release()

        found = await _medians({"asyncio ours": ours, "asyncio two bare calls": floor})
    await channel.close()
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
