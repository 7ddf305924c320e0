"""Signals: passed on to the whole group, waited for, and obeyed while there is no command yet."""

from __future__ import annotations

import os
import signal

import pytest

from leasehold.cli import codes
from leasehold.cli.signals import FORWARDED
from tests.cli.conftest import Notes, Shell, catches, gone, only_json
from tests.support import eventually


@pytest.mark.parametrize("number", FORWARDED)
def test_a_signal_is_passed_on_and_its_answer_is_the_exit_code(
    shell: Shell, notes: Notes, number: signal.Signals
) -> None:
    run = shell.start("run", "k", "--", *notes.command())
    notes.wait_for("start")
    run.send_signal(number)
    run.communicate(timeout=60)
    assert notes.words() == ["start", number.name, "end"]
    assert run.returncode == 40 + number


def test_the_whole_group_gets_it_and_the_lease_is_kept_until_the_last_of_it_has_ended(
    shell: Shell, notes: Notes
) -> None:
    with shell.connect() as locks:
        run = shell.start("run", "k", "--", *notes.command("slow", "group"))
        notes.wait_for("start")
        held = locks.inspect("k")
        run.send_signal(signal.SIGTERM)
        lease = locks.acquire("k", wait=60)
        # The parent of the one that takes its time obeyed at once; the lease waited for the child.
        assert notes.words() == ["start", "SIGTERM", "end"]
        assert held is not None
        assert lease.token > held.token
    run.communicate(timeout=60)
    assert run.returncode == 128 + signal.SIGTERM


def test_what_a_command_leaves_in_the_background_is_not_waited_for(shell: Shell, notes: Notes) -> None:
    words = " ".join(notes.command())
    done = shell("run", "k", "--", "sh", "-c", f"{words} >/dev/null 2>&1 & while ! test -s {notes.path}; do :; done")
    (left,) = notes.pids()
    try:
        assert done.returncode == 0
        assert not gone(left)
        assert shell("show", "k").returncode == codes.FREE
    finally:
        os.kill(left, signal.SIGKILL)


def test_a_signal_ignored_from_the_start_stays_ignored(shell: Shell, notes: Notes) -> None:
    run = shell.start(
        "run", "k", "--", *notes.command(), preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)
    )
    notes.wait_for("start")
    run.send_signal(signal.SIGHUP)
    run.send_signal(signal.SIGTERM)
    run.communicate(timeout=60)
    assert notes.words() == ["start", "SIGTERM", "end"]


@pytest.mark.parametrize("number", FORWARDED)
def test_a_signal_ends_the_waiting_and_nothing_is_left_behind(shell: Shell, number: signal.Signals) -> None:
    with shell.connect() as locks:
        with locks.hold("k"):
            run = shell.start("run", "k", "--json", "--", "echo", "never")
            eventually(lambda: catches(run.pid, FORWARDED[-1]))  # the last one to be caught
            run.send_signal(number)
            out, told = run.communicate(timeout=60)
        assert run.returncode == 128 + number
        assert out == ""
        assert only_json(told)["token"] is None
        assert locks.list() == []


def test_the_command_is_told_when_run_itself_is_killed(shell: Shell, notes: Notes) -> None:
    run = shell.start("run", "k", "--", *notes.command())
    notes.wait_for("start")
    (command,) = notes.pids()
    run.send_signal(signal.SIGKILL)
    run.communicate(timeout=60)
    eventually(lambda: gone(command))
    assert notes.words() == ["start", "SIGTERM", "end"]
