"""What the etcd store does with keys and leases, seen with etcd's own eyes. In real time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import leasehold
from leasehold.engine.asks import ask_for
from leasehold.engine.blocking import BlockingRuntime, drive
from leasehold.engine.opening import open_engine
from leasehold.errors import InvalidInput, PermissionDenied, StoreDamaged, StoreUnavailable
from leasehold.model import KEEP, Conflict, Key, Record, Renewal
from leasehold.rules.etcd_messages import Lived
from leasehold.testing.clock import VirtualClock
from leasehold.testing.conformance.arena import Arena, StoreFace
from leasehold.testing.conformance.etcd_worlds import EtcdWorld
from leasehold.testing.proxy import Proxy
from leasehold.testing.servers import EtcdServer, ServerFailed
from tests.stores.etcd_support import KEY, Driven, Place, driven, read, written
from tests.support import eventually

LONG = 30.0
OTHER = Key("app//name/other", "lock")
THIRD = Key("app//name/third", "lock")


@pytest.fixture
def place() -> Place:
    return Place()


@pytest.fixture(params=["blocking", "asyncio"])
def colour(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def store(place: Place, colour: str) -> Iterator[Driven]:
    with driven(place.url, colour) as opened:
        yield opened


@pytest.fixture
def arena(colour: str, tmp_path: Path) -> Iterator[Arena]:
    """A real etcd in virtual time: its leases end when the test says so."""
    opened = Arena(EtcdWorld(tmp_path), colour)
    yield opened
    opened.close()


def renewed(store: Driven | StoreFace, record: Record, ttl: float) -> Record:
    """The record after a touch that must succeed."""
    ((answer, fresh),) = store.touch([(record, ttl)])
    assert answer is Renewal.RENEWED
    return fresh


# Keys.


def test_a_record_is_one_key_with_its_ttl_before_the_value(store: Driven, place: Place) -> None:
    made = store.grant(value=b"mine", ttl=LONG)
    found = place.found()
    assert found is not None
    assert read(found["value"]) == b"30\nmine"
    assert (int(found["create_revision"]), int(found["mod_revision"])) == (made.born, made.revision)
    assert int(found["lease"]) == made.tag


def test_a_lasting_record_hangs_on_no_lease(store: Driven, place: Place) -> None:
    store.grant(ttl=None, value=b"forever")
    found = place.found()
    assert found is not None
    assert (read(found["value"]), "lease" in found) == (b"-\nforever", False)


def test_namespaces_do_not_see_each_other(place: Place, store: Driven) -> None:
    made = store.grant()
    with driven(Place(place.server).url) as other:
        assert other.load(KEY) is None
        assert other.page("", None, 10) == []
        assert other.grant().revision > made.revision
    assert [record.key for record in store.page("", None, 10)] == [KEY]


@pytest.mark.parametrize("foreign", [b"somebody else's", b"30\nno lease", b"x\nno number"])
def test_nothing_is_granted_from_a_key_that_somebody_else_wrote(store: Driven, place: Place, foreign: bytes) -> None:
    place.put(foreign)
    with pytest.raises(StoreDamaged, match="holds what Leasehold did not write"):
        store.load(KEY)
    with pytest.raises(StoreDamaged, match="another namespace, or remove the key"):
        store.swap(KEY, None, b"mine", LONG)
    found = place.found()
    assert found is not None
    assert read(found["value"]) == foreign
    place.delete()
    assert store.grant().value == b"mine"


def test_a_key_that_is_no_name_of_ours_is_told_when_listing(store: Driven, place: Place) -> None:
    odd = f"{place.namespace}leasehold/odd".encode()
    place.server.request("kv/put", {"key": written(odd), "value": written(b"30\nx")})
    with pytest.raises(StoreDamaged, match="odd', which Leasehold did not write; remove it"):
        store.page("", None, 10)
    assert store.grant().value == b"mine"


# Leases of etcd.


def test_records_of_one_ttl_share_a_lease_and_others_do_not(store: Driven) -> None:
    first, second = store.grant(KEY, LONG), store.grant(OTHER, LONG)
    third = store.grant(THIRD, LONG + 1)
    assert first.tag == second.tag != third.tag


def test_a_ttl_below_two_seconds_is_refused_and_a_fraction_rounded_up(place: Place) -> None:
    with leasehold.connect(place.url) as locks:
        assert (locks.guarantees.ttl_min, locks.guarantees.ttl_step) == (2.0, 1.0)
        with pytest.raises(InvalidInput, match="ttl: must be from 2 to 86400 seconds"):
            locks.acquire("job", ttl=1.9)
        lease = locks.acquire("job", ttl=2.1)
        assert lease.ttl == 3.0
        lease.release()


def test_the_length_that_etcd_really_grants_is_the_one_that_is_told() -> None:
    """A cluster whose members take long to vote grants no lease shorter than that."""
    with (
        EtcdServer(config={"heartbeat-interval": 500, "election-timeout": 5000}) as slow,
        leasehold.connect(slow.url) as locks,
    ):
        lease = locks.acquire("job", ttl=2)
        assert lease.ttl == 8.0
        info = locks.inspect("job")
        assert info is not None
        assert info.ttl == 8.0
        assert lease.renew() is Renewal.RENEWED


def test_a_keepalive_alone_says_fine_after_the_key_was_deleted_and_touch_does_not(store: Driven, place: Place) -> None:
    made = store.grant()
    place.delete()
    assert place.keep_alive(made) == LONG
    assert store.touch([(made, LONG)]) == [(Renewal.LOST, None)]
    assert place.found() is None


def test_the_create_revision_would_remove_the_next_owner_and_the_mod_revision_does_not(
    store: Driven, place: Place
) -> None:
    """A record that changes hands in place keeps its create revision."""
    mine = store.grant(value=b"mine")
    place.put(b"30\ntheirs", lease=mine.tag)
    found = place.found()
    assert found is not None
    assert int(found["create_revision"]) == mine.born
    answer = store.swap(KEY, mine, None, None)
    assert isinstance(answer, Conflict)
    assert answer.record is not None
    assert answer.record.value == b"theirs"
    assert store.load(KEY).value == b"theirs"


def test_what_is_rewritten_with_a_ttl_ends_by_it_whatever_else_is_renewed(arena: Arena) -> None:
    """Results and rests hang on a lease that nobody keeps alive."""
    store, ttl = arena.store(), arena.ttl
    kept, made = store.swap(OTHER, None, b"kept", ttl), store.swap(KEY, None, b"x", ttl)
    rest = store.swap(KEY, made, b"resting", ttl)
    assert (rest.born, rest.tag != kept.tag) == (made.born, True)
    for _ in range(3):
        arena.elapse(0.3 * ttl)
        kept = renewed(store, kept, ttl)
    assert store.load(KEY).value == b"resting"
    arena.elapse(0.15 * ttl)
    assert store.load(KEY) is None
    assert renewed(store, kept, ttl).revision == kept.revision


def test_a_lease_that_somebody_revoked_is_replaced_by_the_next_acquire(store: Driven, place: Place) -> None:
    made = store.grant()
    place.server.request("lease/revoke", {"ID": str(made.tag)})
    assert store.touch([(made, LONG)]) == [(Renewal.LOST, None)]
    fresh = store.grant()
    assert fresh.tag != made.tag
    assert fresh.revision > made.revision


# What hangs on a shared lease and is not to live on.


def test_the_orphan_of_a_lost_reply_ends_although_the_client_goes_on_renewing(place: Place, colour: str) -> None:
    """Its reply lost and its caller gone, it lived on the shared lease for as long as anything else was renewed."""
    with Proxy(place.server.host, place.server.port) as proxy, driven(place.behind(proxy), colour, timeout=1) as store:
        kept = store.grant(OTHER, LONG)
        shared = kept.tag
        proxy.replies.blackhole = True
        with pytest.raises(StoreUnavailable) as told:
            store.swap(KEY, None, b"orphan", LONG)
        assert told.value.applied is None
        # The control: it is there, on the lease that is renewed.
        eventually(place.found)
        assert int(place.found()["lease"]) == shared
        proxy.replies.blackhole = False
        proxy.cut()
        eventually(lambda: _renewed_elsewhere(store, OTHER, shared))
        # The end of a lease that nobody keeps alive any more.
        place.server.request("lease/revoke", {"ID": str(shared)})
        assert place.found() is None
        assert renewed(store, store.load(OTHER), LONG).tag != shared
    # What arrives even later finds no lease to hang on.
    with pytest.raises(ServerFailed, match="lease not found"):
        place.put(b"30\nlate", lease=shared)


def _renewed_elsewhere(store: Driven, key: Key, before: object) -> bool:
    try:
        ((answer, found),) = store.touch([(store.load(key), LONG)])
    except StoreUnavailable:
        return False
    return answer is Renewal.RENEWED and found.tag != before


def test_a_revoked_record_ends_in_its_time_although_the_others_go_on(arena: Arena) -> None:
    store, operator, ttl = arena.store(), arena.store(), arena.ttl
    kept, revoked = store.swap(OTHER, None, b"kept", ttl), store.swap(KEY, None, b"x", ttl)
    operator.swap(KEY, operator.load(KEY), b"revoked", KEEP)
    arena.elapse(0.4 * ttl)
    (_, kept), (answer, found) = store.touch([(kept, ttl), (revoked, ttl)])
    assert (answer, found.value) == (Renewal.LOST, b"revoked")
    assert kept.tag != revoked.tag
    arena.elapse(0.5 * ttl)
    assert operator.load(KEY).value == b"revoked"
    kept = renewed(store, kept, ttl)
    arena.elapse(0.15 * ttl)
    assert operator.load(KEY) is None
    assert renewed(store, kept, ttl).revision == kept.revision


def test_a_record_that_is_no_longer_renewed_ends_although_the_others_go_on(arena: Arena) -> None:
    """A lease that was held for max_hold is only dropped: nobody tells the store."""
    store, ttl = arena.store(), arena.ttl
    kept, dropped = store.swap(OTHER, None, b"kept", ttl), store.swap(KEY, None, b"x", ttl)
    assert kept.tag == dropped.tag
    for _ in range(5):
        arena.elapse(0.33 * ttl)
        kept = renewed(store, kept, ttl)
    assert store.load(KEY) is None
    assert kept.tag != dropped.tag


def test_while_all_are_renewed_they_stay_on_their_lease(store: Driven) -> None:
    """The control of those above: moving is for leases that carry more than is renewed."""
    first, second = store.grant(KEY, LONG), store.grant(OTHER, LONG)
    for _ in range(3):
        (_, first), (_, second) = store.touch([(first, LONG), (second, LONG)])
    assert first.tag == second.tag == store.load(KEY).tag
    assert first.revision == first.born


# Trust.


def test_trust_counts_from_the_last_keepalive_that_was_sent(place: Place) -> None:
    clock = VirtualClock()
    with driven(place.url, clock=clock) as store:
        first = store.grant(KEY, LONG)
        clock.advance(4.0)
        second = store.grant(OTHER, LONG)
        assert (first.since, second.since) == (1000.0, 1000.0)
        ((_, second),) = store.touch([(second, LONG)])
        assert second.since == 1004.0
        clock.advance(2.0)
        # What comes later counts from that keepalive, too; and a lease half over takes nothing new.
        assert store.grant(THIRD, LONG).since == 1004.0
        clock.advance(LONG)
        late = store.swap(Key("app//name/late", "lock"), None, b"x", LONG)
        assert (late.since, late.tag != first.tag) == (1036.0, True)


@pytest.mark.parametrize(("of_another", "answer"), [(True, Renewal.UNKNOWN), (False, Renewal.RENEWED)])
def test_a_keepalive_answered_in_another_term_than_the_look_extends_nothing(
    place: Place, *, of_another: bool, answer: Renewal
) -> None:
    """A leader that was paused and replaced answers keepalives for a moment, and they count for nobody."""
    clock = VirtualClock()
    with driven(place.url, clock=clock) as store:
        made = store.grant()
        wire = store.store._wire
        asked = wire.keep_alive

        async def told(leases: list[int], **options: Any) -> dict[int, Lived]:
            lived = await asked(leases, **options)
            return {lease: one._replace(term=one.term - of_another) for lease, one in lived.items()}

        wire.keep_alive = told
        clock.advance(4.0)
        assert store.touch([(made, LONG)])[0][0] is answer
        assert store.load(KEY).since == (1000.0 if of_another else 1004.0)


def test_a_lease_acquired_on_an_older_etcd_lease_is_believed_for_less(place: Place) -> None:
    clock = VirtualClock()
    engine = drive(
        open_engine(
            place.url,
            BlockingRuntime(clock),
            holder=None,
            prefix=None,
            tenant=None,
            timeout=5.0,
            helper=False,
            local_passes=0,
            observers=[],
        )
    )
    try:
        first = drive(
            engine.acquire(ask_for(engine, "a", ttl=LONG, wait=0, metadata=None, max_hold=None), reentrant=False)
        )
        clock.advance(4.0)
        second = drive(
            engine.acquire(ask_for(engine, "b", ttl=LONG, wait=0, metadata=None, max_hold=None), reentrant=False)
        )
        assert first.deadline == second.deadline == 1000.0 + 0.9 * LONG
    finally:
        drive(engine.close())


# Rights.


def test_a_user_with_its_prefix_can_do_everything_there_and_nothing_elsewhere() -> None:
    with EtcdServer(users={"app": ("s3cret/%", "team/")}) as guarded:
        mine = guarded.url_for("app", "s3cret/%")
        with leasehold.connect(f"{mine}?namespace=team/") as locks, leasehold.connect(f"{mine}?namespace=team/") as two:
            lease = locks.acquire("job", ttl=LONG)
            assert two.try_acquire("job") is None
            assert lease.renew() is Renewal.RENEWED
            info = two.inspect("job")
            assert info is not None
            assert 0 < (info.expires_in or 0) <= LONG
            assert [one.scope for one in two.list()] == ["job"]
            assert lease.release() is True
        with pytest.raises(PermissionDenied, match="give this user readwrite on the prefix"):
            leasehold.connect(mine)
        with pytest.raises(PermissionDenied, match="check user and password"):
            leasehold.connect(guarded.url_for("app", "wrong"))
        with pytest.raises(PermissionDenied, match="put user and password into the URL"):
            leasehold.connect(guarded.url)


def test_a_token_that_etcd_has_forgotten_is_fetched_anew() -> None:
    """Simple tokens live in the memory of one member."""
    with (
        EtcdServer(users={"app": ("secret", "leasehold/")}) as guarded,
        leasehold.connect(guarded.url_for("app", "secret")) as locks,
    ):
        lease = locks.acquire("job", ttl=LONG)
        guarded.restart()
        eventually(lambda: lease.renew() is Renewal.RENEWED)
        assert lease.release() is True
