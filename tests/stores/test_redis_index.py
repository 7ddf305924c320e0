"""The index of names and the records stay one, whatever happens; and what has ended goes away."""

from __future__ import annotations

import random

import pytest

from leasehold.engine.blocking import BlockingRuntime, drive
from leasehold.model import KEEP, Conflict, Key, Record, Swap
from leasehold.stores.memory import Memory, MemoryStore
from leasehold.testing.clock import VirtualClock
from leasehold.wires.redis_finder import BUCKETS, bucket_keys
from tests.stores.redis_support import FROZEN, KEY, ROOT_OF_KEYS, Driven, driven, frozen_server, key
from tests.support import count

FAMILIES = [f"{ROOT_OF_KEYS}{kind}" for kind in ("name/a", "name/a/b", "name/ä", "line/a", "name/日本")]
KEYS = [Key(family, member) for family in FAMILIES for member in ("lock", "m1", "m2")]
TTLS = [5.0, 10.0, 20.0, None]
EDGES = ["", "l", "lock", "lock\x01", "m", "m1", "m2", "m3", "ä", "日"]


class Pair:
    """The Redis store and the memory store side by side: same calls, same time, same answers."""

    def __init__(self, store: Driven, clock: VirtualClock) -> None:
        self.store = store
        self.clock = clock
        self.model = MemoryStore(Memory(clock), BlockingRuntime(clock))
        self.ours: dict[Key, Record] = {}
        self.theirs: dict[Key, Record] = {}

    def elapse(self, seconds: float) -> None:
        self.clock.advance(seconds)
        FROZEN.advance(seconds)

    def swap(self, at: Key, value: bytes | None, ttl, *, stale: bool) -> None:
        expect = (None, None) if stale else (self.ours.get(at), self.theirs.get(at))
        ours = self.store.swap(at, expect[0], value, ttl)
        theirs = drive(self.model.swap(at, expect[1], value, ttl))
        assert seen(ours) == seen(theirs)
        if isinstance(ours, Record) and isinstance(theirs, Record):
            self.ours[at], self.theirs[at] = ours, theirs

    def bequeath(self, at: Key, tells: Key | None) -> None:
        """Let go of a record for the first of its family's members that begin with m."""
        if at in self.ours:
            (ours,) = self.store.together([Swap(at, self.ours[at], None, None, "m", tells)])
            (theirs,) = drive(self.model.together([Swap(at, self.theirs[at], None, None, "m", tells)]))
            assert seen(ours) == seen(theirs)

    def touch(self, keys: list[Key], ttl: float) -> None:
        known = [at for at in keys if at in self.ours]
        ours = self.store.touch([(self.ours[at], ttl) for at in known])
        theirs = drive(self.model.touch([(self.theirs[at], ttl) for at in known]))
        assert [(answer, seen(record)) for answer, record in ours] == [(a, seen(record)) for a, record in theirs]

    def compare(self, rng: random.Random) -> None:
        for at in KEYS:
            assert seen(self.store.load(at)) == seen(drive(self.model.load(at)))
        for family in FAMILIES:
            windows = [(rng.choice(EDGES), rng.choice(EDGES)) for _ in range(rng.randrange(4))]
            for some in ([], windows):
                assert [*map(seen, self.store.scan(family, some))] == [*map(seen, drive(self.model.scan(family, some)))]
        for root in (ROOT_OF_KEYS, f"{ROOT_OF_KEYS}name/"):
            assert pages(self.store, root) == [seen(record) for record in drive(self.model.page(root, None, 100))]


def pages(store: Driven, root: str) -> list[object]:
    found: list[Record] = []
    while page := store.page(root, found[-1].key if found else None, 4):
        found += page
    return [seen(record) for record in found]


def seen(answer: Record | Conflict | None) -> object:
    """An answer without its revisions, which only grow: two stores never agree on them."""
    if isinstance(answer, Conflict):
        return ("conflict", seen(answer.record))
    if answer is None:
        return None
    left = None if answer.left is None else round(answer.left, 3)
    return (answer.key, answer.value, answer.ttl, left, answer.born == answer.revision)


@pytest.mark.parametrize("seed", range(count(40)))
def test_random_operations_answer_as_the_model_does(seed) -> None:
    rng = random.Random(seed)
    clock = VirtualClock()
    with driven(frozen_server().url, clock=clock) as store:
        pair = Pair(store, clock)
        for step in range(120):
            at = rng.choice(KEYS)
            match rng.randrange(9):
                case 0 | 1 | 2:
                    pair.swap(at, b"value-%d" % step, rng.choice([*TTLS, KEEP]), stale=rng.random() < 0.5)
                case 3:
                    pair.swap(at, None, None, stale=rng.random() < 0.2)
                case 4 | 5:
                    pair.touch(rng.sample(KEYS, 5), rng.choice([5.0, 10.0]))
                case 6:
                    pair.elapse(rng.choice([0.5, 3.0, 11.0]))
                case 7:
                    store.collect(rng.randrange(4))
                case 8:
                    before = counters(store)
                    own = rng.choice([None, at._replace(member="m1"), at._replace(member="m2")])
                    pair.bequeath(at._replace(member="lock"), own)
                    counted = counters(store)
                    assert len(counted) == len(before)
                    assert all(now >= then for now, then in zip(counted, before, strict=True))
            if step % 10 == 0:
                pair.compare(rng)
                assert is_consistent(store)
        pair.elapse(21.0)
        store.collect(1000)
        pair.compare(rng)
        live = {record.key for record in drive(pair.model.page(ROOT_OF_KEYS, None, 100))}
        assert names(store) == set(map(name, live))


def names(store: Driven) -> set[bytes]:
    """All names in all buckets."""
    return contents(store, "ZRANGE", 1, 0, -1)


def counters(store: Driven) -> list[int]:
    """The last revisions given out: every bucket in use has one."""
    commands = [("HGETALL", bucket_keys(bucket)[0]) for bucket in range(BUCKETS)]
    replies = store.wait(store.store._wire.command(None, commands))
    return [int(dict(zip(found[::2], found[1::2], strict=True))[b""]) for found in replies if found]


def is_consistent(store: Driven) -> bool:
    """Whether every name has a record and every record a name."""
    return names(store) == contents(store, "HKEYS", 0)


def contents(store: Driven, command: str, which: int, *words: int) -> set[bytes]:
    commands = [(command, bucket_keys(bucket)[which], *words) for bucket in range(BUCKETS)]
    replies = store.wait(store.store._wire.command(None, commands))
    return {found for some in replies if isinstance(some, list) for found in some} - {b""}


def name(at: Key) -> bytes:
    return f"{at.family}\0{at.member}".encode()


def test_an_index_that_lost_a_name_is_noticed_here() -> None:
    """The control: the comparison above would see it."""
    with driven(frozen_server().url, clock=VirtualClock()) as store:
        store.grant()
        assert is_consistent(store)
        contents(store, "DEL", 1)
        assert not is_consistent(store)


def test_names_nobody_releases_do_not_pile_up_while_others_come() -> None:
    """A thousand that live a second each, one after the other: what is left is little more than what lives."""
    with driven(frozen_server().url, clock=VirtualClock()) as store:
        for number in range(1000):
            store.grant(key(number), ttl=10.0)
            if number % 10 == 9:
                FROZEN.advance(1.0)
        # A hundred are alive at a time; those that ended are at most as many, and chance.
        assert len(names(store)) < 500
        assert is_consistent(store)


def test_collecting_takes_no_more_than_it_was_asked_for_and_no_token_falls() -> None:
    with driven(frozen_server().url, clock=VirtualClock()) as store:
        made = [store.grant(key(number), ttl=10.0) for number in range(200)]
        lasting = store.grant(KEY, ttl=None)
        FROZEN.advance(11.0)
        there = len(names(store)) - 1
        assert store.collect(7) == 7
        assert store.collect(0) == 0
        assert store.collect(1000) == there - 7
        assert store.collect(1000) == 0
        assert names(store) == {name(KEY)}
        assert store.load(KEY) == lasting
        for record in made[:20]:
            assert store.grant(record.key).revision > record.revision


def test_a_live_lease_is_never_collected() -> None:
    with driven(frozen_server().url, clock=VirtualClock()) as store:
        mine = store.grant(ttl=10.0)
        for _ in range(5):
            FROZEN.advance(9.0)
            ((_, mine),) = store.touch([(mine, 10.0)])
            assert store.collect(100) == 0
        assert store.load(KEY).revision == mine.revision


def test_a_family_of_many_is_scanned_whole_and_by_windows_past_those_that_ended() -> None:
    """More than the script looks at in one step, with long stretches of nothing but ended ones."""
    family, keys = FAMILIES[0], [Key(FAMILIES[0], f"r{number:04}") for number in range(1300)]
    with driven(frozen_server().url, clock=VirtualClock()) as store:
        for number, at in enumerate(keys):
            store.grant(at, ttl=10.0 if 100 <= number < 1200 else None)
        assert [record.key for record in store.scan(family)] == keys
        assert [record.key for record in store.scan(family, [("r0500", "r0600"), ("r0050", "r1150")])] == keys[50:1150]
        FROZEN.advance(11.0)
        assert [record.key for record in store.scan(family)] == keys[:100] + keys[1200:]
        assert [record.key for record in store.scan(family, [("r0099", "r1201")])] == [keys[99], keys[1200]]


def test_pages_of_many_buckets_come_in_order_and_whole() -> None:
    keys = [key(number) for number in range(700)]
    with driven(frozen_server().url, clock=VirtualClock()) as store:
        for at in random.sample(keys, len(keys)):
            store.grant(at)
        whole: list[Key] = []
        while page := store.page(ROOT_OF_KEYS, whole[-1] if whole else None, 150):
            whole += [record.key for record in page]
        assert whole == keys
