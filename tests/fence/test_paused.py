"""Holders that are stopped between reading and writing, for longer than their lease: what they write when they wake.

Each sort of resource three times: fenced, with a mark that only writes look at, and with none.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from tests.fence.adder import TTL, Told
from tests.fence.places import PLACES
from tests.support import PYTHON, ROOT, count, eventually, note
from tests.test_processes import URLS

ADDERS = 4
PATIENCE = 600.0
# Until some are lost: a mark on writes loses an add when one wakes while the next has read and not yet written.
CONTROL = 2000


class Nurse:
    """Wakes those who stopped themselves, once their leases have ended."""

    def __init__(self, adders: list[subprocess.Popen[bytes]]) -> None:
        self._adders = adders
        self._asleep: dict[int, float] = {}

    def look(self) -> None:
        for one in self._adders:
            if one.poll() is None and _is_stopped(one.pid):
                since = self._asleep.setdefault(one.pid, time.monotonic())
                if time.monotonic() > since + 1.2 * TTL:
                    del self._asleep[one.pid]
                    os.kill(one.pid, signal.SIGCONT)


def _is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def start(told: Told) -> subprocess.Popen[bytes]:
    words = [PYTHON, "-W", "error", "-m", "tests.fence.adder", msgspec.json.encode(told).decode()]
    return subprocess.Popen(words, cwd=ROOT, stdin=subprocess.PIPE)


def run(kind: str, arm: str, adds: int, folder: Path, *, pauses: float) -> Counter[str]:
    """Let four add until so many adds were acknowledged, or one was lost. What they noted.

    `pauses` is how often they stop.
    """
    journal = folder / "journal"
    journal.touch()
    locks = URLS["redis"](folder)
    with PLACES[kind].made(folder) as place:
        told = Told(locks, kind, place, arm, 0, pauses, str(journal))
        adders = [start(msgspec.structs.replace(told, seed=seed)) for seed in range(ADDERS)]
        nurse = Nurse(adders)

        def is_enough() -> bool:
            assert all(one.poll() is None for one in adders)
            nurse.look()
            noted = journal.read_text()
            return noted.count("ack") >= adds or "lost" in noted

        def are_gone() -> bool:
            nurse.look()
            return all(one.poll() is not None for one in adders)

        try:
            eventually(is_enough, PATIENCE)
            for one in adders:
                one.stdin.close()
            eventually(are_gone, PATIENCE)
            assert [one.returncode for one in adders] == [0] * ADDERS
        finally:
            for one in adders:
                one.kill()
                one.wait()
    found: Counter[str] = Counter()
    for line in journal.read_text().splitlines():
        what, _, number = line.partition(" ")
        found[what] += int(number or 1)
    return found


@pytest.mark.timeout(PATIENCE)
@pytest.mark.parametrize("kind", PLACES)
def test_no_acknowledged_add_is_lost_where_holders_register_before_they_read(kind: str, tmp_path: Path) -> None:
    found = run(kind, "fence", count(10_000), tmp_path, pauses=0.02)
    note(
        f"{kind}: {found['ack']} acknowledged, {found['stops']} stopped, {found['late']} refused, {found['lost']} lost"
    )
    assert found["lost"] == 0
    # It was tried: some were stopped for longer than their leases, and came too late.
    assert found["late"] > 0


@pytest.mark.parametrize("arm", ["write-only", "none"])
@pytest.mark.parametrize("kind", PLACES)
def test_control_without_registering_some_are_lost(kind: str, arm: str, tmp_path: Path) -> None:
    found = run(kind, arm, CONTROL, tmp_path, pauses=0.5)
    note(f"{kind}, {arm}: {found['ack']} acknowledged, {found['stops']} stopped, {found['lost']} lost")
    assert found["lost"] > 0
