"""`leasehold manifests rbac`: what it prints is what kubectl takes, and what the store needs."""

from __future__ import annotations

import json
import subprocess

import pytest

from leasehold.cli import codes
from leasehold.rules.kubernetes_names import NAME_MAX
from leasehold.rules.kubernetes_roles import ORDINARY, STRICT, manifests
from leasehold.testing.conformance import kube_worlds
from tests.cli.conftest import PROGRAM


def rbac(*words: str) -> subprocess.CompletedProcess[str]:
    command = [str(PROGRAM), "manifests", "rbac", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize(
    "words",
    [
        ("--service-account", "app"),
        ("--service-account", "on"),
        ("--service-account", "123"),
        ("--service-account", "a.b-c"),
        ("--strict", "--name", "scheduler", "--name", "Not A Name", "--name", "null"),
        ("--strict", "--name", "scheduler", "--prefix", "shop", "--tenant", "north"),
    ],
)
def test_kubectl_reads_the_yaml_as_the_objects_that_json_shows(words: tuple[str, ...]) -> None:
    kube = kube_worlds.kube()
    namespace = kube_worlds.namespace(kube)
    told = rbac("--namespace", namespace, *words)
    meant = json.loads(rbac("--namespace", namespace, *words, "--json").stdout)["items"]
    assert (told.returncode, told.stderr) == (0, "")
    # The one the namespace came with is bound to somebody else, and a binding cannot be turned over.
    kube.kubectl("delete", "rolebinding", "leasehold", namespace=namespace)
    kube.kubectl("apply", "-f", "-", namespace=namespace, text=told.stdout)
    for each in meant:
        kind, name = each["kind"].lower(), each["metadata"]["name"]
        found = json.loads(kube.kubectl("get", kind, name, "-o", "json", namespace=namespace))
        assert {part: found[part] for part in ("rules", "roleRef", "subjects") if part in found} == {
            part: each[part] for part in ("rules", "roleRef", "subjects") if part in each
        }
    assert meant[-2]["kind"] == "Role"


def test_the_roles_are_the_least_there_are() -> None:
    """Written out, so that nobody widens them by accident."""
    assert ORDINARY == ("create", "delete", "get", "list", "patch", "update", "watch")
    assert STRICT == ("get", "update")
    (rule,) = manifests("ns", "app")[0]["rules"]
    assert rule == {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": [*ORDINARY]}
    lease, role, binding = manifests("ns", "app", ["scheduler"])
    assert (lease["kind"], lease["metadata"]["name"]) == ("Lease", "scheduler")
    assert role["rules"][0]["resourceNames"] == ["scheduler"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "app", "namespace": "ns"}]


def test_a_name_that_kubernetes_cannot_have_becomes_the_one_the_store_uses() -> None:
    told = json.loads(rbac("--strict", "--name", "x" * 100, "--json").stdout)
    name = told["items"][0]["metadata"]["name"]
    assert len(name) == NAME_MAX
    assert told["items"][1]["rules"][0]["resourceNames"] == [name]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--strict",), "--name"),
        (("--name", "scheduler"), "--strict"),
        (("--prefix", "shop"), "--strict"),
        (("--namespace", "Not A Name"), "namespace"),
        (("--namespace", "x" * 64), "namespace"),
        (("--service-account", ""), "service-account"),
        (("--service-account", "a: b"), "service-account"),
        (("--strict", "--name", ""), "name"),
    ],
)
def test_what_cannot_work_is_a_usage_error_that_names_it(words: tuple[str, ...], told: str) -> None:
    done = rbac(*words)
    assert (done.returncode, done.stdout) == (codes.USAGE, "")
    assert told in done.stderr


def test_manifests_without_a_kind_lists_the_kinds() -> None:
    done = subprocess.run([str(PROGRAM), "manifests"], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == codes.USAGE
    assert "rbac" in done.stderr
