"""A client's memory of what it was granted, and what elections and guards make of a store that went back."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import leasehold
from leasehold.engine.marks import FAMILIES, Marks
from leasehold.testing.conformance import COLOURS
from leasehold.testing.conformance.arena import Arena
from leasehold.testing.conformance.worlds import MemoryWorld
from leasehold.testing.faults import drop
from leasehold.testing.setback import SetBack
from tests.election_support import Runner
from tests.guard_support import Executor

TERMS = 12


@pytest.fixture(params=COLOURS)
def arena(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Arena]:
    made = Arena(MemoryWorld(tmp_path), request.param)
    yield made
    made.close()


class Changing:
    """Puts a store that can go back in front of a client's own."""

    store: SetBack

    def __call__(self, store: Any) -> SetBack:
        self.store = SetBack(store)
        return self.store


# Memory.


def test_only_the_families_used_last_are_remembered() -> None:
    marks = Marks()
    for family in range(FAMILIES):
        marks.note(str(family), family + 1)
    marks.note("0", 5)
    marks.note("new", 7)
    assert len(marks) == FAMILIES
    assert [marks.of(family) for family in ("0", "1", "2", "new", "unknown")] == [5, 0, 3, 7, 0]


def test_the_largest_is_remembered_whoever_comes_last() -> None:
    marks = Marks()
    for token in (5, 9, 7):
        marks.note("job", token)
    assert marks.of("job") == 9
    every = range(1, 1001)
    threads = [threading.Thread(target=lambda: [marks.note("many", token) for token in every]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert marks.of("many") == max(every)


def test_a_forked_child_remembers_nothing_of_its_parent() -> None:
    with leasehold.connect("memory://marks") as locks:
        locks.acquire("job").release()
        assert len(locks._engine.marks) == 1
        child = os.fork()
        if not child:
            os._exit(len(locks._engine.marks))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# Elections.


def test_nobody_leads_with_such_a_token_and_the_candidate_goes_on_trying(
    arena: Arena, caplog: pytest.LogCaptureFixture
) -> None:
    change = Changing()
    ada = Runner(arena, "ada", change=change)
    tokens: list[int] = []
    for _ in range(TERMS):
        tokens.append(ada.do("campaign").token)
        ada.do("resign")
    change.store.set_back()
    with pytest.raises(leasehold.StoreWentBack):
        ada.do("campaign")
    with caplog.at_level(logging.WARNING, "leasehold"):
        led = ada.lead()
        arena.eventually(lambda: "Raise its tokens" in caplog.text)
    assert ada.work.terms == []
    change.store.repair()
    arena.eventually(lambda: ada.work.terms)
    ada.election.stop()
    arena.eventually(led.done)
    assert ada.work.terms[0] > max(tokens)


# Guards.


def test_a_guard_begins_no_run_with_such_a_token_and_leaves_nothing(arena: Arena) -> None:
    change = Changing()
    ada = Executor(arena, client=arena.client("ada", change=change), cooldown=0.0)
    mark = 0
    for nth in range(TERMS):
        run = ada.begin(f"owner {nth}")
        mark = run.token
        ada.run(run, "complete")
    change.store.set_back()
    with pytest.raises(leasehold.StoreWentBack) as told:
        ada.begin("ada")
    assert told.value.mark == mark
    assert ada.do("inspect", run.target) is None
    change.store.repair()
    again = ada.begin("ada")
    assert (again.adopted, again.token > mark) == (False, True)


def test_a_run_that_could_not_be_given_back_is_not_adopted_by_its_owner(arena: Arena) -> None:
    change = Changing()
    ada = Executor(arena, client=arena.client("ada", change=change), cooldown=0.0)
    for nth in range(TERMS):
        run = ada.begin(f"owner {nth}")
        ada.run(run, "complete")
    change.store.set_back()

    async def through(_store: Any, call: Any) -> Any:
        return await call()

    ada.store.plan("swap", through, drop)
    with pytest.raises(leasehold.StoreWentBack):
        ada.begin("ada")
    change.store.repair()
    arena.eventually(lambda: ada.do("inspect", run.target) is None)
    assert not ada.begin("ada").adopted
