"""What a client may do on Kubernetes, and the objects that allow it. Pure: names in, objects out.

The ordinary role is for everything Leasehold does in one namespace. The strict
one is for elections alone, in Leases that were made beforehand: who has it can
neither make nor delete any, nor read those of others.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from leasehold.errors import InvalidInput
from leasehold.rules.kubernetes_leases import API_VERSION
from leasehold.rules.kubernetes_names import is_name

GROUP: Final = "coordination.k8s.io"
RESOURCE: Final = "leases"
# What leases need at all; what waiting without polling needs; what elections need.
LOCKS: Final = ("create", "delete", "get", "list", "patch")
WAKE_UP: Final = ("watch",)
ELECTIONS: Final = ("update",)
ORDINARY: Final = tuple(sorted(LOCKS + WAKE_UP + ELECTIONS))
# No `watch`, which would be one right more: candidates poll instead, and the store says so.
STRICT: Final = ("get", "update")
ROLE: Final = "leasehold"
RBAC: Final = "rbac.authorization.k8s.io"
NAME_MAX: Final = 253
_ACCOUNT = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")

Object = dict[str, Any]


def check_namespace(given: str) -> str:
    """A name that a namespace can have."""
    if not is_name(given):
        raise InvalidInput("namespace", given, "must be a name of Kubernetes: a-z, 0-9 and -, at most 63 characters")
    return given


def check_account(given: str) -> str:
    """A name that a service account can have."""
    if len(given) > NAME_MAX or not _ACCOUNT.fullmatch(given):
        raise InvalidInput(
            "service-account", given, f"must be a name of Kubernetes: a-z, 0-9, - and ., at most {NAME_MAX} characters"
        )
    return given


def rules(names: Sequence[str] = ()) -> list[Object]:
    """The ordinary rules; with the names of Leases the strict ones, for these alone."""
    rule: Object = {"apiGroups": [GROUP], "resources": [RESOURCE]}
    if names:
        return [rule | {"resourceNames": sorted(names), "verbs": list(STRICT)}]
    return [rule | {"verbs": list(ORDINARY)}]


def manifests(namespace: str, account: str, names: Sequence[str] = ()) -> list[Object]:
    """Role and binding for a service account of the namespace, and before them the Leases of the strict role."""
    place = {"name": ROLE, "namespace": namespace}
    subject = {"kind": "ServiceAccount", "name": account, "namespace": namespace}
    return [
        *(
            {"apiVersion": API_VERSION, "kind": "Lease", "metadata": {"name": name, "namespace": namespace}}
            for name in sorted(names)
        ),
        {"apiVersion": f"{RBAC}/v1", "kind": "Role", "metadata": place, "rules": rules(names)},
        {
            "apiVersion": f"{RBAC}/v1",
            "kind": "RoleBinding",
            "metadata": place,
            "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": ROLE},
            "subjects": [subject],
        },
    ]
