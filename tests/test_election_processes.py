"""Elections between processes, in real time: killed, stopped and resigned leaders, in both colours at once."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import pytest

from tests.election_fleet import Candidate, Term, await_leader, overlaps, read_terms
from tests.support import count, eventually
from tests.test_processes import URLS

TTL = 2.0
COLOURS = ("blocking", "asyncio", "blocking")


@pytest.fixture(params=URLS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return URLS[request.param](tmp_path)


def test_of_processes_that_are_killed_stopped_and_told_to_resign_at_most_one_leads(url: str, tmp_path: Path) -> None:
    log = tmp_path / "diary"
    with contextlib.ExitStack() as stack:

        def start(number: int) -> Candidate:
            made = Candidate(url, COLOURS[number % len(COLOURS)], f"candidate-{number}", TTL, log)
            stack.callback(made.kill)
            return made

        running = {each.identity: each for each in map(start, range(len(COLOURS)))}
        term = await_leader(log)
        for turn in range(count(30)):
            leader, ended = running[term.leader], time.time()
            match turn % 3:
                case 0:
                    leader.kill()
                    running.pop(leader.identity)
                    new = start(len(COLOURS) + turn)
                    running[new.identity] = new
                    term = await_leader(log, after=term.token or 0)
                case 1:
                    with leader.paused():
                        term = await_leader(log, leader.identity, after=term.token or 0)
                case 2:
                    leader.stop()
                    running.pop(leader.identity)
                    term = await_leader(log, after=term.token or 0)
                    new = start(len(COLOURS) + turn)
                    running[new.identity] = new
            assert term.begun > ended
        for each in running.values():
            each.stop()
    terms = read_terms(log)
    assert len(terms) > count(30)
    assert overlaps(terms) == []


def test_two_who_believe_at_once_are_seen_in_the_diaries(tmp_path: Path) -> None:
    """The control: candidates that do not share a store."""
    log = tmp_path / "diary"
    urls = [f"sqlite://{tmp_path}/{number}.db" for number in range(2)]
    pair = [Candidate(url, "blocking", f"candidate-{number}", TTL, log) for number, url in enumerate(urls)]
    try:
        for each in pair:
            await_leader(log, *(other.identity for other in pair if other is not each))
        # Long enough that both have written more than once.
        eventually(lambda: overlaps(read_terms(log)))
    finally:
        for each in pair:
            each.kill()


def test_terms_are_read_with_their_doubts() -> None:
    """The control of the reading: what is merely possible is no overlap, what is certain is one."""
    one, close, inside = Term("a", 1, 10.0, 12.0), Term("b", 2, 12.0, 13.0), Term("b", 2, 11.9, 13.0)
    assert overlaps([one, close]) == []
    assert overlaps([one, inside]) == [(one, inside)]
