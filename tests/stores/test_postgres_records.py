"""The same answers as the memory store, whatever is asked; and a table that stays small."""

from __future__ import annotations

import random
from typing import Any

import psycopg
import pytest

from leasehold.engine.blocking import BlockingRuntime, drive
from leasehold.model import KEEP, Conflict, Key, Record
from leasehold.stores.memory import Memory, MemoryStore
from leasehold.wires.clock import system_clock
from tests.stores.postgres_support import KEY, LONG, Driven, driven, end_all, fresh, nth_key, postgres, schema_of
from tests.support import count, eventually

KEYS = [Key(f"app//{kind}/{text}", member) for kind in ("name", "line") for text in "ab" for member in ("lock", "m")]


class Twins:
    """Every call goes to both stores, and both must answer alike. Revisions are compared by their order."""

    def __init__(self, url: str, chance: random.Random) -> None:
        clock = system_clock()
        self.url = url
        self.memory: Any = MemoryStore(Memory(clock), BlockingRuntime(clock))
        self.store = Driven(url)
        self.chance = chance
        self.seen: list[tuple[Record, Record]] = []

    def step(self) -> None:
        verb = self.chance.choice(["load", "scan", "page", "collect", "touch", "end", *["swap"] * 6])
        getattr(self, verb)()

    def same(self, model: Any, real: Any) -> None:
        if isinstance(model, Conflict):
            assert isinstance(real, Conflict)
            model, real = model.record, real.record
        assert (model is None) == (real is None)
        if model is None:
            return
        assert (model.key, model.value, model.ttl) == (real.key, real.value, real.ttl)
        assert (model.revision == model.born) == (real.revision == real.born)
        assert (model.left is None) == (real.left is None)
        for earlier, earlier_real in self.seen:
            assert (earlier.revision < model.revision) == (earlier_real.revision < real.revision)
        self.seen = [*self.seen[-20:], (model, real)]

    def pick(self) -> tuple[Record, Record]:
        return self.chance.choice(self.seen)

    def swap(self) -> None:
        key, expect = self.chance.choice(KEYS), (None, None)
        if self.seen and self.chance.random() < 0.6:
            expect = self.pick()
            key = expect[0].key
        value = self.chance.choice([None, b"", b"value", bytes(range(256))])
        ttl = self.chance.choice([None, LONG, 2 * LONG, KEEP])
        model = drive(self.memory.swap(key, expect[0], value, ttl))
        self.same(model, self.store.swap(key, expect[1], value, ttl))

    def load(self) -> None:
        key = self.chance.choice(KEYS)
        self.same(drive(self.memory.load(key)), self.store.load(key))

    def scan(self) -> None:
        family = self.chance.choice(KEYS).family
        self.all_same(drive(self.memory.scan(family)), self.store.scan(family))

    def page(self) -> None:
        after = self.chance.choice([None, *KEYS])
        limit = self.chance.randint(1, len(KEYS))
        self.all_same(drive(self.memory.page("app//", after, limit)), self.store.page("app//", after, limit))

    def all_same(self, model: list[Record], real: list[Record]) -> None:
        assert [record.key for record in model] == [record.key for record in real]
        for one, other in zip(model, real, strict=True):
            self.same(one, other)

    def touch(self) -> None:
        if not self.seen:
            return
        # Each key once: of two renewals in one batch the memory store and PostgreSQL may take either first.
        holds = list({pair[0].key: pair for pair in (self.pick() for _ in range(4))}.values())
        model = drive(self.memory.touch([(one, LONG) for one, _ in holds]))
        real = self.store.touch([(other, LONG) for _, other in holds])
        assert [renewal for renewal, _ in model] == [renewal for renewal, _ in real]
        for (_, one), (_, other) in zip(model, real, strict=True):
            self.same(one, other)

    def collect(self) -> None:
        self.store.collect(self.chance.randint(0, 3))

    def end(self) -> None:
        """Everything with an end has ended: for the model it is simply gone."""
        if self.chance.random() < 0.8:
            return
        end_all(self.url)
        for record in drive(self.memory.page("app//", None, 100)):
            if record.ttl is not None:
                drive(self.memory.swap(record.key, record, None, None))


@pytest.mark.parametrize("number", range(3))
def test_it_answers_like_the_memory_store(number: int) -> None:
    twins = Twins(fresh(postgres().url), random.Random(number))
    for _ in range(count(2000)):
        twins.step()
    assert twins.seen
    twins.store.close()


def rows(url: str) -> int:
    ((found,),) = postgres().execute(f"SELECT count(*) FROM {schema_of(url)}.leases")  # noqa: S608  ours
    return int(found)


def test_grants_sweep_away_what_others_left() -> None:
    url = f"{fresh(postgres().url)}&synchronous_commit=off"
    with driven(url) as store:
        for number in range(150):
            store.grant(nth_key(number))
        lasting = store.grant(nth_key(1000), ttl=None)
        end_all(url)
        assert rows(url) == 151
        last = lasting.revision
        # Every 256th revision sweeps, among 64 records.
        for _ in range(256 * 5):
            made = store.grant()
            assert made.revision > last
            last = made.revision
            store.swap(KEY, made, None, None)
        assert rows(url) == 1
        assert store.load(lasting.key).revision == lasting.revision


def test_collecting_leaves_alone_what_somebody_is_writing() -> None:
    url = fresh(postgres().url)
    with driven(url) as store:
        for number in range(5):
            store.grant(nth_key(number))
        end_all(url)
        with psycopg.connect(postgres().url) as other:
            other.execute(f"SELECT FROM {schema_of(url)}.leases WHERE family LIKE '%%0' FOR UPDATE")
            assert store.collect(100) == 4
        assert store.collect(100) == 1
        assert store.collect(100) == 0


def size_after_two_rounds(*, autovacuum: bool) -> int:
    """The bytes of the table after as many leases twice, with time to clear away in between."""
    url = f"{fresh(postgres().url)}&synchronous_commit=off&application_name=growing"
    table = f"{schema_of(url)}.leases"

    def fill(turn: int) -> int:
        with driven(url) as store:
            postgres().execute(f"ALTER TABLE {table} SET (autovacuum_enabled = {autovacuum})")
            for number in range(count(20_000)):
                made = store.grant(Key(f"app//name/{turn}-{number}", "lock"), value=b"x" * 200)
                store.touch([(made, LONG)])
                store.swap(made.key, made, None, None)
        return int(postgres().execute(f"SELECT pg_relation_size('{table}')")[0][0])

    def is_cleared() -> bool:
        # A session tells what it left dead when it ends.
        if postgres().execute("SELECT 1 FROM pg_stat_activity WHERE application_name = 'growing'"):
            return False
        state = "SELECT autovacuum_count > 0 AND n_dead_tup <= 500 FROM pg_stat_all_tables WHERE relid = %s::regclass"
        return bool(postgres().execute(state, table)[0][0])

    fill(1)
    if autovacuum:
        eventually(is_cleared, patience=60)
    return fill(2)


def test_thousands_of_leases_use_the_same_pages_again_and_again() -> None:
    """Each leaves dead rows behind, which the table's own autovacuum settings clear away; without, it grows."""
    assert size_after_two_rounds(autovacuum=True) < 0.75 * size_after_two_rounds(autovacuum=False)
