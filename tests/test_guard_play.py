"""Executors that lose requests and answers at random: no run begins beside another, no rest is cut short."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from leasehold import aio
from leasehold.engine.engine import Engine
from leasehold.engine.looped import LoopedRuntime
from leasehold.errors import NotAcquired, StoreUnavailable
from leasehold.rules.names import Names
from leasehold.stores.memory import Memory, MemoryStore
from leasehold.testing.clock import VirtualClock
from leasehold.testing.faults import FaultyStore, cut, drop, hold_back
from tests.support import count

TARGET = "shop/cart"
TIMEOUT = 100.0
COOLDOWN = 30.0
EXECUTORS = 3
FAULTS = (drop, cut, hold_back)
ENDS = ("complete", "fail", "abandon")


class Life:
    """What is known of one run: when it was asked for, and what was ever asked of it, by whoever."""

    def __init__(self, sent: float) -> None:
        self.sent = sent
        self.ends: dict[str, float] = {}


class Play:
    """Executors on one target, with everything that may go wrong going wrong at random."""

    def __init__(self, chance: random.Random, *, shared: bool) -> None:
        self.chance = chance
        self.clock = VirtualClock()
        self.lives: dict[int, Life] = {}
        self.faults: list[str] = []
        memory = Memory(self.clock)
        self.memories = [memory if shared else Memory(self.clock) for _ in range(EXECUTORS)]
        self.finished = 0

    async def run(self, steps: int) -> None:
        runtime = LoopedRuntime(self.clock)
        self.stores = [FaultyStore(MemoryStore(memory, runtime), runtime) for memory in self.memories]
        engines = [Engine(s, runtime, Names(None, None), holder=None, timeout=5.0, observers=[]) for s in self.stores]
        self.guards = [aio.Guard(aio.Locks(each), timeout=TIMEOUT, cooldown=COOLDOWN) for each in engines]
        for each in self.guards:
            each._runs.wall = self.clock.now
        self.held: list[tuple[int, Any]] = []
        for step in range(steps):
            await self.step(step)
        for each in engines:
            await each.close()

    async def step(self, number: int) -> None:
        chance, who = self.chance, self.chance.randrange(EXECUTORS)
        match chance.randrange(8):
            case 0 | 1 | 2:
                await self.begin(who, f"wfe-{number if chance.random() < 0.7 else who}")
            case 3 | 4 if self.held:
                await self.end(*chance.choice(self.held), chance.choice(ENDS))
            case 5:
                self.stores[who].plan("swap", chance.choice(FAULTS))
            case 6:
                await self.stores[who].deliver()
            case _:
                self.clock.advance(chance.random() * 40)

    async def begin(self, who: int, owner: str) -> None:
        sent = self.clock.now()
        try:
            run = await self.guards[who].begin(TARGET, owner=owner)
        except NotAcquired:
            return
        except StoreUnavailable:
            # What arrives later may begin then: known of only once its owner asks again.
            return
        if run.token not in self.lives:
            self.judge(run.token, sent, adopted=run.adopted)
            # One that arrived late was sent before: it did not begin earlier than that.
            self.lives[run.token] = Life(run.since)
        self.held.append((run.token, run))

    def judge(self, token: int, now: float, *, adopted: bool) -> None:
        """Whether a run that has just begun may have: every one before must be over by then."""
        for other, life in self.lives.items():
            if other > token and not adopted:
                self.faults.append(f"token {token} after {other}")
            if other > token or adopted or "abandon" in life.ends:
                continue
            since = [life.ends[end] + COOLDOWN for end in ("complete", "fail") if end in life.ends]
            if now < min([life.sent + TIMEOUT, *since]):
                self.faults.append(f"token {token} began at {now} beside {other}")

    async def end(self, token: int, run: Any, verb: str) -> None:
        # Attempts count from their beginning: they may be applied without an answer, and late.
        is_first = verb not in self.lives[token].ends
        self.lives[token].ends.setdefault(verb, self.clock.now())
        try:
            answered = await getattr(run, verb)()
        except StoreUnavailable:
            return
        newest = max(self.lives)
        if answered and verb != "abandon":
            self.finished += 1
            if token < newest and is_first:
                self.faults.append(f"{verb} of {token} counted after {newest} had begun")


def test_whatever_is_lost_no_run_begins_beside_another_and_no_rest_is_cut_short() -> None:
    begun = finished = 0
    for number in range(count(1000)):
        play = Play(random.Random(number), shared=True)
        asyncio.run(play.run(steps=120))
        assert play.faults == [], f"play {number}"
        begun += len(play.lives)
        finished += play.finished
    # Not because nothing ever happened.
    assert begun > count(1000)
    assert finished > count(1000)


def test_executors_that_do_not_share_a_store_would_be_seen_beside_each_other() -> None:
    """The control: the play can show two runs at once."""
    play = Play(random.Random(0), shared=False)
    asyncio.run(play.run(steps=120))
    assert any("beside" in fault for fault in play.faults)
