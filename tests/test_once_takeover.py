"""A duplicate that looked while the work went on, and was given the lease when it was over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import leasehold
from leasehold.wires.colour import drive


class Two:
    """One who does the work, and one who comes with the same key."""

    def __init__(self, first: leasehold.Locks, second: leasehold.Locks) -> None:
        self.first: Any = leasehold.Once(first)._handling
        self.second = leasehold.Once(second)
        self.begun = drive(self.first.begin("k", None, self.first.policy))

    def after_its_look(self, meanwhile: Callable[[], object]) -> None:
        """Let something happen after the second saw the record, and before it asks for the lease."""
        handling: Any = self.second._handling
        plain = handling.alone

        async def alone(*given: Any) -> Any:
            handling.alone = plain
            meanwhile()
            return await plain(*given)

        handling.alone = alone


@pytest.fixture
def two(request: pytest.FixtureRequest) -> Iterator[Two]:
    url = f"memory://{request.node.name}"
    with leasehold.connect(url) as first, leasehold.connect(url) as second:
        yield Two(first, second)


def test_work_that_was_finished_meanwhile_is_replayed(two: Two) -> None:
    two.after_its_look(lambda: drive(two.first.completed(two.begun, "done")))
    assert two.second.run("k", lambda _work: "again") == "done"


def test_work_that_was_left_meanwhile_is_unknown(two: Two) -> None:
    """The control: the same, but nobody finished it."""
    two.after_its_look(lambda: drive(two.first.failed(two.begun, ValueError())))
    with pytest.raises(leasehold.OutcomeUnknown):
        two.second.run("k", lambda _work: "again")
