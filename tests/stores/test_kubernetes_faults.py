"""What a client says and does when the API server, its etcd or the way to them fails. Every failure is a real one."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import leasehold
from leasehold.errors import InvalidInput, PermissionDenied, StoreUnavailable
from leasehold.model import Conflict, Record, Renewal
from leasehold.testing.proxy import Proxy
from leasehold.testing.servers import KubeServer
from leasehold.testing.servers.shared import shared
from tests.stores.kubernetes_support import KEY, USER, Driven, Place, driven, election, fragile, job, kube
from tests.stores.redis_support import turn
from tests.support import eventually

PATIENT = 1.0


@pytest.fixture(params=["blocking", "asyncio"])
def colour(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def place() -> Place:
    return Place(fragile())


@pytest.fixture
def store(place: Place, colour: str) -> Iterator[Driven]:
    with driven(place.url(), colour, timeout=PATIENT) as opened:
        yield opened


def fails(store: Driven, *, applied: bool | None) -> None:
    """A create fails, and says so much of what became of it."""
    with pytest.raises(StoreUnavailable) as told:
        store.swap(job("other"), None, b"x", 30.0)
    assert told.value.applied is applied


def cannot_look(store: Driven) -> None:
    with pytest.raises(StoreUnavailable) as told:
        store.load(KEY)
    assert told.value.applied is False


def test_a_killed_server_is_told_and_forgiven(store: Driven, place: Place) -> None:
    made = store.grant(KEY)
    place.server.kill()
    try:
        cannot_look(store)
        fails(store, applied=False)
        with pytest.raises(StoreUnavailable):
            store.touch([(made, 30.0)])
    finally:
        place.server.start()
    renewed: list[Record] = []
    eventually(lambda: renewed.extend(renew(store, made)) or renewed)
    assert store.grant(job("next")).revision > renewed[-1].revision


def renew(store: Driven, held: Record) -> list[Record]:
    """The record once it was renewed; a server that has just started may know no roles yet, and is not ready."""
    try:
        ((answer, fresh),) = store.touch([(held, 30.0)])
    except StoreUnavailable:
        return []
    return [fresh] if answer is Renewal.RENEWED else []


def test_a_paused_server_is_told_in_time_and_what_it_was_asked_may_have_happened(store: Driven, place: Place) -> None:
    store.grant(KEY)
    place.server.pause()
    try:
        fails(store, applied=None)
        cannot_look(store)
    finally:
        place.server.go_on()
    # Whatever became of the request: a repeated one finds it, or does it.
    found = store.swap(job("other"), None, b"x", 30.0)
    assert isinstance(found, Record) or (found.record is not None and found.record.value == b"x")


def test_renewals_to_a_paused_server_end_together_however_many(store: Driven, place: Place) -> None:
    made = [store.grant(job(f"job-{number}")) for number in range(30)]
    place.server.pause()
    try:
        with pytest.raises(StoreUnavailable):
            store.touch([(record, 30.0) for record in made])
    finally:
        place.server.go_on()
    ((answer, _),) = store.touch([(made[0], 30.0)])
    assert answer is Renewal.RENEWED


def test_a_killed_etcd_is_told_and_forgiven(store: Driven, place: Place) -> None:
    made = store.grant(KEY)
    place.server.etcd.kill()
    try:
        fails(store, applied=None)
        cannot_look(store)
    finally:
        place.server.etcd.start()
    eventually(lambda: renew(store, made))


def test_holder_and_waiter_outlive_a_restart_of_the_server(place: Place) -> None:
    """The watch is cut; the waiter looks again when the server is back, and waits on."""
    with leasehold.connect(place.url(), timeout=PATIENT) as ada, leasehold.connect(place.url(), timeout=PATIENT) as bob:
        lease = ada.acquire("job", ttl=60)
        granted: list[leasehold.Lease] = []
        waiting = threading.Thread(target=lambda: granted.append(bob.acquire("job", ttl=60)))
        waiting.start()
        eventually(lambda: bob._engine.store._ears._listener is not None)
        place.server.restart()
        assert not granted
        eventually(lambda: lease.renew() is Renewal.RENEWED)
        assert lease.release() is True
        waiting.join(30)
        assert granted[0].token > lease.token


# Refusals.


def test_what_the_role_does_not_allow_is_named(colour: str) -> None:
    bare = Place(verbs=("get",))
    with driven(bare.url(), colour) as store, pytest.raises(PermissionDenied) as told:
        store.swap(KEY, None, b"x", 30.0)
    assert "403" in str(told.value)
    assert 'cannot create resource "leases"' in str(told.value)
    assert "leasehold manifests rbac" in str(told.value)


def test_an_election_whose_lease_may_not_be_created_says_so(colour: str) -> None:
    strict = Place(verbs=("get", "update"))
    with driven(strict.url(), colour) as store, pytest.raises(PermissionDenied, match="cannot create"):
        store.swap(election("leader"), None, b"x", 30.0)


def test_a_namespace_that_does_not_exist_is_no_free_lock(colour: str) -> None:
    url = f"kubernetes://nowhere?kubeconfig={kube().kubeconfig()}"
    with driven(url, colour) as store, pytest.raises(StoreUnavailable, match="create the namespace") as told:
        store.swap(KEY, None, b"x", 30.0)
    assert told.value.applied is False


def test_a_conflict_shows_what_is_there_and_not_found_is_none(colour: str) -> None:
    place = Place()
    with driven(place.url(), colour) as store:
        made = store.grant(KEY)
        changed = store.swap(KEY, made, b"two", 30.0)
        answer = store.swap(KEY, made, b"three", 30.0)
        assert isinstance(answer, Conflict)
        assert answer.record is not None
        assert answer.record.revision == changed.revision
        store.swap(KEY, changed, None, None)
        assert store.swap(KEY, changed, b"four", 30.0) == Conflict(None)


def test_a_failing_webhook_is_a_500_whose_outcome_nobody_knows(place: Place, store: Driven) -> None:
    hook = {
        "name": "down.example.com",
        "clientConfig": {"url": "https://127.0.0.1:1/", "caBundle": ""},
        "rules": [
            # Not of deletions, so that this test can clear up whenever the server has learned of it.
            {
                "apiGroups": ["coordination.k8s.io"],
                "apiVersions": ["v1"],
                "operations": ["CREATE", "UPDATE"],
                "resources": ["leases"],
            }
        ],
        "namespaceSelector": {"matchLabels": {"hooked": place.name}},
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "timeoutSeconds": 1,
    }
    path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
    place.server.request("PATCH", f"/api/v1/namespaces/{place.name}", {"metadata": {"labels": {"hooked": place.name}}})
    place.server.request("POST", path, {"metadata": {"name": place.name}, "webhooks": [hook]})
    errors: list[StoreUnavailable] = []

    def refused() -> bool:
        # The server learns of its webhooks a moment later.
        try:
            answer = store.swap(job("other"), None, b"x", 30.0)
        except StoreUnavailable as error:
            errors.append(error)
            return "answered 500" in str(error)
        if isinstance(answer, Record):
            place.server.request("DELETE", f"{place.path}/other")
        return False

    try:
        eventually(refused)
    finally:
        place.server.request("DELETE", f"{path}/{place.name}")
    assert errors[-1].applied is None


def test_a_server_with_too_much_to_do_is_left_alone_for_as_long_as_it_asks(colour: str) -> None:
    """One request at a time, and the one under way waits for an etcd that does not answer."""
    limits = {"max-requests-inflight": 1, "max-mutating-requests-inflight": 1, "enable-priority-and-fairness": "false"}
    busy = shared("kubernetes with one place", KubeServer(users={USER: []}, audit=False, config=limits))
    place = Place(busy)
    with ExitStack() as stack:
        store = stack.enter_context(driven(place.url(), colour))
        others = [stack.enter_context(driven(place.url(), timeout=60.0)) for _ in range(2)]
        busy.etcd.pause()
        try:
            looking = [in_thread(why_not, other) for other in others]
            # Once one of them has been turned away, the other has the place.
            eventually(lambda: any(look.done() for look in looking))
            assert "answered 429" in why_not(store)
            eventually(lambda: "asked to be left alone" in why_not(store))
        finally:
            busy.etcd.go_on()
        assert sorted(look.result(60) != "" for look in looking) == [False, True]
        eventually(lambda: not why_not(store))


def in_thread(work: Callable[[Driven], str], store: Driven) -> Future[str]:
    done: Future[str] = Future()
    threading.Thread(target=lambda: done.set_result(work(store)), daemon=True).start()
    return done


def why_not(store: Driven) -> str:
    """Why a look fails, if it does."""
    try:
        store.load(KEY)
    except StoreUnavailable as error:
        return str(error)
    return ""


def test_a_list_whose_snapshot_the_server_dropped_is_begun_anew(colour: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(fragile())
    monkeypatch.setattr("leasehold.stores.kubernetes.PAGE", 2)
    with driven(place.url(), colour) as store:
        keys = [job(f"job-{number}") for number in range(5)]
        for key in keys:
            store.grant(key)
        wire, compacted = store.store._wire, []
        ask = wire.ask

        async def compact_first(asked):
            if asked.query and "continue" in asked.query and not compacted:
                compacted.append(forget_all_before(place.put("later"), place.server))
            return await ask(asked)

        monkeypatch.setattr(wire, "ask", compact_first)
        assert [record.key for record in store.page("//", None, 10)] == keys
        assert compacted


def forget_all_before(made: dict[str, Any], server: KubeServer) -> object:
    """Have etcd forget what was before an object was made."""
    return server.etcd.request("kv/compaction", {"revision": made["metadata"]["resourceVersion"], "physical": True})


# The way there.


def spoilt(place: Place, tmp_path: Path, **cluster: object) -> str:
    config = json.loads(place.server.kubeconfig(USER).read_text())
    config["clusters"][0]["cluster"] |= cluster
    (tmp_path / "config").write_text(json.dumps(config))
    return f"kubernetes://{place.name}?kubeconfig={tmp_path / 'config'}"


def test_an_authority_that_did_not_sign_the_server_is_refused(tmp_path: Path, colour: str) -> None:
    place = Place()
    other = fragile().ca
    with (
        pytest.raises(StoreUnavailable, match="check certificate-authority") as told,
        driven(spoilt(place, tmp_path, **{"certificate-authority": str(other)}), colour),
    ):
        raise AssertionError("opened")
    assert told.value.applied is False


def test_a_name_that_is_not_the_servers_is_refused_unless_it_is_the_one_to_expect(tmp_path: Path, colour: str) -> None:
    place = Place()
    with (
        pytest.raises(StoreUnavailable, match="check certificate-authority"),
        driven(spoilt(place, tmp_path, **{"tls-server-name": "example.com"}), colour),
    ):
        raise AssertionError("opened")
    with driven(spoilt(place, tmp_path, **{"tls-server-name": "localhost"}), colour) as store:
        store.grant(KEY)


def test_a_server_that_speaks_no_tls_or_no_kubernetes_is_named(tmp_path: Path, colour: str) -> None:
    place = Place()
    etcd = place.server.etcd
    with (
        pytest.raises(StoreUnavailable, match="does it speak TLS"),
        driven(spoilt(place, tmp_path, server=etcd.endpoint.replace("http:", "https:")), colour),
    ):
        raise AssertionError("opened")
    with (
        pytest.raises(StoreUnavailable, match="no API server of Kubernetes"),
        driven(spoilt(place, tmp_path, server=etcd.endpoint), colour),
    ):
        raise AssertionError("opened")
    with (
        pytest.raises(StoreUnavailable, match="nobody listens"),
        driven(spoilt(place, tmp_path, server="https://127.0.0.1:1"), colour),
    ):
        raise AssertionError("opened")


def test_a_reply_cut_off_is_found_again(tmp_path: Path, colour: str) -> None:
    place = Place()
    with Proxy(place.server.host, place.server.port) as proxy:
        url = spoilt(place, tmp_path, server=f"https://127.0.0.1:{proxy.port}")
        with driven(url, colour, timeout=PATIENT) as store:
            store.load(KEY)
            proxy.replies.blackhole = True
            with pytest.raises(StoreUnavailable) as told:
                store.swap(KEY, None, b"x", 30.0)
            assert told.value.applied is None
            proxy.replies.blackhole = False
            again = store.swap(KEY, None, b"x", 30.0)
            assert isinstance(again, Conflict)
            assert again.record is not None
            assert again.record.value == b"x"


def test_a_connection_that_the_server_closed_while_idle_costs_nothing(tmp_path: Path, colour: str) -> None:
    place = Place()
    with Proxy(place.server.host, place.server.port) as proxy:
        url = spoilt(place, tmp_path, server=f"https://127.0.0.1:{proxy.port}")
        with driven(url, colour) as store:
            store.grant(KEY)
            proxy.cut()
            hear = (lambda: store.wait(turn())) if colour == "asyncio" else None
            eventually(store.store._wire._pool._places[-1].is_stale, nudge=hear)
            assert store.load(KEY).value == b"mine"


def test_a_url_with_a_kubeconfig_that_is_not_there_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no such kubeconfig"), driven("kubernetes://x?kubeconfig=/nowhere"):
        raise AssertionError("opened")
