"""A helper process renews what its program holds on etcd: on a lease of its own, which the program then releases."""

from __future__ import annotations

import leasehold
from leasehold.engine.blocking import drive
from leasehold.engine.looking import key_of
from leasehold.model import Renewal
from tests.stores.etcd_support import Place
from tests.support import eventually

TTL = 3.0


def lease_of(locks: leasehold.Locks, scope: str) -> object:
    """The lease of etcd's that a record hangs on."""
    engine = locks._engine
    found = drive(engine.store.load(key_of(engine, scope)))
    return found and found.tag


def test_the_helper_moves_a_record_to_its_own_lease_and_the_program_releases_it() -> None:
    place = Place()
    with leasehold.connect(place.url, helper=True) as locks, leasehold.connect(place.url) as others:
        lease = locks.acquire("job", ttl=TTL)
        first = lease_of(others, "job")
        eventually(lambda: lease_of(others, "job") not in {first, None})
        assert lease.held
        assert others.try_acquire("job", ttl=TTL) is None
        assert lease.renew() is Renewal.RENEWED
        assert lease.release() is True
        assert others.acquire("job", ttl=TTL, wait=0).token > lease.token


def test_when_the_helper_dies_the_program_goes_on_renewing() -> None:
    place = Place()
    with leasehold.connect(place.url, helper=True) as locks, leasehold.connect(place.url) as others:
        lease = locks.acquire("job", ttl=2 * TTL)
        first = lease_of(others, "job")
        eventually(lambda: lease_of(others, "job") not in {first, None})
        helper = locks._engine.heartbeat.helper
        assert helper is not None
        helper.process.kill()
        second = lease_of(others, "job")
        eventually(lambda: lease_of(others, "job") not in {second, None})
        assert lease.held
        assert lease.release() is True
