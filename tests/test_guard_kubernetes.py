"""Guards on Kubernetes: one Lease under the platform's name, clients' clocks, and what others do to the object."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

import leasehold
from leasehold.errors import LeaseLost, PermissionDenied, RecentlyRemediated, ResourceBusy
from leasehold.rules.cooldown import Phase
from tests.guard_support import COOLDOWN, NAME, TARGET, WALL
from tests.stores.kubernetes_support import Place, counted

DAY = 86_400.0


@pytest.fixture(scope="module")
def server_is_there() -> None:
    Place()


@pytest.fixture
def place(server_is_there: None) -> Place:
    return Place()


@pytest.fixture
def locks(place: Place) -> Iterator[leasehold.Locks]:
    with leasehold.connect(place.url()) as opened:
        yield opened


@pytest.fixture
def guard(locks: leasehold.Locks) -> leasehold.Guard:
    return later(locks, 0)


def later(locks: leasehold.Locks, seconds: float) -> leasehold.Guard:
    """A guard whose wall clock stands so many seconds after the first one's."""
    made = leasehold.Guard(locks, cooldown=COOLDOWN)
    made._runs.wall = lambda: WALL + seconds
    return made


def test_a_run_is_one_lease_that_people_find_by_its_name(place: Place, guard: leasehold.Guard) -> None:
    run = guard.begin(TARGET, owner="wfe-1")
    assert place.names() == [NAME]
    assert place.get(NAME)["spec"]["holderIdentity"] == "wfe-1"
    run.complete()
    assert place.names() == [NAME]
    assert place.get(NAME)["spec"]["leaseDurationSeconds"] == COOLDOWN
    run.abandon()
    assert place.names() == []
    with leasehold.connect(place.url(), prefix="shop") as other:
        leasehold.Guard(other).begin(TARGET, owner="wfe-1")
    assert place.names() == [f"shop-{NAME}"]


def test_the_requests_are_as_few_as_can_be(place: Place, guard: leasehold.Guard) -> None:
    with counted(place) as asked:
        run = guard.begin(TARGET, owner="wfe-1")
    assert asked == ["create"]
    with counted(place) as asked, pytest.raises(ResourceBusy):
        guard.begin(TARGET, owner="wfe-2")
    assert asked == ["create", "get"]
    with counted(place) as asked, pytest.raises(ResourceBusy):
        guard.check(TARGET)
    assert asked == ["get"]
    with counted(place) as asked:
        run.complete()
    assert asked == ["patch"]
    with counted(place) as asked:
        run.abandon()
    assert asked == ["delete"]


def test_a_controller_that_has_just_started_counts_the_rest_from_the_completion_time(
    locks: leasehold.Locks, guard: leasehold.Guard
) -> None:
    """By its own sight of the Lease it would count the whole rest once more."""
    first = guard.begin(TARGET, owner="wfe-1")
    first.complete()
    early = later(locks, COOLDOWN + 4)
    for look in (lambda: early.begin(TARGET, owner="wfe-2"), lambda: early.check(TARGET)):
        with pytest.raises(RecentlyRemediated, match="by wfe-1, 304s ago"):
            look()
    assert later(locks, COOLDOWN + 6).inspect(TARGET) is None
    second = later(locks, COOLDOWN + 6).begin(TARGET, owner="wfe-2")
    assert second.token > first.token
    assert first.abandon() is False


def test_no_wall_clock_ends_a_run_that_is_not_finished(locks: leasehold.Locks, guard: leasehold.Guard) -> None:
    run = guard.begin(TARGET, owner="wfe-1", timeout=600)
    with pytest.raises(ResourceBusy):
        later(locks, 7 * DAY).begin(TARGET, owner="wfe-2")
    run.check()


def test_a_scheduled_job_that_never_lives_long_has_its_turn_again(locks: leasehold.Locks) -> None:
    first = later(locks, 0).once_per("nightly", 3600)
    assert first is not None
    assert later(locks, 3600 - 10).once_per("nightly", 3600) is None
    again = later(locks, 3600 + 6).once_per("nightly", 3600)
    assert again is not None
    assert again.token > first.token


def test_a_label_that_somebody_puts_on_the_lease_does_not_cost_the_run(place: Place, guard: leasehold.Guard) -> None:
    run = guard.begin(TARGET, owner="wfe-1")
    place.patch(NAME, {"metadata": {"labels": {"team": "shop"}}})
    run.check()
    assert run.complete() is True
    assert place.get(NAME)["metadata"]["labels"]["team"] == "shop"
    place.patch(NAME, {"metadata": {"labels": {"team": "mail"}}})
    with pytest.raises(RecentlyRemediated):
        guard.begin(TARGET, owner="wfe-2")
    assert run.abandon() is True


def test_a_lease_deleted_by_hand_frees_the_target_and_its_owner_is_told(
    place: Place, guard: leasehold.Guard, caplog: pytest.LogCaptureFixture
) -> None:
    run = guard.begin(TARGET, owner="wfe-1")
    place.server.request("DELETE", f"{place.path}/{NAME}")
    with caplog.at_level(logging.WARNING, "leasehold"), pytest.raises(LeaseLost, match="its record was deleted"):
        run.check()
    assert "its record was deleted" in caplog.text
    assert run.complete() is False
    assert guard.begin(TARGET, owner="wfe-2").token > run.token


def test_a_lease_with_a_finalizer_is_in_the_way_until_it_is_gone(place: Place, guard: leasehold.Guard) -> None:
    guard.begin(TARGET, owner="wfe-1").complete()
    place.patch(NAME, {"metadata": {"finalizers": ["example.com/audit"]}})
    place.server.request("DELETE", f"{place.path}/{NAME}")
    with pytest.raises(RecentlyRemediated):
        guard.begin(TARGET, owner="wfe-2")
    # Even if its rest is over: whoever took it over would lose it when the finalizer is through.
    with pytest.raises(ResourceBusy):
        guard.begin(TARGET, owner="wfe-2", cooldown=0)
    place.patch(NAME, {"metadata": {"finalizers": None}})
    assert guard.begin(TARGET, owner="wfe-2").phase is Phase.RUNNING


def test_a_lease_of_somebody_else_under_the_name_is_in_the_way_and_left_alone(
    place: Place, guard: leasehold.Guard
) -> None:
    place.put(NAME, {"holderIdentity": "another-program", "leaseDurationSeconds": 3600})
    with pytest.raises(ResourceBusy) as caught:
        guard.begin(TARGET, owner="wfe-1")
    assert caught.value.reason == "ResourceBusy"
    assert place.get(NAME)["spec"]["holderIdentity"] == "another-program"


def test_without_rights_the_look_passes_with_a_warning_and_nothing_begins(
    server_is_there: None, caplog: pytest.LogCaptureFixture
) -> None:
    place = Place(verbs=("list",))
    with leasehold.connect(place.url()) as locks:
        guard = leasehold.Guard(locks)
        with caplog.at_level(logging.WARNING, "leasehold"):
            guard.check(TARGET)
        assert "403" in caplog.text
        with pytest.raises(PermissionDenied, match="create"):
            guard.begin(TARGET, owner="wfe-1")
    assert place.names() == []
