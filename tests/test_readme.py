"""What the README shows works when it is copied: its programs, its commands, its links, and the demo it offers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import PYTHON, ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", ROOT / "examples/demo/README.md"]
# Every example names this file; a test gives each run one of its own.
SHOWN_STORE = "sqlite:///tmp/leases.db"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


def commands(start: str) -> list[str]:
    lines = [line.split("  #")[0].strip() for block in blocks("sh") for line in block.splitlines()]
    return [line for line in lines if line.startswith(start)]


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    path = f"{Path(PYTHON).parent}:{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "PYTHONWARNINGS": "error"}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=90, check=False)


def shape(text: str) -> str:
    """A line without its numbers, which differ in every run."""
    return re.sub(r"\d+(\.\d+)?", "N", text)


def test_the_readme_has_programs_and_commands_to_try() -> None:
    assert len(blocks("python")) >= 2
    assert "async with" in blocks("python")[1]
    assert commands("make ") == ["make run", "make test"]
    assert commands("leasehold ")


@pytest.mark.parametrize("number", range(len(blocks("python"))))
def test_a_program_of_the_readme_runs_as_it_stands(number: int, tmp_path: Path) -> None:
    program = blocks("python")[number]
    assert SHOWN_STORE in program
    done = run([PYTHON, "-c", program.replace(SHOWN_STORE, f"sqlite://{tmp_path}/leases.db")], tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    # A comment after a print is what it prints.
    for promised in re.findall(r"^ *print\(.*\)  # (.*)$", program, re.MULTILINE):
        assert shape(promised) in [shape(line) for line in done.stdout.splitlines()]


def test_the_first_program_says_its_token(tmp_path: Path) -> None:
    done = run([PYTHON, "-c", blocks("python")[0].replace(SHOWN_STORE, f"sqlite://{tmp_path}/leases.db")], tmp_path)
    assert re.fullmatch(r"I hold invoice/42, with token \d+\n", done.stdout)


@pytest.mark.parametrize("command", commands("leasehold "))
def test_a_command_of_the_readme_runs_as_it_stands(command: str, tmp_path: Path) -> None:
    assert SHOWN_STORE in command
    done = run(["sh", "-c", command.replace(SHOWN_STORE, f"sqlite://{tmp_path}/leases.db")], tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"token \d+", done.stdout)


@pytest.mark.parametrize("command", commands("make "))
def test_a_make_command_of_the_readme_is_a_target(command: str) -> None:
    planned = run([*command.split(), "--dry-run"], ROOT)
    assert planned.returncode == 0, planned.stderr
    unknown = run(["make", "--dry-run", "no-such-target"], ROOT)
    assert unknown.returncode != 0


def test_the_demo_tells_its_story_and_ends_well(tmp_path: Path) -> None:
    done = run([PYTHON, str(ROOT / "examples/demo/demo.py")], tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    tokens = [int(token) for token in re.findall(r"holds it.*token (\d+)", done.stdout)]
    assert len(tokens) == 11
    assert tokens == sorted(set(tokens))
    assert "sees LeaseLost at once" in done.stdout


def test_the_demo_would_notice_a_repeated_token_and_two_believers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "examples/demo")
    import demo

    def story(*told: tuple[str, str, int, float]) -> list[str]:
        return demo.check([demo.Told(*one) for one in told])

    good = story(("ann", "granted", 1, 1.0), ("ann", "leaving", 1, 2.0), ("bob", "granted", 2, 3.0))
    assert good == []
    repeated = story(("ann", "granted", 2, 1.0), ("ann", "leaving", 2, 2.0), ("bob", "granted", 1, 3.0))
    assert repeated == ["bob's token 1 is not above ann's 2"]
    believers = ["ann still believed in its lease when bob was granted it"]
    assert story(("ann", "granted", 1, 1.0), ("ann", "lost", 1, 4.0), ("bob", "granted", 2, 3.0)) == believers
    assert story(("ann", "granted", 1, 1.0), ("bob", "granted", 2, 3.0)) == believers
    assert story(("ann", "trusts", 1, 3.5), ("ann", "granted", 1, 1.0), ("bob", "granted", 2, 3.0)) == believers
    sys.modules.pop("demo")


def test_no_page_promises_what_no_lease_can() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8").lower()
        assert "exactly once" not in text
        assert "guarantees only one" not in text
