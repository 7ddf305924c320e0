"""Records in Redis or Valkey: two keys a bucket, and one script a call.

Families are spread over 64 buckets, so that a Cluster can spread them over its
masters; the layout of a bucket is drawn in `lua/shared.lua`. A revision is the
server's clock in microseconds, or the last one plus one where that is more: so
tokens grow over a restart that forgot everything, unless the clock was set back
too. A record ends by the server's clock, which every script reads itself; no key
has a ttl of its own, so that no eviction of expiring keys can free a lock.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any
from zlib import crc32

from leasehold.errors import StoreDamaged, StoreError
from leasehold.model import KEEP, Conflict, Guarantees, Keep, Key, Record, Renewal, Scan, Swap
from leasehold.rules.values import MEBIBYTE, check_value
from leasehold.rules.windows import merged, scanned
from leasehold.stores.watching import watch_by_ear
from leasehold.wires.colour import Colour
from leasehold.wires.ears import Ears
from leasehold.wires.redis import Call, RedisWire, Script
from leasehold.wires.redis_finder import BUCKETS
from leasehold.wires.redis_line import RedisLine
from leasehold.wires.redis_link import Server
from leasehold.wires.redis_url import RedisConfig

# What a user needs, as Redis writes it in ACL SETUSER; the page on this store says what for. A database other
# than 0 takes +select, wait= takes +wait, a Cluster what the second line says.
MINIMAL_ACL = (
    "~leasehold:* &leasehold:* -@all +info +ping +time +eval +evalsha +script|load "
    "+hget +hmget +hset +hdel +zadd +zrem +zcard +zrange +zrangebylex +publish +subscribe +unsubscribe"
)
MINIMAL_ACL_CLUSTER = f"{MINIMAL_ACL} +asking +cluster|slots"

SECOND = 1_000_000
# How many names of a bucket one step of the collection looks at.
COLLECT_LOOK = 256
# For a page of people: what each bucket is asked for at least, beyond its even share.
PAGE_SPARE = 8
# Sorts after everything that is text.
AFTER_ALL = b"\xff"

_LUA = Path(__file__).with_name("lua")
_SHARED = (_LUA / "shared.lua").read_text(encoding="utf-8")


def _script(name: str, *, writes: bool = False) -> Script:
    return Script(_SHARED + (_LUA / f"{name}.lua").read_text(encoding="utf-8"), writes=writes)


LOAD = _script("load")
SWAP = _script("swap", writes=True)
TOUCH = _script("touch", writes=True)
RANGE = _script("range")
SCAN = _script("scan")
COLLECT = _script("collect")
RAISE = _script("raise", writes=True)
SCRIPTS = (LOAD, SWAP, TOUCH, RANGE, SCAN, COLLECT, RAISE)

_FAILOVER = {
    "single": "none of its own",
    "sentinel": "by Sentinel: asynchronous, so a failover can lose the last leases",
    "cluster": "by the Cluster: asynchronous, so a failover can lose the last leases",
}


class RedisStore:
    """The five verbs on one Redis, on a master that Sentinel names, or on a Cluster."""

    def __init__(self, config: RedisConfig, *, timeout: float, colour: Colour) -> None:
        self._wire = RedisWire(config, SCRIPTS, timeout=timeout, colour=colour)
        self._ears = Ears(lambda: RedisLine(config, timeout), colour)
        self._clock = colour.clock
        self._config = config
        self.guarantees: Guarantees = _guarantees(config, None)

    async def open(self) -> None:
        self.guarantees = _guarantees(self._config, await self._wire.open())

    async def close(self) -> None:
        await self._ears.close()
        await self._wire.close()

    async def load(self, key: Key) -> Record | None:
        bucket, name = _place(key)
        answer = await self._wire.ask(Call(LOAD, bucket, (name,)))
        return _record(key, *answer) if answer else None

    async def swap(
        self, key: Key, expect: Record | None, value: bytes | None, ttl: float | Keep | None
    ) -> Record | Conflict:
        ask = Swap(key, expect, value, ttl)
        return _swapped(ask, await self._wire.ask(self._swap(ask)))

    def _swap(self, ask: Swap) -> Call:
        check_value(ask.value, self.guarantees.value_max)
        seen = str(ask.expect.revision) if ask.expect else ""
        length = "-" if ask.ttl is None else "keep" if ask.ttl is KEEP else _micro(ask.ttl)
        bucket, name = _place(ask.key)
        heirs = other = b""
        if ask.heirs and self.guarantees.bequeaths:
            heirs = _name(Key(ask.key.family, ask.heirs))
            other = b"" if ask.tells is None else _name(ask.tells)
        value = () if ask.value is None else (ask.value,)
        return Call(SWAP, bucket, (name, seen, length, heirs, other, *value), tells=bool(other))

    async def touch(self, holds: Sequence[tuple[Record, float]]) -> list[tuple[Renewal, Record | None]]:
        places = [_place(held.key) for held, _ in holds]
        calls = [
            Call(TOUCH, bucket, (name, str(held.revision), _micro(ttl)))
            for (bucket, name), (held, ttl) in zip(places, holds, strict=True)
        ]
        answers = await self._wire.ask_all(calls)
        failed = [answer for answer in answers if isinstance(answer, StoreError)]
        if failed and len(failed) == len(answers):
            raise failed[0]
        return [_touched(held, ttl, answer) for (held, ttl), answer in zip(holds, answers, strict=True)]

    async def watch(self, key: Key, seen: Record | None, until: float) -> Record | None:
        channel = f"leasehold:{key.family}\0{key.member}"
        said = await watch_by_ear(
            self._ears, channel, lambda: self.load(key), seen=seen, until=until, clock=self._clock
        )
        size, _, told = said.partition(b" ")
        return _record(_key(told[: int(size)]), told[int(size) :], None) if told else None

    async def scan(self, family: str, windows: Sequence[tuple[str, str]] = ()) -> list[Record]:
        ask = Scan(family, windows)
        return self._scanned(ask, await self._wire.ask(self._scan(ask)))

    async def together(self, asks: Sequence[Swap | Scan]) -> list[Record | Conflict | list[Record]]:
        """One flight: they are of one family, so of one bucket and one server."""
        calls = [self._swap(ask) if isinstance(ask, Swap) else self._scan(ask) for ask in asks]
        answers = await self._wire.ask_all(calls)
        for answer in answers:
            if isinstance(answer, StoreError):
                raise answer
        return [
            _swapped(ask, answer) if isinstance(ask, Swap) else self._scanned(ask, answer)
            for ask, answer in zip(asks, answers, strict=True)
        ]

    def _scan(self, ask: Scan) -> Call:
        family = ask.family.encode()
        ranges = [(b"[%b\0" % family, b"(%b\1" % family)]
        if ask.windows:
            names = ((_name(Key(ask.family, first)), _name(Key(ask.family, end))) for first, end in merged(ask.windows))
            ranges = [(b"[" + first, b"(" + end) for first, end in names]
        return Call(SCAN, _bucket(ask.family), (self.guarantees.scan_max, *chain.from_iterable(ranges)))

    def _scanned(self, ask: Scan, answer: Any) -> list[Record]:
        return scanned(ask.family, _records(answer), self.guarantees.scan_max)

    async def page(self, root: str, after: Key | None, limit: int) -> list[Record]:
        """All buckets are asked for their next few; what lies before the first unseen name is the page."""
        first = b"[" + root.encode() if after is None else b"(" + _name(after)
        last = b"(" + root.encode() + AFTER_ALL
        found: list[Record] = []
        share = limit // BUCKETS * 2 + PAGE_SPARE
        while len(found) < limit:
            answers = await self._all(RANGE, (first, last, share))
            ends = [answer[1] for answer in answers if answer[0] == share]
            seen = min(ends, default=AFTER_ALL)
            near = (record for answer in answers for record in _records(answer[2:]) if _name(record.key) <= seen)
            found += sorted(near, key=lambda record: record.key)
            if not ends:
                break
            first = b"(" + seen
        return found[:limit]

    async def collect(self, limit: int) -> int:
        """Look at all names, some of every bucket at a time; no more are dropped than were asked for."""
        left, cursors = limit, dict.fromkeys(range(BUCKETS), b"-")
        while left and cursors:
            # One each at least, and never more than `left` together.
            some = list(cursors)[:left]
            share = left // len(some)
            calls = [Call(COLLECT, bucket, (cursors[bucket], COLLECT_LOOK, share)) for bucket in some]
            for bucket, (looked, last, dropped) in zip(some, _good(await self._wire.ask_all(calls)), strict=True):
                left -= dropped
                if dropped == share:
                    continue  # there may be more where these were
                if looked < COLLECT_LOOK:
                    del cursors[bucket]
                else:
                    cursors[bucket] = b"(" + last
        return limit - left

    async def raise_revision(self, least: int) -> int:
        """In every bucket: each counts for itself."""
        return min(map(int, await self._all(RAISE, (least,))))

    async def _all(self, script: Script, arguments: tuple[bytes | str | int, ...]) -> list[Any]:
        return _good(await self._wire.ask_all([Call(script, bucket, arguments) for bucket in range(BUCKETS)]))


# Names.


def _name(key: Key) -> bytes:
    # NUL is in no name and sorts before everything: names are in the order of keys.
    return f"{key.family}\0{key.member}".encode()


def _bucket(family: str) -> int:
    return crc32(family.encode()) % BUCKETS


@functools.lru_cache(maxsize=4096)
def _place(key: Key) -> tuple[int, bytes]:
    """Bucket and name of a key. Kept, because the same few keys come again and again."""
    return _bucket(key.family), _name(key)


# Answers.


def _good(answers: list[Any]) -> list[Any]:
    for answer in answers:
        if isinstance(answer, StoreError):
            raise answer
    return answers


def _records(answer: list[Any]) -> list[Record]:
    """Records that come as name, text and what is left of each."""
    found = zip(answer[::3], answer[1::3], answer[2::3], strict=True)
    return [_record(_key(name), text, left) for name, text, left in found]


def _record(key: Key, text: bytes, left: int | None) -> Record:
    # The script has matched this pattern before it sent it.
    revision, born, ttl, _, value = text.split(b" ", 4)
    return Record(key, value, int(revision), int(born), None if ttl == b"-" else int(ttl) / SECOND, _seconds(left))


def _key(name: bytes) -> Key:
    try:
        family, _, member = name.decode().partition("\0")
    except UnicodeDecodeError as error:
        raise StoreDamaged(f"the index holds {name!r}, which Leasehold did not write; remove it") from error
    return Key(family, member)


def _swapped(ask: Swap, said: Any) -> Record | Conflict:
    done, *answer = said
    if not done:
        return Conflict(_record(ask.key, *answer) if answer else None)
    if ask.value is None:
        return ask.expect or Conflict(None)
    revision, born, micro, left = answer
    return Record(ask.key, ask.value, revision, born, _seconds(micro), _seconds(left))


def _touched(held: Record, ttl: float, answer: Any) -> tuple[Renewal, Record | None]:
    if isinstance(answer, StoreError):
        return Renewal.UNKNOWN, None
    done, *found = answer
    if done:
        return Renewal.RENEWED, Record(held.key, held.value, held.revision, held.born, ttl, ttl)
    return Renewal.LOST, _record(held.key, *found) if found else None


def _micro(seconds: float) -> str:
    return str(round(seconds * SECOND))


def _seconds(micro: int | None) -> float | None:
    return None if micro is None else micro / SECOND


def _guarantees(config: RedisConfig, server: Server | None) -> Guarantees:
    return Guarantees(
        store="redis",
        clock="the Redis server's wall clock: a step forward ends leases early, a step back late",
        persistence=_persistence(server),
        failover=_FAILOVER[config.mode] + (f", unless {config.wait} replicas confirmed them" if config.wait else ""),
        token_source="the server's clock in microseconds, or the last token's plus one if that is more",  # noqa: S106  no password
        wake_up="pub/sub",
        ttl_min=0.1,
        ttl_max=86_400.0,
        ttl_step=0.0,
        batch=500,
        value_max=MEBIBYTE,
        # An heir hears of it before the replicas do.
        bequeaths=not config.wait,
    )


def _persistence(server: Server | None) -> str:
    if server is not None and server.aof:
        return "append-only file: a grant survives a crash of Redis only with appendfsync always"
    return "none that counts: after a restart of Redis leases are lost, and tokens grow unless its clock was set back"
