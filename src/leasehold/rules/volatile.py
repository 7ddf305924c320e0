"""Paths of fields that change from one try of a request to the next: a time, a trace id. Pure.

A path is a JSON Pointer (RFC 6901) in which the step `*` stands for every key or every index:
`/meta/trace_id`, `/items/*/seen_at`. In a key, `~` is written `~0`, `/` is `~1` and `*` is `~2`.
There is no "at any depth": it would leave out fields that nobody thought of.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Final, TypeAlias

from leasehold.errors import InvalidInput, shown
from leasehold.rules.names import check_text

PATHS_MAX = 32
ANY: Final = None
Steps: TypeAlias = tuple[str | None, ...]

_ESCAPES = {"~0": "~", "~1": "/", "~2": "*"}
_UNREADABLE = re.compile(r"~(?![012])")
_ESCAPED = re.compile(r"~[012]")
_SPECIAL = re.compile(r"[~/*]")


def volatile_paths(given: object) -> tuple[Steps, ...]:
    """The paths as steps, `ANY` for every key or index. InvalidInput if one cannot be read."""
    if given == ():
        return ()
    if isinstance(given, str | bytes) or not isinstance(given, Sequence) or len(given) > PATHS_MAX:
        raise InvalidInput("volatile", given, f"must be a list of at most {PATHS_MAX} paths such as '/meta/trace_id'")
    return _read(tuple(check_text(f"volatile[{place}]", one) for place, one in enumerate(given)))


# A service declares a few lists of paths, and asks with them at every step of every request: all three remember.
@functools.lru_cache(maxsize=1024)
def branches(paths: tuple[Steps, ...]) -> tuple[frozenset[str | None], tuple[Steps, ...] | None]:
    """The steps that paths name here, and what `below` says of every other: a list of many needs asking once."""
    return frozenset(path[0] for path in paths), _below([path for path in paths if path[0] is ANY])


@functools.lru_cache(maxsize=1024)
def below(paths: tuple[Steps, ...], step: str) -> tuple[Steps, ...] | None:
    """What is left of the paths one step further down; None if a path ends there, so that it is left out."""
    return _below([path for path in paths if path[0] is ANY or path[0] == step])


def escaped(step: str) -> str:
    """A key as a step of a path."""
    return _SPECIAL.sub(lambda found: f"~{'~/*'.index(found[0])}", step)


def _below(paths: list[Steps]) -> tuple[Steps, ...] | None:
    return None if any(len(path) == 1 for path in paths) else tuple(path[1:] for path in paths)


@functools.lru_cache(maxsize=256)
def _read(given: tuple[str, ...]) -> tuple[Steps, ...]:
    return tuple(_steps(f"volatile[{place}]", path) for place, path in enumerate(given))


def _steps(field: str, path: str) -> Steps:
    if not path.startswith("/"):
        raise InvalidInput(field, path, "must begin with a slash: '/meta/trace_id', '/items/*/seen_at'")
    if _UNREADABLE.search(path):
        raise InvalidInput(field, path, "a tilde in a key is written '~0', a slash '~1', an asterisk '~2'")
    return tuple(_step(field, path, step) for step in path[1:].split("/"))


def _step(field: str, path: str, step: str) -> str | None:
    if step == "*":
        return ANY
    if "*" in step:
        raise InvalidInput(
            field, path, f"the step {shown(step)} is no wildcard: '*' stands alone; in a key it is written '~2'"
        )
    return _ESCAPED.sub(lambda found: _ESCAPES[found[0]], step)
