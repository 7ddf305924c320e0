"""The check at the files: who comes too late, and who reaches beyond what its lease was given for. Pure.

Each resource (an inode, or the tree of paths) keeps marks: which tokens it has seen, and for which parts. Two leases
that are in each other's way get tokens in the order in which they hold; so a larger mark on an overlapping part,
unless both share it, means that the smaller token's lease is over. The first request of a lease raises its marks,
and binds the token to its parts: that request comes before the first read.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

# One past the last offset of a file.
END = 2**63
TOKEN_MAX = 2**63

# A half-open range of bytes, or a path and everything below it.
Part = tuple[int, int] | str


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


class ScopeMismatch(Refused):
    """The token was given for something else: another lock, another part, or for reading only."""

    status = 403


class StaleToken(Refused):
    """A later holder was here already."""

    status = 412

    def __init__(self, resource: str, token: int, mark: int) -> None:
        message = f"token {token} comes too late for {resource}: a later holder left {mark}"
        super().__init__(message, token=str(token), mark=str(mark))


class Shown(NamedTuple):
    """A lease as a request shows it."""

    resource: str
    parts: tuple[Part, ...]
    token: int
    shared: bool


class Mark(NamedTuple):
    """A token that was seen, for one part."""

    part: Part
    token: int
    shared: bool


def admit(
    marks: Sequence[Mark], lease: Shown, resource: str, wanted: Iterable[Part], *, changes: bool = True
) -> list[Mark]:
    """The marks as this request leaves them, or the refusal. Store them in the same step as the change itself."""
    if lease.resource != resource:
        raise ScopeMismatch(f"the token is for {lease.resource}, not for {resource}", token=str(lease.token))
    if changes and lease.shared:
        raise ScopeMismatch("a shared lease is for reading", token=str(lease.token))
    _covered(lease, wanted, lease.parts)
    for mark in marks:
        if mark.token > lease.token and _in_the_way(mark, lease):
            raise StaleToken(resource, lease.token, mark.token)
    known = [mark for mark in marks if mark.token == lease.token]
    if not known:
        seen = [Mark(part, lease.token, lease.shared) for part in lease.parts]
        return [mark for mark in marks if not _is_outdone(mark, lease)] + seen
    _covered(lease, lease.parts, [mark.part for mark in known])
    if not lease.shared and all(mark.shared for mark in known):
        raise ScopeMismatch("the token was given for a shared lease", token=str(lease.token))
    return list(marks)


def _covered(lease: Shown, wanted: Iterable[Part], given: Sequence[Part]) -> None:
    for part in wanted:
        if not any(within(part, one) for one in given):
            raise ScopeMismatch(f"{part} lies outside of what the token was given for", token=str(lease.token))


def _in_the_way(mark: Mark, lease: Shown) -> bool:
    shared = mark.shared and lease.shared
    return not shared and any(overlap(mark.part, part) for part in lease.parts)


def _is_outdone(mark: Mark, lease: Shown) -> bool:
    # A reader's mark says nothing to other readers: it cannot stand for a writer's.
    outdone = mark.token < lease.token and (mark.shared or not lease.shared)
    return outdone and any(within(mark.part, part) for part in lease.parts)


def within(part: Part, other: Part) -> bool:
    """Whether a part lies in another one."""
    if isinstance(part, str) or isinstance(other, str):
        above = str(other)
        return part == other or str(part).startswith(above if above.endswith("/") else f"{above}/")
    return other[0] <= part[0] and part[1] <= other[1]


def overlap(part: Part, other: Part) -> bool:
    """Whether two parts have something in common."""
    if isinstance(part, str) or isinstance(other, str):
        return within(part, other) or within(other, part)
    return part[0] < other[1] and other[0] < part[1]


# As they travel, and as they are stored. Tokens are text: JSON's numbers lose digits.


def read_leases(header: str | None) -> list[Shown]:
    """The leases that a request shows."""
    if header is None:
        return []
    try:
        return [_lease(one) for one in json.loads(header)]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise Malformed(f"the header Lease cannot be read: {error!r}") from None


def _lease(given: dict[str, Any]) -> Shown:
    parts, token, resource = tuple(_part(part) for part in given["parts"]), int(given["token"]), str(given["resource"])
    if not parts or not 0 < token < TOKEN_MAX or any(isinstance(p, str) != resource.startswith("path:") for p in parts):
        raise ValueError("a lease has a token and parts that fit its resource")
    return Shown(resource, parts, token, given["shared"] is True)


def _part(given: Any) -> Part:
    if isinstance(given, str) and given.startswith("/"):
        return given
    start, end = map(int, given)
    if not 0 <= start < end <= END:
        raise ValueError("a range is not empty")
    return start, end


def write_leases(leases: Iterable[Shown]) -> str:
    """For a request's header."""
    return json.dumps([{**lease._asdict(), "token": str(lease.token)} for lease in leases])


def read_marks(stored: list[Any]) -> list[Mark]:
    """From a file."""
    return [Mark(_part(part), int(token), shared) for part, token, shared in stored]


def write_marks(marks: Sequence[Mark]) -> list[Any]:
    """For a file."""
    return [[mark.part, str(mark.token), mark.shared] for mark in marks]
