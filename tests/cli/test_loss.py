"""A lost lease ends its command, and before the store frees the lease for anybody else.

Deaths and grants are compared on the boot clock, which all processes of a machine
read alike. A grant is dated by when its request was *sent*: it came no earlier.
"""

from __future__ import annotations

import os

import apsw

import leasehold
from leasehold.cli import codes
from tests.cli.conftest import PROGRAM, Notes, Shell, asked_at, gone, only_json
from tests.support import eventually

TTL = 2.0


def test_a_revoked_lease_is_granted_to_the_next_only_after_the_command_has_ended(shell: Shell, notes: Notes) -> None:
    run = shell.start("run", "k", "--ttl", str(TTL), "--json", "--", *notes.command("slow"))
    notes.wait_for("start")
    assert shell("break", "k", "--reason", "maintenance").returncode == 0
    with shell.connect() as locks:
        granted = asked_at(locks.acquire("k", wait=60))
    _, told = run.communicate(timeout=60)
    assert run.returncode == codes.LOST
    assert notes.words() == ["start", "SIGTERM", "end"]
    assert notes.when("end") < granted
    outcome = only_json(told)
    assert (outcome["exit_code"], outcome["child_exit_code"]) == (codes.LOST, 55)
    assert outcome["lost"] == "it was revoked: maintenance"


def test_whatever_the_command_does_it_is_gone_before_an_unreachable_store_frees_the_lease(shell: Shell) -> None:
    # The same file in a folder that moves: whoever knows only the old name has lost it.
    here, there = shell.folder / "here", shell.folder / "there"
    here.mkdir()
    ways = {"deaf": ("deaf",), "deaf group": ("deaf", "group"), "slow group": ("slow", "group")}
    notes = {key: Notes(shell.folder / key.replace(" ", "-")) for key in ways}
    runs = {
        key: shell.start(
            "run", key, "--ttl", str(TTL), "--", *notes[key].command(*how), store=f"sqlite://{here}/leases.db"
        )
        for key, how in ways.items()
    }
    for note in notes.values():
        note.wait_for("start")
    here.rename(there)
    with leasehold.connect(f"sqlite://{there}/leases.db") as locks:
        assert {lease.scope for lease in locks.list()} == set(ways)
        granted = {key: asked_at(locks.acquire(key, ttl=30, wait=60)) for key in ways}
    for key, note in notes.items():
        runs[key].communicate(timeout=60)
        assert runs[key].returncode == codes.LOST
        assert note.words()[:2] == ["start", "SIGTERM"]
        assert note.last_beat() < granted[key]
        assert all(gone(pid) for pid in note.pids())


def test_without_a_watch_a_command_outlives_its_lease(shell: Shell, notes: Notes) -> None:
    """The negative control: the same measure sees it when nobody ends the command in time."""
    with shell.connect() as first:
        first.acquire("k", ttl=TTL)
        command = shell.start("run", "other", "--", *notes.command())
        notes.wait_for("start")
        assert shell("break", "k", "--force", "--reason", "control").returncode == 0
        with shell.connect() as second:
            granted = asked_at(second.acquire("k", wait=60))
        eventually(lambda: notes.last_beat() > granted)
    command.terminate()
    command.communicate(timeout=60)


def test_a_deaf_group_is_killed_to_the_last_of_it(shell: Shell, notes: Notes) -> None:
    run = shell.start("run", "k", "--ttl", str(TTL), "--", *notes.command("deaf", "group"))
    notes.wait_for("start")
    assert shell("break", "k", "--force", "--reason", "test").returncode == 0
    run.communicate(timeout=60)
    assert run.returncode == codes.LOST
    assert notes.words() == ["start", "SIGTERM"]
    assert all(gone(pid) for pid in notes.pids())


def test_a_store_kept_locked_by_somebody_else_ends_the_command(shell: Shell, notes: Notes) -> None:
    run = shell.start("run", "k", "--ttl", str(TTL), "--timeout", "0.3", "--json", "--", *notes.command())
    notes.wait_for("start")
    blocker = apsw.Connection(str(shell.path))
    blocker.set_busy_timeout(20_000)
    blocker.execute("BEGIN EXCLUSIVE")
    _, told = run.communicate(timeout=60)
    blocker.execute("ROLLBACK")
    assert run.returncode == codes.LOST
    assert notes.words() == ["start", "SIGTERM", "end"]
    assert only_json(told)["lost"]


def test_a_file_that_is_moved_away_ends_the_command(shell: Shell, notes: Notes) -> None:
    run = shell.start("run", "k", "--ttl", str(TTL), "--", *notes.command())
    notes.wait_for("start")
    os.rename(shell.path, shell.folder / "elsewhere.db")
    _, complaint = run.communicate(timeout=60)
    assert run.returncode == codes.LOST
    assert notes.words() == ["start", "SIGTERM", "end"]
    assert "the command was told to end" in complaint


def test_the_longest_hold_ends_the_command_in_time(shell: Shell, notes: Notes) -> None:
    run = shell.start("run", "k", "--ttl", "1", "--max-hold", "1.5", "--", *notes.command("deaf"))
    notes.wait_for("start")
    with shell.connect() as locks:
        granted = asked_at(locks.acquire("k", ttl=1, wait=60))
    run.communicate(timeout=60)
    assert run.returncode == codes.LOST
    assert notes.words() == ["start", "SIGTERM"]
    assert notes.last_beat() < granted


def test_a_lease_that_is_renewed_outlives_its_ttl(shell: Shell) -> None:
    done = shell("run", "k", "--ttl", "1", "--", "sh", "-c", f"sleep 1.5; {PROGRAM} show k")
    assert done.returncode == 0
    assert done.stderr == ""


def test_what_is_written_about_a_loss_cannot_disturb_a_terminal(shell: Shell, notes: Notes) -> None:
    run = shell.start("run", "k\x1b[2J\n", "--ttl", "1", "--", *notes.command())
    notes.wait_for("start")
    assert shell("break", "k\x1b[2J\n", "--reason", "so\x1b]0;x\x07 it is\u202e").returncode == 0
    _, complaint = run.communicate(timeout=60)
    assert run.returncode == codes.LOST
    assert all(line.isprintable() for line in complaint.splitlines())
    assert "so\\x1b]0;x\\x07 it is\\u202e" in complaint
