"""What the workflow executor decides, without a cluster: names, layer 1, rests, durations, conditions."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.rules.names import short_name
from tests.examples.executor_support import module

decisions = module("decisions")
settings = module("settings")
durations = settings.durations

NOW = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
TARGET = "production/deployment/payment-api"
COOLDOWN = 300.0


def execution(name: str = "mine", target: str = TARGET, **status: Any) -> dict[str, Any]:
    meta = {"namespace": "team-a", "name": name, "uid": f"uid of {name}"}
    return {"metadata": meta, "spec": {"targetResource": target}, "status": status}


def ended(name: str, ago: float, phase: str = "Completed", locked: str = "True") -> dict[str, Any]:
    """One whose run ended so many seconds ago."""
    said = [{"type": "TargetLocked", "status": locked}]
    at = decisions.stamp(NOW - timedelta(seconds=ago))
    return execution(name, phase=phase, completionTime=at, pipelineRun="wfe-1", conditions=said)


def blocked(*others: dict[str, Any], cooldown: float = COOLDOWN) -> str | None:
    found: str | None = decisions.in_the_way(execution(), others, cooldown, NOW)
    return found


# Names.


def test_a_run_is_named_by_its_target_and_always_the_same() -> None:
    """Testing table: pipelineRunName() determinism. Leasehold names it: there is no other rule."""
    assert short_name(decisions.PREFIX, TARGET) == "wfe-fbb8266ac354e9c2"


@given(st.text(min_size=1), st.text(min_size=1))
def test_different_targets_have_different_names(one: str, other: str) -> None:
    """Testing table: pipelineRunName() uniqueness; M5: 64 bits of SHA-256."""
    assert (short_name(decisions.PREFIX, one) == short_name(decisions.PREFIX, other)) == (one == other)


def test_an_owner_is_this_very_execution_and_shown_by_its_name() -> None:
    owner = decisions.owner(execution())
    assert owner == "team-a/mine/uid of mine"
    assert decisions.holder_name(owner) == "mine"
    assert decisions.holder_name("somebody") == "somebody"


# Layer 1.


def test_one_that_runs_is_in_the_way() -> None:
    """Testing table: checkResourceLock() finds Running."""
    assert blocked(execution("other", phase="Running")) == "ResourceBusy (active: other)"


@pytest.mark.parametrize("phase", ["Completed", "Failed"])
@pytest.mark.parametrize(
    ("ago", "words"), [(42, "42s"), (102.4, "1m42s"), (0, "0s"), (299, "4m59s"), (-3, "0s"), (-3600, "0s")]
)
def test_one_that_rests_is_in_the_way(phase: str, ago: float, words: str) -> None:
    """Testing table: checkResourceLock() finds Cooldown. A completion in the future is one just now."""
    assert blocked(ended("other", ago, phase)) == f"RecentlyRemediated (by other, {words} ago)"


def test_what_runs_comes_before_what_rests_and_of_these_the_latest() -> None:
    resting = [ended("older", 200), ended("newer", 42)]
    assert blocked(*resting) == "RecentlyRemediated (by newer, 42s ago)"
    assert blocked(*resting, execution("busy", phase="Running")) == "ResourceBusy (active: busy)"


@pytest.mark.parametrize(
    "other",
    [
        execution("mine", phase="Running"),
        execution("other", "production/deployment/other", phase="Running"),
        execution("other"),
        execution("other", phase="Pending"),
        execution("other", phase="Skipped"),
        # Never ran: its target was no good.
        execution("other", phase="Failed"),
        ended("other", 300),
        ended("other", 301),
        # Its run is gone, by whomever: the target is free.
        ended("other", 42, locked="False"),
    ],
)
def test_nothing_else_is_in_the_way(other: dict[str, Any]) -> None:
    assert blocked(other) is None


def test_without_a_cooldown_nothing_rests() -> None:
    assert blocked(ended("other", 0), cooldown=0) is None
    assert blocked(ended("other", 0), cooldown=1) is not None


# Rests.


@given(st.floats(-1e6, 1e6), st.floats(0, 1e5))
def test_a_rest_is_never_longer_than_the_cooldown_and_over_after_it(ago: float, cooldown: float) -> None:
    left = decisions.rest_left(NOW - timedelta(seconds=ago), cooldown, NOW)
    assert left <= cooldown
    assert (left <= 0) == (cooldown == 0 or ago >= cooldown - 1e-6) or abs(left) < 1e-5


@pytest.mark.parametrize(("ahead", "is_future"), [(-1, False), (0, False), (5, False), (5.1, True), (3600, True)])
def test_only_a_time_that_no_skew_explains_is_in_the_future(ahead: float, *, is_future: bool) -> None:
    assert decisions.is_future(NOW + timedelta(seconds=ahead), NOW) is is_future


# Durations and the ConfigMap.


@pytest.mark.parametrize(
    ("text", "length"),
    [("5m", 300), ("0", 0), ("0s", 0), ("90s", 90), ("1h30m", 5400), ("1.5h", 5400), ("250ms", 0.25), (" 5m ", 300)],
)
def test_durations_are_read_as_go_does(text: str, length: float) -> None:
    assert durations.seconds(text) == pytest.approx(length)


@pytest.mark.parametrize("text", ["", "5", "m", "5 m", "-5m", "5d", "five", "5m5", "inf", "nan", "1e3s", "٥m", "169h"])
def test_what_is_no_duration_is_told_what_to_write(text: str) -> None:
    with pytest.raises(durations.Malformed, match="; write "):
        durations.seconds(text)


@given(st.integers(0, 604_800))
def test_a_duration_that_is_spoken_is_read_again(length: int) -> None:
    assert durations.seconds(durations.spoken(length)) == length


BAD_CONFIGS = {
    "nothing": ({}, "data must hold config.yaml"),
    "another file": ({"settings.yaml": "a: b"}, "data must hold config.yaml"),
    "no YAML": ({"config.yaml": "a: [b"}, "config.yaml is no YAML"),
    "a list": ({"config.yaml": "[]"}, "must say resource_locking: cooldown_period"),
    "no section": ({"config.yaml": "a: b"}, "must say resource_locking: cooldown_period"),
    "no period": ({"config.yaml": "resource_locking: {}"}, "must say resource_locking: cooldown_period"),
    "a bare number": ({"config.yaml": "resource_locking: {cooldown_period: 5}"}, "write a number and a unit"),
    "negative": ({"config.yaml": "resource_locking: {cooldown_period: -5m}"}, "cooldown_period: '-5m' is negative"),
    "a mapping": ({"config.yaml": "resource_locking: {cooldown_period: {a: b}}"}, "is no duration"),
    "a novel": ({"config.yaml": "a" * 20_000}, "data must hold config.yaml"),
}


@pytest.mark.parametrize("what", BAD_CONFIGS)
def test_a_malformed_config_is_told_where_and_what_to_write(what: str) -> None:
    data, words = BAD_CONFIGS[what]
    with pytest.raises(durations.Malformed) as caught:
        settings.read(data)
    assert words in str(caught.value)


@pytest.mark.parametrize(("period", "length"), [("5m", 300), ("0", 0), ("1h", 3600)])
def test_a_config_says_how_long_the_rest_is(period: str, length: float) -> None:
    text = f"resource_locking:\n  cooldown_period: {period}          # Default: 5 minutes\n"
    assert settings.read({"config.yaml": text}) == length


# Runs and conditions.


@pytest.mark.parametrize(
    ("said", "outcome"),
    [
        ([], None),
        ([{"type": "Succeeded", "status": "Unknown", "reason": "Running"}], None),
        ([{"type": "Ready", "status": "True"}], None),
        ([{"type": "Succeeded", "status": "True", "reason": "Succeeded"}], ("Completed", "Succeeded")),
        (
            [{"type": "Succeeded", "status": "False", "reason": "Failed", "message": "a task failed"}],
            ("Failed", "Failed: a task failed"),
        ),
        ([{"type": "Succeeded", "status": "False"}], ("Failed", "Failed")),
    ],
)
def test_a_run_ends_as_its_condition_says(said: list[dict[str, str]], outcome: tuple[str, str] | None) -> None:
    assert decisions.outcome({"status": {"conditions": said}}) == outcome


def test_a_condition_keeps_its_time_while_its_status_stays_and_others_stay_too() -> None:
    first = decisions.conditions(
        execution(conditions=[{"type": "Other", "status": "True"}]), decisions.Condition("True", "a", "b"), NOW
    )
    later = NOW + timedelta(seconds=9)
    again = decisions.conditions(execution(conditions=first), decisions.Condition("True", "c", "d"), later)
    other = decisions.conditions(execution(conditions=again), decisions.Condition("False", "e", "f"), later)
    assert [one["type"] for one in other] == ["Other", "TargetLocked"]
    times = [found[1]["lastTransitionTime"] for found in (first, again, other)]
    assert times == [decisions.stamp(NOW), decisions.stamp(NOW), decisions.stamp(later)]
    assert (again[1]["reason"], other[1]["reason"]) == ("c", "e")


def test_what_the_cluster_refused_says_nothing_about_the_lock() -> None:
    """An execution that has let go of its target does not get it back because a request failed."""
    before = ended("other", 42, locked="False")
    said = decisions.Condition("True", "ClusterRefused", "no right", decisions.HINDERED)
    before["status"]["conditions"] = decisions.conditions(before, said, NOW)
    assert not decisions.is_locked(before["status"])
    assert decisions.hindrance(before["status"]) == "no right"
    before["status"]["conditions"] = decisions.conditions(before, said._replace(status="False"), NOW)
    assert decisions.hindrance(before["status"]) is None


@given(st.datetimes(timezones=st.just(UTC), min_value=datetime(2000, 1, 1), max_value=datetime(2100, 1, 1)))  # noqa: DTZ001
def test_a_time_that_is_written_is_read_again(at: datetime) -> None:
    assert decisions.moment(decisions.stamp(at)) == at


@pytest.mark.parametrize("text", [None, "", "yesterday"])
def test_what_is_no_time_is_none(text: str | None) -> None:
    assert decisions.moment(text) is None
