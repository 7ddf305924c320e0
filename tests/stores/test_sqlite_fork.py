"""Fork: no connection is carried into a child, and parent and child both go on."""

from __future__ import annotations

from pathlib import Path

from tests.stores.support import run
from tests.support import count


def test_forks_amid_threads_in_transactions_leave_everybody_working(tmp_path: Path) -> None:
    forks = count(100)
    seen = run("fork_in_traffic", f"sqlite://{tmp_path}/leases.db", 4, forks)
    assert seen["problems"] == []
    assert len(seen["tokens"]) == len(set(seen["tokens"])) == forks * 2 * 3
    assert seen["integrity"] == "ok"


def test_a_connection_that_is_not_closed_is_found_in_the_child(tmp_path: Path) -> None:
    """The control of the one above, whose children look for open files of ours."""
    path = tmp_path / "leases.db"
    assert str(path) in run("fork_with_a_bare_connection", path)


def test_threads_that_fork_at_the_same_time_do_not_trip_over_each_other(tmp_path: Path) -> None:
    forks = count(200)
    seen = run("fork_by_threads", tmp_path / "leases.db", 4, forks)
    assert seen == {"problems": [], "granted": 4 * forks, "wires": 0}


def test_a_child_forked_in_the_middle_of_a_stuck_call_refuses_that_file_and_the_parent_goes_on(tmp_path: Path) -> None:
    seen = run("fork_in_a_stuck_call", tmp_path / "leases.db")
    assert len(seen["child"]) == 2
    assert all("forked while a call" in answer and "subprocess or spawn" in answer for answer in seen["child"])
    assert seen["parent"] > 0
