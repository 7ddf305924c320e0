"""Guards on ZooKeeper: runs and rests outlast its longest session, and end by the leader's clock."""

from __future__ import annotations

import pytest

import leasehold
from leasehold.errors import RecentlyRemediated, ResourceBusy
from tests.guard_support import TARGET
from tests.stores.zookeeper_support import fresh, with_short_sessions
from tests.support import eventually


def test_a_run_may_last_longer_than_any_session() -> None:
    url = fresh(with_short_sessions())
    with leasehold.connect(url) as locks, leasehold.connect(url) as others:
        assert locks.guarantees.ttl_max < 1
        run = leasehold.Guard(locks, cooldown=60).begin(TARGET, owner="wfe-1")
        router = leasehold.Guard(others)
        with pytest.raises(ResourceBusy) as caught:
            router.check(TARGET)
        assert 60 < caught.value.expires_in <= leasehold.Guard(locks).timeout == 3600
        assert run.complete()
        with pytest.raises(RecentlyRemediated, match="by wfe-1"):
            router.begin(TARGET, owner="wfe-2")
        assert run.abandon()
        assert router.begin(TARGET, owner="wfe-2").token > run.token


def test_such_a_run_outlives_its_client_and_ends_by_its_timeout() -> None:
    url = fresh(with_short_sessions())
    with leasehold.connect(url) as locks:
        first = leasehold.Guard(locks, timeout=2).begin(TARGET, owner="wfe-1")
    with leasehold.connect(url) as locks:
        guard = leasehold.Guard(locks)
        assert guard.inspect(TARGET).owner == "wfe-1"
        eventually(lambda: guard.inspect(TARGET) is None)
        assert guard.begin(TARGET, owner="wfe-2").token > first.token
