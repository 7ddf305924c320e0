"""The installed program as real processes on a SQLite file, and the commands it is given to run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import leasehold
from leasehold.rules.timing import TRUST
from tests.support import eventually

PROGRAM = Path(sys.executable).with_name("leasehold")
# Quick to start: no site packages, no environment.
PYTHON = (sys.executable, "-I", "-S", "-u")
COMMANDS = Path(__file__).with_name("commands")


class Shell:
    """Starts `leasehold` on one store, and ends whatever a test left running."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "leases.db"
        self.url = f"sqlite://{self.path}"
        self._started: list[subprocess.Popen[str]] = []

    def __call__(self, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run it to the end."""
        started = self.start(*words, **options)
        out, err = started.communicate(timeout=60)
        return subprocess.CompletedProcess(words, started.returncode, out, err)

    def each(self, calls: Sequence[Sequence[str]], **options: Any) -> list[subprocess.CompletedProcess[str]]:
        """Run several to the end, at once."""
        started = [(words, self.start(*words, **options)) for words in calls]
        done = [(words, process, process.communicate(timeout=60)) for words, process in started]
        return [subprocess.CompletedProcess(words, process.returncode, *told) for words, process, told in done]

    def start(self, *words: str, **options: Any) -> subprocess.Popen[str]:
        """Start it and leave it running."""
        return self.start_other([str(PROGRAM), *words], **options)

    def start_other(self, words: list[str], *, store: str | None = None, **options: Any) -> subprocess.Popen[str]:
        """Start any program that finds the store in its environment."""
        piped = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        environment = {**os.environ, "LEASEHOLD_STORE": self.url if store is None else store}
        process = subprocess.Popen(words, env=environment, text=True, **piped)
        self._started.append(process)
        return process

    def connect(self, **options: Any) -> leasehold.Locks:
        """The library on the same store."""
        return leasehold.connect(self.url, **options)

    def close(self) -> None:
        """End what still runs, with the groups it may have started."""
        for process in self._started:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                try:
                    process.communicate(timeout=10)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.communicate(timeout=10)
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()


class Notes:
    """A file a command writes its life into: `word boot-time pid` a line, and the last beat of its heart."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.beat_path = path.with_suffix(".beat")

    def command(self, *how: str) -> list[str]:
        """A command that notes when it starts, each signal it gets, and beats until it dies."""
        return [*PYTHON, str(COMMANDS / "note.py"), str(self.path), *how]

    def lines(self) -> list[list[str]]:
        """What is noted so far, whole lines only."""
        text = self.path.read_text() if self.path.exists() else ""
        return [line.split() for line in text.split("\n")[:-1]]

    def words(self) -> list[str]:
        """The words alone, in order."""
        return [line[0] for line in self.lines()]

    def when(self, word: str) -> float:
        """The boot time at which a word was noted first."""
        return next(float(line[1]) for line in self.lines() if line[0] == word)

    def pids(self) -> set[int]:
        """Every process that noted anything."""
        return {int(line[2]) for line in self.lines()}

    def wait_for(self, word: str, times: int = 1) -> None:
        """Until a word is noted so often."""
        eventually(lambda: self.words().count(word) >= times)

    def last_beat(self) -> float:
        """The last instant at which the command was certainly alive."""
        return float(self.beat_path.read_text())


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    made = Shell(tmp_path)
    yield made
    made.close()


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    return Notes(tmp_path / "notes")


def now() -> float:
    """The boot clock, which every process of the machine reads alike."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def asked_at(lease: leasehold.Lease) -> float:
    """When the request was sent that got this lease: the grant came no earlier. Right after the acquisition."""
    return now() + lease.expires_in - TRUST * lease.ttl


def gone(pid: int) -> bool:
    """Whether a process runs no more; a zombie does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return stat.rpartition(")")[2].split()[0] in {"Z", "X"}


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal by now."""
    status = Path(f"/proc/{pid}/status").read_text()
    mask = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(mask, 16) >> (number - 1) & 1)


def only_json(text: str) -> dict[str, object]:
    """The one object in a text of one line."""
    (line,) = text.splitlines()
    read: dict[str, object] = json.loads(line)
    return read
