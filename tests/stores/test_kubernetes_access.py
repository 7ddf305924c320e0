"""How a client finds the API server and says who it is; and what it says where that cannot work."""

from __future__ import annotations

import base64
import json
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from leasehold.errors import InvalidInput, MissingExtra, PermissionDenied
from leasehold.testing.servers.kube import KubeServer
from leasehold.wires import kubernetes_access
from leasehold.wires.kubernetes_access import find_access
from leasehold.wires.kubernetes_url import KubernetesConfig
from tests.stores.kubernetes_support import KEY, Place, driven, job, kube

ACCOUNT = "system:serviceaccount:default:app"


@pytest.fixture(autouse=True)
def _bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT", "POD_NAMESPACE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def place() -> Place:
    return Place(user=ACCOUNT)


@pytest.fixture(params=["blocking", "asyncio"])
def colour(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def data(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def kubeconfig(folder: Path, user: dict[str, Any], **cluster: Any) -> Path:
    """A kubeconfig with one user, who is `user`."""
    reached = {"server": kube().url, "certificate-authority-data": data(kube().ca)} | cluster
    config = {
        "clusters": [{"name": "c", "cluster": {name: value for name, value in reached.items() if value}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path = folder / "config"
    path.write_text(json.dumps(config))
    return path


def works(place: Place, config: Path, colour: str = "blocking") -> None:
    with driven(f"kubernetes://{place.name}?kubeconfig={config}", colour) as store:
        made = store.grant(KEY)
        assert store.swap(KEY, made, None, None) == made


def new_token(server: KubeServer) -> str:
    """A token of the account."""
    return server.service_account_token("app")


# Who we are.


def test_a_token_is_enough(place: Place, tmp_path: Path, colour: str) -> None:
    works(place, kubeconfig(tmp_path, {"token": new_token(kube())}), colour)


def test_a_token_file_is_read_again_when_the_server_refuses_what_was_in_it(
    place: Place, tmp_path: Path, colour: str
) -> None:
    (tmp_path / "token").write_text(new_token(kube()) + "\n")
    # A relative path starts from the kubeconfig's folder.
    config = kubeconfig(tmp_path, {"tokenFile": "token"})
    with driven(f"kubernetes://{place.name}?kubeconfig={config}", colour) as store:
        store.grant(KEY)
        (tmp_path / "token").write_text("refused")
        # As if the minute were over for which what was read is good.
        store.store._wire.access.credentials._until = 0.0
        with pytest.raises(PermissionDenied, match="401"):
            store.load(KEY)
        (tmp_path / "token").write_text(new_token(kube()))
        assert store.load(KEY).value == b"mine"
        (tmp_path / "token").unlink()
        store.store._wire.access.credentials._until = 0.0
        with pytest.raises(PermissionDenied, match="cannot be read"):
            store.load(KEY)


def test_a_client_certificate_is_enough(tmp_path: Path, colour: str) -> None:
    place = Place(user="cert-user")
    certificate, key = kube().client_certificate("cert-user")
    works(place, kubeconfig(tmp_path, {"client-certificate": str(certificate), "client-key": str(key)}), colour)
    inline = {"client-certificate-data": data(certificate), "client-key-data": data(key)}
    works(place, kubeconfig(tmp_path, inline), colour)


def plugin(folder: Path, version: str, status: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """A user whose program answers with `status`, writes down how it was called, and counts its calls."""
    program = folder / "plugin"
    answer = json.dumps({"apiVersion": version, "kind": "ExecCredential", "status": status})
    (folder / "answer").write_text(answer)
    program.write_text(
        f"#!{sys.executable} -S\n"
        "import os, sys, pathlib\n"
        f"here = pathlib.Path({str(folder)!r})\n"
        "with (here / 'calls').open('a') as calls: calls.write('x')\n"
        "(here / 'info').write_text(os.environ['KUBERNETES_EXEC_INFO'])\n"
        "(here / 'said').write_text(' '.join([*sys.argv[1:], os.environ.get('EXTRA', '')]))\n"
        "print((here / 'answer').read_text())\n"
        "if (here / 'later').exists(): (here / 'later').rename(here / 'answer')\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return {"exec": {"apiVersion": version, "command": "./plugin", **spec}}


V1, BETA = "client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1"


@pytest.mark.parametrize("version", [V1, BETA])
def test_an_exec_plugin_is_asked_as_kubectl_asks_it(place: Place, tmp_path: Path, version: str, colour: str) -> None:
    env = [{"name": "EXTRA", "value": "more"}]
    given = plugin(
        tmp_path, version, {"token": new_token(kube())}, args=["get", "it"], env=env, provideClusterInfo=True
    )
    works(place, kubeconfig(tmp_path, given), colour)
    info = json.loads((tmp_path / "info").read_text())
    assert (info["apiVersion"], info["kind"]) == (version, "ExecCredential")
    assert info["spec"]["interactive"] is False
    assert info["spec"]["cluster"]["server"] == kube().url
    assert (tmp_path / "said").read_text() == "get it more"
    # Asked once: what it said has no end.
    assert (tmp_path / "calls").read_text() == "x"


def test_an_exec_plugin_is_asked_again_when_what_it_said_has_ended(place: Place, tmp_path: Path) -> None:
    status = {"token": new_token(kube()), "expirationTimestamp": "2001-01-01T00:00:00Z"}
    works(place, kubeconfig(tmp_path, plugin(tmp_path, V1, status)))
    assert len((tmp_path / "calls").read_text()) >= 3


def test_an_exec_plugin_is_asked_again_when_the_server_refuses_what_it_said(
    place: Place, tmp_path: Path, colour: str
) -> None:
    given = plugin(tmp_path, V1, {"token": "refused"})
    fresh = {"apiVersion": V1, "kind": "ExecCredential", "status": {"token": new_token(kube())}}
    (tmp_path / "later").write_text(json.dumps(fresh))
    works(place, kubeconfig(tmp_path, given), colour)
    assert (tmp_path / "calls").read_text() == "xx"


def test_an_exec_plugin_may_answer_with_a_certificate(tmp_path: Path, colour: str) -> None:
    place = Place(user="cert-user")
    certificate, key = kube().client_certificate("cert-user")
    status = {"clientCertificateData": certificate.read_text(), "clientKeyData": key.read_text()}
    works(place, kubeconfig(tmp_path, plugin(tmp_path, V1, status)), colour)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ("not json", "no ExecCredential"),
        (json.dumps({"apiVersion": BETA, "status": {"token": "t"}}), "it answered as"),
        (json.dumps({"apiVersion": V1, "status": {}}), "neither a token nor a certificate"),
    ],
)
def test_an_exec_plugin_that_answers_wrongly_is_named(place: Place, tmp_path: Path, answer: str, told: str) -> None:
    config = kubeconfig(tmp_path, plugin(tmp_path, V1, {}))
    (tmp_path / "answer").write_text(answer)
    with pytest.raises(PermissionDenied, match=told):
        works(place, config)


def test_an_exec_plugin_that_is_not_there_is_named_with_its_hint(place: Place, tmp_path: Path) -> None:
    spec = {"exec": {"apiVersion": V1, "command": "no-such-program", "installHint": "install no-such-program"}}
    with pytest.raises(PermissionDenied, match=r"no-such-program.*install no-such-program"):
        works(place, kubeconfig(tmp_path, spec))


# Where.


def test_in_a_pod_the_service_account_is_enough(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, colour: str
) -> None:
    (tmp_path / "token").write_text(new_token(kube()))
    (tmp_path / "ca.crt").write_bytes(kube().ca.read_bytes())
    (tmp_path / "namespace").write_text(place.name)
    monkeypatch.setattr(kubernetes_access, "ACCOUNT", tmp_path)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", kube().host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(kube().port))
    with driven("kubernetes://", colour) as store:
        store.grant(job("in-a-pod"))
        assert place.names() == ["in-a-pod"]
        (tmp_path / "token").write_text(new_token(kube()))
        assert store.load(job("in-a-pod")).value == b"mine"


def test_the_namespace_comes_from_the_url_then_the_pod_then_the_context(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(kube().kubeconfig(namespace="of-the-context", path=tmp_path / "config"))
    monkeypatch.setenv("KUBECONFIG", path)
    assert find_access(KubernetesConfig()).namespace == "of-the-context"
    monkeypatch.setenv("POD_NAMESPACE", "of-the-pod")
    assert find_access(KubernetesConfig()).namespace == "of-the-pod"
    assert find_access(KubernetesConfig(namespace="of-the-url")).namespace == "of-the-url"
    monkeypatch.delenv("POD_NAMESPACE")
    assert find_access(KubernetesConfig(kubeconfig=str(kubeconfig(tmp_path, {})))).namespace == "default"


def test_several_kubeconfigs_are_read_as_one_and_a_context_can_be_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other").mkdir()
    first, second = kube().kubeconfig(namespace="one", path=tmp_path / "a"), kubeconfig(tmp_path / "other", {})
    monkeypatch.setenv("KUBECONFIG", f"{first}:{tmp_path / 'not-there'}:{second}")
    assert find_access(KubernetesConfig()).namespace == "one"
    assert find_access(KubernetesConfig(context="x")).namespace == "default"
    with pytest.raises(InvalidInput, match="there is: leasehold, x"):
        find_access(KubernetesConfig(context="nowhere"))


def test_a_kubeconfig_in_yaml_is_read(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(
        "clusters:\n- name: c\n  cluster:\n    server: https://example.com:6443/k8s/clusters/one/\n"
        "contexts:\n- name: x\n  context: {cluster: c, namespace: team}\ncurrent-context: x\n"
    )
    access = find_access(KubernetesConfig(kubeconfig=str(path)))
    assert (str(access.place), access.path, access.namespace) == ("example.com:6443", "/k8s/clusters/one", "team")


@pytest.mark.parametrize(
    ("user", "cluster", "told"),
    [
        ({"auth-provider": {"name": "gcp"}}, {}, "use an exec plugin instead"),
        ({"as": "root"}, {}, "impersonation"),
        ({"exec": {"apiVersion": "client.authentication.k8s.io/v1alpha1", "command": "x"}}, {}, "must speak"),
        ({"client-certificate-data": "bm8="}, {}, "readable PEM"),
        ({}, {"server": "ftp://x"}, "must be an https:// URL"),
        ({}, {"certificate-authority-data": "???"}, "readable PEM"),
        ({}, {"certificate-authority-data": None, "certificate-authority": "gone.crt"}, "readable PEM"),
        ({}, {"proxy-url": "http://proxy"}, "proxy-url is not supported"),
    ],
)
def test_a_kubeconfig_that_cannot_work_says_what_is_wrong(
    tmp_path: Path, user: dict[str, Any], cluster: dict[str, Any], told: str
) -> None:
    with pytest.raises(InvalidInput, match=told):
        find_access(KubernetesConfig(kubeconfig=str(kubeconfig(tmp_path, user, **cluster))))


@pytest.mark.parametrize("text", ["[1, 2]", "{", "\xff"])
def test_a_file_that_is_no_kubeconfig_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "config").write_bytes(text.encode("latin-1"))
    with pytest.raises(InvalidInput, match="config"):
        find_access(KubernetesConfig(kubeconfig=str(tmp_path / "config")))


def test_without_any_kubeconfig_the_remedies_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(InvalidInput, match="set KUBECONFIG"):
        find_access(KubernetesConfig())


@pytest.mark.parametrize(
    "url",
    [
        "kubernetes://Not_A_Name",
        "kubernetes://user@team",
        "kubernetes://team/path",
        "kubernetes://team?max_skew=-1",
        "kubernetes://team?max_skew=nan",
        "kubernetes://team?max_skew=soon",
        "kubernetes://team?pool=0",
        "kubernetes://team?pool=x",
        "kubernetes://team?colour=red",
        "kubernetes://team?pool=1&pool=2",
        "kubernetes://team?watch=maybe",
    ],
)
def test_a_url_that_cannot_work_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput, match="url"), driven(url):
        raise AssertionError("opened")


def test_without_its_packages_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "h11", None)
    with pytest.raises(MissingExtra, match=r"leasehold\[kubernetes\]"), driven("kubernetes://team"):
        raise AssertionError("opened")
