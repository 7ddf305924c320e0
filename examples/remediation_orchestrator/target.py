"""What a RemediationRequest wants remedied, as one text: `production/deployment/payment-api`, `node/worker-1`. Pure.

Two requests with one target must read the same, and none may read like another's: each part is what
Kubernetes itself would call a name.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

PART_MAX, NAME_MAX = 63, 253
KIND = re.compile(r"[a-z][a-z0-9]*")
NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
NAME = re.compile(r"[a-z0-9]([-a-z0-9.:]*[a-z0-9])?")


class InvalidTarget(ValueError):
    """A request whose target nothing can be called."""


def read(spec: Mapping[str, Any]) -> str:
    """The target; InvalidTarget says which part is wrong and what would do."""
    given = spec.get("targetResource") or {}
    kind, name, namespace = (str(given.get(part) or "") for part in ("kind", "name", "namespace"))
    if not kind or not name:
        raise InvalidTarget(
            "spec.targetResource needs kind and name; give the alert a label such as deployment, pod or node"
        )
    kind = kind.lower()
    _check("kind", kind, KIND, PART_MAX)
    _check("name", name, NAME, NAME_MAX)
    if namespace:
        _check("namespace", namespace, NAMESPACE, PART_MAX)
    return "/".join(part for part in (namespace, kind, name) if part)


def label(target: str) -> str:
    """By which its WorkflowExecutions are found: labels are indexed by no more than equality, and are short."""
    return hashlib.sha256(target.encode()).hexdigest()[:16]


def _check(part: str, given: str, allowed: re.Pattern[str], longest: int) -> None:
    if len(given) > longest:
        raise InvalidTarget(
            f"spec.targetResource.{part} has {len(given)} characters; in Kubernetes no {part} has more than {longest}"
        )
    if not allowed.fullmatch(given):
        raise InvalidTarget(f"spec.targetResource.{part} is {given!r}, which is no {part} in Kubernetes")
