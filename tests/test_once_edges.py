"""The edges of handling a key once: cancelled, forked, closed, used after its end, and asked for what cannot be."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from leasehold import aio
from leasehold.engine.engine import Engine
from leasehold.engine.looped import LoopedRuntime
from leasehold.errors import ClientClosed, InvalidInput, LeaseLost, OutcomeUnknown, ResultNotKept, shown
from leasehold.rules.names import Names
from leasehold.rules.once import State
from leasehold.stores.memory import Memory, MemoryStore
from leasehold.testing.clock import VirtualClock
from leasehold.testing.conformance import Arena, arenas
from leasehold.testing.conformance.once_face import (
    KEY,
    RECEIPT,
    Gate,
    Ledger,
    OnceFace,
    WorkFace,
    counted_of,
    two_of,
)
from leasehold.testing.conformance.worlds import MemoryWorld, SqliteWorld
from leasehold.testing.faults import Call, FaultyStore, delay_reply, drop
from tests.support import PYTHON, ROOT, eventually, turns

arena = arenas(memory=MemoryWorld, sqlite=SqliteWorld)


# Cancelled.


class Shop:
    """A client of asyncio on records in memory, in virtual time."""

    def __init__(self, memory: Memory) -> None:
        runtime = LoopedRuntime(memory.clock)
        self.store = FaultyStore(MemoryStore(memory, runtime), runtime)
        self.engine = Engine(self.store, runtime, Names(None, None), holder=None, timeout=5.0, observers=[])
        self.once = aio.Once(aio.Locks(self.engine), ttl=10)
        self.held_up = asyncio.Event()
        self.going_on = asyncio.Event()

    async def answer(self, _work: aio.Work) -> str:
        return "answer"

    async def slow(self, _work: aio.Work) -> str:
        await self.pause()
        return "answer"

    async def pause(self) -> None:
        self.held_up.set()
        await self.going_on.wait()

    async def pausing(self, _store: FaultyStore, call: Call) -> Any:
        """A fault: it is done, and the answer takes long."""
        answer = await call()
        await self.pause()
        return answer

    async def at(self, run: Awaitable[Any]) -> asyncio.Task[Any]:
        """A run that has come to where it is held up."""
        task = asyncio.ensure_future(run)
        await self.held_up.wait()
        return task


def shops(test: Callable[[Shop, Shop], Awaitable[None]]) -> None:
    async def play() -> None:
        memory = Memory(VirtualClock())
        both = Shop(memory), Shop(memory)
        await test(*both)
        for each in both:
            await each.engine.close()

    asyncio.run(play())


async def cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_work_that_is_cancelled_has_an_unknown_outcome_which_others_are_told_at_once() -> None:
    async def test(one: Shop, two: Shop) -> None:
        task = await one.at(one.once.run(KEY, one.slow))
        waiting = asyncio.ensure_future(two.once.run(KEY, two.answer))
        await cancelled(task)
        with pytest.raises(OutcomeUnknown):
            await waiting
        assert (await two.once.inspect(KEY)).failure == "CancelledError: "
        assert await two.once.run(KEY, two.answer, rerun=True) == "answer"

    shops(test)


def test_where_cancelling_is_declared_harmless_it_frees_the_key() -> None:
    async def test(one: Shop, two: Shop) -> None:
        await cancelled(await one.at(one.once.run(KEY, one.slow, retry=(asyncio.CancelledError,))))
        assert await two.once.inspect(KEY) is None
        assert await two.once.run(KEY, two.answer) == "answer"

    shops(test)


@pytest.mark.parametrize("swaps", [0, 1])
def test_who_is_cancelled_before_the_work_began_leaves_nothing(swaps: int) -> None:
    async def test(one: Shop, two: Shop) -> None:
        began = one.engine.clock.now()
        one.store.plan("swap", *[through] * swaps, one.pausing)
        task = await one.at(one.once.run(KEY, one.slow))
        one.going_on.set()
        await cancelled(task)
        info = await two.once.inspect(KEY)
        assert info is None or info.state is not State.COMPLETED
        # What may be left of the lease is looked for and removed; that takes a moment.
        assert await in_time(two, two.once.run(KEY, two.answer)) == "answer"
        assert two.engine.clock.now() - began < two.once._handling.policy.ttl
        assert (await two.once.inspect(KEY)).attempt == 1

    shops(test)


def test_who_is_cancelled_after_the_work_was_done_has_its_record_written_all_the_same() -> None:
    async def test(one: Shop, two: Shop) -> None:
        one.store.plan("swap", through, through, one.pausing)
        task = await one.at(one.once.run(KEY, one.answer))
        await cancelled(task)
        one.going_on.set()
        assert await two.once.run(KEY, two.slow) == "answer"

    shops(test)


def test_who_is_cancelled_while_it_waits_disturbs_nobody() -> None:
    async def test(one: Shop, two: Shop) -> None:
        task = await one.at(one.once.run(KEY, one.slow))
        waiting = asyncio.ensure_future(two.once.run(KEY, two.answer))
        while not two.store.calls["watch"]:
            await turns(1)
        await cancelled(waiting)
        one.going_on.set()
        assert await task == await two.once.run(KEY, two.slow) == "answer"

    shops(test)


async def in_time(shop: Shop, run: Awaitable[Any]) -> Any:
    """What a run comes to while time passes."""
    task = asyncio.ensure_future(run)
    while not task.done():
        shop.engine.clock.advance(0.1)
        await turns(10)
    return task.result()


async def through(_store: FaultyStore, call: Call) -> Any:
    return await call()


# Forked.

FORKS = """
import os, sys, time
import leasehold
from leasehold import FinishedLate, LeaseLost

locks = leasehold.connect(sys.argv[1])
once = leasehold.Once(locks)

def work(work):
    child = os.fork()
    if not child:
        assert not work.held
        try:
            work.step("charge", lambda: None)
        except LeaseLost:
            return "child"
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    return "parent"

try:
    print(once.run("key", work), once.run("key", work), once.inspect("key").state.value)
except FinishedLate:
    os._exit(7)
"""


def test_a_forked_child_neither_finishes_nor_fails_the_work_of_its_parent(tmp_path: Path) -> None:
    done = subprocess.run(
        [PYTHON, "-W", "error", "-c", FORKS, f"sqlite://{tmp_path}/leases.db"],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.stdout.split(), done.returncode) == (["parent", "parent", "completed"], 0), done.stderr


# Slow, closed, and used after the end.


def test_nothing_is_run_under_a_lease_that_was_lost_before_it_began(arena: Arena) -> None:
    one, two = two_of(arena)
    held: list[tuple[bool, int]] = []

    async def doing(work: WorkFace) -> str:
        held.append((work.held, work.attempt))
        return "done"

    # The record is written at once, and its answer takes longer than the lease, which cannot be renewed.
    one.who.store.plan("swap", through, delay_reply(2 * arena.ttl))
    one.who.store.plan("touch", *[drop] * 100)
    running = one.begin(KEY, doing)
    eventually(running.done, nudge=lambda: arena.elapse(arena.ttl / 50))
    assert running.result() == two.run(KEY, doing) == "done"
    assert held == [(True, 1)]


def test_who_closes_its_client_in_the_middle_has_the_value_and_leaves_an_unknown_outcome(arena: Arena) -> None:
    one, two = two_of(arena)
    ledger, gate = Ledger(), Gate(arena)
    running = one.begin(KEY, ledger.held_up(gate))
    arena.eventually(gate.reached.is_set)
    arena.person().do(one.who.locks.close)
    gate.open()
    arena.eventually(running.done)
    assert isinstance(running.exception(), ResultNotKept)
    assert running.exception().value == RECEIPT
    assert isinstance(running.exception().__cause__, ClientClosed)
    with pytest.raises(OutcomeUnknown):
        two.run(KEY, ledger.charge)


def test_work_that_is_over_is_not_held_and_has_no_more_steps(arena: Arena) -> None:
    one, _ = two_of(arena)
    kept: list[WorkFace] = []

    async def doing(work: WorkFace) -> bool:
        kept.append(work)
        return bool(work.held)

    assert one.run(KEY, doing) is True
    assert not kept[0].held
    with pytest.raises(LeaseLost):
        kept[0].check()
    with pytest.raises(LeaseLost):
        arena.person().do(lambda: kept[0].real.step("more", lambda: None))


def test_a_step_inside_a_step_is_refused_before_it_is_done(arena: Arena) -> None:
    one, _ = two_of(arena)
    done: list[str] = []

    async def doing(work: WorkFace) -> None:
        begun = work.real._begun
        begun.step = "outer"
        with pytest.raises(InvalidInput, match="must wait for the end of step 'outer'"):
            await work.step("inner", lambda: done.append("inner"))
        begun.step = None
        await work.step("inner", lambda: done.append("inner"))

    one.run(KEY, doing)
    assert done == ["inner"]


def test_an_error_that_says_what_cannot_be_written_down_is_kept_all_the_same(arena: Arena) -> None:
    one, two = two_of(arena, definite=(ValueError,))

    async def doing(_work: WorkFace) -> None:
        raise ValueError("\ud800" + "x" * 100_000)

    with pytest.raises(ValueError, match="x"):
        one.run(KEY, doing)
    assert two.inspect(KEY).state is State.FAILED
    assert len(two.inspect(KEY).failure) < 1000


def test_the_same_key_inside_its_own_work_is_refused_and_does_not_wait_for_itself(arena: Arena) -> None:
    who = arena.client("ada")
    once = OnceFace(arena, who)

    async def inner(_work: Any) -> str:
        return "inner"

    async def doing(_work: WorkFace) -> Any:
        answer = once.real.run(KEY, inner)
        return await answer if arena.loop is not None else answer

    running = once.begin(KEY, doing)
    arena.eventually(running.done)
    assert "AlreadyHeld" in type(running.exception()).__name__


# Refused.

WRONG = {
    "ttl": [None, 0, -1, float("nan"), "5", True],
    "keep": [None, 0, -1, float("inf"), "5"],
    "duplicates": [None, "", "queue", 5, ["wait"]],
    "wait": [-1, float("nan"), "5", True],
    "definite": [None, ValueError, [ValueError], (5,), ("ValueError",), (int,)],
    "retry": [None, OSError, [OSError], (None,)],
    "rerun": [None, 1, "yes"],
    "limit": [None, 0, -1, 2.5, "5", True],
    "on_replay": [5, "print", [print]],
}


@pytest.mark.parametrize("field", WRONG)
def test_an_option_that_cannot_work_is_refused_before_the_store_is_asked(arena: Arena, field: str) -> None:
    ledger = Ledger()
    once, counted = counted_of(arena, "ada")
    for value in WRONG[field]:
        # When it is said for all runs, and when it is said for one.
        for ask in (OnceFace, lambda *_, **options: once.run(KEY, ledger.charge, **options)):
            with pytest.raises(InvalidInput) as told:
                ask(arena, once.who, **{field: value})
            assert (told.value.field, shown(value) in str(told.value)) == (field, True)
    assert (counted.requests, ledger.done) == ([], [])


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("key", {"key": ""}),
        ("key", {"key": "x" * 1025}),
        ("key", {"key": "a\0b"}),
        ("key", {"key": b"order"}),
        ("fingerprint", {"fingerprint": ""}),
        ("fingerprint", {"fingerprint": "x" * 257}),
        ("fingerprint", {"fingerprint": b"sha256"}),
        ("options", {"patience": 5}),
        ("options", {"life": 5}),
    ],
    ids=str,
)
def test_a_run_that_cannot_work_is_refused_before_the_store_is_asked(
    arena: Arena, field: str, given: dict[str, Any]
) -> None:
    ledger = Ledger()
    once, counted = counted_of(arena, "ada")
    with pytest.raises(InvalidInput) as told:
        once.run(**{"key": KEY, "doing": ledger.charge, **given})
    assert (told.value.field, counted.requests, ledger.done) == (field, [], [])


@pytest.mark.parametrize("given", [None, 5, "charge"])
def test_what_is_no_function_is_refused_before_the_store_is_asked(arena: Arena, given: object) -> None:
    once, counted = counted_of(arena, "ada")
    for verb, arguments in (("run", (KEY, given)), ("handler", (given,))):
        with pytest.raises(InvalidInput, match="function"):
            arena.person().do(lambda: getattr(once.real, verb)(*arguments))  # noqa: B023  done at once
    assert counted.requests == []
