"""The objects of one kind in one namespace, in a few verbs with conditions. One source for both colours.

No general client of Kubernetes: no watch, no cache, nothing retried. Every write says
what it expects to find; None and False mean that it was something else, so look again.
"""

from __future__ import annotations

import builtins
from collections.abc import Mapping

from leasehold.errors import InvalidInput, StoreUnavailable
from leasehold.rules.kubernetes_kinds import Kind
from leasehold.rules.kubernetes_names import is_name
from leasehold.rules.kubernetes_objects import Object
from leasehold.rules.names import check_text
from leasehold.rules.timing import TIMEOUT_MAX, seconds
from leasehold.rules.urls import split
from leasehold.wires.colour import Colour
from leasehold.wires.kubernetes import Ask, KubernetesWire, Said
from leasehold.wires.kubernetes_url import KubernetesConfig, kubernetes_config

PAGE = 500
TRIES = 5
TIMEOUT_MIN = 0.001


class ObjectStore:
    """What `Objects` means."""

    def __init__(self, url: str, kind: Kind, timeout: float, colour: Colour) -> None:
        if not isinstance(kind, Kind):
            raise InvalidInput("kind", kind, "must be a leasehold.kube.Kind, such as Kind('batch/v1', 'Job', 'jobs')")
        self.kind: Kind = kind
        self.config: KubernetesConfig = _config(url)
        limit = seconds("timeout", timeout, TIMEOUT_MIN, TIMEOUT_MAX)
        self.wire: KubernetesWire = KubernetesWire(self.config, timeout=limit, colour=colour, kind=kind)
        self.colour: Colour = colour

    async def open(self) -> None:
        await self.wire.open()

    async def close(self) -> None:
        await self.wire.close()

    @property
    def namespace(self) -> str:
        return self.wire.access.namespace

    async def get(self, name: str) -> Object | None:
        return _body(await self.load(name))

    async def load(self, name: str) -> Said:
        """The same, with the server's clock."""
        return await self.wire.ask(Ask("GET", _name(name)))

    async def list(self, labels: Mapping[str, str] | None) -> builtins.list[Object]:
        return (await self.scan(labels))[0]

    async def scan(self, labels: Mapping[str, str] | None) -> tuple[builtins.list[Object], bytes]:
        """The same, with the server's clock; in pages of one snapshot, begun anew if the server drops it."""
        selector = ",".join(f"{name}={value}" for name, value in (labels or {}).items())
        for _ in range(TRIES):
            found: builtins.list[Object] = []
            query = {"limit": str(PAGE)} | ({"labelSelector": selector} if selector else {})
            while (said := await self.wire.ask(Ask("GET", None, None, query))).body is not None:
                found += said.body.get("items") or ()
                onward = said.body["metadata"].get("continue")
                if not onward:
                    return found, said.date
                query["continue"] = onward
        raise StoreUnavailable(f"the list of {self.kind} changed faster than it could be read", applied=False)

    async def create(self, manifest: Mapping[str, object]) -> Object | None:
        return _body(await self.wire.ask(Ask("POST", None, self._whole(manifest))))

    async def make(self, manifest: Object) -> Said:
        """The same, of a manifest that is whole, with the server's clock."""
        return await self.wire.ask(Ask("POST", None, manifest))

    async def patch(self, name: str, changes: Mapping[str, object], status: bool) -> Object | None:  # noqa: FBT001
        return _body(await self.change(name, changes, status=status))

    async def change(self, name: str, changes: Mapping[str, object], *, status: bool = False) -> Said:
        """The same, with the server's clock."""
        if not isinstance(changes, Mapping):
            raise InvalidInput("changes", changes, "must be a JSON merge patch: a mapping")
        return await self.wire.ask(Ask("PATCH", f"{_name(name)}/status" if status else _name(name), changes))

    async def delete(self, manifest: Object) -> bool:
        meta = dict(manifest).get("metadata")
        if not isinstance(meta, Mapping) or not {"name", "uid", "resourceVersion"} <= meta.keys():
            raise InvalidInput("manifest", meta, "must be an object as the server showed it, with uid and revision")
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]},
            # Said here, because kinds differ in what they do when nothing is said: a Job would leave its pods behind.
            "propagationPolicy": "Background",
        }
        return (await self.wire.ask(Ask("DELETE", _name(meta["name"]), options))).body is not None

    def _whole(self, manifest: object) -> Object:
        if not isinstance(manifest, Mapping):
            raise InvalidInput("manifest", manifest, f"must be a mapping, not {type(manifest).__name__}")
        return {**manifest, "apiVersion": self.kind.api_version, "kind": self.kind.kind}


def _body(said: Said) -> Object | None:
    found: Object | None = said.body
    return found


def _name(given: object) -> str:
    """A name that stays one part of a path."""
    text = check_text("name", given, 253)
    if not all(map(is_name, text.split("."))):
        raise InvalidInput("name", given, "must be a name of Kubernetes: a-z, 0-9, - and .")
    return text


def _config(url: object) -> KubernetesConfig:
    text = check_text("url", url, 4096)
    try:
        parts = split(text)
    except ValueError as error:
        raise InvalidInput("url", url, f"cannot be read as a URL: {error}") from error
    if parts.scheme != "kubernetes" or not text.startswith("kubernetes://") or not text.isprintable():
        raise InvalidInput("url", url, "must read kubernetes://NAMESPACE?context=…")
    return kubernetes_config(parts)
