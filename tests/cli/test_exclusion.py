"""What `run` is for: of many that would overlap, one at a time."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.cli.conftest import COMMANDS, PYTHON, Shell
from tests.support import count


def test_concurrent_increments_under_one_lease_lose_nothing(shell: Shell) -> None:
    number, folder = _number(shell.folder)
    words = [*PYTHON, str(COMMANDS / "increment.py"), str(number), str(folder), "0.03"]
    total = count(80)
    for _ in range(total // 8):
        runs = [shell.start("run", "number", "--ttl", "10", "--", *words) for _ in range(8)]
        assert [run.wait(timeout=100) for run in runs] == [0] * 8
    assert int(number.read_text()) == total


def test_the_same_increments_without_a_lease_lose_some(shell: Shell) -> None:
    """The negative control."""
    number, folder = _number(shell.folder)
    words = [*PYTHON, str(COMMANDS / "increment.py"), str(number), str(folder), "60"]
    processes = [subprocess.Popen(words) for _ in range(8)]
    assert [process.wait(timeout=100) for process in processes] == [0] * 8
    assert int(number.read_text()) < 8


def test_tokens_given_to_commands_grow(shell: Shell) -> None:
    tokens = [int(shell("run", "k", "--", "sh", "-c", "echo $LEASEHOLD_TOKEN").stdout) for _ in range(3)]
    assert tokens == sorted(set(tokens))


def test_prefix_and_tenant_keep_equal_keys_apart(shell: Shell) -> None:
    with shell.connect(prefix="a", tenant="t") as locks, locks.hold("k"):
        assert shell("run", "k", "--wait", "0", "--prefix", "a", "--tenant", "u", "--", "true").returncode == 0
        assert shell("run", "k", "--wait", "0", "--tenant", "t", "--", "true").returncode == 0
        assert shell("run", "k", "--wait", "0", "--prefix", "a", "--tenant", "t", "--", "true").returncode == 75


def test_descriptors_meant_for_the_command_reach_it(shell: Shell) -> None:
    reads, writes = os.pipe()
    done = shell("run", "k", "--", *PYTHON, "-c", f"import os; os.write({writes}, b'through')", pass_fds=(writes,))
    os.close(writes)
    with os.fdopen(reads) as pipe:
        assert (done.returncode, pipe.read()) == (0, "through")


def _number(folder: Path) -> tuple[Path, Path]:
    number, marks = folder / "number", folder / "marks"
    number.write_text("0")
    marks.mkdir()
    return number, marks
