"""What the tests of kinds share: custom kinds on the one API server, and namespaces where a user has few rights."""

from __future__ import annotations

import functools
import json
import os
import secrets
from pathlib import Path
from typing import Any

from leasehold import kube
from leasehold.testing.conformance.kube_worlds import kube as shared_kube
from leasehold.testing.servers import KubeServer
from leasehold.testing.servers.kube import KubeRefused
from leasehold.testing.servers.shared import shared
from tests.support import eventually

JOB = kube.Kind("batch/v1", "Job", "jobs")
PIPELINE_RUN = kube.Kind("tekton.dev/v1", "PipelineRun", "pipelineruns")
WIDGET = kube.Kind("example.com/v1", "Widget", "widgets")
UNKNOWN = kube.Kind("example.com/v1", "Gadget", "gadgets")
# Not the user of the store's own tests: what that one asks for is counted.
USER = "objects-app"
VERBS = ("create", "delete", "get", "list", "patch")
RBAC = "rbac.authorization.k8s.io"


def server() -> KubeServer:
    """The server that all tests share, with our kinds."""
    found = shared_kube()
    _install_kinds(found)
    return found


def fragile() -> KubeServer:
    """A server that tests may hurt; each leaves it running."""
    found = shared("objects to be hurt", KubeServer())
    _install_kinds(found)
    return found


@functools.cache
def _install_kinds(found: KubeServer) -> None:
    for kind in (PIPELINE_RUN, WIDGET):
        install(found, crd(kind))


def crd(kind: kube.Kind) -> dict[str, Any]:
    """A definition that allows everything in spec and keeps status apart."""
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema = {"type": "object", "properties": {"spec": anything, "status": anything}}
    version = {"name": kind.api_version.rpartition("/")[2], "served": True, "storage": True}
    version |= {"schema": {"openAPIV3Schema": schema}, "subresources": {"status": {}}}
    names = {"kind": kind.kind, "plural": kind.plural, "singular": kind.kind.lower()}
    spec = {"group": kind.group, "scope": "Namespaced", "names": names, "versions": [version]}
    meta = {"name": f"{kind.plural}.{kind.group}"}
    return {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": meta, "spec": spec}


def install(found: KubeServer, definition: dict[str, Any]) -> None:
    """Create a definition, and wait until the server serves it."""
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    found.request("POST", path, definition)
    spec = definition["spec"]
    served = f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}"
    eventually(lambda: is_served(found, served))


def is_served(found: KubeServer, path: str) -> bool:
    try:
        found.request("GET", path)
    except KubeRefused:
        return False
    return True


class Place:
    """A fresh namespace, a user with rights there, and what the administrator sees and does."""

    def __init__(
        self,
        kind: kube.Kind = PIPELINE_RUN,
        verbs: tuple[str, ...] = VERBS,
        found: KubeServer | None = None,
        rules: list[dict[str, Any]] | None = None,
        user: str | None = None,
    ) -> None:
        self.server = found or server()
        self.kind = kind
        self.user = user or f"{USER}-{secrets.token_hex(4)}"
        self.name = f"place-{secrets.token_hex(4)}"
        self.server.request("POST", "/api/v1/namespaces", {"metadata": {"name": self.name}})
        self.path = kind.path(self.name)
        own = {"apiGroups": [kind.group], "resources": [kind.plural, f"{kind.plural}/status"], "verbs": list(verbs)}
        self.allow(rules or [own])
        self.kubeconfig = _kubeconfig(self.server, self.user, self.name)

    def allow(self, rules: list[dict[str, Any]]) -> None:
        """Give the user these rights, and wait until they count."""
        place = f"/apis/{RBAC}/v1/namespaces/{self.name}"
        name = f"role-{secrets.token_hex(4)}"
        self.server.request("POST", f"{place}/roles", {"metadata": {"name": name}, "rules": rules})
        reference = {"apiGroup": RBAC, "kind": "Role", "name": name}
        subject = {"apiGroup": RBAC, "kind": "User", "name": self.user}
        binding = {"metadata": {"name": name}, "roleRef": reference, "subjects": [subject]}
        self.server.request("POST", f"{place}/rolebindings", binding)
        last = rules[-1]
        asked = {"group": last["apiGroups"][-1], "resource": last["resources"][0], "verb": last["verbs"][-1]}
        review = {"spec": {"user": self.user, "resourceAttributes": {"namespace": self.name, **asked}}}
        path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        eventually(lambda: self.server.request("POST", path, review)["status"]["allowed"])

    @property
    def url(self) -> str:
        return f"kubernetes://{self.name}?kubeconfig={self.kubeconfig}"

    def get(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.server.request("GET", f"{self.path}/{name}")
        return found

    def names(self) -> list[str]:
        return [item["metadata"]["name"] for item in self.server.request("GET", self.path)["items"]]

    def patch(self, name: str, changes: dict[str, Any]) -> dict[str, Any]:
        changed: dict[str, Any] = self.server.request("PATCH", f"{self.path}/{name}", changes)
        return changed

    def delete(self, name: str) -> None:
        self.server.request("DELETE", f"{self.path}/{name}")

    def asked(self) -> list[tuple[str, str]]:
        """(verb, resource) of everything the user has asked for here, in order."""
        return [
            (event["verb"], event["objectRef"]["resource"])
            for event in self.server.audit()
            if event["user"].get("username") == self.user and "objectRef" in event
        ]


def _kubeconfig(found: KubeServer, user: str, namespace: str) -> Path:
    """For a user known by a certificate, which needs no restart of the server."""
    certificate, key = found.client_certificate(user)
    cluster = {"server": found.url, "certificate-authority": str(found.ca)}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "here", "cluster": cluster}],
        "users": [{"name": user, "user": {"client-certificate": str(certificate), "client-key": str(key)}}],
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": user, "namespace": namespace}}],
        "current-context": "here",
    }
    place = found.folder / f"kubeconfig-{secrets.token_hex(4)}"
    place.touch(0o600)
    place.write_text(json.dumps(config))
    os.chmod(place, 0o644)
    return place
