"""Leases and marks as they travel and as they are stored, and how the server says no. Pure.

Who comes too late, and who reaches beyond what its lease was given for, decides `leasehold.fence.admit_parts`: each
resource (an inode, or the tree of paths) keeps marks, which tokens it has seen and for which parts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from leasehold import ScopeMismatch, StaleToken
from leasehold.fence import Part, PartMark, ShownParts

# One past the last offset of a file.
END = 2**63


class Refused(Exception):
    """A request that the fence does not let through; `body` is for programs."""

    status = 400

    def __init__(self, message: str, **details: str) -> None:
        super().__init__(message)
        self.body = {"error": type(self).__name__, "message": message, **details}


class Malformed(Refused):
    """What was sent cannot be read."""


class LeaseRequired(Refused):
    """Nothing changes without a lease."""

    status = 428


class TokenRefused(Refused):
    """Leasehold's own refusal, as the server tells it."""

    def __init__(self, error: StaleToken | ScopeMismatch) -> None:
        numbers = {"token": str(error.token), "mark": str(error.mark)} if isinstance(error, StaleToken) else {}
        super().__init__(str(error), **numbers)
        self.body["error"] = type(error).__name__
        self.status = 412 if isinstance(error, StaleToken) else 403


# As they travel, and as they are stored. Tokens are text: JSON's numbers lose digits.


def read_leases(header: str | None) -> list[ShownParts]:
    """The leases that a request shows."""
    if header is None:
        return []
    try:
        return [_lease(one) for one in json.loads(header)]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise Malformed(f"the header Lease cannot be read: {error!r}") from None


def _lease(given: dict[str, Any]) -> ShownParts:
    token, resource, shared = int(given["token"]), str(given["resource"]), given["shared"] is True
    parts = tuple(_part(part, shared=shared) for part in given["parts"])
    if not parts or not 0 < token < END or any(bool(part.path) != resource.startswith("path:") for part in parts):
        raise ValueError("a lease has a token and parts that fit its resource")
    return ShownParts(resource, token, parts)


def _part(given: Any, *, shared: bool) -> Part:
    if isinstance(given, str) and given.startswith("/"):
        return Part(path=given, shared=shared)
    start, end = map(int, given)
    if not 0 <= start < end <= END:
        raise ValueError("a range is not empty")
    return Part(start, end, shared=shared)


def _written(part: Part) -> Any:
    return part.path or [part.start, part.end]


def write_leases(leases: Iterable[ShownParts]) -> str:
    """For a request's header. A lease is shared with all its parts, or with none."""
    return json.dumps(
        [
            {
                "resource": lease.resource,
                "token": str(lease.token),
                "parts": [_written(part) for part in lease.parts],
                "shared": lease.parts[0].shared,
            }
            for lease in leases
        ]
    )


def read_marks(stored: list[Any]) -> list[PartMark]:
    """From a file."""
    return [PartMark(_part(part, shared=shared), int(token)) for part, token, shared in stored]


def write_marks(marks: Sequence[PartMark]) -> list[Any]:
    """For a file."""
    return [[_written(mark.part), str(mark.token), mark.part.shared] for mark in marks]
