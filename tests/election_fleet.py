"""Candidates in processes, and what their diaries say: who believed to lead, and when."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from tests.support import PYTHON, ROOT, eventually

PLAYER = ROOT / "tests" / "election_player.py"
PATIENCE = 90.0


class Term(NamedTuple):
    """An uninterrupted time of belief. It certainly lasted from `begun` to `last`; see `overlaps`."""

    leader: str
    token: int | None
    begun: float
    last: float


class Candidate:
    """One candidate of Leasehold in a process of its own."""

    def __init__(self, url: str, colour: str, identity: str, ttl: float, log: Path) -> None:
        self.identity = identity
        command = [PYTHON, str(PLAYER), url, colour, identity, str(ttl), str(log)]
        self.process: subprocess.Popen[str] = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)

    def stop(self) -> None:
        """Ask it to end, and see that it does so without an error."""
        # Before it is ready, it would end as any program does.
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(PATIENCE) == 0

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)


def read_terms(log: Path) -> list[Term]:
    """The terms of a diary, in the order of their tokens."""
    terms: dict[int, Term] = {}
    for line in log.read_text().splitlines() if log.exists() else []:
        leader, token, before, after = line.split()
        # Believed at some instant between the two: the term had begun by `after`, and had not ended at `before`.
        found = terms.setdefault(int(token), Term(leader, int(token), float(after), float(before)))
        assert found.leader == leader, "one token, two leaders"
        terms[int(token)] = found._replace(last=max(found.last, float(before)))
    return [terms[token] for token in sorted(terms)]


def overlaps(terms: Sequence[Term]) -> list[tuple[Term, Term]]:
    """Neighbours of which the first certainly still believed when the second certainly did."""
    return [(one, other) for one, other in pairwise(terms) if one.last > other.begun]


def await_leader(log: Path, *others_than: str, after: int = 0) -> Term:
    """The present leader, once there is one with a larger token."""

    def found() -> Term | None:
        terms = [term for term in read_terms(log) if (term.token or 0) > after and term.leader not in others_than]
        return terms[-1] if terms else None

    eventually(found, PATIENCE)
    term = found()
    assert term is not None
    return term
