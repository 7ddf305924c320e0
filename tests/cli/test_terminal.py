"""On a terminal: the command reads the keyboard, its keys reach it, and the shell gets the terminal back."""

from __future__ import annotations

import os
import pty
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import COMMANDS, PROGRAM, PYTHON, Notes, Shell
from tests.support import eventually

READ = "import os; print(os.tcgetpgrp(0) == os.getpgrp(), input())"


class Typist:
    """A terminal, and what a shell on it has to report."""

    def __init__(self, report: Path) -> None:
        self.keyboard, self.screen = pty.openpty()
        self.report = report

    def type(self, text: str) -> None:
        os.write(self.keyboard, text.encode())

    def reported(self) -> list[str]:
        return self.report.read_text().splitlines() if self.report.exists() else []

    def shell(self, *words: str) -> list[str]:
        return [*PYTHON, str(COMMANDS / "little_shell.py"), str(self.report), *words]


@pytest.fixture
def typist(tmp_path: Path) -> Iterator[Typist]:
    made = Typist(tmp_path / "report")
    yield made
    os.close(made.keyboard)
    os.close(made.screen)


def test_the_command_reads_the_keyboard_and_the_terminal_comes_back(shell: Shell, typist: Typist) -> None:
    started = shell.start_other(
        typist.shell(str(PROGRAM), "run", "k", "--", *PYTHON, "-c", READ), stdin=typist.screen, start_new_session=True
    )
    typist.type("hello\n")
    out, _ = started.communicate(timeout=60)
    assert out == "True hello\n"
    assert typist.reported() == ["foreground job", "exit 0"]


def test_ctrl_c_reaches_the_command(shell: Shell, typist: Typist, notes: Notes) -> None:
    started = shell.start_other(
        typist.shell(str(PROGRAM), "run", "k", "--", *notes.command()), stdin=typist.screen, start_new_session=True
    )
    notes.wait_for("start")
    typist.type("\x03")
    started.communicate(timeout=60)
    assert notes.words() == ["start", "SIGINT", "end"]
    assert typist.reported() == ["foreground job", "exit 42"]


def test_ctrl_z_stops_run_with_its_command_and_both_go_on_together(shell: Shell, typist: Typist, notes: Notes) -> None:
    started = shell.start_other(
        typist.shell(str(PROGRAM), "run", "k", "--", *notes.command()), stdin=typist.screen, start_new_session=True
    )
    notes.wait_for("start")
    typist.type("\x1a")
    eventually(lambda: "stopped" in typist.reported())
    stopped = notes.last_beat()
    Path(f"{typist.report}.fg").touch()
    eventually(lambda: notes.last_beat() > stopped)
    typist.type("\x03")
    started.communicate(timeout=60)
    assert notes.words() == ["start", "SIGINT", "end"]
    assert typist.reported() == ["foreground job", "stopped", "foreground job", "exit 42"]


def test_a_command_stopped_past_its_lease_never_runs_again(shell: Shell, typist: Typist, notes: Notes) -> None:
    started = shell.start_other(
        typist.shell(str(PROGRAM), "run", "k", "--ttl", "1", "--", *notes.command()),
        stdin=typist.screen,
        start_new_session=True,
    )
    notes.wait_for("start")
    typist.type("\x1a")
    eventually(lambda: "stopped" in typist.reported())
    stopped = notes.last_beat()
    with shell.connect() as locks:
        locks.acquire("k", wait=60)
        Path(f"{typist.report}.fg").touch()
        started.communicate(timeout=60)
    assert notes.last_beat() == stopped
    assert notes.words() == ["start"]
    assert typist.reported()[-1] == "exit 70"
