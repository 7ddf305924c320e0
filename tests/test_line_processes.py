"""Crowds in eight processes before one lock, on every store, in real time: nobody overlaps, nobody is overtaken."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.line_crowd import Crowd, Player, Turn, crowd, overlaps, overtakes, players, read
from tests.stores.kubernetes_support import Place
from tests.support import count, eventually, note, soaking
from tests.test_processes import URLS

PROCESSES = 8
CONTENDERS = 25
# Hand-overs of the quick stores, and of those where one takes several round trips through a log.
MANY, FEW = 10_000, 2_000
STORES: dict[str, tuple[Callable[[Path], str], int]] = {
    name: (url, MANY if name in {"sqlite", "redis"} else FEW) for name, url in URLS.items()
}
STORES["kubernetes"] = (lambda _folder: Place().url()), FEW


@pytest.mark.timeout(900)
@pytest.mark.parametrize("store", STORES)
def test_of_two_hundred_who_wait_nobody_overlaps_and_nobody_is_overtaken(store: str, tmp_path: Path) -> None:
    url, full = STORES[store]
    # Where a hand-over takes long, a tenth is done by fewer: to stand in line at all costs as much as to be served.
    contenders = CONTENDERS if full == MANY or soaking() else CONTENDERS // 5
    size = Crowd(PROCESSES, contenders, count(full) // (PROCESSES * contenders))
    check(crowd(url(tmp_path), size, tmp_path / "journal"), size)


@pytest.mark.parametrize("colour", ["blocking", "asyncio"])
def test_the_same_in_one_process_on_memory(colour: str, tmp_path: Path) -> None:
    """Which no other process can reach: the crowd is of eight clients instead."""
    size = Crowd(1, PROCESSES * CONTENDERS, count(MANY) // (PROCESSES * CONTENDERS))
    check(crowd(f"memory://{tmp_path.name}", size, tmp_path / "journal", colours=[colour]), size)


def check(turns: Sequence[Turn], size: Crowd) -> None:
    assert len(turns) == size.turns
    assert len({turn.token for turn in turns}) == len(turns)
    assert all(turn.held and turn.ticket for turn in turns)
    # In the order of their tokens they were also held one after the other.
    assert overlaps(turns) == []
    assert overtakes(turns) == []


def stop(barging: Sequence[Player]) -> None:
    for each in barging:
        each.tell()
        each.end()


@pytest.mark.parametrize("reserving", [True, False])
def test_who_barges_in_gets_past_the_line_only_where_nothing_is_reserved(tmp_path: Path, reserving: bool) -> None:  # noqa: FBT001
    """The control is the second run: without the reservation those who merely try come before those who wait."""
    url, journal, barged = URLS["redis"](tmp_path), tmp_path / "journal", tmp_path / "barged"
    barged.touch()
    env = {} if reserving else {"LINE_UNRESERVED": "yes"}
    waiting = [Player(url, journal, colour="blocking", contenders=5, grants=20, how="fair", **env) for _ in range(2)]
    barging = [Player(url, barged, colour="blocking", contenders=1, grants=10**6, how="barge", **env) for _ in range(2)]
    with players([*waiting, *barging]):
        for each in waiting:
            each.tell()
        # Once somebody was passed the lock by another, all others stand in line.
        eventually(lambda: journal.exists() and len(read(journal)) > 10, 60)
        first = read(journal)[-1].token
        for each in barging:
            each.tell()
        if not reserving:
            # They could go on for as long as they like: those who wait would hardly ever come to an end.
            eventually(lambda: len(read(barged)) > 100, 60)
            stop(barging)
        for each in waiting:
            each.end()
        if reserving:
            stop(barging)
    turns = read(journal)
    assert len(turns) == 200
    last = turns[-20].token
    past = [turn for turn in read(barged) if first < turn.token < last]
    note(f"barged in, {'reserving' if reserving else 'not reserving'}: {len(past)}")
    assert (past == []) is reserving
