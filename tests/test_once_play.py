"""Many workers at a few keys, who die, are paused, and lose requests and answers at random; judged by a small model.

The model: the effect of a key is there once at most, on a sink that checks tokens; whoever is given an answer is given
the same one; and where nobody was allowed to do it again, nobody did.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from typing import Any

from leasehold import aio
from leasehold.engine.engine import Engine
from leasehold.engine.looped import LoopedRuntime
from leasehold.errors import LeaseholdError, ResultNotKept, RunFailed
from leasehold.rules.names import Names
from leasehold.stores.memory import Memory, MemoryStore
from leasehold.testing.clock import VirtualClock
from leasehold.testing.faults import FaultyStore, cut, drop, hold_back
from tests.support import count, note, turns

TTL = 10.0
WORKERS = 3
# The bold ones may be done again. Each has so many steps of a play to itself, and some more.
KEYS = [f"{kind}/{number}" for kind in ("careful", "bold") for number in range(4)]
EACH = 15
FAULTS = (drop, cut, hold_back)
STEPS = 4 * EACH


class Declined(Exception):
    """A definite failure."""


class Hiccup(Exception):
    """A failure after which it may be tried again."""


class Stale(Exception):
    """The sink has seen a later holder."""


class Sink:
    """A resource that keeps the largest token it has seen, and refuses smaller ones; or does not."""

    def __init__(self, *, fenced: bool) -> None:
        self.fenced = fenced
        self.mark = 0
        self.effects: list[int] = []

    def open(self, token: int) -> None:
        if self.fenced and token < self.mark:
            raise Stale
        self.mark = max(self.mark, token)

    def read(self, token: int) -> int | None:
        self.open(token)
        return self.effects[0] if self.effects else None

    def write(self, token: int) -> None:
        self.open(token)
        self.effects.append(token)


class Play:
    """One play. What went wrong is in `faults`."""

    def __init__(self, chance: random.Random, *, fenced: bool = True) -> None:
        self.chance = chance
        self.clock = VirtualClock()
        self.memory = Memory(self.clock)
        self.sinks = {key: Sink(fenced=fenced) for key in KEYS}
        self.runs: Counter[str] = Counter()
        # How many came as far as the effect.
        self.tried: Counter[str] = Counter()
        self.tokens: dict[str, list[int]] = defaultdict(list)
        self.answers: dict[str, set[object]] = defaultdict(set)
        self.ends: Counter[str] = Counter()
        self.pauses: list[asyncio.Event] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.faults: list[str] = []

    async def run(self, steps: int) -> None:
        self.runtime = LoopedRuntime(self.clock)
        self.engines: list[Engine] = []
        self.stores: list[FaultyStore] = []
        self.shops = [self.shop() for _ in range(WORKERS)]
        for number in range(steps):
            await self.step(max(number - self.chance.randrange(EACH // 2), 0) // EACH)
            await self.settle()
        await self.heal()
        await self.judge()
        for each in self.engines:
            await each.close()

    def shop(self) -> tuple[FaultyStore, Any]:
        store = FaultyStore(MemoryStore(self.memory, self.runtime), self.runtime)
        engine = Engine(store, self.runtime, Names(None, None), holder=None, timeout=5.0, observers=[])
        self.engines.append(engine)
        self.stores.append(store)
        return store, aio.Once(aio.Locks(engine), ttl=TTL, definite=(Declined,), retry=(Hiccup,))

    async def settle(self) -> None:
        await turns(25)

    async def step(self, number: int) -> None:
        chance, who = self.chance, self.chance.randrange(WORKERS)
        match chance.randrange(12):
            case 0 | 1 | 2 | 3:
                self.begin(self.shops[who][1], f"{chance.choice(['careful', 'bold', 'bold'])}/{number}")
            case 4 | 5 if self.pauses:
                self.pauses.pop(chance.randrange(len(self.pauses))).set()
            case 6 | 7:
                verb = chance.choice(["swap", "swap", "swap", "load", "touch"])
                self.shops[who][0].plan(verb, chance.choice(FAULTS))
            case 8:
                await self.shops[who][0].deliver()
            case 9:
                # It is cut off for good: whatever it does from now on nobody hears of, and another one comes.
                self.shops[who][0].down()
                self.shops[who] = self.shop()
            case 10 if self.tasks and chance.random() < 0.3:
                chance.choice(self.tasks).cancel()
            case _:
                for _ in range(chance.randrange(1, 8)):
                    self.clock.advance(chance.random() * TTL / 3)
                    await self.settle()

    def begin(self, once: Any, key: str, **options: Any) -> None:
        rerun = key.startswith("bold")
        duplicates = self.chance.choice(["wait", "wait", "raise", "skip"])
        fails = self.chance.choice([None, None, None, None, Declined, Hiccup, KeyError])
        # So that the order in which tasks run does not decide what they do.
        chance = random.Random(self.chance.random())

        async def work(work: Any) -> int:
            return await self.work(work, chance, fails)

        self.tasks.append(
            asyncio.ensure_future(
                self.noted(key, once.run(key, work, **{"rerun": rerun, "duplicates": duplicates, **options}))
            )
        )

    async def work(self, work: Any, chance: random.Random, fails: type[Exception] | None) -> int:
        key, token = work.key, work.token
        self.runs[key] += 1
        if self.tokens[key] and token <= max(self.tokens[key]):
            self.faults.append(f"token {token} of {key} after {max(self.tokens[key])}")
        self.tokens[key].append(token)
        sink = self.sinks[key]
        await self.pause(chance)
        sink.open(token)
        await self.pause(chance)
        found = sink.read(token)
        await self.pause(chance)
        if fails is Hiccup:
            # Certainly before the effect of this run.
            raise fails
        self.tried[key] += 1
        if found is None:
            sink.write(token)
            found = token
        await self.pause(chance)
        if fails is not None:
            raise fails
        return found

    async def pause(self, chance: random.Random) -> None:
        if chance.random() < 0.4:
            going_on = asyncio.Event()
            self.pauses.append(going_on)
            await going_on.wait()

    async def noted(self, key: str, run: Any) -> None:
        try:
            answer = await run
            if answer is not None:
                self.answers[key].add(answer)
            end = "answered"
        except RunFailed:
            self.answers[key].add("failed")
            end = "replayed failure"
        except ResultNotKept as error:
            # Nobody else was told: whoever may do it again may come to another end. It was done, all the same.
            end = type(error).__name__
            if error.value not in self.sinks[key].effects:
                self.faults.append(f"{error.value} of {key} was not done")
        except (LeaseholdError, Declined, Hiccup, KeyError, Stale, asyncio.CancelledError) as error:
            end = type(error).__name__
        self.ends[end] += 1

    async def heal(self) -> None:
        """Everything arrives and everybody goes on, those of whom nobody had heard, too."""
        for store in self.stores:
            store.forget_plans()
            store.up()
            await store.deliver()
        while not all(task.done() for task in self.tasks):
            for paused in self.pauses:
                paused.set()
            self.pauses.clear()
            self.clock.advance(TTL / 8)
            await self.settle()
        await asyncio.gather(*self.tasks)

    async def judge(self) -> None:
        for key in KEYS:
            _, once = self.shop()
            for _ in range(2):
                self.begin(once, key, duplicates="wait")
                await self.heal()
            if key.startswith("careful") and self.tried[key] > 1:
                self.faults.append(f"{key} was tried {self.tried[key]} times")
            if len(self.sinks[key].effects) > 1:
                self.faults.append(f"effects of {key}: {self.sinks[key].effects}")
            if len(self.answers[key]) > 1:
                self.faults.append(f"answers of {key}: {self.answers[key]}")
            if any(answer not in {*self.sinks[key].effects, "failed"} for answer in self.answers[key]):
                self.faults.append(f"{self.answers[key]} of {key} is not what was done")


def played(number: int, *, fenced: bool = True) -> Play:
    play = Play(random.Random(number), fenced=fenced)
    asyncio.run(play.run(STEPS))
    return play


def test_whatever_is_lost_and_whoever_dies_an_effect_is_there_once_and_has_one_answer() -> None:
    ends: Counter[str] = Counter()
    runs: Counter[str] = Counter()
    for number in range(count(2000)):
        play = played(number)
        assert play.faults == [], f"play {number}"
        ends += play.ends
        runs += play.runs
    note(f"{runs.total()} runs; {dict(ends.most_common())}")
    # Everything that can happen did.
    assert set(ends) >= {
        "answered", "replayed failure", "OutcomeUnknown", "StillRunning", "StoreUnavailable", "ResultNotKept", "Stale",
        "CancelledError", "Declined", "Hiccup", "KeyError",
    }  # fmt: skip


def test_the_same_plays_on_a_sink_that_checks_nothing_show_two_effects() -> None:
    """The control: the plays contain what the fence prevents."""
    found = [play.faults for play in (played(number, fenced=False) for number in range(count(2000)))]
    assert any(fault.startswith("effects") for faults in found for fault in faults)
