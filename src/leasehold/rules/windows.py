"""Which members of a family a scan is about, and what it answers. Pure.

A window is half-open and compared code point by code point, which is the order of UTF-8's bytes, too.
"""

from __future__ import annotations

from collections.abc import Sequence

from leasehold.errors import StoreError, shown
from leasehold.model import Record


def merged(windows: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """The same members in windows that neither touch nor overlap, in their order; empty ones are left out."""
    found: list[tuple[str, str]] = []
    for first, end in sorted(windows):
        if first >= end:
            continue
        if found and first <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((first, end))
    return found


def lies_in(member: str, windows: Sequence[tuple[str, str]]) -> bool:
    """Whether a scan is about a member: with no windows it is about all."""
    return not windows or any(first <= member < end for first, end in windows)


def scanned(family: str, found: list[Record], most: int) -> list[Record]:
    """What a scan found, as it answers it. Not if there is more: some of it would look like all."""
    if len(found) > most:
        raise StoreError(
            f"a scan of {shown(family)} finds more than {most} live records, the most that one answers; ask for "
            "narrower scopes, or spread them over several roots or names"
        )
    return sorted(found, key=lambda record: record.born)
