"""What a short-lived process is told where a dead holder's lease has to be observed before it ends."""

from __future__ import annotations

import pytest

import leasehold
from leasehold.cli.codes import NOT_ACQUIRED
from tests.cli.conftest import Shell
from tests.stores.kubernetes_support import Place

TOLD = "a process that has just started"


@pytest.fixture
def place() -> Place:
    return Place()


@pytest.mark.parametrize("options", [{}, {"max_skew": 5}])
def test_a_command_that_finds_its_lease_busy_says_what_a_newcomer_must_know(
    shell: Shell, place: Place, options: dict[str, int]
) -> None:
    url = place.url(**options)
    with leasehold.connect(url) as locks, locks.hold("job"):
        done = shell("run", "job", "--wait", "0", "--", "true", store=url)
    assert done.returncode == NOT_ACQUIRED
    assert "job" in done.stderr
    assert (TOLD in done.stderr) == (not options)


@pytest.mark.parametrize("options", [{}, {"max_skew": 5}])
def test_so_does_whoever_collects(shell: Shell, place: Place, options: dict[str, int]) -> None:
    done = shell("gc", store=place.url(**options))
    assert (done.returncode, done.stdout) == (0, "0\n")
    assert (TOLD in done.stderr) == (not options)


def test_elsewhere_there_is_nothing_to_be_told(shell: Shell) -> None:
    with shell.connect() as locks, locks.hold("job"):
        done = shell("run", "job", "--wait", "0", "--", "true")
    assert done.returncode == NOT_ACQUIRED
    assert TOLD not in done.stderr
