"""The two runtimes answer alike: each test is one coroutine, driven by threads and awaited by a loop."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

import pytest

from leasehold.engine.blocking import BlockingRuntime, drive
from leasehold.engine.looped import LoopedRuntime
from leasehold.engine.runtime import Runtime
from leasehold.testing.clock import VirtualClock
from leasehold.wires.clock import system_clock
from tests.support import count, turns


class Colour(NamedTuple):
    name: str
    runtime: Callable[..., Runtime]
    run: Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture(
    params=[Colour("blocking", BlockingRuntime, drive), Colour("asyncio", LoopedRuntime, asyncio.run)],
    ids=lambda colour: colour.name,
)
def run(request):
    """Run a story with a runtime of each colour, and end the runtime with it."""

    def running(story: Callable[[Runtime], Coroutine[Any, Any, Any]], clock: object = None) -> Any:
        async def whole() -> Any:
            runtime = request.param.runtime(clock or system_clock())
            try:
                return await story(runtime)
            finally:
                await runtime.close()

        return request.param.run(whole())

    return running


async def gives(value: object) -> object:
    return value


async def fails(error: Exception) -> object:
    raise error


def held_up(runtime: Runtime, finished: list[str]) -> tuple[Any, Coroutine[Any, Any, object]]:
    """A signal, and work that ends only once the signal is set."""
    signal = runtime.signal()

    async def work() -> object:
        await signal.wait()
        finished.append("slow")
        return "slow"

    return signal, work()


# Driving.


def test_driving_gives_the_result_or_raises_the_error() -> None:
    assert drive(gives(7)) == 7
    with pytest.raises(KeyError, match="gone"):
        drive(fails(KeyError("gone")))


def test_driving_a_coroutine_that_suspends_raises_and_closes_it() -> None:
    closed = []

    async def suspends() -> None:
        try:
            await asyncio.sleep(0)
        finally:
            closed.append(True)

    with pytest.raises(RuntimeError, match="suspended: it awaited something of asyncio's colour"):
        drive(suspends())
    assert closed == [True]


def test_a_coroutine_of_the_engine_never_suspends_under_the_blocking_runtime() -> None:
    """The control: what suspends in a loop does not suspend on threads."""

    async def sleeps(runtime: Runtime) -> str:
        await runtime.sleep(0.001)
        return await runtime.call(lambda: "done")

    assert drive(sleeps(BlockingRuntime(system_clock()))) == "done"


# Gathering.


def test_gather_gives_results_and_exceptions_in_order(run) -> None:
    error = ValueError("second")

    async def story(runtime: Runtime) -> list[object]:
        return await runtime.gather(gives(1), fails(error), gives(3))

    assert run(story) == [1, error, 3]


def test_gather_of_nothing_is_nothing(run) -> None:
    async def story(runtime: Runtime) -> list[object]:
        return await runtime.gather()

    assert run(story) == []


def test_gather_runs_all_at_once(run) -> None:
    """Each waits for the other: one after the other they would never end."""

    async def story(runtime: Runtime) -> list[object]:
        one, other = runtime.signal(), runtime.signal()

        async def meets(mine: Any, theirs: Any) -> bool:
            mine.set()
            return await theirs.wait(runtime.clock.now() + 20)

        return await runtime.gather(meets(one, other), meets(other, one))

    assert run(story) == [True, True]


def test_gather_keeps_the_order_whoever_ends_first(run) -> None:
    async def story(runtime: Runtime) -> list[object]:
        signal, slow = held_up(runtime, [])

        async def quick() -> str:
            signal.set()
            return "quick"

        return await runtime.gather(slow, quick())

    assert run(story) == ["slow", "quick"]


# The first of several.


def test_the_first_result_wins_and_the_slow_one_is_not_waited_for(run) -> None:
    finished: list[str] = []

    async def story(runtime: Runtime) -> object:
        signal, slow = held_up(runtime, finished)
        try:
            return await runtime.first_of(slow, gives("quick")), list(finished)
        finally:
            signal.set()

    assert run(story) == ("quick", [])


def test_an_error_does_not_win_over_a_result_that_comes_later(run) -> None:
    async def story(runtime: Runtime) -> object:
        signal, slow = held_up(runtime, [])

        async def fails_first() -> object:
            signal.set()
            raise ValueError("first")

        return await runtime.first_of(fails_first(), slow)

    assert run(story) == "slow"


def test_an_error_does_not_win_over_a_result_that_comes_with_it(run) -> None:
    async def story(runtime: Runtime) -> set[object]:
        tries = range(count(300))
        return {await runtime.first_of(*(fails(ValueError(n)) for n in range(5)), gives("result")) for _ in tries}

    assert run(story) == {"result"}


def test_if_all_fail_one_of_the_errors_is_raised(run) -> None:
    async def story(runtime: Runtime) -> None:
        with pytest.raises(ValueError, match=r"one|other"):
            await runtime.first_of(fails(ValueError("one")), fails(ValueError("other")))

    run(story)


def test_the_first_of_none_is_refused(run) -> None:
    async def story(runtime: Runtime) -> None:
        with pytest.raises(ValueError):
            await runtime.first_of()

    run(story)


def test_losers_that_fail_afterwards_disturb_nobody() -> None:
    """Nothing about them reaches the loop's handler of forgotten errors."""
    complaints = []

    async def story() -> object:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: complaints.append(context))
        runtime = LoopedRuntime(system_clock())

        async def fails_when_cancelled() -> object:
            try:
                await asyncio.Event().wait()
            finally:
                raise ValueError("on the way out")

        try:
            return await runtime.first_of(fails(ValueError("at once")), fails_when_cancelled(), gives("result"))
        finally:
            await runtime.close()

    assert asyncio.run(story()) == "result"
    assert not complaints


# Finishing.


def test_finish_gives_the_result_or_raises_the_error(run) -> None:
    async def story(runtime: Runtime) -> object:
        with pytest.raises(KeyError):
            await runtime.finish(fails(KeyError("x")))
        return await runtime.finish(gives(7))

    assert run(story) == 7


def test_what_is_to_be_finished_is_finished_though_its_caller_is_cancelled() -> None:
    finished: list[str] = []

    async def story() -> None:
        runtime = LoopedRuntime(system_clock())
        signal, slow = held_up(runtime, finished)
        caller = asyncio.create_task(runtime.finish(slow))
        await asyncio.sleep(0)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        assert not finished
        signal.set()
        # Closing waits for what is to be finished.
        await runtime.close()
        assert finished == ["slow"]

    asyncio.run(story())


@pytest.mark.parametrize("error", [None, KeyError("x")], ids=["done", "failed"])
def test_the_loop_has_nothing_to_complain_of_when_a_cancelled_callers_work_ends(error: Exception | None) -> None:
    complaints: list[dict[str, Any]] = []

    async def story() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, told: complaints.append(told))
        runtime = LoopedRuntime(system_clock())
        signal = runtime.signal()

        async def slow() -> None:
            await signal.wait()
            if error is not None:
                raise error

        caller = asyncio.create_task(runtime.finish(slow()))
        await turns(1)
        caller.cancel()
        await asyncio.gather(caller, return_exceptions=True)
        signal.set()
        # It ends by itself, and nobody asks it how.
        await turns(5)
        gc.collect()

    asyncio.run(story())
    assert complaints == []


def test_without_finish_a_cancelled_caller_takes_its_work_along() -> None:
    """The control of the test above."""
    finished: list[str] = []

    async def story() -> None:
        runtime = LoopedRuntime(system_clock())
        signal, slow = held_up(runtime, finished)
        caller = asyncio.create_task(slow)
        await asyncio.sleep(0)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        signal.set()
        await runtime.close()

    asyncio.run(story())
    assert not finished


# Spawning, waiting, calling, and who is who.


def test_spawned_work_runs_beside_the_one_who_spawned_it(run) -> None:
    async def story(runtime: Runtime) -> bool:
        asked, answered = runtime.signal(), runtime.signal()

        async def beside() -> None:
            await asked.wait()
            answered.set()

        runtime.spawn(beside(), "test-beside")
        asked.set()
        return await answered.wait(runtime.clock.now() + 20)

    assert run(story) is True


def test_a_signal_tells_whether_it_was_set_or_time_was_up(run) -> None:
    async def story(runtime: Runtime) -> list[bool]:
        signal = runtime.signal()
        waited = [await signal.wait(runtime.clock.now() - 1), signal.is_set()]
        signal.set()
        waited += [await signal.wait(), await signal.wait(runtime.clock.now() - 1), signal.is_set()]
        signal.clear()
        return [*waited, signal.is_set()]

    assert run(story) == [False, False, True, True, True, False]


def test_a_signal_set_by_another_thread_wakes_whoever_waits(run) -> None:
    async def story(runtime: Runtime) -> bool:
        signal = runtime.signal()
        thread = threading.Thread(target=signal.set)
        thread.start()
        try:
            return await signal.wait(runtime.clock.now() + 20)
        finally:
            thread.join()

    assert run(story) is True


def test_sleeping_takes_as_long_as_the_clock_says(run) -> None:
    clock = VirtualClock()

    async def story(runtime: Runtime) -> float:
        began = clock.now()

        async def sleeper() -> float:
            await runtime.sleep(30)
            return clock.now() - began

        async def mover() -> float:
            # The sleeper may not have begun yet: time goes on in steps until it is done.
            for _ in range(40):
                clock.advance(1)
                await runtime.call(lambda: None)
            return 0.0

        slept, _ = await runtime.gather(sleeper(), mover())
        return slept

    assert run(story, clock) >= 30


def test_a_call_that_blocks_gives_its_result_or_its_error(run) -> None:
    async def story(runtime: Runtime) -> object:
        with pytest.raises(ZeroDivisionError):
            await runtime.call(lambda: 1 // 0)
        return await runtime.call(lambda: "done")

    assert run(story) == "done"


def test_the_same_asker_is_the_same_and_another_is_another(run) -> None:
    async def story(runtime: Runtime) -> tuple[bool, bool]:
        async def who() -> object:
            return runtime.me()

        mine, (one, other) = runtime.me(), await runtime.gather(who(), who())
        return mine is runtime.me(), len({id(mine), id(one), id(other)}) == 3

    assert run(story) == (True, True)


def test_a_thread_that_comes_after_another_is_not_taken_for_it() -> None:
    """Thread ids are given again; identities are not."""
    runtime = BlockingRuntime(system_clock())
    seen: list[object] = []
    for _ in range(count(100)):
        thread = threading.Thread(target=lambda: seen.append(runtime.me()))
        thread.start()
        thread.join()
    assert len({id(identity) for identity in seen}) == len(seen)
