"""Objects as locks, without a server: names, labels, and when the last resort counts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.errors import StoreDamaged
from leasehold.rules import kubernetes_objects as rules
from leasehold.rules.kubernetes_kinds import LEASES, Kind
from leasehold.rules.kubernetes_names import is_name
from leasehold.rules.names import short_name

BORN = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)
text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)


def lock(ttl: str | None = None, **meta: Any) -> dict[str, Any]:
    notes = {rules.OWNER: "me", rules.TARGET: "it", rules.HOLD: "secret"} | ({} if ttl is None else {rules.TTL: ttl})
    born = BORN.isoformat().replace("+00:00", "Z")
    return {"metadata": {"name": "a", "uid": "u", "annotations": notes, "creationTimestamp": born, **meta}}


def date(seconds: float) -> bytes:
    return format_datetime(BORN + timedelta(seconds=seconds), usegmt=True).encode()


def test_the_name_of_the_published_example() -> None:
    assert short_name("wfe-", "production/deployment/payment-api") == "wfe-fbb8266ac354e9c2"


@given(st.lists(text, unique=True, min_size=2))
def test_a_name_is_valid_the_same_each_time_and_another_for_each_target(targets: list[str]) -> None:
    names = [short_name("wfe-", target) for target in targets]
    assert names == [short_name("wfe-", target) for target in targets]
    assert len(set(names)) == len(targets)
    assert all(map(is_name, names))


@given(text)
def test_every_owner_makes_a_valid_label(owner: str) -> None:
    made = rules.label_value(owner)
    assert 1 <= len(made) <= 63
    assert made.isascii()
    assert made == owner or len(made) == 26


@pytest.mark.parametrize(("seconds", "ended"), [(0, False), (10, False), (10.9, False), (11, True), (3600, True)])
def test_it_ends_one_tick_after_its_ttl_by_the_server_s_clock(seconds: float, *, ended: bool) -> None:
    found = rules.read(lock("10.0"), date(seconds))
    assert found is not None
    assert rules.has_ended(found, date(seconds), 0.0) is ended
    assert not rules.has_ended(found, date(seconds), 3600.0)


@pytest.mark.parametrize("said", [b"", b"yesterday", b"\xff"])
def test_without_a_clock_or_a_ttl_it_does_not_end(said: bytes) -> None:
    limited, endless = rules.read(lock("10.0"), said), rules.read(lock(), date(1e6))
    assert limited is not None
    assert endless is not None
    assert not rules.has_ended(limited, said, 0.0)
    assert not rules.has_ended(endless, date(1e6), 0.0)
    assert endless.expires_in is None


def test_its_owner_stops_relying_on_it_before_it_ends() -> None:
    found = rules.read(lock("100.0"), date(50))
    assert found is not None
    assert found.expires_in == pytest.approx(0.9 * 100 - 50 - rules.TICK)


def test_its_age_is_told_by_the_server_s_clock_with_a_ttl_or_without() -> None:
    for ttl in ("100.0", None):
        found = rules.read(lock(ttl) if ttl else lock(), date(50))
        assert found is not None
        assert found.age == 50


def test_a_ttl_that_somebody_edited_is_damage() -> None:
    with pytest.raises(StoreDamaged, match="leasehold/ttl of 'a' is no number"):
        rules.read(lock("soon"), date(0))


def test_what_is_no_lock_says_nothing() -> None:
    assert rules.read({"metadata": {"name": "a"}}, b"") is None
    assert rules.read({}, b"") is None


def test_a_kind_knows_its_path_and_its_name_in_roles() -> None:
    assert LEASES.path("team") == "/apis/coordination.k8s.io/v1/namespaces/team/leases"
    assert Kind("v1", "ConfigMap", "configmaps").path("team") == "/api/v1/namespaces/team/configmaps"
    assert str(Kind("batch/v1", "Job", "jobs")) == "jobs.batch"
    assert str(Kind("v1", "ConfigMap", "configmaps")) == "configmaps"
