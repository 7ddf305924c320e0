"""What only asyncio has: cancellation, at every await, and bodies cancelled by a loss."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from blockbuster import BlockBuster, BlockingError, blockbuster_ctx

from leasehold import AcquireTimeout, LeaseLost, aio
from leasehold.engine.blocking import BlockingRuntime, drive
from leasehold.engine.engine import Engine
from leasehold.engine.looped import LoopedRuntime
from leasehold.rules.names import Names
from leasehold.stores.memory import Memory, MemoryStore
from leasehold.testing.clock import VirtualClock
from leasehold.testing.faults import FaultyStore, delay_reply, drop
from leasehold.wires.clock import system_clock
from tests.support import count, note, turns

TTL = 10.0


class Stage:
    """Clients of one memory store in virtual time, inside one loop."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.memory = Memory(self.clock)

    def client(self) -> tuple[aio.Locks, FaultyStore]:
        runtime = LoopedRuntime(self.clock)
        store = FaultyStore(MemoryStore(self.memory, runtime), runtime)
        engine = Engine(store, runtime, Names(None, None), holder=None, timeout=5.0, observers=())
        return aio.Locks(engine), store

    def records(self) -> int:
        return sum(map(len, self.memory.families.values()))

    async def elapse(self, seconds: float) -> None:
        """Time passes in small steps and everybody gets a turn after each."""
        for _ in range(20):
            self.clock.advance(seconds / 20)
            await turns(30)


async def hold_on(locks: aio.Locks) -> None:
    """A body that never leaves by itself."""
    async with locks.hold("job", ttl=TTL):
        await asyncio.Event().wait()


@contextlib.asynccontextmanager
async def pair() -> AsyncIterator[tuple[Stage, aio.Locks, FaultyStore, aio.Locks]]:
    stage = Stage()
    locks, store = stage.client()
    other, _ = stage.client()
    yield stage, locks, store, other
    store.up()
    store.forget_plans()
    await locks.close()
    await other.close()


def run(test: Callable[[], Any]) -> None:
    asyncio.run(test())


@pytest.fixture
def no_blocking_calls() -> Iterator[BlockBuster]:
    with blockbuster_ctx("leasehold") as watch:
        yield watch


def test_a_lost_lease_cancels_the_body_and_leaves_as_lease_lost() -> None:
    async def scene() -> None:
        async with pair() as (stage, locks, _, other):
            reached = []

            async def body() -> None:
                async with locks.hold("job", ttl=TTL):
                    reached.append("in")
                    await other.break_lease("job", reason="law", force=True)
                    await asyncio.Event().wait()
                    reached.append("never")

            task = asyncio.create_task(body())
            await turns(30)
            await stage.elapse(0.4 * TTL)
            with pytest.raises(LeaseLost, match="no longer has it") as told:
                await task
            assert isinstance(told.value.__cause__, asyncio.CancelledError)
            assert reached == ["in"]
            assert not task.cancelled()

    run(scene)


def test_an_outer_cancellation_stays_one() -> None:
    async def scene() -> None:
        async with pair() as (stage, locks, _, other):
            task = asyncio.create_task(hold_on(locks))
            await turns(30)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert task.cancelled()
            assert await other.inspect("job") is None
            assert stage.records() == 0

    run(scene)


def test_an_outer_cancellation_that_meets_a_loss_stays_a_cancellation() -> None:
    async def scene() -> None:
        async with pair() as (stage, locks, store, _):
            task = asyncio.create_task(hold_on(locks))
            await turns(30)
            store.down(drop)
            stage.clock.advance(TTL)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    run(scene)


def test_a_timeout_around_a_hold_is_still_a_timeout() -> None:
    async def scene() -> None:
        async with pair() as (_, locks, _, other):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01), locks.hold("job", ttl=TTL):
                    await asyncio.Event().wait()
            assert await other.inspect("job") is None

    run(scene)


def test_a_body_that_survives_its_cancellation_still_hears_of_the_loss() -> None:
    async def scene() -> None:
        async with pair() as (stage, locks, store, _):

            async def body() -> None:
                async with locks.hold("job", ttl=TTL):
                    with contextlib.suppress(asyncio.CancelledError):
                        await asyncio.Event().wait()

            task = asyncio.create_task(body())
            await turns(30)
            store.down(drop)
            await stage.elapse(TTL)
            with pytest.raises(LeaseLost):
                await task
            assert task.cancelling() == 0

    run(scene)


def test_the_bodys_exception_during_a_loss_is_the_one_that_leaves() -> None:
    async def scene() -> None:
        async with pair() as (stage, locks, store, _):

            async def body() -> None:
                async with locks.hold("job", ttl=TTL):
                    try:
                        await asyncio.Event().wait()
                    finally:
                        raise ZeroDivisionError

            task = asyncio.create_task(body())
            await turns(30)
            store.down(drop)
            await stage.elapse(TTL)
            with pytest.raises(ZeroDivisionError):
                await task

    run(scene)


def test_a_release_that_fails_does_not_mask_a_cancellation() -> None:
    async def scene() -> None:
        async with pair() as (_, locks, store, _):

            async def body() -> None:
                async with locks.hold("job", ttl=TTL):
                    store.down(drop)
                    await asyncio.Event().wait()

            task = asyncio.create_task(body())
            await turns(30)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert task.cancelled()

    run(scene)


def test_nested_reentrant_holds_leave_one_lease_lost() -> None:
    async def scene() -> None:
        async with pair() as (stage, locks, store, _):

            async def body() -> None:
                async with locks.hold("job", ttl=TTL), locks.hold("job", ttl=TTL, reentrant=True) as inner:
                    assert inner.depth == 2
                    await asyncio.Event().wait()

            task = asyncio.create_task(body())
            await turns(30)
            store.down(drop)
            await stage.elapse(TTL)
            with pytest.raises(LeaseLost):
                await task
            assert not task.cancelled()

    run(scene)


def test_a_release_inside_the_block_is_no_loss() -> None:
    async def scene() -> None:
        async with pair() as (stage, locks, _, _), locks.hold("job", ttl=TTL) as lease:
            assert await lease.release() is True
        assert stage.records() == 0

    run(scene)


def test_on_lost_may_be_a_coroutine_function() -> None:
    async def scene() -> None:
        async with pair() as (stage, locks, store, _):
            told: list[aio.Lease] = []

            async def on_lost(lease: aio.Lease) -> None:
                await turns(1)
                told.append(lease)

            lease = await locks.acquire("job", ttl=TTL, on_lost=on_lost)
            store.down(drop)
            await stage.elapse(TTL)
            assert told == [lease]

    run(scene)


def test_waiting_for_the_loss_ends_with_it_and_with_a_release() -> None:
    async def scene() -> None:
        async with pair() as (stage, locks, store, _):
            first = await locks.acquire("first", ttl=TTL)
            waiting = asyncio.create_task(first.lost.wait())
            await turns(30)
            await first.release()
            assert await waiting is False
            second = await locks.acquire("second", ttl=TTL)
            waiting = asyncio.create_task(second.lost.wait())
            await turns(30)
            store.down(drop)
            await stage.elapse(TTL)
            assert await waiting is True

    run(scene)


@pytest.mark.parametrize("contended", [False, True])
def test_cancelling_an_acquire_at_any_await_leaves_nothing_behind(*, contended: bool) -> None:
    """Cancel after 0, 1, 2 … turns of the loop, until the acquire is through before the cancellation."""

    async def attempt(after: int) -> bool:
        async with pair() as (stage, locks, store, other):
            if contended:
                held = await other.acquire("job", ttl=TTL)
            store.plan("swap", delay_reply(0.01))
            task = asyncio.create_task(locks.acquire("job", ttl=TTL))
            for turn in range(after):
                if contended and turn == 10:
                    await held.release()
                stage.clock.advance(0.001)
                await turns(1)
            finished = task.done()
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                lease = await task
                await lease.release()
            await stage.elapse(1.2)
            if contended and not finished:
                await held.release()
            mine = await other.acquire("job", ttl=TTL, wait=0)
            assert mine.held
            await mine.release()
            assert stage.records() == 0
            return finished

    async def scene() -> None:
        cancelled = 0
        for after in range(2000):
            if await attempt(after):
                break
            cancelled += 1
        assert 5 < cancelled < 1999
        note(f"cancelled at {cancelled} points")

    run(scene)


def test_cancelling_a_release_does_not_keep_it_from_happening() -> None:
    """Elsewhere a cancelled release left the key for ever."""

    async def attempt(after: int) -> bool:
        async with pair() as (stage, locks, store, other):
            lease = await locks.acquire("job", ttl=TTL)
            store.plan("swap", delay_reply(0.01))
            task = asyncio.create_task(lease.release())
            for _ in range(after):
                stage.clock.advance(0.001)
                await turns(1)
            finished = task.done()
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            await stage.elapse(0.1)
            # Not even begun: then it is still held, and says so. Else it is gone.
            assert lease.held == (await other.inspect("job") is not None)
            return finished

    async def scene() -> None:
        for after in range(500):
            if await attempt(after):
                assert after > 2
                return
        raise AssertionError("the release never finished")

    run(scene)


def test_replies_never_reach_the_wrong_caller(tmp_path: Path) -> None:
    """Twenty cancelled requests on one SQLite client, each followed by a read of something else."""

    async def scene() -> None:
        async with await aio.connect(f"sqlite://{tmp_path}/leases.db") as locks:
            for turn in range(count(200)):
                slow = asyncio.create_task(locks.try_acquire(f"cancelled/{turn}", ttl=TTL))
                await turns(1)
                slow.cancel()
                lease = await locks.acquire(f"mine/{turn}", ttl=TTL, wait=0)
                info = await locks.inspect(f"mine/{turn}")
                assert info is not None
                assert (info.scope, info.token) == (f"mine/{turn}", lease.token)
                await lease.release()
                with pytest.raises(asyncio.CancelledError):
                    await slow

    run(scene)


def test_the_loop_is_never_blocked(no_blocking_calls: BlockBuster, tmp_path: Path) -> None:
    async def scene() -> None:
        locks = await aio.connect(f"sqlite://{tmp_path}/leases.db")
        async with locks.hold("job", ttl=TTL) as lease:
            await lease.renew()
            await locks.list()
        other = await aio.connect(f"sqlite://{tmp_path}/leases.db")
        async with locks.hold("job", ttl=TTL):
            with pytest.raises(AcquireTimeout):
                await other.acquire("job", ttl=TTL, wait=0.05)
        await other.close()
        await locks.close()

    run(scene)


def test_a_blocked_loop_would_be_noticed(no_blocking_calls: BlockBuster) -> None:
    """The control of the test above."""

    async def scene() -> None:
        with pytest.raises(BlockingError):
            drive(BlockingRuntime(system_clock()).sleep(0.01))

    run(scene)
