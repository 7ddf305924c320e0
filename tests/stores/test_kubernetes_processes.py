"""Leases between processes, in both colours, in real time."""

from __future__ import annotations

import pytest

import leasehold
from leasehold.testing.conformance.process_laws import ProcessLaws
from tests.stores.kubernetes_support import Place
from tests.support import eventually


@pytest.fixture(params=["blocking", "asyncio"])
def colour(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def place() -> Place:
    return Place()


@pytest.fixture
def url(place: Place) -> str:
    return place.url()


class TestProcesses(ProcessLaws):
    pass


def test_a_helper_process_renews_locks_and_elections(place: Place) -> None:
    """What a record remembers of its object survives the way to another process and back."""
    with leasehold.connect(place.url(), helper=True) as locks:
        lease = locks.acquire("job", ttl=3)
        leasehold.Election(locks, "leader", identity="me", ttl=3).campaign()
        first = {name: place.get(name)["spec"]["renewTime"] for name in ("job", "leader")}
        eventually(lambda: all(place.get(name)["spec"]["renewTime"] != time for name, time in first.items()))
        assert lease.held
        assert lease.release() is True
        assert place.names() == ["leader"]
    # Closing releases what is held.
    assert place.get("leader")["spec"]["holderIdentity"] == ""
