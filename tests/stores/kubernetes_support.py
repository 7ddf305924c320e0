"""A Kubernetes store driven from plain tests, and the API server they share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from leasehold.model import Key
from leasehold.rules.kubernetes_roles import ORDINARY
from leasehold.testing.conformance.kube_worlds import USER, kube, namespace
from leasehold.testing.servers import KubeServer
from leasehold.testing.servers.shared import shared
from tests.stores.redis_support import Driven, driven

__all__ = ["KEY", "ORDINARY", "USER", "Driven", "Place", "driven", "election", "fragile", "job", "kube"]

KEY = Key("//name/job", "lock")


def job(name: str) -> Key:
    """One of many keys."""
    return Key(f"//name/{name}", "lock")


def election(name: str) -> Key:
    """The key of an election's record."""
    return Key(f"//election/{name}", "lock")


def fragile() -> KubeServer:
    """A server that tests may hurt; each leaves it running."""
    return shared("kubernetes to be hurt", KubeServer(users={USER: []}))


class Place:
    """A fresh namespace of a server, and what the administrator sees and does there."""

    def __init__(self, server: KubeServer | None = None, verbs: tuple[str, ...] = ORDINARY, user: str = USER) -> None:
        self.server = server or kube()
        self.user = user
        self.name = namespace(self.server, user, verbs)
        self.path = f"/apis/coordination.k8s.io/v1/namespaces/{self.name}/leases"

    def url(self, **options: object) -> str:
        words = "".join(f"&{name}={value}" for name, value in options.items())
        return f"kubernetes://{self.name}?kubeconfig={self.server.kubeconfig(self.user)}{words}"

    def get(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.server.request("GET", f"{self.path}/{name}")
        return found

    def names(self) -> list[str]:
        return [item["metadata"]["name"] for item in self.server.request("GET", self.path)["items"]]

    def put(self, name: str, spec: dict[str, Any] | None = None, **metadata: Any) -> dict[str, Any]:
        """A Lease as somebody else makes it."""
        lease = {"metadata": {"name": name, **metadata}, "spec": spec or {}}
        made: dict[str, Any] = self.server.request("POST", self.path, lease)
        return made

    def patch(self, name: str, changes: dict[str, Any]) -> dict[str, Any]:
        changed: dict[str, Any] = self.server.request("PATCH", f"{self.path}/{name}", changes)
        return changed

    def asked(self) -> list[tuple[str, str]]:
        """(verb, name) of every request for Leases here that the store's user made, in order."""
        return [
            (event["verb"], event["objectRef"].get("name", ""))
            for event in self.server.audit()
            if event["user"].get("username") == self.user
            and event.get("objectRef", {}).get("namespace") == self.name
            and event["objectRef"]["resource"] == "leases"
        ]


@contextmanager
def counted(place: Place) -> Iterator[list[str]]:
    """The verbs that were asked for inside the block."""
    before = len(place.asked())
    verbs: list[str] = []
    yield verbs
    verbs += [verb for verb, _ in place.asked()[before:]]
