"""`leasehold doctor` as a process: what it prints and how it exits."""

from __future__ import annotations

import json
import socket
import tempfile
from pathlib import Path

import pytest

from leasehold.cli import codes
from leasehold.doctor.examine import examine
from tests.doctor.support import doctor
from tests.doctor.test_sqlite import damaged, synchronous_normal, world_writable
from tests.support import ROOT


def test_a_healthy_store_has_a_line_for_every_check_and_exits_with_0(file: Path) -> None:
    done = doctor("--store", f"sqlite://{file}")
    *lines, verdict = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (0, "")
    assert verdict == "sqlite: healthy"
    assert len(lines) == len(examine(f"sqlite://{file}").checks)
    assert all(line.startswith("ok ") for line in lines)


@pytest.mark.parametrize(
    ("trouble", "word", "code"),
    [
        (synchronous_normal, "note", 0),
        (world_writable, "warning", codes.WARNED),
        (damaged, "error", codes.ILL),
    ],
)
def test_the_gravest_finding_decides_the_exit_code(file: Path, trouble, word: str, code: int) -> None:
    with trouble(file) as given:
        told = doctor("--store", given["url"])
        read = json.loads(doctor("--store", given["url"], "--json").stdout)
        assert told.returncode == code
        assert f"sqlite: 1 {word}" in told.stdout
        assert read["severity"] == word
        (found,) = read["findings"]
        line = next(line for line in told.stdout.splitlines() if found["code"] in line)
        assert word in line
        assert f"remedy: {found['remedy']}" in told.stdout


def test_json_is_one_object_with_findings_checks_and_facts(file: Path) -> None:
    done = doctor("--store", f"sqlite://{file}?synchronous=normal", "--json")
    read = json.loads(done.stdout)
    assert len(done.stdout.splitlines()) == 1
    assert set(read) == {"store", "severity", "findings", "checks", "facts"}
    assert set(read["findings"][0]) == {"code", "severity", "what", "value", "remedy"}
    assert {code for check in read["checks"] for code in check["findings"]} == {"sqlite-synchronous-normal"}
    assert read["facts"]["synchronous"] == "normal"
    assert read["facts"]["trips"]["count"] > 0


def test_memory_has_nothing_to_examine() -> None:
    done = doctor("--store", "memory://")
    assert done.returncode == 0
    assert "nothing to examine" in done.stdout
    assert json.loads(doctor("--store", "memory://", "--json").stdout)["facts"] is None


def test_a_store_that_cannot_be_examined_is_the_error_it_is_for_every_command(file: Path) -> None:
    file.write_bytes(b"not a database" * 100)
    assert doctor("--store", f"sqlite://{file}").returncode == codes.DAMAGED
    assert doctor("--store", f"sqlite://{file.parent}/none/leases.db").returncode == codes.USAGE
    assert doctor("--store", "nosuch://").returncode == codes.USAGE
    assert doctor("--store", f"sqlite://{file}", "--timeout", "-1").returncode == codes.USAGE
    assert doctor("--store", f"sqlite://{file}", "--ttl", "0.01").returncode == codes.USAGE
    assert doctor().returncode == codes.USAGE


def test_a_server_that_does_not_answer_is_unavailable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    for scheme in ("redis", "postgresql"):
        done = doctor("--store", f"{scheme}://127.0.0.1:{port}/0", "--timeout", "5")
        assert done.returncode == codes.UNAVAILABLE, done.stderr


def test_nothing_that_a_terminal_obeys_is_printed() -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        done = doctor("--store", f"sqlite://{folder}/a%1b%5b31m%0a.db")
        assert "sqlite-memory-file-system" in done.stdout
        assert all(line.isprintable() for line in done.stdout.splitlines())


def test_the_example_in_the_docs_runs(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "howto" / "doctor.md").read_text()
    example = page.split("```python\n")[1].split("```")[0].replace("sqlite:///tmp/leases.db", f"sqlite://{file}")
    file.chmod(0o666)
    exec(compile(example, "doctor.md", "exec"), {})  # noqa: S102  the example of our own page
    assert "WARNING sqlite-world-writable" in capsys.readouterr().out
