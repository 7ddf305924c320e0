"""Marks of a resource that is held in parts: ranges of a file, paths of a tree, shared or not. Pure.

One number is not enough where several hold at once: each token leaves a mark for the parts it was given for. Leases in
each other's way get tokens in the order in which they hold: a larger mark on an overlapping part, unless both
share it, means that the smaller token's lease is over. The first request of a lease leaves its marks, before
the first read, and binds its token to its parts: later requests may show fewer of them, never more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from leasehold.errors import ScopeMismatch, StaleToken
from leasehold.rules.fencing import checked_token
from leasehold.rules.overlap import Part, is_within, overlaps


class PartMark(msgspec.Struct, frozen=True):
    """A token that was seen, for one part."""

    part: Part
    token: int


class ShownParts(msgspec.Struct, frozen=True):
    """A lease as a request shows it: what it is a lease on, its token, and the parts it was given for."""

    resource: str
    token: int
    parts: tuple[Part, ...]


def admit_parts(
    marks: Sequence[PartMark], shown: ShownParts, resource: str, wanted: Iterable[Part]
) -> tuple[PartMark, ...]:
    """The marks as this request leaves them, or StaleToken or ScopeMismatch. Store them in the same step as the change.

    `wanted` is what the request touches; a part that is `shared` is only read.
    """
    token = checked_token(shown.token)
    if shown.resource != resource or not shown.parts:
        raise ScopeMismatch(resource, shown.resource, resource)
    _check_given(resource, wanted, shown.parts)
    for mark in marks:
        if mark.token > token and any(_in_the_way(mark.part, part) for part in shown.parts):
            raise StaleToken(resource, token, mark.token)
    known = [mark.part for mark in marks if mark.token == token]
    if known:
        _check_given(resource, shown.parts, known)
        return tuple(marks)
    left = [mark for mark in marks if not _is_outdone(mark, shown)]
    return (*left, *(PartMark(part, token) for part in shown.parts))


def _check_given(resource: str, wanted: Iterable[Part], given: Sequence[Part]) -> None:
    for part in wanted:
        if not any(_lies_in(part, one) for one in given):
            raise ScopeMismatch(resource, " ".join(map(told, given)), told(part))


def _lies_in(part: Part, other: Part) -> bool:
    """Whether what is wanted is part of what was given: not for writing, if that is shared."""
    if (other.shared and not part.shared) or bool(part.path) != bool(other.path):
        return False
    if part.path:
        return is_within(part.path, other.path)
    return other.start <= part.start and part.end <= other.end


def _in_the_way(one: Part, other: Part) -> bool:
    return overlaps(one, other) and not (one.shared and other.shared)


def _is_outdone(mark: PartMark, shown: ShownParts) -> bool:
    # A reader's mark says nothing to other readers: it cannot stand for a writer's.
    return mark.token < shown.token and any(
        _lies_in(msgspec.structs.replace(mark.part, shared=True), part) and (mark.part.shared or not part.shared)
        for part in shown.parts
    )


def told(part: Part) -> str:
    """A part, as people read it."""
    what = part.path or f"[{part.start},{part.end})"
    return f"{what} for reading" if part.shared else what
