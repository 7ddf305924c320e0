"""What `update` does with whatever it is given: files, a user's own resources, refusals, silence."""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import leasehold
from leasehold import fence, optimistic
from leasehold.fence import aio as fence_aio
from leasehold.fence.files import FileResource
from leasehold.optimistic import aio
from leasehold.optimistic.racing import PAUSES, race
from leasehold.testing.versions import ATTEMPTS, SHORT, VersionLaws
from leasehold.wires.colour import drive
from tests.optimistic.test_laws import Memory

RACERS, TURNS = 4, 10


def one_more(value: bytes) -> bytes:
    return str(int(value) + 1).encode()


class Named(Memory):
    name = "the total"


class Overtaken(Named):
    """Somebody else is quicker, so many times."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times, self.loads = times, 0

    def load(self):
        found = super().load()
        self.loads += 1
        if self.loads <= self.times:
            super().replace(one_more(found[0]), found[1])
        return found


class OvertakenLater(Overtaken):
    """The same, awaited."""

    async def load(self):
        return Overtaken.load(self)

    async def replace(self, value, version):
        return Overtaken.replace(self, value, version)


class TestFiles(VersionLaws):
    @pytest.fixture
    def reach(self, tmp_path: Path):
        (tmp_path / "total").write_bytes(b"0")
        return lambda: FileResource(tmp_path / "total", 20)


def updated(colour: str, times: int, **given):
    """The resource, and what an update of it came to, in one colour."""
    if colour == "blocking":
        resource = Overtaken(times)
        return resource, lambda: optimistic.update(resource, one_more, **given)
    later = OvertakenLater(times)
    return later, lambda: asyncio.run(aio.update(later, one_more, **given))


COLOURS = pytest.mark.parametrize("colour", ["blocking", "asyncio"])


@COLOURS
def test_who_was_overtaken_reads_again_and_undoes_nothing(colour: str) -> None:
    resource, run = updated(colour, 3, backoff=SHORT)
    assert run() == b"4" == resource.data
    assert resource.loads == 4


@COLOURS
@pytest.mark.parametrize(
    "given", [{"attempts": 3}, {"attempts": 5, "backoff": leasehold.Backoff(base=0.001, attempts=3)}]
)
def test_after_the_last_attempt_it_says_so_and_has_written_nothing(colour: str, given) -> None:
    resource, run = updated(colour, 3, **given)
    with pytest.raises(leasehold.TooContended, match="'the total' changed under all 3 attempts") as told:
        run()
    assert (told.value.resource, told.value.attempts) == ("the total", 3)
    # What the others wrote is there, and nothing of ours.
    assert (resource.data, resource.loads) == (b"3", 3)


def test_pauses_lie_between_the_attempts_and_are_full_of_chance() -> None:
    paused: list[float] = []

    async def pause(seconds: float) -> None:
        paused.append(seconds)

    with pytest.raises(leasehold.TooContended):
        drive(race(Overtaken(200), one_more, 200, PAUSES, pause))
    # One pause less than attempts; none beyond twice the cap; hardly two alike; some close to nothing.
    assert len(paused) == 199
    assert max(paused) <= 2 * PAUSES.cap
    assert len(set(paused)) > 190
    assert min(paused[20:]) < PAUSES.cap / 2 < max(paused)


@pytest.mark.parametrize("applied", [None, False])
def test_a_store_that_does_not_answer_is_told_and_not_asked_again(applied) -> None:
    class Gone(Named):
        asked = 0

        def replace(self, value, version):
            self.asked += 1
            raise leasehold.StoreUnavailable("no answer", applied=applied)

    resource = Gone()
    with pytest.raises(leasehold.StoreUnavailable) as told:
        optimistic.update(resource, one_more)
    assert (told.value.applied, resource.asked) == (applied, 1)


def test_a_change_that_raises_leaves_everything_as_it_was() -> None:
    resource = Named()
    with pytest.raises(ZeroDivisionError):
        optimistic.update(resource, lambda value: value * (1 // 0))
    assert resource.load() == (b"0", 0)


def test_threads_and_tasks_lose_no_update_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "total"
    path.write_bytes(b"0")
    together = threading.Barrier(RACERS)

    def blocking(_nth: int) -> None:
        together.wait(60)
        for _ in range(TURNS):
            optimistic.update(fence.File(path, timeout=20), one_more, attempts=ATTEMPTS, backoff=SHORT)

    async def looped() -> None:
        async def turns() -> None:
            for _ in range(TURNS):
                await aio.update(fence_aio.File(path, timeout=20), one_more, attempts=ATTEMPTS, backoff=SHORT)

        await asyncio.gather(*(turns() for _ in range(RACERS)))

    with ThreadPoolExecutor(RACERS + 1) as pool:
        tasks = pool.submit(asyncio.run, looped())
        list(pool.map(blocking, range(RACERS)))
        tasks.result(60)
    assert path.read_bytes() == str(2 * RACERS * TURNS).encode()
    assert sorted(os.listdir(tmp_path)) == ["total", "total.mark"]


def test_nothing_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(leasehold.NoSuchResource):
        optimistic.update(fence.File(tmp_path / "total"), one_more)
    assert not (tmp_path / "total").exists()


def test_an_update_leaves_the_mark_where_it_was(tmp_path: Path) -> None:
    total = fence.File(tmp_path / "total")
    total.open(7).write(b"1")
    assert optimistic.update(total, one_more) == b"2"
    with pytest.raises(leasehold.StaleToken) as refusal:
        total.open(6)
    assert refusal.value.mark == 7
    assert total.open(7).read() == b"2"


async def later(value: bytes) -> bytes:
    return value


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("resource", {"resource": object()}),
        ("resource", {"resource": fence.Fenced(object())}),
        ("resource", {"resource": fence_aio.File("/nowhere/total")}),
        ("change", {"change": b"1"}),
        ("change", {"change": later}),
        ("attempts", {"attempts": 0}),
        ("attempts", {"attempts": 2.5}),
        ("backoff", {"backoff": None}),
        ("backoff", {"backoff": 0.1}),
    ],
    ids=repr,
)
def test_an_argument_that_cannot_work_is_refused_before_anything_is_read(field: str, given) -> None:
    untouched = Overtaken(0)
    arguments = {"resource": untouched, "change": one_more, **given}
    with pytest.raises(leasehold.InvalidInput) as refusal:
        optimistic.update(arguments.pop("resource"), arguments.pop("change"), **arguments)
    assert refusal.value.field == field
    assert untouched.loads == 0


def test_a_blocking_fence_is_refused_on_a_loop() -> None:
    with pytest.raises(leasehold.InvalidInput, match="a fence of this colour"):
        asyncio.run(aio.update(fence.File("/nowhere/total"), one_more))


def test_both_colours_look_alike() -> None:
    def options(function):
        found = inspect.signature(function).parameters.values()
        return [(each.name, each.kind, each.default) for each in found]

    assert options(optimistic.update) == options(aio.update)
    assert optimistic.update.__doc__ == aio.update.__doc__
