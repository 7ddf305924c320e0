"""etcd and the Kubernetes API server for tests, seen from outside: what each verb does, and that nothing stays."""

from __future__ import annotations

import http.client
import json
import lzma
import os
import shutil
import socket
import ssl
import subprocess
import tempfile
from base64 import b64encode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from leasehold.errors import InvalidInput
from leasehold.testing.servers import (
    EtcdServer,
    KubeRefused,
    KubeServer,
    MissingProgram,
    ServerFailed,
    process,
    programs,
    trees,
)
from tests.support import ROOT, eventually

LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
ROLES = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles"
BINDINGS = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings"
RBAC = "rbac.authorization.k8s.io"
# More than an idle server ever needs to answer; a server that is paused never does.
SILENCE = 0.5
KEY = b64encode(b"mark").decode()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the servers of this file live, apart from those of other tests."""
    tmp_path_factory.getbasetemp()
    place = Path(tempfile.mkdtemp(prefix="with spaces "))
    place.chmod(0o755)
    yield place
    assert list(place.iterdir()) == []
    place.rmdir()


@pytest.fixture(scope="module")
def kube(folder: Path) -> Iterator[KubeServer]:
    """For every test of this file that can share one; whoever ends it starts it again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(folder))
        with KubeServer(users={"app": ["team", "crew"], "stranger": []}) as server:
            yield server


@pytest.fixture(autouse=True)
def nothing_stays_behind(folder: Path, kube: KubeServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Around every test of this file: no process more than before, no folder more, and the shared server runs."""
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    before = len(children()), set(folder.iterdir())
    yield
    assert (len(children()), set(folder.iterdir())) == before
    assert kube.is_running


def children() -> list[int]:
    return [pid for pid in trees.tree(os.getpid()) if trees.stat(pid)[1:2] == [str(os.getpid())]]


def mark(kube: KubeServer, name: str, **options: Any) -> dict[str, Any]:
    """Write a Lease that one can look for later."""
    made: dict[str, Any] = kube.request("POST", LEASES, {"metadata": {"name": name}}, **options)
    return made


def names(kube: KubeServer, **options: Any) -> set[str]:
    return {each["metadata"]["name"] for each in kube.request("GET", LEASES, **options)["items"]}


def refusal(kube: KubeServer, verb: str, path: str, **options: Any) -> KubeRefused:
    with pytest.raises(KubeRefused) as refused:
        kube.request(verb, path, **options)
    return refused.value


def ask(kube: KubeServer, path: str, *, tls: ssl.SSLContext | None = None, **headers: str) -> tuple[int, Any]:
    """As a client of our own, which trusts the server's authority and nobody else."""
    context = tls or ssl.create_default_context(cafile=str(kube.ca))
    connection = http.client.HTTPSConnection(kube.host, kube.port, context=context, timeout=20)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    said = json.loads(answer.read())
    connection.close()
    return answer.status, said


# etcd.


def put(etcd: EtcdServer) -> None:
    etcd.request("kv/put", {"key": KEY, "value": KEY})


def is_marked(etcd: EtcdServer) -> bool:
    return "kvs" in etcd.request("kv/range", {"key": KEY})


def test_an_etcd_that_is_killed_or_restarted_keeps_its_data_and_its_port() -> None:
    with EtcdServer() as etcd, EtcdServer() as other:
        assert not is_marked(etcd)
        put(etcd)
        port = etcd.port
        etcd.kill()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((etcd.host, etcd.port))
        etcd.start()
        assert (is_marked(etcd), is_marked(other)) == (True, False)
        etcd.restart()
        assert (is_marked(etcd), etcd.port) == (True, port)


def test_a_request_to_a_paused_etcd_hangs_and_is_answered_when_it_goes_on() -> None:
    with EtcdServer() as etcd, ThreadPoolExecutor() as threads:
        etcd.pause()
        answer = threads.submit(is_marked, etcd)
        with pytest.raises(TimeoutError):
            answer.result(SILENCE)
        etcd.go_on()
        assert answer.result() is False


def test_what_etcd_refuses_is_an_error_with_its_words() -> None:
    with EtcdServer() as etcd, pytest.raises(ServerFailed, match=r"refused kv/nothing with 404: .*Not Found"):
        etcd.request("kv/nothing", {})


def test_an_etcd_whose_port_somebody_takes_first_finds_another(monkeypatch: pytest.MonkeyPatch) -> None:
    with EtcdServer() as somebody:
        ports = iter([somebody.port, process.free_port()])
        monkeypatch.setattr(process, "free_port", lambda: next(ports))
        with EtcdServer() as etcd:
            assert etcd.port != somebody.port
            put(etcd)
        assert not is_marked(somebody)
    assert list(ports) == []


def test_flags_reach_etcd_but_its_name_is_ours() -> None:
    with pytest.raises(ServerFailed, match=r"(?s)ended at its start; the end of its log:.*auto-compaction-mode"):
        EtcdServer(config={"auto-compaction-mode": "wrong"}).__enter__()
    with pytest.raises(InvalidInput, match="leave it out"):
        EtcdServer(config={"name": "one"})


# Who may ask the API server, and what.


def test_a_ready_server_has_its_namespaces_and_the_roles_of_rbac(kube: KubeServer) -> None:
    assert kube.request("GET", "/api/v1/namespaces/default")["status"]["phase"] == "Active"
    assert kube.request("GET", f"/apis/{RBAC}/v1/clusterroles/cluster-admin")["rules"]


def test_a_user_may_do_what_a_role_lets_him_or_a_group_of_his(kube: KubeServer) -> None:
    assert (error := refusal(kube, "GET", LEASES, user="app")).status == http.client.FORBIDDEN
    assert "cannot list resource" in str(error)
    rule = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["list"]}
    kube.request("POST", ROLES, {"metadata": {"name": "reader"}, "rules": [rule]})
    role = {"apiGroup": RBAC, "kind": "Role", "name": "reader"}
    crew = {"apiGroup": RBAC, "kind": "Group", "name": "crew"}
    kube.request("POST", BINDINGS, {"metadata": {"name": "readers"}, "roleRef": role, "subjects": [crew]})
    # The server learns of a binding through a watch of its own.
    eventually(lambda: can_list(kube, "app"))
    assert refusal(kube, "GET", LEASES, user="stranger").reason == "Forbidden"
    assert refusal(kube, "DELETE", f"{LEASES}/any", user="app").reason == "Forbidden"
    # In a group that may read, known by a certificate instead of a token.
    tls = ssl.create_default_context(cafile=str(kube.ca))
    tls.load_cert_chain(*kube.client_certificate("some/one+else", ["team", "crew"]))
    assert ask(kube, LEASES, tls=tls)[0] == http.client.OK
    tls = ssl.create_default_context(cafile=str(kube.ca))
    tls.load_cert_chain(*kube.client_certificate("some/one+else", ["team"]))
    status, said = ask(kube, LEASES, tls=tls)
    assert (status, 'User "some/one+else"' in said["message"]) == (http.client.FORBIDDEN, True)


def can_list(kube: KubeServer, user: str) -> bool:
    try:
        return isinstance(names(kube, user=user), set)
    except KubeRefused:
        return False


def test_nobody_comes_in_with_a_wrong_token_and_who_has_none_is_anonymous(kube: KubeServer) -> None:
    assert ask(kube, LEASES, Authorization=f"Bearer {kube.admin_token}")[0] == http.client.OK
    assert ask(kube, LEASES, Authorization="Bearer wrong")[0] == http.client.UNAUTHORIZED
    status, said = ask(kube, LEASES)
    assert (status, "system:anonymous" in said["message"]) == (http.client.FORBIDDEN, True)


def test_a_service_account_has_tokens_of_its_own(kube: KubeServer) -> None:
    tokens = {kube.service_account_token("worker"), kube.service_account_token("worker", seconds=600)}
    assert len(tokens) == 2
    for token in tokens:
        _, said = ask(kube, LEASES, Authorization=f"Bearer {token}")
        assert 'User "system:serviceaccount:default:worker"' in said["message"]


def test_the_server_is_trusted_through_its_own_authority_only(kube: KubeServer) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        ask(kube, "/readyz", tls=ssl.create_default_context())


def test_a_user_nobody_made_is_refused_before_anything_is_asked(kube: KubeServer) -> None:
    with pytest.raises(InvalidInput, match="nobody"):
        kube.request("GET", LEASES, user="nobody")
    with pytest.raises(InvalidInput, match="not taken"):
        kube.add_user("app")


def test_a_merge_patch_changes_what_it_names_and_a_refusal_has_kubernetes_words(kube: KubeServer) -> None:
    mark(kube, "patched")
    kube.request("PATCH", f"{LEASES}/patched", {"spec": {"holderIdentity": "me"}})
    assert kube.request("GET", f"{LEASES}/patched")["spec"] == {"holderIdentity": "me"}
    assert refusal(kube, "GET", f"{LEASES}/absent").reason == "NotFound"
    with pytest.raises(KubeRefused, match=r"POST .* was refused with 409 AlreadyExists: .*patched"):
        mark(kube, "patched")


def test_kubectl_asks_this_server_as_the_user_it_is_told(kube: KubeServer) -> None:
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "applied"}}
    assert "created" in kube.kubectl("apply", "-f", "-", text=json.dumps(lease))
    assert kube.kubectl("get", "lease", "applied", "-o", "name") == "lease.coordination.k8s.io/applied\n"
    with pytest.raises(ServerFailed, match=r'kubectl get secrets ended with 1: .*User "stranger" cannot list'):
        kube.kubectl("get", "secrets", user="stranger")


def test_a_kubeconfig_names_user_namespace_and_place_and_is_for_our_eyes_only(kube: KubeServer, tmp_path: Path) -> None:
    path = kube.kubeconfig("app", "elsewhere", tmp_path / "config")
    [context], [user] = (json.loads(path.read_text())[part] for part in ("contexts", "users"))
    assert path == tmp_path / "config"
    assert (context["context"]["namespace"], user["user"]["token"]) == ("elsewhere", kube.token("app"))
    assert path.stat().st_mode & 0o077 == 0


def test_the_audit_log_has_every_request_before_its_answer_and_the_answer_soon(kube: KubeServer) -> None:
    before = len(kube.audit())
    mark(kube, "audited")
    refusal(kube, "GET", f"{LEASES}/audited", user="stranger")
    made, refused = kube.audit()[before:]
    assert (made["verb"], made["user"]["username"], made["objectRef"]["name"]) == ("create", "admin", "audited")
    assert (refused["verb"], refused["user"]["username"]) == ("get", "stranger")
    eventually(lambda: [each.get("responseStatus", {}).get("code") for each in kube.audit()[before:]] == [201, 403])


# The verbs.


def test_a_paused_server_is_silent_and_answers_when_it_goes_on(kube: KubeServer) -> None:
    with ThreadPoolExecutor() as threads:
        kube.pause()
        answer = threads.submit(names, kube)
        with pytest.raises(TimeoutError):
            answer.result(SILENCE)
        kube.go_on()
        assert isinstance(answer.result(), set)


def test_a_killed_server_comes_back_with_port_data_and_users_of_the_meantime(kube: KubeServer) -> None:
    mark(kube, "survivor")
    port, pid = kube.port, kube.pid
    seen = len(kube.audit())
    kube.pause()
    kube.kill()
    with pytest.raises(ConnectionRefusedError):
        kube.request("GET", LEASES)
    late = kube.add_user("late", ["crew"])
    kube.start()
    assert (kube.port, kube.pid != pid) == (port, True)
    assert "survivor" in names(kube)
    assert 'User "late"' in ask(kube, ROLES, Authorization=f"Bearer {late}")[1]["message"]
    assert len(kube.audit()) > seen


def test_a_stop_does_not_wait_for_open_watches_and_nobody_listens_afterwards(kube: KubeServer) -> None:
    context = ssl.create_default_context(cafile=str(kube.ca))
    watch = http.client.HTTPSConnection(kube.host, kube.port, context=context, timeout=60)
    watch.request("GET", f"{LEASES}?watch=1", headers={"Authorization": f"Bearer {kube.admin_token}"})
    assert watch.getresponse().status == http.client.OK
    kube.stop()
    assert kube.etcd.is_running
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((kube.host, kube.port))
    watch.close()
    kube.start()


def test_without_its_etcd_a_server_refuses_to_write_and_with_it_all_is_well_again(kube: KubeServer) -> None:
    mark(kube, "before")
    kube.etcd.kill()
    error = refusal(kube, "POST", f"{LEASES}?timeout=1s", body={"metadata": {"name": "lost"}})
    # Who gives up first, the server or its client of etcd, is not always the same.
    assert error.status in {http.client.GATEWAY_TIMEOUT, http.client.INTERNAL_SERVER_ERROR}
    assert kube.is_running
    kube.etcd.start()
    eventually(lambda: has_again(kube, "before"), patience=60)


def has_again(kube: KubeServer, name: str) -> bool:
    try:
        return name in names(kube, timeout=2)
    except (OSError, KubeRefused):
        return False


def test_without_rbac_everybody_may_everything_and_all_of_it_is_gone_at_the_end(
    kube: KubeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    ports = iter([process.free_port(), kube.port, process.free_port()])
    monkeypatch.setattr(process, "free_port", lambda: next(ports))
    with KubeServer(rbac=False, audit=False, users={"app": []}, config={"max-mutating-requests-inflight": 7}) as free:
        # It gave up a port that is taken: the first was for its etcd.
        assert free.port not in {kube.port, kube.etcd.port}
        assert list(ports) == []
        mark(free, "mine", user="app")
        assert names(free) == {"mine"} != names(kube)
        assert "--max-mutating-requests-inflight=7" in Path(f"/proc/{free.pid}/cmdline").read_text().split("\0")
        with pytest.raises(ServerFailed, match="audit=True"):
            free.audit()
        members, places = [free.pid, free.etcd.pid], [free.folder, free.etcd.folder]
    assert not any(trees.is_alive(pid) for pid in members)
    assert not any(place.exists() for place in places)


def test_a_server_that_does_not_come_up_shows_its_log_and_takes_its_etcd_away() -> None:
    server = KubeServer(config={"no-such-flag": 1})
    with pytest.raises(ServerFailed, match=r"(?s)ended at its start; the end of its log:.*no-such-flag"):
        server.__enter__()
    assert not server.etcd.is_running


# Where the programs come from.


def program(folder: Path, name: str) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("#!/bin/sh\n")
    (folder / name).chmod(0o755)
    return str(folder / name)


@pytest.mark.parametrize("name", ["kube-apiserver", "client-go-leader-election"])
def test_a_program_of_kubernetes_is_taken_from_assets_then_path_then_cache(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = {"kube-apiserver": programs.kube_apiserver, "client-go-leader-election": programs.client_go_leader_election}
    assets, path, cache, home = (tmp_path / place for place in ("assets", "path", "cache", "home"))
    monkeypatch.setattr(programs, "SBIN", "/nowhere")
    for variable, place in {"KUBEBUILDER_ASSETS": assets, "PATH": path, "XDG_CACHE_HOME": cache}.items():
        monkeypatch.setenv(variable, str(place))
    with pytest.raises(MissingProgram, match=rf"^{name} is not installed here; run: make servers .*KUBEBUILDER_ASSETS"):
        find[name]()
    for place in (cache / programs.KUBE_CACHE, path, assets):
        assert program(place, name) == find[name]()
    for variable in ("KUBEBUILDER_ASSETS", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("HOME", str(home))
    assert program(home / ".cache" / programs.KUBE_CACHE, name) == find[name]()


@pytest.mark.parametrize(
    ("name", "package"), [("etcd", "etcd-server"), ("etcdctl", "etcd-client"), ("kubectl", "kubernetes-client")]
)
def test_etcd_and_kubectl_come_from_assets_or_packages(
    name: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = {"etcd": programs.etcd, "etcdctl": programs.etcdctl, "kubectl": programs.kubectl}[name]
    monkeypatch.setattr(programs, "SBIN", "/nowhere")
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    with pytest.raises(MissingProgram, match=rf"^{name} is not installed here; run: apt-get install -y {package}$"):
        find()
    assert program(tmp_path, name) == find()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The script in a checkout of its own, with what it needs on its PATH and no program of Kubernetes."""
    script = tmp_path / "checkout" / "scripts" / "install-servers"
    script.parent.mkdir(parents=True)
    shutil.copy(ROOT / "scripts" / "install-servers", script)
    (tmp_path / "bin").mkdir()
    needed = ("redis-server", "pgbouncer", "openssl", "java", "etcd", "etcdctl", "kubectl", "xz")
    for name in (*needed, "sh", "tr", "dirname", "uname", "mkdir", "chmod", "mv", "rm", "cat"):
        (tmp_path / "bin" / name).symlink_to(shutil.which(name, path=f"{os.environ['PATH']}:{programs.SBIN}") or "")
    return tmp_path


def install(checkout: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [checkout / "checkout" / "scripts" / "install-servers"],
        env={"PATH": str(checkout / "bin"), "XDG_CACHE_HOME": str(checkout / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )


def pack(checkout: Path, name: str, content: bytes) -> None:
    folder = checkout / "shared" / "kube"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}-1.20.2-linux-amd64.xz").write_bytes(content)


def test_the_script_unpacks_what_lies_beside_the_checkout_once(checkout: Path) -> None:
    for name in ("kube-apiserver", "client-go-leader-election"):
        pack(checkout, name, lzma.compress(name.encode()))
    done = install(checkout)
    cache = checkout / "cache" / programs.KUBE_CACHE
    assert (done.returncode, done.stderr) == (0, "")
    assert {path.name: path.read_text() for path in cache.iterdir()} == {
        name: name for name in ("kube-apiserver", "client-go-leader-election")
    }
    assert all(os.access(path, os.X_OK) for path in cache.iterdir())
    again = install(checkout)
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")


def test_a_damaged_archive_leaves_nothing_in_the_cache(checkout: Path) -> None:
    # Long enough that half of it is unpacked before the end is missed.
    whole = lzma.compress(os.urandom(1_000_000))
    pack(checkout, "kube-apiserver", whole[: len(whole) // 2])
    done = install(checkout)
    assert done.returncode == 1
    assert "xz: " in done.stderr
    assert list((checkout / "cache" / programs.KUBE_CACHE).iterdir()) == []


def test_where_no_program_of_kubernetes_is_the_script_says_the_ways_to_one(checkout: Path) -> None:
    done = install(checkout)
    assert (done.returncode, done.stdout) == (1, "")
    for way in (
        "Missing: kube-apiserver client-go-leader-election\n",
        f"put what is missing on the PATH, or into {checkout / 'cache' / programs.KUBE_CACHE}\n",
        "let KUBEBUILDER_ASSETS name a folder",
        "LEASEHOLD_BUILD_KUBE=1 make servers",
    ):
        assert way in done.stderr
