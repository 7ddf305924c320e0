"""Eight processes that want random parts of one file, and die with them: judged by what each noted, and when."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

import leasehold
from leasehold import ByteRange
from leasehold.model import Conflict, Record, Swap
from leasehold.stores.memory import MemoryStore
from leasehold.testing.conformance.arena import Arena
from leasehold.testing.conformance.worlds import MemoryWorld
from tests.stores.kubernetes_support import Place
from tests.support import PYTHON, ROOT, count, note
from tests.test_processes import URLS

PLAYER = ROOT / "tests" / "part_player.py"
PROCESSES = 8
PATIENCE = 600.0
# The shortest that each store gives, or nearly: whoever died is waited for so long.
TTL = {"sqlite": 1.0, "redis": 1.0, "postgresql": 1.0, "etcd": 2.0, "zookeeper": 4.0, "kubernetes": 2.0}


class Turn(NamedTuple):
    """A grant: certainly believed in from `granted` to `ended`."""

    granted: float
    ended: float
    token: int
    start: int
    end: int
    shared: bool


def in_conflict(one: Turn, other: Turn) -> bool:
    return one.start < other.end and other.start < one.end and not (one.shared and other.shared)


def overlaps(turns: Sequence[Turn]) -> list[tuple[Turn, Turn]]:
    """Two who believed at one instant that they held what only one of them could."""
    return [
        (one, other)
        for place, one in enumerate(turns)
        for other in turns[place + 1 :]
        if in_conflict(one, other) and one.granted < other.ended and other.granted < one.ended
    ]


def inversions(turns: Sequence[Turn]) -> list[tuple[Turn, Turn]]:
    """A later grant of something in the way of an earlier one, with a smaller token."""
    ordered = sorted(turns)
    return [
        (one, other)
        for place, one in enumerate(ordered)
        for other in ordered[place + 1 :]
        if in_conflict(one, other) and one.token > other.token
    ]


def read(journal: Path) -> list[Turn]:
    granted: dict[int, list[str]] = {}
    ended: dict[int, float] = {}
    for line in journal.read_text().splitlines():
        token, *words = line.split()
        if len(words) == 1:
            ended[int(token)] = float(words[0])
        else:
            granted[int(token)] = words
    # Who died believed in it at least for the instant in which it was noted.
    return [
        Turn(float(words[3]), ended.get(token, float(words[3])), token, int(words[0]), int(words[1]), words[2] == "1")
        for token, words in granted.items()
    ]


def play(url: str, journal: Path, ttl: float, grants: int) -> tuple[list[Turn], int]:
    """Let eight play until so many grants were noted; whoever dies is followed by another. How many died, too."""
    seeds = iter(range(10_000))
    pipe = subprocess.PIPE

    def start() -> subprocess.Popen[bytes]:
        seed = next(seeds)
        words = [url, ("blocking", "asyncio")[seed % 2], str(seed), str(ttl), str(journal)]
        return subprocess.Popen([PYTHON, "-W", "error", str(PLAYER), *words], cwd=ROOT, stdin=pipe)

    journal.touch()
    playing, died, end = [start() for _ in range(PROCESSES)], 0, time.monotonic() + PATIENCE
    try:
        while journal.read_text().count("\n") < 2 * grants:
            assert time.monotonic() < end, journal.read_text()
            for place, one in enumerate(playing):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    # Killed by its own hand, and nothing else.
                    assert one.wait(0.02) == -9
                    died += 1
                    one.communicate()
                    playing[place] = start()
        for one in playing:
            one.communicate(timeout=PATIENCE)
            assert one.returncode in {0, -9}
    finally:
        for one in playing:
            one.kill()
            one.communicate()
    return read(journal), died


@pytest.mark.timeout(PATIENCE)
@pytest.mark.parametrize("store", TTL)
def test_nobody_believes_in_what_is_in_anothers_way_and_tokens_grow_along_every_conflict(
    store: str, tmp_path: Path
) -> None:
    url = Place().url() if store == "kubernetes" else URLS[store](tmp_path)
    turns, died = play(url, tmp_path / "journal", TTL[store], count(2000))
    met = sum(in_conflict(one, other) for one in turns for other in turns if one is not other)
    note(
        f"{store}: {len(turns)} grants, {died} died with theirs: {len(overlaps(turns))} overlaps, "
        f"{len(inversions(turns))} inversions"
    )
    assert overlaps(turns) == []
    assert inversions(turns) == []
    assert met > len(turns)


# The control.


class Unordered(MemoryStore):
    """A store whose revisions do not become visible in their order: drawn first, written a moment later."""

    def _swap(self, ask: Swap) -> Record | Conflict:
        memory = self._memory
        if ask.expect is not None or ask.value is None:
            return super()._swap(ask)
        with memory.lock:
            drawn = memory.next_revision()
        # Whoever is quicker here drew later, and does not see us.
        time.sleep(random.Random(drawn).choice([0.0, 0.002]))
        with _ONE_AT_A_TIME:
            memory.next_revision = lambda: drawn
            try:
                return super()._swap(ask)
            finally:
                del memory.next_revision


_ONE_AT_A_TIME = threading.Lock()


@pytest.mark.parametrize("ordered", [True, False])
def test_without_the_order_of_revisions_two_hold_what_only_one_can(tmp_path: Path, *, ordered: bool) -> None:
    arena = Arena(MemoryWorld(tmp_path), "blocking")
    clients = [arena.client(f"client-{n}") for n in range(PROCESSES)]
    turns: list[Turn] = []
    for client in clients:
        if not ordered:
            client.store.inner.__class__ = Unordered

    def contend(locks: leasehold.Locks, seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(count(500)):
            start = chance.randrange(16)
            end, mode = start + chance.randrange(1, 8), chance.choice(["shared", "exclusive"])
            lease = locks.try_acquire(ByteRange(7, start, end), ttl=arena.ttl, mode=mode)
            if lease is not None:
                granted = time.monotonic()
                os.sched_yield()
                turns.append(Turn(granted, time.monotonic(), lease.token, start, end, mode == "shared"))
                lease.release()

    people = [threading.Thread(target=contend, args=(client.locks, n)) for n, client in enumerate(clients)]
    for each in people:
        each.start()
    for each in people:
        each.join()
    arena.close()
    wrong = len(overlaps(turns)) + len(inversions(turns))
    note(f"{'in order' if ordered else 'out of order'}: {len(turns)} grants, {wrong} overlaps and inversions")
    assert (wrong == 0) is ordered
