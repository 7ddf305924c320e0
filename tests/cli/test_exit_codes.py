"""Every documented exit code, provoked once on the installed program."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess

import apsw
import pytest

import leasehold
from leasehold.cli import codes
from tests.cli.conftest import PROGRAM, Shell, only_json

# From linux/prctl.h and linux/capability.h.
PR_CAPBSET_DROP = 24
CAP_DAC_OVERRIDE = 1


def test_run_exits_as_its_command_did(shell: Shell) -> None:
    given = [0, 1, 75, 255]
    done = shell.each([("run", str(code), "--", "sh", "-c", f"exit {code}") for code in given])
    assert [one.returncode for one in done] == given


def test_a_command_killed_by_a_signal_is_128_and_its_number(shell: Shell) -> None:
    assert shell("run", "k", "--", "sh", "-c", "kill -USR1 $$").returncode == 128 + signal.SIGUSR1


EVERY_COMMAND = [
    ("run", "k", "--ttl", "0.5", "--", "true"),
    ("ls",),
    ("show", "k"),
    ("break", "k", "--reason", "r"),
    ("gc",),
]

UNWORKABLE: list[tuple[str, ...]] = [
    (),
    ("nonsense",),
    ("run",),
    ("run", "k"),
    ("run", "k", "--"),
    ("run", "k", "--ttl", "soon", "--", "true"),
    ("run", "k", "--ttl", "0", "--", "true"),
    ("run", "k", "--ttl", "nan", "--", "true"),
    ("run", "k", "--wait", "-1", "--", "true"),
    ("run", "k", "--max-hold", "1", "--ttl", "2", "--", "true"),
    ("run", "k", "--metadata", "no-value", "--", "true"),
    ("run", "", "--", "true"),
    ("run", "k" * 1025, "--", "true"),
    ("run", "k", "--timeout", "0", "--", "true"),
    ("show",),
    ("show", os.fsdecode(b"\xff")),
    ("break", "k"),
    ("break", "k", "--reason", ""),
    ("ls", "--tenant", ""),
    ("ls", "--store", "nonsense://"),
    ("gc", "--store", "sqlite://relative.db"),
]


def test_a_call_that_cannot_work_is_2_and_says_why(shell: Shell) -> None:
    for done in shell.each(UNWORKABLE):
        assert (done.args, done.returncode, done.stdout) == (done.args, codes.USAGE, "")
        assert done.stderr.startswith(("leasehold: ", "Usage: "))
        assert "Traceback" not in done.stderr
    assert shell("ls", "--json").stdout == "[]\n"


def test_without_a_store_both_ways_to_give_one_are_named(shell: Shell) -> None:
    for done in shell.each(EVERY_COMMAND, store=""):
        assert done.returncode == codes.USAGE
        assert "--store" in done.stderr
        assert "LEASEHOLD_STORE" in done.stderr


def test_a_store_inside_one_process_is_refused_with_the_remedy(shell: Shell) -> None:
    for done in shell.each(EVERY_COMMAND, store="memory://"):
        assert done.returncode == codes.USAGE
        assert "sqlite:///" in done.stderr


def test_a_store_that_does_not_answer_is_69(shell: Shell) -> None:
    shell.connect().close()
    blocker = apsw.Connection(str(shell.path))
    blocker.execute("BEGIN EXCLUSIVE")
    answers = shell.each([(words[0], "--timeout", "0.2", *words[1:]) for words in EVERY_COMMAND])
    blocker.execute("ROLLBACK")
    for done in answers:
        assert done.returncode == codes.UNAVAILABLE
        assert done.stderr.startswith("leasehold: ")


def test_a_lease_that_somebody_else_holds_is_75_and_says_who(shell: Shell) -> None:
    with shell.connect(holder="the other one") as locks, locks.hold("k"):
        done = shell("run", "k", "--wait", "0", "--", "true")
        waited = shell("run", "k", "--wait", "0.2", "--", "true")
    assert done.returncode == waited.returncode == codes.NOT_ACQUIRED
    assert "the other one" in done.stderr


def test_a_lost_lease_is_70(shell: Shell) -> None:
    done = shell("run", "k", "--ttl", "1", "--", "sh", "-c", f"{PROGRAM} break k --force --reason test; sleep 60")
    assert done.returncode == codes.LOST
    assert "the store no longer has it" in done.stderr


def test_a_damaged_store_is_74(shell: Shell) -> None:
    shell.path.write_bytes(b"this is no database " * 100)
    assert shell("run", "k", "--", "true").returncode == codes.DAMAGED


def test_a_store_that_may_not_be_used_is_77(shell: Shell) -> None:
    closed = shell.folder / "closed"
    closed.mkdir(mode=0o500)
    prctl = ctypes.CDLL(None).prctl
    done = shell(
        "run",
        "k",
        "--",
        "true",
        store=f"sqlite://{closed}/leases.db",
        # Permissions do not bind root until it gives this up; nobody else has it to give.
        preexec_fn=lambda: prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, 0, 0, 0),
    )
    assert done.returncode == codes.DENIED


def test_an_unknown_command_is_127_and_the_lease_is_let_go(shell: Shell) -> None:
    done = shell("run", "k", "--", "no-such-command-anywhere")
    assert done.returncode == codes.NOT_FOUND
    assert done.stderr == "leasehold: no-such-command-anywhere: command not found\n"
    assert shell("show", "k").returncode == codes.FREE


def test_a_command_that_cannot_be_executed_is_126_and_the_lease_is_let_go(shell: Shell) -> None:
    plain = shell.folder / "plain"
    plain.write_text("no program")
    done = shell("run", "k", "--", str(plain))
    assert done.returncode == codes.NOT_EXECUTABLE
    assert shell("show", "k").returncode == codes.FREE


def test_show_is_0_when_held_and_1_when_free(shell: Shell) -> None:
    with shell.connect() as locks, locks.hold("k"):
        assert shell("show", "k").returncode == 0
    assert shell("show", "k").returncode == codes.FREE


def test_break_is_0_when_something_was_held_and_1_when_not(shell: Shell) -> None:
    with shell.connect() as locks:
        locks.acquire("k")
        assert shell("break", "k", "--reason", "r").returncode == 0
    assert shell("break", "k", "--reason", "r").returncode == codes.FREE


def test_an_answer_nobody_reads_is_141_without_a_word(shell: Shell) -> None:
    reads, writes = os.pipe()
    os.close(reads)
    started = shell.start("ls", stdout=writes)
    os.close(writes)
    _, complaint = started.communicate(timeout=60)
    assert (started.returncode, complaint) == (codes.PIPE_CLOSED, "")


def test_an_answer_that_cannot_be_written_is_74_and_never_the_1_that_means_free(shell: Shell) -> None:
    with open("/dev/full", "w") as full:
        done = shell("show", "k", stdout=full)
    assert done.returncode == codes.NOT_WRITTEN
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("run", "k", "--json"), "MissingParameter"),
        (("show", "--json"), "MissingParameter"),
        (("ls", "--json", "--store", "nonsense://"), "InvalidInput"),
        (("run", "k", "--json", "--wait", "0", "--", "true"), "AcquireTimeout"),
    ],
)
def test_with_json_an_error_is_one_object_on_stderr(shell: Shell, words: tuple[str, ...], name: str) -> None:
    with shell.connect() as locks, locks.hold("k"):
        done = shell(*words)
    told = only_json(done.stderr)
    assert told["error"] == name
    assert told["message"]
    assert done.stdout == ""


def test_json_asked_for_behind_the_dashes_is_the_commands_own(shell: Shell) -> None:
    done = shell("run", "k", "--wait", "-1", "--", "true", "--json")
    assert done.stderr.startswith("leasehold: wait")


def test_nobody_on_stderr_changes_no_exit_code(shell: Shell) -> None:
    with open("/dev/full", "w") as full:
        assert shell("run", "k", "--", "no-such-command-anywhere", stderr=full).returncode == codes.NOT_FOUND
    closed = f'{PROGRAM} run k --json -- sh -c "echo out; exit 5" 2>&-'
    done = subprocess.run(
        ["/bin/sh", "-c", closed],
        env={**os.environ, "LEASEHOLD_STORE": shell.url},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (5, "out\n")


def test_the_version_is_the_packages(shell: Shell) -> None:
    assert shell("--version").stdout == f"leasehold {leasehold.__version__}\n"


def test_an_error_of_the_tree_is_never_1() -> None:
    def below(kind: type[leasehold.LeaseholdError]) -> list[type[leasehold.LeaseholdError]]:
        return [kind, *(found for sub in kind.__subclasses__() for found in below(sub))]

    kinds = below(leasehold.LeaseholdError)
    assert leasehold.AcquireTimeout in kinds
    assert all(codes.code_of(kind.__new__(kind)) not in {0, codes.FREE} for kind in kinds)
