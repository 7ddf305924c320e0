"""`ls`, `show`, `break` and `gc`: what people and programs read, whatever others wrote into the store."""

from __future__ import annotations

import json
import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from leasehold.cli import output
from leasehold.model import LeaseInfo
from tests.cli.conftest import Notes, Shell, only_json
from tests.support import eventually

HOSTILE = [
    "new\nline",
    "\x1b[2J\x1b]0;title\x07",
    "bell\x07 tab\t delete\x7f c1\x9b31m",
    "turned \u202e around \u2066 and \u200f marked",
    "line\u2028paragraph\u2029",
    "two  cells",
    'quoted "text"',
    "back\\slash",
    "back\\nslash",
    "-",
    "--json",
    "wide 日本語 é é",
    "🔒",
]


def test_a_table_has_one_line_for_each_lease_and_nothing_a_terminal_obeys(shell: Shell) -> None:
    with shell.connect(holder="me\x1b[31m\n") as locks:
        for key in HOSTILE:
            locks.acquire(key, metadata={"why\r": key})
        done = shell("ls")
    lines = done.stdout.split("\n")[:-1]
    assert done.returncode == 0
    assert lines[0].split() == ["KEY", "HOLDER", "TOKEN", "EXPIRES", "IN", "SINCE", "REVOKED", "METADATA"]
    assert len(lines) == 1 + len(HOSTILE)
    assert all(line.isprintable() for line in lines)
    assert {line.partition("  ")[0] for line in lines if "two" not in line} >= {"back\\\\slash", "back\\\\nslash", "🔒"}
    assert "new\\nline" in done.stdout


def test_columns_are_aligned(shell: Shell) -> None:
    with shell.connect(holder="somebody") as locks:
        locks.acquire("short")
        locks.acquire("a much longer key")
        heading, *rows = shell("ls").stdout.splitlines()
    where = heading.index("HOLDER")
    assert [row[where : where + 8] for row in rows] == ["somebody", "somebody"]


def test_json_gives_every_key_back_as_it_was(shell: Shell) -> None:
    with shell.connect() as locks:
        tokens = {key: str(locks.acquire(key, metadata={"why": key}).token) for key in HOSTILE}
        done = shell("ls", "--json")
        answers = shell.each([("show", "--json", "--", key) for key in HOSTILE])
        shown = [only_json(answer.stdout)["key"] for answer in answers]
    read = json.loads(done.stdout)
    assert done.stdout.isascii()
    assert {lease["key"]: lease["token"] for lease in read} == tokens
    assert all(lease["metadata"] == {"why": lease["key"]} for lease in read)
    assert shown == HOSTILE


@given(st.text(), st.text())
def test_different_texts_never_look_alike_in_a_cell_and_never_break_it(one: str, other: str) -> None:
    assert output.cell(one).isprintable()
    assert (output.cell(one) == output.cell(other)) == (one == other)
    assert "  " not in output.cell(one) or output.cell(one).startswith('"')


@given(st.floats(allow_nan=True, allow_infinity=True))
def test_a_nonsense_time_in_a_record_disturbs_nobody(since: float) -> None:
    lease = LeaseInfo("k", "h", 256, 30.0, 1.0, since, {}, None)
    assert len(output.table([lease]).splitlines()) == 2
    assert json.loads(output.as_json(output.fields(lease)))["key"] == "k"


def test_nothing_held_is_a_heading_or_an_empty_array(shell: Shell) -> None:
    assert len(shell("ls").stdout.splitlines()) == 1
    assert json.loads(shell("ls", "--json").stdout) == []


def test_show_says_who_since_when_and_why(shell: Shell, notes: Notes) -> None:
    run = shell.start("run", "k", "--metadata", "why=to see", "--metadata", "where=a=b", "--", *notes.command())
    notes.wait_for("start")
    text = shell("show", "k").stdout
    told = only_json(shell("show", "k", "--json").stdout)
    run.terminate()
    run.communicate(timeout=60)
    assert told["metadata"] == {"why": "to see", "where": "a=b"}
    assert f"token:      {told['token']}\n" in text
    assert f"holder:     {told['holder']}\n" in text
    assert 'metadata:   why="to see" where=a=b\n' in text
    assert str(told["since"]).endswith("Z")


def test_a_free_key_is_said_to_be_free(shell: Shell) -> None:
    assert shell("show", "k\n").stdout == "k\\n is free\n"
    assert only_json(shell("show", "k", "--json").stdout) == {"key": "k", "held": False}


def test_break_revokes_and_the_reason_is_shown_to_others(shell: Shell) -> None:
    with shell.connect() as locks:
        lease = locks.acquire("k", ttl=3600)
        told = only_json(shell("break", "k", "--reason", "gone home", "--json").stdout)
        assert (told["broken"], told["held"], told["revoked"]) == (True, True, "gone home")
        assert told["token"] == str(lease.token)
        assert "gone home" in shell("ls").stdout
        assert shell("run", "k", "--wait", "0", "--", "true").returncode == 75


def test_break_by_force_frees_at_once(shell: Shell) -> None:
    with shell.connect() as locks:
        locks.acquire("k", ttl=3600)
        done = shell("break", "k", "--reason", "it is dead", "--force")
        assert done.stdout.startswith("freed k, held by ")
        assert done.stderr == ""
        assert shell("run", "k", "--wait", "0", "--", "true").returncode == 0
    assert only_json(shell("break", "k", "--reason", "r", "--json").stdout)["broken"] is False


def test_gc_says_how_many_expired_records_it_removed(shell: Shell) -> None:
    crash = (
        "import leasehold, os, sys\n"
        "locks = leasehold.connect(sys.argv[1])\n"
        "for n in range(3): locks.acquire(str(n), ttl=0.1)\n"
        "os._exit(0)\n"
    )
    with shell.connect() as locks:
        for said in (
            lambda: shell("gc").stdout,
            lambda: json.dumps(only_json(shell("gc", "--json").stdout)["removed"]),
        ):
            subprocess.run([sys.executable, "-c", crash, shell.url], check=True)
            eventually(lambda: locks.list() == [])
            assert said().strip() == "3"
            assert said().strip() == "0"


def test_a_command_that_only_looks_loads_no_more_than_it_needs(shell: Shell) -> None:
    look = (
        "import sys\n"
        "from leasehold.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "print([name for name in ('asyncio', 'ctypes', 'leasehold.aio', 'leasehold.cli.run') if name in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", look, "ls", "--store", shell.url], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_run_tells_its_outcome_in_one_line_beside_the_commands_own_output(shell: Shell) -> None:
    done = shell("run", "k", "--json", "--", "sh", "-c", 'printf "%s" "$LEASEHOLD_KEY $LEASEHOLD_TOKEN"; exit 3')
    outcome = only_json(done.stderr)
    assert done.stdout == f"k {outcome['token']}"
    assert outcome == {
        "key": "k",
        "token": outcome["token"],
        "exit_code": 3,
        "child_exit_code": 3,
        "lost": None,
        "message": None,
    }
