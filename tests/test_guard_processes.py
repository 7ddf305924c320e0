"""Guards between processes, in real time: executors killed with -9 in each phase, and crowds that begin at once."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import leasehold
from leasehold.rules.cooldown import Phase
from tests.guard_support import TARGET
from tests.support import PYTHON, ROOT, count, eventually
from tests.test_processes import URLS

PLAYER = ROOT / "tests" / "guard_player.py"
COLOURS = ("blocking", "asyncio")
PATIENCE = 60.0


@pytest.fixture(params=["sqlite", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return URLS[request.param](tmp_path)


@pytest.fixture
def guard(url: str) -> Iterator[leasehold.Guard]:
    with leasehold.connect(url, timeout=20) as locks:
        yield leasehold.Guard(locks)


class Process:
    """The test's side of one executor."""

    def __init__(self, url: str, colour: str) -> None:
        command = [PYTHON, str(PLAYER), url, colour]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True)

    def tell(self, verb: str, **order: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"verb": verb, **order}) + "\n")
        self.process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        said: dict[str, Any] = json.loads(self.process.stdout.readline())
        return said

    def ask(self, verb: str, **order: Any) -> dict[str, Any]:
        self.tell(verb, **order)
        return self.hear()

    def is_killed(self) -> bool:
        return self.process.wait(PATIENCE) == -signal.SIGKILL

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


@contextmanager
def started(url: str, *colours: str) -> Iterator[list[Process]]:
    crowd = [Process(url, colour) for colour in colours]
    try:
        yield crowd
    finally:
        for each in crowd:
            each.kill()


class Death(NamedTuple):
    """At which request it is killed, what is found then, and what its next life gets."""

    verb: str
    moment: str
    found: Phase | None
    gets: str


DEATHS = {
    "before the create": Death("begin", "before", None, "a new run"),
    "between create and note": Death("begin", "after", Phase.RUNNING, "its own run"),
    "before the end is written": Death("complete", "before", Phase.RUNNING, "its own run"),
    "between end and note": Death("complete", "after", Phase.COMPLETED, "no run"),
    "after it was abandoned": Death("abandon", "after", None, "a new run"),
}


@pytest.mark.parametrize("death", DEATHS.values(), ids=DEATHS)
def test_an_executor_killed_in_any_phase_goes_on_from_the_record(
    url: str, guard: leasehold.Guard, death: Death
) -> None:
    # Of both colours, and the next life is of the other: the record has none.
    with started(url, *COLOURS) as (mortal, born_again):
        words = {"target": TARGET, "owner": "wfe-1"}
        if death.verb != "begin":
            assert mortal.ask("begin", words=words)["adopted"] is False
        mortal.tell(death.verb, words=words, die=death.moment)
        assert mortal.is_killed()
        before = guard.inspect(TARGET)
        assert (before and before.phase) == death.found
        if before is not None:
            with pytest.raises(leasehold.NotAcquired) as caught:
                guard.begin(TARGET, owner="wfe-2")
            assert caught.value.holder == "wfe-1"
        said = born_again.ask("begin", words=words)
        if death.gets == "no run":
            assert said["refused"].startswith("RecentlyRemediated (by wfe-1, ")
        else:
            assert said["adopted"] is (death.gets == "its own run")
            assert before is None or said["token"] == before.token
            assert born_again.ask("complete")["answer"] is True
    last = guard.resume(TARGET, owner="wfe-1")
    assert last is not None
    assert last.phase is Phase.COMPLETED


def test_the_run_of_a_killed_executor_and_the_rest_after_one_end_by_themselves(
    url: str, guard: leasehold.Guard
) -> None:
    short = 1.5
    with started(url, *COLOURS) as (stuck, done):
        began = time.monotonic()
        tokens = {
            "stuck": stuck.ask("begin", words={"target": "stuck", "owner": "wfe-1"}, guard={"timeout": short})["token"],
            "done": done.ask("begin", words={"target": "done", "owner": "wfe-1"}, guard={"cooldown": short})["token"],
        }
        assert done.ask("complete")["answer"] is True
        for each in (stuck, done):
            each.process.kill()
            assert each.is_killed()
    for target, token in tokens.items():
        run = eventual(guard, target)
        assert run.token > token
        # Not before its time, by a little: the server's clock is another one.
        assert time.monotonic() - began > short * 0.99


def eventual(guard: leasehold.Guard, target: str) -> leasehold.Run:
    """The run that is begun once the target is free."""
    begun: list[leasehold.Run] = []

    def tried() -> bool:
        try:
            begun.append(guard.begin(target, owner="wfe-2"))
        except leasehold.NotAcquired:
            return False
        return True

    eventually(tried, PATIENCE)
    return begun[0]


def test_of_processes_that_begin_at_once_one_gets_each_target(url: str) -> None:
    targets = [f"target {number}" for number in range(count(400))]

    def winners(by: str) -> list[int]:
        for number, each in enumerate(crowd):
            each.tell("race", words={"targets": targets, "owner": f"wfe-{number}", "by": by})
        won = [target for each in crowd for target in each.hear()["won"]]
        return [won.count(target) for target in targets]

    with started(url, *COLOURS, "blocking") as crowd:
        # The control: the look alone lets all of them through.
        assert set(winners("check")) == {len(crowd)}
        assert set(winners("begin")) == {1}
