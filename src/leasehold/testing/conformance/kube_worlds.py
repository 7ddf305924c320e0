"""The world of Leases in a real Kubernetes API server.

One server serves all laws, in a fresh namespace each, as a user who may do no more
than the store's page documents. What has ended is seen on the clients' own clock,
so that a law moves that clock alone; the server lives in real time.
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path

from leasehold.rules.kubernetes_roles import ORDINARY
from leasehold.stores.base import Store
from leasehold.stores.open import open_store
from leasehold.testing.clock import VirtualClock
from leasehold.testing.servers import KubeServer
from leasehold.testing.servers.process import wait_until
from leasehold.testing.servers.shared import shared
from leasehold.wires.colour import Colour

USER = "leasehold-app"

_turn = itertools.count()


class KubernetesWorld:
    """Leases of one namespace, in virtual time."""

    # A request takes real time, while a law that waits lets virtual time pass: this leaves room for a busy machine.
    ttl: float = 60.0
    # Processes live in real time, and see a clock of their own.
    url: str | None = None

    def __init__(self, folder: Path) -> None:
        self.clock: VirtualClock = VirtualClock()
        server = kube()
        self.namespace: str = namespace(server)
        self._url = f"kubernetes://{self.namespace}?kubeconfig={server.kubeconfig(USER, path=folder / 'kubeconfig')}"

    def store(self, colour: Colour) -> Store:
        return open_store(self._url, timeout=5.0, colour=colour)

    def elapse(self, seconds: float) -> None:
        self.clock.advance(seconds)

    def close(self) -> None:
        """The server serves the next law."""


def kube() -> KubeServer:
    """The one server."""
    return shared("kubernetes world", KubeServer(users={USER: []}))


def namespace(server: KubeServer, user: str = USER, verbs: tuple[str, ...] = ORDINARY) -> str:
    """A new namespace in which the user may do this much with Leases."""
    name = f"world-{os.getpid()}-{next(_turn)}"
    server.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    place = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{name}"
    rules = [{"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": list(verbs)}]
    server.request("POST", f"{place}/roles", {"metadata": {"name": "leasehold"}, "rules": rules})
    binding = {
        "metadata": {"name": "leasehold"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "leasehold"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
    }
    server.request("POST", f"{place}/rolebindings", binding)
    _await_role(server, name, user, verbs)
    return name


def _await_role(server: KubeServer, name: str, user: str, verbs: tuple[str, ...]) -> None:
    """The server learns of its own roles a moment after they were made."""
    asked = {"namespace": name, "group": "coordination.k8s.io", "resource": "leases", "verb": verbs[-1]}
    review = {"spec": {"user": user, "resourceAttributes": asked}}
    path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    wait_until(
        lambda: bool(server.request("POST", path, review)["status"]["allowed"]),
        lambda: f"the role of {user} in {name} does not count",
    )
