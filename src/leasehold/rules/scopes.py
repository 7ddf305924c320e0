"""What people lock, checked: the resource it belongs to, and which part of that is wanted. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from leasehold.errors import InvalidInput, shown
from leasehold.model import Inode, Mode, Name, Path, Permit, Resource, Scope, Shared
from leasehold.rules.arguments import whole
from leasehold.rules.names import check_text, scope_of
from leasehold.rules.overlap import END, Claim, Part

SHARED_KIND = "shared"
INODE_KIND = "inode"
PATH_KIND = "path"
SEMAPHORE_KIND = "semaphore"
INODE_MAX = 2**64 - 1
PERMITS_MAX = 10_000
PAIR = 2


class Meant(msgspec.Struct, frozen=True):
    """A family by its kind and text, what is wanted of it, and what people call that."""

    kind: str
    text: str
    claim: Claim
    shown: str


def any_scope(given: object) -> Scope:
    """The scope a caller means; text makes a `Name`."""
    return given if isinstance(given, Resource) else scope_of(given)


def several(given: Iterable[str | Scope | tuple[str | Scope, Mode]]) -> list[tuple[Scope, Mode]]:
    """The scopes of a list that holds at least one, each with its mode. A text is one scope, not a list of letters."""
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise InvalidInput("scopes", given, "must be a list of scopes; for a single one use hold()")
    found: list[tuple[Scope, Mode]] = []
    for place, one in enumerate(given):
        scope, mode = one if isinstance(one, tuple) and len(one) == PAIR else (one, "exclusive")
        named = scope if isinstance(scope, Resource) else scope_of(scope, f"scopes[{place}]")
        found.append((named, checked_mode(mode, named, f"scopes[{place}]")))
    if not found:
        raise InvalidInput("scopes", given, "must name at least one scope")
    return found


def resource(scope: Resource, mode: object) -> Meant:
    """What a scope means."""
    shared = checked_mode(mode, scope) == "shared"
    if isinstance(scope, Permit):
        name, permits = check_text("scope.name", scope.name), whole("scope.permits", scope.permits, 1, PERMITS_MAX)
        return Meant(SEMAPHORE_KIND, name, Claim(permits=permits), f"{SEMAPHORE_KIND}:{name}")
    if isinstance(scope, Shared):
        name = check_text("scope.name", scope.name)
        return Meant(SHARED_KIND, name, Claim((Part(shared=shared),)), f"{SHARED_KIND}:{name}")
    if isinstance(scope, Path):
        return _path(scope, shared=shared)
    inode = str(whole("scope.inode", scope.inode, 0, INODE_MAX))
    if isinstance(scope, Inode):
        return Meant(INODE_KIND, inode, Claim((Part(shared=shared),)), f"{INODE_KIND}:{inode}")
    start, end = checked_range(scope.start, scope.end, "scope.")
    shown = f"{INODE_KIND}:{inode}[{start},{'' if scope.end is None else end})"
    return Meant(INODE_KIND, inode, Claim((Part(start, end, shared=shared),)), shown)


def checked_mode(given: object, scope: Scope | None = None, field: str = "mode") -> Mode:
    """`exclusive` or `shared`; a plain name has no readers, and a permit neither."""
    if given == "exclusive":
        return "exclusive"
    if given != "shared":
        raise InvalidInput(field, given, "must be 'exclusive' or 'shared'")
    if isinstance(scope, Name):
        raise InvalidInput(field, given, f"a plain name is exclusive only; use leasehold.Shared({shown(scope.text)})")
    if isinstance(scope, Permit):
        raise InvalidInput(field, given, "a permit is one of several already; leave mode out")
    return "shared"


def checked_range(start: object, end: object, of: str = "") -> tuple[int, int]:
    """A half-open range that holds at least one byte. `of` stands before the names of what is wrong."""
    first = whole(f"{of}start", start, 0, END - 1)
    if end is None:
        return first, END
    last = whole(f"{of}end", end, 0, END)
    if last <= first:
        raise InvalidInput(f"{of}end", end, f"must be more than start, which is {first}: the range would be empty")
    return first, last


def clean_path(field: str, given: object) -> str:
    """An absolute path in the one way it is written: no dots, no double slash, none at the end but for the root's."""
    text = check_text(field, given)
    if not text.startswith("/"):
        raise InvalidInput(field, given, "must be absolute: begin with a slash")
    steps = [step for step in text.split("/") if step not in {"", "."}]
    if ".." in steps:
        raise InvalidInput(field, given, "must not hold '..': resolve it first, since only you know what it leads to")
    return "/" + "/".join(steps)


def _path(scope: Path, *, shared: bool) -> Meant:
    root, path = clean_path("scope.root", scope.root), clean_path("scope.path", scope.path)
    if path != root and not path.startswith(root.rstrip("/") + "/"):
        raise InvalidInput("scope.path", scope.path, f"must lie below its root, {root!r}")
    return Meant(PATH_KIND, root, Claim((Part(path=path, shared=shared),)), f"{PATH_KIND}:{path}")
