"""Which objects are meant: a kind of a namespace, and where the API server serves it. Pure: names in, paths out."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from leasehold.errors import InvalidInput

# group/version, or the version alone for what Kubernetes had first.
_API_VERSION = re.compile(r"(?:[a-z0-9](?:[-a-z0-9.]*[a-z0-9])?/)?v[0-9]+(?:(?:alpha|beta)[0-9]+)?")
_KIND = re.compile(r"[A-Z][A-Za-z0-9]*")
_PLURAL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_LONGEST = 253


class Kind(msgspec.Struct, frozen=True):
    """A namespaced kind, as manifests and roles name it: `Kind("batch/v1", "Job", "jobs")`.

    Nothing is looked up: whether the server serves it is found out by the first request.
    """

    api_version: str
    kind: str
    plural: str

    def __post_init__(self) -> None:
        _check("api_version", self.api_version, _API_VERSION, "group/version such as batch/v1, or v1")
        _check("kind", self.kind, _KIND, "a kind such as Job")
        _check("plural", self.plural, _PLURAL, "the plural that roles name, such as jobs")

    @property
    def group(self) -> str:
        """As roles name it; empty for what Kubernetes had first."""
        return self.api_version.rpartition("/")[0]

    def path(self, namespace: str) -> str:
        """Where all of a namespace are."""
        return f"/{'apis' if self.group else 'api'}/{self.api_version}/namespaces/{namespace}/{self.plural}"

    def __str__(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural


def _check(field: str, given: object, form: re.Pattern[str], remedy: str) -> None:
    if not isinstance(given, str) or len(given) > _LONGEST or not form.fullmatch(given):
        raise InvalidInput(field, given, f"must be {remedy}")


LEASES: Final = Kind("coordination.k8s.io/v1", "Lease", "leases")
