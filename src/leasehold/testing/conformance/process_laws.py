"""What holds between processes: killed, stopped, forked, and a hundred at once. In real time.

For worlds that other processes can reach (`world.url`); a world without one
declares that its records live in a single process.
"""

from __future__ import annotations

from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

from leasehold.testing.contender import Contender

TTL = 2.0
# Where nothing is meant to end, however long the machine is busy with something else.
LONG = 30.0
PROCESSES = 8
CONTENDERS = 13
GRANTS = 2


class ProcessLaws:
    """Laws between processes. Needs the fixtures `url` and `colour`."""

    def test_a_killed_holder_is_replaced_after_its_ttl_and_not_while_it_believed(self, url: str, colour: str) -> None:
        with Contender(url, colour) as doomed, Contender(url, colour) as heir:
            first = doomed.ask("acquire", key="job", ttl=TTL)
            heir.tell("acquire", key="job", ttl=TTL)
            last = doomed.ask("look", key="job")
            assert last["held"]
            doomed.kill()
            second = heir.hear()
            assert second["token"] > first["token"]
            assert second["at"] >= last["at"] + last["expires_in"]

    def test_a_stopped_holder_knows_on_waking_that_it_lost(self, url: str, colour: str) -> None:
        with Contender(url, colour) as sleeper, Contender(url, colour) as heir:
            first = sleeper.ask("acquire", key="job", ttl=TTL)
            sleeper.stop()
            second = heir.ask("acquire", key="job", ttl=LONG)
            assert second["token"] > first["token"]
            sleeper.go_on()
            seen = sleeper.ask("look", key="job")
            assert (seen["held"], seen["expires_in"]) == (False, 0.0)
            assert sleeper.ask("check", key="job") != "held"
            assert sleeper.ask("release", key="job") is False
            assert heir.ask("look", key="job")["held"]
            assert heir.ask("release", key="job") is True

    def test_a_holder_stopped_for_less_than_its_trust_goes_on_holding(self, url: str, colour: str) -> None:
        """The control of the law above: being stopped is not what loses a lease."""
        with Contender(url, colour) as sleeper:
            sleeper.ask("acquire", key="job", ttl=LONG)
            sleeper.stop()
            sleeper.go_on()
            assert sleeper.ask("look", key="job")["held"]

    def test_a_forked_child_does_not_believe_it_holds_its_parents_lease(self, url: str, colour: str) -> None:
        with Contender(url, colour) as parent, Contender(url, colour) as other:
            mine = parent.ask("acquire", key="job", ttl=LONG)
            child = parent.ask("fork", key="job", ttl=LONG)
            assert (child["held"], child["lost"]) == (False, True)
            assert "forked" in child["check"]
            if colour == "blocking":
                assert child["release"] is False
                assert child["own"] > mine["token"]
            else:
                assert "connect again" in child["closed"]
            other.tell("acquire", key="job", ttl=LONG)
            seen = parent.ask("look", key="job")
            assert seen["held"]
            assert parent.ask("release", key="job") is True
            assert other.hear()["token"] > mine["token"]

    def test_a_hundred_contenders_in_eight_processes_take_turns(self, url: str, colour: str, tmp_path: Path) -> None:
        log = tmp_path / "turns"
        done = contend(url, colour, log, locked=True)
        turns = read_turns(log)
        assert len(turns) == done == PROCESSES * CONTENDERS * GRANTS
        assert overlaps(turns) == 0
        tokens = [token for token, _, _ in turns]
        assert tokens == sorted(set(tokens))

    def test_the_same_hundred_without_a_lock_overlap(self, url: str, colour: str, tmp_path: Path) -> None:
        """The control: the log can show what the lock prevents."""
        log = tmp_path / "turns"
        contend(url, colour, log, locked=False)
        assert overlaps(read_turns(log)) > 0


def contend(url: str, colour: str, log: Path, *, locked: bool) -> int:
    """Let eight processes of thirteen contenders each go at one key; returns how many turns were taken."""
    with ExitStack() as stack:
        processes = [stack.enter_context(Contender(url, colour)) for _ in range(PROCESSES)]
        for process in processes:
            process.tell(
                "contend", key="hot", log=str(log), contenders=CONTENDERS, grants=GRANTS, ttl=LONG, locked=locked
            )
        return sum(process.hear() for process in processes)


def read_turns(log: Path) -> list[tuple[int, float, float]]:
    """(token, begun, ended) of every turn, in the order in which they began."""
    lines = (line.split() for line in log.read_text().splitlines())
    return sorted(((int(token), float(begun), float(ended)) for token, begun, ended in lines), key=lambda turn: turn[1])


def overlaps(turns: list[tuple[int, float, float]]) -> int:
    """How many turns began before the one before them had ended."""
    return sum(later[1] < earlier[2] for earlier, later in pairwise(turns))
