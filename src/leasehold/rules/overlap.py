"""What is in whose way, among those who want parts of one resource. Pure.

A resource is a family, and everybody who wants some of it has one record there, which
says what it wants. Two are in each other's way if they want overlapping parts and not
both share them. Who was born first comes first: one holds what it wants as soon as nobody
born before it is in its way. Whoever creates its record and looks afterwards sees everybody
who was born before: so no two hold overlapping parts, and tokens grow along every conflict.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import pairwise

import msgspec

from leasehold.errors import InvalidInput

# One past the last offset of a file: offsets are signed numbers of 64 bits everywhere.
END = 2**63
# A block at level n has 16 to the power of n bytes; the one at the highest level is the whole file.
LEVELS = 16
BITS = 4
# Where records lie that want several paths.
SEVERAL = "s/"
WINDOWS = 60
MAP_WIDTH = 60


class Part(msgspec.Struct, frozen=True, omit_defaults=True):
    """Some of a resource: a half-open range of it, or a path and all below it."""

    start: int = 0
    end: int = END
    path: str = ""
    shared: bool = False


class Claim(msgspec.Struct, frozen=True, omit_defaults=True):
    """What somebody wants of a resource. `permits` counts for a semaphore: so many may hold it at once."""

    parts: tuple[Part, ...] = (Part(),)
    permits: int = 0
    # The member whose hold this one is to replace: it is not in its way.
    replaces: str = ""


class Present(msgspec.Struct, frozen=True):
    """Somebody who is there: the member of its record, when that was born, and what it wants."""

    member: str
    born: int
    claim: Claim


def is_within(path: str, other: str) -> bool:
    """Whether a path is another one or lies below it."""
    return path == other or path.startswith(other if other.endswith("/") else f"{other}/")


def overlaps(one: Part, other: Part) -> bool:
    """Whether two parts have something in common."""
    if one.path or other.path:
        return is_within(one.path, other.path) or is_within(other.path, one.path)
    return one.start < other.end and other.start < one.end


def conflicts(one: Claim, other: Claim) -> bool:
    """Whether two claims cannot be held at once."""
    return any(
        overlaps(mine, theirs) and not (mine.shared and theirs.shared) for mine in one.parts for theirs in other.parts
    )


def in_the_way(everybody: Iterable[Present], me: Present) -> list[Present]:
    """Who must go before I hold what I want, the first born first; empty: I hold it."""
    before = _by_birth(one for one in everybody if one.born < me.born)
    if me.claim.permits:
        # Whoever comes first has a permit; of those who have none, nobody is in the way.
        return before[: me.claim.permits] if len(before) >= me.claim.permits else []
    return [one for one in before if one.member != me.claim.replaces and conflicts(one.claim, me.claim)]


def holders(everybody: Sequence[Present]) -> list[Present]:
    """Those who hold what they want, the first born first; the others wait."""
    if any(one.claim.permits for one in everybody):
        return [one for one in _by_birth(everybody) if not in_the_way(everybody, one)]
    # As a store finds them: not everybody is compared with everybody.
    lying = sorted((place(one.claim), one.born, one) for one in everybody)
    places = [where for where, _, _ in lying]
    found = []
    for one in _by_birth(everybody):
        looked = windows(one.claim) or [("", "\U0010ffff")]
        slices = ((bisect_left(places, first), bisect_left(places, end)) for first, end in looked)
        near = [lying[at][2] for begin, stop in slices for at in range(begin, stop)]
        if not in_the_way(near, one):
            found.append(one)
    return found


def _by_birth(everybody: Iterable[Present]) -> list[Present]:
    return sorted(everybody, key=lambda one: one.born)


def would_wait_for_itself(everybody: Sequence[Present], me: Present) -> bool:
    """Whether somebody I would have to wait for waits, at the end of a chain, for what I hold already."""
    waiting = {me.claim.replaces}
    for one in _by_birth(everybody):
        if one.member != me.member and any(way.member in waiting for way in in_the_way(everybody, one)):
            waiting.add(one.member)
    return any(way.member in waiting for way in in_the_way(everybody, me))


def together(one: Claim, other: Claim) -> Claim:
    """What somebody wants who wants both. A permit is one of several, and is wanted once."""
    if one.permits != other.permits:
        remedy = f"is asked for together with {one.permits} of the same name; agree on one number, or use another name"
        raise InvalidInput("permits", other.permits, remedy)
    return msgspec.structs.replace(one, parts=tuple(dict.fromkeys(one.parts + other.parts)))


def without(parts: Sequence[Part], start: int, end: int) -> tuple[Part, ...]:
    """What is left of ranges when one is taken out. Nothing is left of what lies in it."""
    left: list[Part] = []
    for part in parts:
        for begin, stop in ((part.start, min(part.end, start)), (max(part.start, end), part.end)):
            if begin < stop:
                left.append(msgspec.structs.replace(part, start=begin, end=stop))
    return tuple(left)


# Where to look.


def place(claim: Claim) -> str:
    """How the member of a record begins, so that `windows` finds it: the path, or the smallest block around it all."""
    if claim.parts[0].path:
        return f"p{_stem(claim.parts[0].path)}//" if len(claim.parts) == 1 else SEVERAL
    start, last = min(part.start for part in claim.parts), max(part.end for part in claim.parts) - 1
    level = next(level for level in range(LEVELS + 1) if start >> BITS * level == last >> BITS * level)
    return f"r{level:02x}{start >> BITS * level:016x}/"


def windows(claim: Claim) -> list[tuple[str, str]]:
    """Where those lie who may be in the way of a claim. Everybody in whose way it may be lies there, too."""
    if claim.permits or not _is_narrow(claim):
        return []
    found: list[tuple[str, str]] = []
    for part in claim.parts:
        found += _path_windows(part.path) if part.path else _range_windows(part)
    return found


def _is_narrow(claim: Claim) -> bool:
    # A store takes 64 windows, and a claim of many parts needs many.
    return sum(part.path.count("/") + 3 if part.path else LEVELS + 1 for part in claim.parts) <= WINDOWS


def _range_windows(part: Part) -> list[tuple[str, str]]:
    ends = ((level, part.start >> BITS * level, (part.end - 1) >> BITS * level) for level in range(LEVELS + 1))
    return [(f"r{level:02x}{first:016x}", f"r{level:02x}{last + 1:016x}") for level, first, last in ends]


def _path_windows(path: str) -> list[tuple[str, str]]:
    # "0" is the character after "/", and no path holds two slashes in a row.
    stem = _stem(path)
    steps = stem.split("/")
    above = ("/".join(steps[:depth]) for depth in range(1, len(steps)))
    return [*((f"p{one}//", f"p{one}/0") for one in above), (f"p{stem}/", f"p{stem}0"), (SEVERAL, "s0")]


def _stem(path: str) -> str:
    return path.rstrip("/")


# For people.


def draw(everybody: Sequence[Present]) -> str:
    """A small map of the ranges of a resource: who holds or waits for what, one line each."""
    edges = sorted({edge for one in everybody for part in one.claim.parts for edge in (part.start, part.end)})
    if not edges:
        return ""
    steps = list(pairwise(edges))
    wide = max(MAP_WIDTH // max(len(steps), 1), 1)
    held = {one.member for one in holders(everybody)}
    lines = []
    for one in _by_birth(everybody):
        row = "".join(_mark(one, begin, stop, held=one.member in held) * wide for begin, stop in steps)
        lines.append(f"|{row}|")
    return "\n".join(lines)


def _mark(one: Present, begin: int, stop: int, *, held: bool) -> str:
    part = next((part for part in one.claim.parts if part.start <= begin and stop <= part.end), None)
    if part is None:
        return " "
    return ("r" if part.shared else "w") if held is False else ("R" if part.shared else "W")
