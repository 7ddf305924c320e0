"""What cannot work is one clear error of ours, says what to do, and leaves nothing behind."""

from __future__ import annotations

from typing import Any

import pytest

import leasehold
from leasehold import kube
from leasehold.errors import InvalidInput, LeaseholdError, MissingExtra, PermissionDenied, StoreError, StoreUnavailable
from leasehold.extras import require
from leasehold.kube import aio, blocking
from leasehold.testing.conformance import kube_worlds
from tests.kube.conftest import Clients
from tests.kube.support import JOB, PIPELINE_RUN, UNKNOWN, Place, crd, install
from tests.support import eventually
from tests.test_shape import differences

RUN: dict[str, Any] = {"spec": {}}


@pytest.fixture(scope="module")
def place() -> Place:
    return Place()


def failure(clients: Clients, place: Place, kind: kube.Kind | None = None, url: str = "") -> LeaseholdError:
    locks = clients.locks(place, kind, url)
    with pytest.raises(LeaseholdError) as caught:
        locks.create("target", owner="wfe-1", manifest=RUN)
    return caught.value


def test_a_kind_the_server_does_not_know_asks_for_its_definition_and_works_once_it_is_there() -> None:
    kind = kube.Kind("example.org/v1", "Gizmo", "gizmos")
    place = Place(kind)
    with kube.connect(place.url, kind) as objects:
        locks = kube.ObjectLocks(objects, prefix="wfe-")
        for ask in (lambda: locks.create("a", owner="b", manifest=RUN), lambda: locks.find("a"), locks.list):
            with pytest.raises(StoreError, match=r"serves no gizmos in example\.org/v1") as caught:
                ask()
            assert "install the CustomResourceDefinition, or correct the Kind" in str(caught.value)
            assert not isinstance(caught.value, StoreUnavailable)
        install(place.server, crd(kind))
        assert locks.release(locks.create("a", owner="b", manifest=RUN))


def test_a_missing_right_names_the_verb_the_kind_and_the_remedy(clients: Clients, place: Place) -> None:
    error = failure(clients, place, UNKNOWN)
    assert isinstance(error, PermissionDenied)
    assert 'cannot create resource "gadgets"' in str(error)
    assert "grant it with a Role for gadgets.example.com" in str(error)


def test_a_missing_namespace_asks_for_it(clients: Clients, place: Place) -> None:
    kubeconfig = place.server.kubeconfig()
    error = failure(clients, place, JOB, f"kubernetes://no-such-place?kubeconfig={kubeconfig}")
    assert isinstance(error, StoreError)
    valid = {"spec": {"template": {"spec": {"containers": [{"name": "a", "image": "b"}], "restartPolicy": "Never"}}}}
    locks = clients.locks(place, JOB, f"kubernetes://no-such-place?kubeconfig={kubeconfig}")
    with pytest.raises(StoreUnavailable, match="create the namespace, or name another in the URL"):
        locks.create("target", owner="wfe-1", manifest=valid)


def test_a_namespace_that_is_being_deleted_takes_no_lock_and_says_so(clients: Clients) -> None:
    going = Place()
    going.server.request("DELETE", f"/api/v1/namespaces/{going.name}")
    eventually(lambda: "being deleted" in str(failure(clients, going)))
    error = failure(clients, going)
    assert isinstance(error, StoreUnavailable)
    assert "name another in the URL, or create it again once it is gone" in str(error)
    assert going.names() == []


def test_leases_in_a_namespace_that_is_being_deleted_say_so_too() -> None:
    server = kube_worlds.kube()
    name = kube_worlds.namespace(server)
    url = f"kubernetes://{name}?kubeconfig={server.kubeconfig(kube_worlds.USER)}"
    with leasehold.connect(url) as locks:
        assert locks.acquire("job").release()
        server.request("DELETE", f"/api/v1/namespaces/{name}")

        def is_told() -> bool:
            try:
                locks.acquire("job", wait=0).release()
            except StoreUnavailable as error:
                return "the namespace is being deleted" in str(error)
            return False

        eventually(is_told)


def test_an_object_the_server_refuses_is_shown_with_its_words(clients: Clients) -> None:
    error = failure(clients, Place(JOB))
    assert type(error) is StoreError
    assert "spec.template.spec.containers: Required value" in str(error)
    assert str(error).endswith("correct the Job")


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("target", {"target": ""}),
        ("target", {"target": "x" * 1025}),
        ("target", {"target": "a\0b"}),
        ("target", {"target": 7}),
        ("owner", {"owner": ""}),
        ("owner", {"owner": "x" * 513}),
        ("owner", {"owner": "\ud800"}),
        ("manifest", {"manifest": None}),
        ("manifest", {"manifest": []}),
        ("manifest", {"manifest": {"metadata": {"name": "mine"}}}),
        ("manifest", {"manifest": {"metadata": {"finalizers": []}}}),
        ("manifest", {"manifest": {"metadata": "x"}}),
        ("manifest", {"manifest": {"kind": "Job"}}),
        ("manifest", {"manifest": {"apiVersion": "v2"}}),
        ("manifest", {"manifest": {"spec": {"when": object()}}}),
        ("ttl", {"ttl": 0}),
        ("ttl", {"ttl": -1}),
        ("ttl", {"ttl": 1e9}),
        ("ttl", {"ttl": True}),
        ("ttl", {"ttl": "60"}),
        ("ttl", {"ttl": float("nan")}),
    ],
)
def test_bad_input_names_the_field_before_anything_is_written(
    clients: Clients, place: Place, field: str, change: dict[str, Any]
) -> None:
    locks = clients.locks(place)
    given = {"target": "a", "owner": "b", "manifest": RUN, "ttl": None} | change
    before = len(place.asked())
    with pytest.raises(InvalidInput) as caught:
        locks.create(given.pop("target"), **given)
    assert caught.value.field == field
    assert len(place.asked()) == before


@pytest.mark.parametrize("prefix", ["", "-a", "A", "a/b", "x" * 48, None, "ä"])
def test_a_prefix_that_no_name_can_start_with_is_refused(clients: Clients, place: Place, prefix: object) -> None:
    with pytest.raises(InvalidInput) as caught:
        clients.locks(place, prefix=prefix)
    assert caught.value.field == "prefix"


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("api_version", ("", "Job", "jobs")),
        ("api_version", ("batch/v1/x", "Job", "jobs")),
        ("api_version", ("../v1", "Job", "jobs")),
        ("kind", ("batch/v1", "job", "jobs")),
        ("kind", ("batch/v1", None, "jobs")),
        ("plural", ("batch/v1", "Job", "jobs/status")),
        ("plural", ("batch/v1", "Job", "")),
    ],
)
def test_a_kind_that_no_server_can_have_is_refused(field: str, given: tuple[Any, Any, Any]) -> None:
    with pytest.raises(InvalidInput) as caught:
        kube.Kind(*given)
    assert caught.value.field == field


@pytest.mark.parametrize("name", ["", "a/b", "../x", "A", "a?b", None, "x" * 254])
def test_a_name_stays_one_part_of_a_path(clients: Clients, place: Place, name: object) -> None:
    objects = clients.objects(place)
    for ask in (objects.get, lambda given: objects.patch(given, {})):
        with pytest.raises(InvalidInput) as caught:
            ask(name)
        assert caught.value.field == "name"


@pytest.mark.parametrize("url", ["sqlite:///a.db", "kubernetes:x", "", None, "kubernetes://a b", "kubernetes://a?x=1"])
def test_only_a_url_of_kubernetes_will_do(clients: Clients, place: Place, url: object) -> None:
    with pytest.raises(InvalidInput) as caught:
        kube.connect(url, PIPELINE_RUN)  # type: ignore[arg-type]  that is the test
    assert caught.value.field == "url"


def test_a_colour_of_the_other_kind_is_refused(clients: Clients, place: Place) -> None:
    objects = clients.objects(place).real
    other: Any = aio.ObjectLocks if clients.colour == "blocking" else kube.ObjectLocks
    with pytest.raises(InvalidInput, match=r"must be what leasehold\.kube"):
        other(objects, prefix="wfe-")


def test_a_server_that_is_down_is_unavailable(clients: Clients, place: Place, tmp_path: Any) -> None:
    file = tmp_path / "kubeconfig"
    file.write_text(place.kubeconfig.read_text().replace(str(place.server.port), "1"))
    with pytest.raises(StoreUnavailable, match="nobody listens there"):
        clients.locks(place, url=f"kubernetes://{place.name}?kubeconfig={file}")


@pytest.mark.parametrize("name", ["connect", "Objects", "ObjectLocks"])
def test_both_facades_look_alike(name: str) -> None:
    assert list(differences(getattr(blocking, name), getattr(aio, name))) == []


def test_without_its_extra_it_names_the_command() -> None:
    with pytest.raises(MissingExtra, match=r"pip install 'leasehold\[kopf\]'"):
        require("no_such_package_at_all", feature="leasehold.kube.kopf", extra="kopf")
