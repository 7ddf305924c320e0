"""Every finding about Kubernetes, provoked on a real API server, and absent from a healthy one.

The server stands behind a proxy that tells a version whose revisions are ordered by contract.
"""

from __future__ import annotations

import contextlib
import functools
import http.client
import json
import select
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

import leasehold
from leasehold.cli.codes import ILL, UNAVAILABLE
from leasehold.doctor.examine import Report, examine
from leasehold.doctor.facts import KubernetesFacts
from leasehold.doctor.judge_common import EXPIRED_MANY
from leasehold.doctor.judge_kubernetes import MANY_LEASES
from leasehold.model import Key
from leasehold.rules import kubernetes_leases as leases
from leasehold.rules.kubernetes_names import NAME_MAX, lease_name
from leasehold.rules.kubernetes_roles import ORDINARY, manifests
from leasehold.testing.conformance import kube_worlds
from leasehold.testing.proxy import Proxy
from leasehold.testing.servers import KubeServer
from tests.doctor.support import Trouble, check_trouble, codes, doctor

USER = kube_worlds.USER
HEALTHY = "v1.35.2"


class TlsLiar(Proxy):
    """Speaks plain HTTP with its clients and TLS with the server, and replaces words by others of the same length."""

    def __init__(self, kube: KubeServer, lies: dict[bytes, bytes]) -> None:
        super().__init__(kube.host, kube.port)
        self._tls = ssl.create_default_context(cafile=str(kube.ca))
        self.lies = lies
        assert all(len(truth) == len(lie) for truth, lie in lies.items())

    def _join(self, client: socket.socket) -> None:
        threading.Thread(target=self._talk, args=(client,), daemon=True).start()

    def _talk(self, client: socket.socket) -> None:
        # One thread for both directions: a TLS connection is no two people's.
        with contextlib.closing(client), contextlib.suppress(OSError):
            plain = socket.create_connection(self._upstream)
            with self._tls.wrap_socket(plain, server_hostname="127.0.0.1") as server:
                while self._pass_on(client, server):
                    pass

    def _pass_on(self, client: socket.socket, server: ssl.SSLSocket) -> bool:
        ready = [server] if server.pending() else select.select([client, server], [], [])[0]
        for end in ready:
            data = heard(end)
            if data == b"":
                return False
            for truth, lie in self.lies.items():
                data = data and data.replace(truth, lie)
            if data is not None:
                (client if end is server else server).sendall(data)
        return True


def heard(end: socket.socket) -> bytes | None:
    """What has come; None if it was nothing for us: TLS has things to say of its own, such as session tickets."""
    end.setblocking(False)
    try:
        return end.recv(65536)
    except ssl.SSLWantReadError:
        return None
    finally:
        end.setblocking(True)


class Place:
    """A server, and namespaces in which the user may do this or that."""

    def __init__(self, folder: Path, started: ExitStack) -> None:
        self.kube = kube_worlds.kube()
        self.folder = folder
        self._started = started
        self.version: str = self.kube.request("GET", "/version")["gitVersion"]

    @functools.cached_property
    def liar(self) -> TlsLiar:
        return self.told(HEALTHY)

    def told(self, version: str, lies: dict[bytes, bytes] | None = None) -> TlsLiar:
        """A proxy through which the server seems to have another version, and says other things besides."""
        truth = {f'"gitVersion": "{self.version}"'.encode(): f'"gitVersion": "{version}"'.encode()}
        return self._started.enter_context(TlsLiar(self.kube, truth | (lies or {})))

    def url(
        self,
        *,
        namespace: str = "",
        liar: TlsLiar | None = None,
        port: int = 0,
        user: str = USER,
        options: str = "",
    ) -> str:
        """Where a user reaches a namespace, by default a healthy one of its own."""
        namespace = namespace or kube_worlds.namespace(self.kube, verbs=ORDINARY)
        file = self.kube.kubeconfig(user, namespace, self.folder / f"{namespace}-{time.monotonic_ns()}")
        port = port or (liar or self.liar).port
        file.write_text(file.read_text().replace(self.kube.url, f"http://127.0.0.1:{port}"))
        return f"kubernetes://{namespace}?kubeconfig={file}{options}"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with ExitStack() as started:
        yield Place(tmp_path_factory.mktemp("kubeconfigs"), started)


@pytest.fixture(scope="module")
def healthy(place: Place) -> Report:
    url = place.url()
    with leasehold.connect(url) as locks:
        locks.acquire("invoice")
        leasehold.Election(locks, "scheduler").campaign()
        return examine(url)


@contextmanager
def old(place: Place) -> Iterator[dict[str, Any]]:
    yield {"url": place.url(liar=place.told("v1.19.9"))}


@contextmanager
def revisions(place: Place) -> Iterator[dict[str, Any]]:
    yield {"url": place.url(liar=place.told("v1.34.9"))}


@contextmanager
def clock(place: Place, options: str = "") -> Iterator[dict[str, Any]]:
    year = time.gmtime().tm_year
    liar = place.told(HEALTHY, {f" {year} ".encode(): f" {year + 1} ".encode()})
    yield {"url": place.url(liar=liar, options=options)}


@contextmanager
def skew(place: Place) -> Iterator[dict[str, Any]]:
    with clock(place, "&max_skew=60") as given:
        yield given


@contextmanager
def without(place: Place, *verbs: str) -> Iterator[dict[str, Any]]:
    rest = tuple(verb for verb in ORDINARY if verb not in verbs)
    yield {"url": place.url(namespace=kube_worlds.namespace(place.kube, verbs=rest))}


@contextmanager
def permission(place: Place) -> Iterator[dict[str, Any]]:
    with without(place, "delete") as given:
        yield given


@contextmanager
def no_watch(place: Place) -> Iterator[dict[str, Any]]:
    with without(place, "watch") as given:
        yield given


@contextmanager
def no_election(place: Place) -> Iterator[dict[str, Any]]:
    with without(place, "update") as given:
        yield given


@contextmanager
def no_namespace(place: Place) -> Iterator[dict[str, Any]]:
    yield {"url": place.url(namespace="nowhere", user="admin")}


@contextmanager
def names_cut(place: Place) -> Iterator[dict[str, Any]]:
    url = place.url()
    with leasehold.connect(url) as locks:
        locks.acquire("x" * (NAME_MAX + 1))
        yield {"url": url}


def fill(place: Place, namespace: str, count: int, renewed: float) -> None:
    """Write Leases as a client would, over one connection."""
    tls = ssl.create_default_context(cafile=str(place.kube.ca))
    path = f"/apis/{leases.API_VERSION}/namespaces/{namespace}/leases"
    headers = {"Authorization": f"Bearer {place.kube.admin_token}", "Content-Type": "application/json"}
    with contextlib.closing(http.client.HTTPSConnection(place.kube.host, place.kube.port, context=tls)) as connection:
        for number in range(count):
            key = Key(f"//name/{number}", "lock")
            patch = leases.grant(key, b"{}", 30.0, leases.write_time(renewed), 0)
            connection.request("POST", path, json.dumps(leases.object_of(lease_name(key), patch)), headers)
            assert connection.getresponse().read()


@contextmanager
def many_leases(place: Place) -> Iterator[dict[str, Any]]:
    namespace = kube_worlds.namespace(place.kube, verbs=ORDINARY)
    # So far ahead that none of them ends while this machine is busy with something else.
    fill(place, namespace, MANY_LEASES + 1, time.time() + 3600)
    yield {"url": place.url(namespace=namespace)}


@contextmanager
def expired(place: Place) -> Iterator[dict[str, Any]]:
    namespace = kube_worlds.namespace(place.kube, verbs=ORDINARY)
    fill(place, namespace, EXPIRED_MANY + 1, time.time() - 3600)
    yield {"url": place.url(namespace=namespace)}


TROUBLES: dict[str, Trouble] = {
    "kubernetes-old": old,
    "kubernetes-revisions": revisions,
    "kubernetes-skew": skew,
    "kubernetes-no-watch": no_watch,
    "kubernetes-no-election": no_election,
    "kubernetes-many-leases": many_leases,
    "kubernetes-names-cut": names_cut,
    "permission": permission,
    "verb-fails": no_namespace,
    "clock-differs": clock,
    "expired-records": expired,
}


@pytest.mark.parametrize("code", TROUBLES)
def test_each_trouble_is_found_and_no_other(code: str, place: Place, healthy: Report) -> None:
    check_trouble(code, TROUBLES[code](place), healthy)


def test_a_missing_right_is_named_and_the_remedy_gives_it(place: Place) -> None:
    with without(place, "create", "list") as given:
        report = examine(**given)
        assert codes(report) == {"permission", "not-examined"}
        found = report.findings[0]
        namespace = given["url"].partition("//")[2].partition("?")[0]
        assert found.value == f"create, list of leases in the namespace {namespace}"
        assert f"leasehold manifests rbac --namespace {namespace}" in found.remedy
        role = next(each for each in manifests(namespace, "any") if each["kind"] == "Role")
        place.kube.kubectl("apply", "-f", "-", text=json.dumps(role))
        assert codes(examine(**given)) == set()


def test_who_may_not_even_look_is_told_what_was_not_examined(place: Place) -> None:
    with without(place, "get", "list") as given:
        report = examine(**given)
    assert codes(report) == {"permission", "not-examined"}
    assert isinstance(report.facts, KubernetesFacts)
    assert (report.facts.trips, report.facts.contents) == (None, None)


def test_the_facts_are_those_of_the_server(place: Place) -> None:
    url = place.url()
    with leasehold.connect(url) as locks:
        locks.acquire("one")
        locks.acquire("two")
        facts = examine(url).facts
    assert isinstance(facts, KubernetesFacts)
    assert facts.contents is not None
    assert (facts.contents.records, facts.contents.expired) == (2, 0)
    assert (facts.version, facts.version_text) == ((1, 35), HEALTHY)
    assert facts.lacking == ()


def test_the_server_s_own_version_is_told(place: Place) -> None:
    """The control of the proxy."""
    namespace = kube_worlds.namespace(place.kube, verbs=ORDINARY)
    file = place.kube.kubeconfig(USER, namespace, place.folder / "straight")
    report = examine(f"kubernetes://{namespace}?kubeconfig={file}")
    assert isinstance(report.facts, KubernetesFacts)
    assert report.facts.version_text == place.version
    assert codes(report) == {"kubernetes-revisions"}


def test_the_command_examines_kubernetes(place: Place) -> None:
    with permission(place) as given:
        done = doctor("--store", given["url"])
    assert done.returncode == ILL
    assert "kubernetes: 1 error" in done.stdout


def test_a_server_that_does_not_answer_is_unavailable(place: Place) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    assert doctor("--store", place.url(port=port), "--timeout", "5").returncode == UNAVAILABLE


def test_the_doctor_leaves_nothing_behind(place: Place) -> None:
    namespace = kube_worlds.namespace(place.kube, verbs=ORDINARY)
    examine(place.url(namespace=namespace))
    listed = place.kube.request("GET", f"/apis/{leases.API_VERSION}/namespaces/{namespace}/leases")
    assert listed["items"] == []
