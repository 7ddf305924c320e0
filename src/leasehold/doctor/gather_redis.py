"""What can be seen of Redis: of the one server, of the master Sentinel names, or of every master of a Cluster."""

from __future__ import annotations

import re
from typing import Any

import hiredis

from leasehold.doctor.facts import Contents, RedisFacts, RedisNode, Times, Unseen
from leasehold.doctor.gather_common import ClockReader, time_trips, try_verbs
from leasehold.errors import StoreError
from leasehold.rules.addresses import Address
from leasehold.stores.redis import MINIMAL_ACL, MINIMAL_ACL_CLUSTER, RANGE, RedisStore
from leasehold.wires.colour import Colour
from leasehold.wires.redis import Call, RedisWire
from leasehold.wires.redis_errors import reply_error
from leasehold.wires.redis_finder import BUCKETS, bucket_keys
from leasehold.wires.redis_link import Command
from leasehold.wires.redis_url import RedisConfig

MICRO = 1_000_000
# So many records of each bucket show how many of the others have expired.
SAMPLE = 50
_WRITING = {
    "rdb_last_bgsave_status": "the last snapshot",
    "aof_last_write_status": "the last write of the log",
    "aof_last_bgrewrite_status": "the last rewriting of the log",
}


async def gather(store: RedisStore, colour: Colour) -> RedisFacts:
    """Look at every server that keeps records."""
    wire = store._wire  # noqa: SLF001  the doctor looks behind the verbs, over the store's own wire
    servers = [_Server(wire, address, colour) for address in wire.addresses()]
    for server in servers:
        await server.clock.start()
    nodes = [await server.look() for server in servers]
    sizes = [await server.sizes() for server in servers]
    slots = await servers[0].slots() if wire.config.mode == "cluster" else None
    refusals = await try_verbs(store, colour.clock)
    trips = await time_trips(store)
    times = [await server.clock.finish() for server in servers]
    return RedisFacts(
        trips=trips,
        times=max(times, key=_apart),
        contents=None if None in sizes else await _contents(wire, [size for each in sizes for size in each or ()]),
        refusals=refusals,
        unseen=tuple(dict.fromkeys(each for server in servers for each in server.unseen)),
        nodes=tuple(nodes),
        slots=slots,
        confirmed_by=wire.config.wait,
        pool=wire.config.pool,
        user=wire.config.user or "default",
        rights=_rights(wire.config),
    )


class _Server:
    """One server, asked by plain commands. What it refuses this user is noted as unseen."""

    def __init__(self, wire: RedisWire, address: Address | None, colour: Colour) -> None:
        self._wire = wire
        self._address = address
        self.clock: ClockReader = ClockReader(self._time, colour)
        self.unseen: list[Unseen] = []

    async def look(self) -> RedisNode:
        """What it says of itself."""
        (text,) = await self._ask(("INFO",))
        info = dict(line.split(":", 1) for line in text.decode("utf-8", "replace").splitlines() if ":" in line)
        settings = await self._settings("appendfsync", "save", "min-replicas-to-write")
        software = "Valkey" if "valkey_version" in info else "Redis"
        needed = settings.get("min-replicas-to-write")
        return RedisNode(
            address=self._where,
            software=software,
            version=tuple(map(int, re.findall(r"\d+", info[f"{software.lower()}_version"])))[:3],
            log=info.get("aof_enabled") == "1",
            log_sync=settings.get("appendfsync"),
            snapshots=settings.get("save"),
            writing_fails=tuple(what for name, what in _WRITING.items() if info.get(name, "ok") != "ok"),
            memory_used=int(info.get("used_memory", 0)),
            memory_limit=int(info.get("maxmemory", 0)),
            eviction=info.get("maxmemory_policy", "noeviction"),
            replicas=int(info.get("connected_slaves", 0)),
            replicas_needed=None if needed is None else int(needed),
            replicas_good=_whole(info.get("min_slaves_good_slaves")),
            clients=int(info.get("connected_clients", 0)),
            clients_limit=_whole(info.get("maxclients")),
        )

    async def sizes(self) -> list[tuple[int, int]] | None:
        """The buckets it has, each with the number of its records; None where it does not say."""
        replies = await self._replies(*(("HLEN", bucket_keys(bucket)[0]) for bucket in range(BUCKETS)))
        # What is said to have moved belongs to another master.
        mine = {bucket: reply for bucket, reply in enumerate(replies) if not str(reply).startswith("MOVED ")}
        if _refused([*mine.values()]):
            self.unseen.append(Unseen("the number of records", "the command HLEN on leasehold:*"))
            return None
        # One entry of each bucket is its counter.
        return [(bucket, size - 1) for bucket, size in mine.items() if size]

    async def slots(self) -> int | None:
        """How many slots of the Cluster are served, as this node sees it."""
        replies = await self._replies(("CLUSTER", "INFO"))
        if _refused(replies):
            self.unseen.append(Unseen("the state of the Cluster", "the command CLUSTER INFO"))
            return None
        found = re.search(rb"cluster_slots_ok:(\d+)", replies[0])
        return int(found[1]) if found else None

    async def _settings(self, *names: str) -> dict[str, str]:
        # One by one: Redis 6 takes only one at a time.
        replies = await self._replies(*(("CONFIG", "GET", name) for name in names))
        if _refused(replies):
            self.unseen.append(Unseen("how often the log is synced", "the command CONFIG GET"))
            return {}
        return {reply[0].decode(): reply[1].decode() for reply in replies if reply}

    async def _time(self) -> float:
        ((whole, micro),) = await self._ask(("TIME",))
        return int(whole) + int(micro) / MICRO

    async def _ask(self, *commands: Command) -> list[Any]:
        replies = await self._replies(*commands)
        for reply in replies:
            if isinstance(reply, hiredis.ReplyError):
                raise reply_error(self._where, reply)
        return replies

    async def _replies(self, *commands: Command) -> list[Any]:
        return await self._wire.command(self._address, commands)

    @property
    def _where(self) -> str:
        return str(self._address or self._wire.config.hosts[0])


async def _contents(wire: RedisWire, sizes: list[tuple[int, int]]) -> Contents:
    """All records are counted; how many have expired is reckoned from the first of each bucket."""
    answers = await wire.ask_all([Call(RANGE, bucket, (b"(", b"+", SAMPLE)) for bucket, _ in sizes])
    expired = 0.0
    for (_, size), answer in zip(sizes, answers, strict=True):
        if isinstance(answer, StoreError):
            raise answer
        looked, _, *told = answer
        living = len(told) // 3
        expired += size - living if looked < SAMPLE else size * (1 - living / looked)
    return Contents(sum(size for _, size in sizes), round(expired))


def _refused(replies: list[Any]) -> bool:
    """Whether a server does not answer such a question: to this user, or, as where others run it, to nobody."""
    return any(isinstance(reply, hiredis.ReplyError) for reply in replies)


def _rights(config: RedisConfig) -> str:
    """What the user in a URL needs, to be added to what it has: it may have other work to do."""
    words = (MINIMAL_ACL_CLUSTER if config.mode == "cluster" else MINIMAL_ACL).split()
    more = ["+wait"] * bool(config.wait) + ["+select"] * bool(config.db)
    return " ".join([word for word in words if not word.startswith("-")] + more)


def _apart(times: Times) -> tuple[float, float]:
    """The clock that is furthest from ours is the one to tell of: first by its rate."""
    return abs(times.rate - 1) - times.rate_error, abs(times.difference)


def _whole(text: str | None) -> int | None:
    return None if text is None else int(text)
