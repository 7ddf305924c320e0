"""kopf's handlers, serialized across replicas: real operators on a real API server, beside ones without a lock."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import kopf
import pytest

import leasehold
from leasehold import aio
from leasehold.errors import InvalidInput
from leasehold.kube.kopf import serialized
from leasehold.rules.kubernetes_roles import ORDINARY
from tests.kube.support import WIDGET, Place
from tests.support import PYTHON, eventually

REPLICAS = 2
OBJECTS = 2
# kopf writes its own notes into the objects, and reads definitions, namespaces and events.
RULES: list[dict[str, Any]] = [
    {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": list(ORDINARY)},
    {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]},
    {
        "apiGroups": [WIDGET.group],
        "resources": ["widgets", "widgets/status"],
        "verbs": ["get", "list", "watch", "patch"],
    },
]
# One line in the journal when a handler begins, and one when it ends. There is a handler of each colour.
OPERATOR = """
import asyncio, os, pathlib, time
import kopf
import leasehold
from leasehold.kube.kopf import serialized

url, journal = os.environ["STORE"], pathlib.Path(os.environ["JOURNAL"])

def lock(locks):
    if "BARE" in os.environ:
        return lambda handler: handler
    return serialized(key=lambda spec, **_: spec["target"], ttl=3, wait=0.1, locks=locks)

def note(word, name):
    with journal.open("a") as file:
        file.write(f"{time.monotonic()!r} {os.getpid()} {word} {name}\\n")

def work(name):
    note("begin", name)
    time.sleep(0.1)
    note("end", name)

@kopf.on.startup()
async def startup(memo, settings, **_):
    settings.scanning.disabled = True
    memo.locks, memo.blocking = await leasehold.aio.connect(url), leasehold.connect(url)

@kopf.on.cleanup()
async def cleanup(memo, **_):
    await memo.locks.close()
    memo.blocking.close()

@kopf.on.create("widgets")
@lock("locks")
async def awaited(name, **_):
    await asyncio.to_thread(work, f"awaited/{name}")

@kopf.on.create("widgets")
@lock("blocking")
def plain(name, **_):
    work(f"plain/{name}")
"""
RUNS = {f"{colour}/widget-{number}" for colour in ("awaited", "plain") for number in range(OBJECTS)}


class Run(NamedTuple):
    """One run of a handler."""

    name: str
    process: int
    begin: float
    end: float


def runs(journal: Path) -> list[Run]:
    """The runs that have come to their end."""
    begun: dict[tuple[str, int], float] = {}
    found = []
    for line in journal.read_text().splitlines():
        at, process, word, name = line.split()
        key = (name, int(process))
        if word == "begin":
            begun[key] = float(at)
        else:
            found.append(Run(*key, begun.pop(key), float(at)))
    return found


def overlaps(found: list[Run]) -> list[tuple[Run, Run]]:
    ordered = sorted(found, key=lambda run: run.begin)
    return [(one, other) for at, one in enumerate(ordered) for other in ordered[at + 1 :] if other.begin < one.end]


@contextmanager
def operators(place: Place, folder: Path, **environment: str) -> Iterator[Path]:
    """Two replicas of the operator, without peering; their journal."""
    journal, program = folder / "journal", folder / "operator.py"
    journal.touch()
    program.write_text(OPERATOR)
    env = os.environ | environment | {"STORE": place.url, "JOURNAL": str(journal), "KUBECONFIG": str(place.kubeconfig)}
    command = [PYTHON, "-m", "kopf", "run", "--standalone", "--namespace", place.name, str(program)]
    logs = [folder / f"operator-{number}.log" for number in range(REPLICAS)]
    processes = []
    for log in logs:
        with log.open("wb") as out:
            processes.append(subprocess.Popen(command, stdout=out, stderr=out, env=env))
    try:
        eventually(lambda: watches(place) >= REPLICAS, 60)
        yield journal
        for process, log in zip(processes, logs, strict=True):
            assert process.poll() is None, log.read_text()
            process.terminate()
            assert process.wait(60) == 0, log.read_text()
    finally:
        for process in processes:
            process.kill()
            process.wait()


def watches(place: Place) -> int:
    """How many watches of our objects have begun."""
    return place.asked().count(("watch", "widgets"))


def create(place: Place) -> None:
    """Objects that are all about one target."""
    for number in range(OBJECTS):
        body = {"apiVersion": "example.com/v1", "kind": "Widget", "spec": {"target": "node/worker-1"}}
        place.server.request("POST", place.path, body | {"metadata": {"name": f"widget-{number}"}})


def handled(journal: Path) -> set[str]:
    return {run.name for run in runs(journal)}


def test_no_two_handlers_of_one_key_run_at_once_in_any_replica(tmp_path: Path) -> None:
    place = Place(WIDGET, rules=RULES)
    with operators(place, tmp_path) as journal:
        create(place)
        eventually(lambda: handled(journal) == RUNS, 90)
    assert overlaps(runs(journal)) == []
    # They met, and were told by whom they were kept out.
    assert any("is held by" in log.read_text() for log in tmp_path.glob("*.log"))


def test_without_it_they_do(tmp_path: Path) -> None:
    """The control: kopf alone runs them at once, in both replicas."""
    place = Place(WIDGET, rules=RULES)
    with operators(place, tmp_path, BARE="1") as journal:
        create(place)
        eventually(lambda: handled(journal) == RUNS, 90)
    assert len({run.process for pair in overlaps(runs(journal)) for run in pair}) == REPLICAS


# What a handler sees.


def test_busy_is_a_temporary_error_with_our_time_to_come_back() -> None:
    async def main() -> kopf.TemporaryError:
        async with await aio.connect("memory://kopf-busy") as locks, await aio.connect("memory://kopf-busy") as other:

            @serialized()
            async def handler(**_: Any) -> str:
                return "done"

            memo = SimpleNamespace(locks=locks)
            assert await handler(uid="u-1", memo=memo) == "done"
            async with other.hold("u-1", ttl=2):
                with pytest.raises(kopf.TemporaryError) as caught:
                    await handler(uid="u-1", memo=memo)
                assert await handler(uid="u-2", memo=memo) == "done"
            assert await handler(uid="u-1", memo=memo) == "done"
            return caught.value

    error = asyncio.run(main())
    cause = error.__cause__
    assert isinstance(cause, leasehold.NotAcquired)
    assert error.delay == cause.retry_after
    assert 0 < error.delay < 2.4
    assert "is held by" in str(error)


def test_a_plain_handler_uses_the_blocking_client() -> None:
    with leasehold.connect("memory://kopf-plain") as locks:

        @serialized(key=lambda spec, **_: spec["target"], locks="leases")
        def handler(spec: dict[str, str], **_: Any) -> bool:
            return locks.inspect(spec["target"]) is not None

        given = {"spec": {"target": "node/worker-1"}, "memo": SimpleNamespace(leases=locks)}
        assert handler(**given)
        assert locks.inspect("node/worker-1") is None
        assert handler.__name__ == "handler"


def test_a_lost_lease_ends_the_handler_and_kopf_comes_back() -> None:
    async def main() -> str:
        async with await aio.connect("memory://kopf-lost") as locks:
            ended: list[bool] = []

            @serialized(ttl=0.3)
            async def handler(uid: str, **_: Any) -> None:
                await locks.break_lease(uid, reason="test", force=True)
                try:
                    await asyncio.Event().wait()
                finally:
                    ended.append(True)

            with pytest.raises(kopf.TemporaryError) as caught:
                await handler(uid="u-1", memo=SimpleNamespace(locks=locks))
            assert ended == [True]
            return str(caught.value)

    assert "is lost" in asyncio.run(main())


@pytest.mark.parametrize("memo", [None, SimpleNamespace(), SimpleNamespace(locks="memory://")])
def test_a_missing_client_is_told_with_the_remedy(memo: object) -> None:
    @serialized()
    async def handler(**_: Any) -> None:
        raise AssertionError("must not run")

    @serialized()
    def plain(**_: Any) -> None:
        raise AssertionError("must not run")

    with pytest.raises(InvalidInput, match=r"set it in a startup handler to what leasehold\.aio\.connect\(\) returns"):
        asyncio.run(handler(uid="u", memo=memo))
    with pytest.raises(InvalidInput, match=r"what leasehold\.connect\(\) returns"):
        plain(uid="u", memo=memo)


@pytest.mark.parametrize("key", ["", 7, None, "x" * 2000])
def test_a_key_that_names_nothing_is_refused(key: Any) -> None:
    with leasehold.connect("memory://kopf-key") as locks:

        @serialized(key=lambda **_: key)
        def handler(**_: Any) -> None:
            raise AssertionError("must not run")

        with pytest.raises(InvalidInput):
            handler(uid="u", memo=SimpleNamespace(locks=locks))


@pytest.mark.parametrize("wrong", [{"key": "{name}"}, {"locks": ""}, {"locks": 7}])
def test_what_cannot_be_a_key_or_an_attribute_is_refused_at_once(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        serialized(**wrong)
