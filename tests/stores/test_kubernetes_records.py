"""How records look as Leases, what becomes of Leases that others wrote, and of what they did to ours."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import leasehold
from leasehold.engine.grant import read_hold
from leasehold.errors import AcquireTimeout, StoreDamaged
from leasehold.model import KEEP, Conflict, Key, Record, Renewal
from leasehold.rules import kubernetes_leases
from leasehold.rules.kubernetes_names import NAME_MAX, lease_name
from leasehold.testing.clock import VirtualClock
from leasehold.testing.servers.kube import KubeRefused
from tests.stores.kubernetes_support import KEY, Driven, Place, driven, election, job

VALID = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


@pytest.fixture
def place() -> Place:
    return Place()


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture(params=["blocking", "asyncio"])
def store(request: pytest.FixtureRequest, place: Place, clock: VirtualClock):
    with driven(place.url(), request.param, clock) as opened:
        yield opened


@pytest.fixture
def locks(place: Place):
    with leasehold.connect(place.url(), holder="pod-7") as opened:
        yield opened


# What people see.


def test_kubectl_shows_who_holds_it_since_when_and_for_how_long(place: Place, locks: leasehold.Locks) -> None:
    with locks.hold("task-llm-my-task", ttl=30):
        table = place.server.kubectl("get", "lease", "task-llm-my-task", namespace=place.name)
        assert re.search(r"^task-llm-my-task +pod-7 ", table, re.MULTILINE)
        told = place.server.kubectl("describe", "lease", "task-llm-my-task", namespace=place.name)
        assert re.search(r"Holder Identity: +pod-7", told)
        assert re.search(r"Lease Duration Seconds: +30", told)
        assert re.search(r"Acquire Time: +\d{4}-", told)


def test_release_leaves_no_object(place: Place, locks: leasehold.Locks) -> None:
    locks.acquire("job").release()
    assert place.names() == []


def test_a_prefix_stands_verbatim_before_a_name_that_is_valid_already(place: Place) -> None:
    for prefix, key in (("gw-lock-", "0123456789abcdef"), ("task-llm", "my-task"), (None, "plain")):
        with leasehold.connect(place.url(), prefix=prefix) as locks:
            locks.acquire(key, ttl=30)
            assert place.names() == [f"{prefix}{'' if prefix.endswith('-') else '-'}{key}" if prefix else key]


def test_any_other_key_gets_a_readable_part_and_a_hash(place: Place) -> None:
    with leasehold.connect(place.url(), prefix="billing") as locks:
        locks.acquire("Invoice/42 für Zoë", ttl=30)
        (name,) = place.names()
        assert re.fullmatch(r"billing-invoice-42-f-r-zo-x[0-9a-v]{26}", name)
        assert [info.scope for info in locks.list()] == ["Invoice/42 für Zoë"]


TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=80)
WORDS = st.text("ab-x0/_A", min_size=1, max_size=70)


@given(st.lists(st.tuples(TEXTS | WORDS, st.sampled_from(["", "t"]), st.sampled_from(["lock", "m"])), unique=True))
def test_names_are_valid_and_no_two_keys_of_a_prefix_share_one(given_keys: list[tuple[str, str, str]]) -> None:
    keys = [Key(f"p/{tenant}/name/{text}", member) for text, tenant, member in given_keys]
    names = [lease_name(key) for key in keys]
    assert all(VALID.fullmatch(name) and len(name) <= NAME_MAX for name in names)
    assert len(set(names)) == len(names)


def test_a_key_that_looks_like_a_hashed_name_is_hashed_itself() -> None:
    """Else it could be told to be the name of another key."""
    hashed = lease_name(job("Not valid"))
    assert lease_name(job(hashed)) != hashed
    assert lease_name(job("gw-lock-0123456789abcdef")) == "gw-lock-0123456789abcdef"


@pytest.mark.parametrize("prefix", ["ro-lock", "ro-lock-"])
def test_the_prefix_stands_first_also_where_the_key_is_no_name(prefix: str) -> None:
    name = lease_name(Key(f"{prefix}//name/production/deployment/payment-api", "lock"))
    assert name.startswith("ro-lock-production-deployment-")
    assert len(name) <= 63


def test_keys_of_two_prefixes_that_meet_in_one_name_stand_in_each_others_way(place: Place) -> None:
    with (
        leasehold.connect(place.url(), prefix="a", holder="ada") as ada,
        leasehold.connect(place.url(), prefix="a-b", holder="bob") as bob,
    ):
        lease = ada.acquire("b-c", ttl=30)
        with pytest.raises(AcquireTimeout, match="held by ada"):
            bob.acquire("c", ttl=30, wait=0)
        lease.release()
        assert bob.acquire("c", ttl=30, wait=0).held


# What we write.


def test_times_have_six_digits_also_on_the_full_second(place: Place) -> None:
    """Every client that leaves the fraction out is refused once in a million renewals."""
    with driven(place.url()) as store:
        store.store._wall = lambda: 1_700_000_000.0
        made = store.grant(KEY)
        ((answer, _),) = store.touch([(made, 30.0)])
        assert answer is Renewal.RENEWED
        assert place.get("job")["spec"]["renewTime"] == "2023-11-14T22:13:20.000000Z"
        with pytest.raises(KubeRefused) as refused:
            place.patch("job", {"spec": {"renewTime": "2023-11-14T22:13:20Z"}})
        assert refused.value.status in {400, 422}


def test_a_ttl_is_rounded_up_to_whole_seconds(place: Place, locks: leasehold.Locks) -> None:
    lease = locks.acquire("job", ttl=1.2)
    assert lease.ttl == 2.0
    assert place.get("job")["spec"]["leaseDurationSeconds"] == 2


def test_born_is_written_down_by_the_first_write_after_the_creating_one(place: Place, store: Driven) -> None:
    made = store.grant(KEY)
    assert kubernetes_leases.BORN not in place.get("job")["metadata"]["annotations"]
    ((_, fresh),) = store.touch([(made, 30.0)])
    assert fresh.revision > made.revision
    assert place.get("job")["metadata"]["annotations"][kubernetes_leases.BORN] == str(made.revision)
    assert store.load(KEY).born == made.born


@pytest.mark.parametrize("value", [b"\xff\x00\x01", b"base64:AAAA", "Zoë\n\0".encode(), b"", b'{"holder":""}'])
def test_any_bytes_come_back_as_they_were(store: Driven, value: bytes) -> None:
    store.grant(KEY, value=value)
    assert store.load(KEY).value == value


def test_a_renewal_whose_reply_was_lost_is_renewed_by_the_next(store: Driven) -> None:
    made = store.grant(KEY)
    store.touch([(made, 30.0)])
    ((answer, fresh),) = store.touch([(made, 30.0)])
    assert (answer, fresh.born) == (Renewal.RENEWED, made.born)


def test_two_holds_of_one_key_in_one_batch_are_answered_each_for_itself(store: Driven) -> None:
    old = store.grant(KEY, value=b"old")
    store.swap(KEY, old, None, None)
    new = store.grant(KEY, value=b"new")
    answers = [answer for answer, _ in store.touch([(old, 30.0), (new, 30.0)])]
    assert answers == [Renewal.LOST, Renewal.RENEWED]


def test_a_plain_put_resurrects_a_released_lease_and_our_renewal_does_not(place: Place, store: Driven) -> None:
    """The control first: this is what a heartbeat by PUT does."""
    made = store.grant(KEY)
    old = place.get("job")
    store.swap(KEY, made, None, None)
    del old["metadata"]["uid"]
    place.server.request("PUT", f"{place.path}/job", old)
    assert place.names() == ["job"]
    place.server.request("DELETE", f"{place.path}/job")
    assert store.touch([(made, 30.0)]) == [(Renewal.LOST, None)]
    assert place.names() == []


def test_a_late_renewal_of_an_election_does_not_resurrect_it(place: Place, store: Driven) -> None:
    """Its renewals are PUTs, so that they need no other right: the uid is what stops them."""
    made = store.grant(election("leader"))
    place.server.request("DELETE", f"{place.path}/leader")
    assert store.touch([(made, 30.0)]) == [(Renewal.LOST, None)]
    assert place.names() == []


# What others wrote.


def test_a_lease_of_others_can_be_freed_by_force_alone(place: Place, locks: leasehold.Locks) -> None:
    place.put("job", {"holderIdentity": "node-1"})
    with pytest.raises(StoreDamaged, match="not written by Leasehold"):
        locks.break_lease("job", reason="test")
    assert locks.inspect("job").holder == "node-1"
    assert locks.break_lease("job", reason="test", force=True).holder == "node-1"
    assert locks.acquire("job", wait=0).held


DURATIONS = {
    None: kubernetes_leases.DURATION,
    15: 15.0,
    2**31 - 1: kubernetes_leases.DURATION_MAX,
}


@pytest.mark.parametrize("said", DURATIONS)
@pytest.mark.parametrize("key", [KEY, election("job")])
def test_others_hold_for_their_duration_within_reason_whatever_their_times_say(
    place: Place, store: Driven, clock: VirtualClock, said: int | None, key: Key
) -> None:
    spec = {"holderIdentity": "rival", "leaseTransitions": 3, "renewTime": "2001-01-01T00:00:00.000000Z"}
    lasts = DURATIONS[said]
    place.put("job", spec | {"leaseDurationSeconds": said}, labels={"app": "theirs"})
    assert store.refused(key).left == lasts
    clock.advance(0.99 * lasts)
    assert read_hold(store.refused(key)).holder == "rival"
    clock.advance(0.02 * lasts)
    assert store.collect(100) == 0
    store.grant(key)
    found = place.get("job")
    assert found["spec"]["leaseTransitions"] == 4
    assert found["metadata"]["labels"]["app"] == "theirs"


@pytest.mark.parametrize("spec", [{}, {"holderIdentity": ""}, {"holderIdentity": "", "leaseDurationSeconds": 1}])
@pytest.mark.parametrize("key", [KEY, election("job")])
def test_a_lease_without_a_holder_is_free(place: Place, store: Driven, spec: dict[str, Any], key: Key) -> None:
    made = place.put("job", spec)
    assert store.load(key) is None
    assert store.grant(key).revision > int(made["metadata"]["resourceVersion"])
    assert place.get("job")["metadata"]["uid"] == made["metadata"]["uid"]


def test_stepping_down_keeps_the_object_and_writes_what_client_go_writes(place: Place, store: Driven) -> None:
    made = store.grant(election("leader"), value=b'{"holder":"me"}')
    assert place.get("leader")["spec"]["leaseTransitions"] == 0
    assert store.swap(election("leader"), made, None, None) == made
    spec = place.get("leader")["spec"]
    assert (spec["holderIdentity"], spec["leaseDurationSeconds"], spec["leaseTransitions"]) == ("", 1, 0)
    assert store.load(election("leader")) is None
    again = store.grant(election("leader"))
    assert again.revision > made.revision
    assert place.get("leader")["spec"]["leaseTransitions"] == 1
    assert isinstance(store.swap(election("leader"), made, None, None), Conflict)


def test_a_lease_that_a_rival_took_over_is_the_rivals_although_our_notes_are_still_on_it(
    place: Place, store: Driven
) -> None:
    """client-go changes the spec alone."""
    made = store.grant(election("leader"), value=b'{"holder":"me"}')
    taken = {"holderIdentity": "rival", "renewTime": "2030-01-01T00:00:00.000001Z", "leaseDurationSeconds": 15}
    place.patch("leader", {"spec": taken})
    ((answer, found),) = store.touch([(made, 30.0)])
    assert answer is Renewal.LOST
    assert read_hold(found).holder == "rival"
    assert place.get("leader")["spec"]["holderIdentity"] == "rival"


# What others did to ours.


def test_a_label_that_somebody_adds_costs_nobody_the_lease(place: Place, store: Driven) -> None:
    made = store.grant(KEY)
    place.patch("job", {"metadata": {"labels": {"seen-by": "somebody"}}})
    answers = store.touch([(made, 30.0)])
    # Not yet known to be the life that was held: born was not written down. The engine knows it by its secret.
    ((_, found),) = answers
    assert found.value == made.value
    ((answer, _),) = store.touch([(found, 30.0)])
    assert answer is Renewal.RENEWED
    assert place.get("job")["metadata"]["labels"]["seen-by"] == "somebody"


def test_a_client_keeps_its_lease_when_somebody_adds_a_label(place: Place, locks: leasehold.Locks) -> None:
    lease = locks.acquire("job", ttl=30)
    place.patch("job", {"metadata": {"labels": {"seen-by": "somebody"}}})
    assert lease.renew() in {Renewal.HELD, Renewal.RENEWED}
    assert lease.renew() is Renewal.RENEWED


@pytest.mark.parametrize("key", [KEY, election("job")])
def test_a_lease_that_is_being_deleted_is_neither_renewed_nor_taken_over(
    place: Place, store: Driven, clock: VirtualClock, key: Key
) -> None:
    """It goes at a moment that nobody can foresee, and then the next creates it."""
    made = store.grant(key)
    place.patch("job", {"metadata": {"finalizers": ["example.com/slow"]}})
    place.server.request("DELETE", f"{place.path}/job")
    ((answer, held),) = store.touch([(store.load(key), 30.0)])
    assert answer is Renewal.UNKNOWN
    clock.advance(1000.0)
    found = store.refused(key)
    assert (found.revision, found.left) == (held.revision, None)
    place.patch("job", {"spec": {"holderIdentity": ""}})
    store.refused(key)
    place.patch("job", {"metadata": {"finalizers": None}})
    assert store.grant(key).revision > made.revision


def test_notes_that_somebody_spoilt_grant_nothing(place: Place, store: Driven) -> None:
    store.grant(KEY)
    place.patch("job", {"metadata": {"annotations": {kubernetes_leases.TTL: "soon"}}})
    with pytest.raises(StoreDamaged, match="'job'"):
        store.swap(KEY, None, b"theirs", 30.0)


@pytest.mark.parametrize("version", ["", "abc", "1.5", "0x10", None, "१२"])
def test_a_revision_that_is_no_number_is_refused(version: str | None) -> None:
    with pytest.raises(StoreDamaged, match="resourceVersion"):
        kubernetes_leases.read({"metadata": {"name": "job", "resourceVersion": version}})


def test_a_revision_of_any_size_is_read() -> None:
    found = kubernetes_leases.read({"metadata": {"name": "job", "resourceVersion": str(2**128 - 1)}})
    assert found.revision == 2**128 - 1


def test_keeping_the_end_shortens_what_kubernetes_shows(place: Place, store: Driven, clock: VirtualClock) -> None:
    made = store.grant(KEY, ttl=30.0)
    clock.advance(20.0)
    kept = store.swap(KEY, made, b"revoked", KEEP)
    assert isinstance(kept, Record)
    assert (kept.ttl, kept.left) == (30.0, 10.0)
    assert place.get("job")["spec"]["leaseDurationSeconds"] == 10
