"""Processes that are killed between any two statements of their work, or stopped for longer than their lease."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

import leasehold
from leasehold import sql
from tests.sql.support import Ledger, enter
from tests.support import PYTHON, ROOT, eventually, note

TTL = 0.5


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite://{tmp_path}/leases.db"


@pytest.fixture
def locks(store: str) -> Iterator[leasehold.Locks]:
    with leasehold.connect(store) as client:
        yield client


def play(told: dict[str, Any], **more: Any) -> subprocess.Popen[str]:
    words = [PYTHON, "-W", "error", "-m", "tests.sql.player", msgspec.json.encode(told | more).decode()]
    return subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def said(player: subprocess.Popen[str]) -> list[str]:
    told, _ = player.communicate(timeout=60)
    assert player.returncode == 0
    return told.split()


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_a_worker_killed_between_any_two_statements_has_done_all_or_nothing(
    ledger: Ledger, store: str, locks: leasehold.Locks
) -> None:
    told = ledger.told(store) | {"ttl": TTL}
    _, steps = said(play(told, key="unharmed"))
    # Before each statement, and after the last, which is the commit.
    places = [*range(1, int(steps), 2), int(steps)]
    assert len(places) > 6
    killed = {f"killed/{place}": play(told, key=f"killed/{place}", die=place) for place in places}
    for player in killed.values():
        assert player.communicate(timeout=60) == ("", None)
        assert player.returncode == -signal.SIGKILL
    # The last of them alone had committed; its result is replayed, the others' work is done now.
    done = [key for key in ledger.seen() if key != "unharmed"]
    assert done == [f"killed/{steps}"]
    once, connection = sql.Once(locks), ledger.connect()
    answers = [once.run(connection, key, lambda work: enter(connection, work) or work.token, ttl=TTL) for key in killed]
    assert sorted(ledger.seen()) == sorted(["unharmed", *killed])
    assert sorted(answers) == sorted(ledger.seen("SELECT token FROM entries WHERE key <> 'unharmed'"))
    note(f"killed at {len(places)} places")


def test_processes_that_come_at_once_charge_once_and_all_get_the_result(ledger: Ledger, store: str) -> None:
    players = [play(ledger.told(store)) for _ in range(8)]
    answers = {said(player)[0] for player in players}
    assert list(answers) == [str(token) for token in ledger.seen("SELECT token FROM entries")]


def test_a_worker_stopped_for_longer_than_its_lease_is_refused_when_it_commits(
    ledger: Ledger, store: str, locks: leasehold.Locks
) -> None:
    told = ledger.told(store) | {"ttl": TTL}
    _, steps = said(play(told, key="unharmed"))
    # PostgreSQL: its work is done and its record not written. SQLite: before it has the lock that keeps all others out.
    sleeper = play(told, stop=int(steps) - (3 if ledger.postgres else 7))
    try:
        eventually(lambda: is_stopped(sleeper.pid))
        connection = ledger.connect()
        answer = sql.Once(locks).run(connection, "order/1", lambda work: enter(connection, work) or work.token)
    finally:
        os.kill(sleeper.pid, signal.SIGCONT)
    assert said(sleeper)[0] == "late"
    assert ledger.seen("SELECT token FROM entries WHERE key = 'order/1'") == [answer]


def test_a_worker_stopped_within_its_lease_commits(ledger: Ledger, store: str) -> None:
    """The control of the test above: to be stopped is no reason to be refused."""
    told = ledger.told(store) | {"ttl": 60}
    _, steps = said(play(told, key="unharmed"))
    sleeper = play(told, stop=int(steps) - 3)
    eventually(lambda: is_stopped(sleeper.pid))
    os.kill(sleeper.pid, signal.SIGCONT)
    assert said(sleeper)[:1] == [str(token) for token in ledger.seen("SELECT token FROM entries WHERE key = 'order/1'")]


def test_whoever_takes_over_waits_for_a_commit_that_is_under_way_and_replays_it(
    ledger: Ledger, store: str, locks: leasehold.Locks
) -> None:
    told = ledger.told(store) | {"ttl": TTL}
    _, steps = said(play(told, key="unharmed"))
    # Its record is written, and not committed.
    sleeper = play(told, stop=int(steps) - 1)
    try:
        eventually(lambda: is_stopped(sleeper.pid))
        connection = ledger.connect()
        with ThreadPoolExecutor(1) as threads:
            asked = threads.submit(
                sql.Once(locks).run, connection, "order/1", lambda work: enter(connection, work) or work.token
            )
            eventually(lambda: [lease for lease in locks.list() if lease.holder == locks.holder])
            assert not asked.done()
            os.kill(sleeper.pid, signal.SIGCONT)
            answer = asked.result(60)
    finally:
        os.kill(sleeper.pid, signal.SIGCONT)
    assert said(sleeper)[0] == str(answer)
    assert ledger.seen("SELECT token FROM entries WHERE key = 'order/1'") == [answer]
