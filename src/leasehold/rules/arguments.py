"""Arguments that are neither text nor time: switches, whole numbers, words, functions.

Python would take almost anything for these, and notice late or never: `force="no"` is true.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from leasehold.errors import InvalidInput


def flag(field: str, given: object) -> bool:
    """True or False itself; nothing that merely counts as one."""
    if not isinstance(given, bool):
        raise InvalidInput(field, given, f"must be True or False, not {type(given).__name__}")
    return given


def whole(field: str, given: object, least: int, most: int | None = None) -> int:
    """A whole number, neither too small nor too large; never a bool, which is an int by accident."""
    if isinstance(given, bool) or not isinstance(given, int):
        raise InvalidInput(field, given, f"must be a whole number, not {type(given).__name__}")
    if given < least or (most is not None and given > most):
        raise InvalidInput(field, given, f"must be at least {least}" if most is None else f"must be {least} to {most}")
    return given


def choice(field: str, given: object, *words: str) -> None:
    """One of a few words."""
    if not isinstance(given, str) or given not in words:
        told = " or ".join((", ".join(map(repr, words[:-1])), repr(words[-1])))
        raise InvalidInput(field, given, f"must be {told}")


def function(field: str, given: object) -> None:
    """Something that can be called."""
    if not callable(given):
        raise InvalidInput(field, given, f"must be a function, not {type(given).__name__}")


def functions(field: str, given: object) -> list[Any]:
    """Several things that can be called."""
    found = list(given) if isinstance(given, Iterable) else [None]
    if not all(map(callable, found)):
        raise InvalidInput(field, given, "must be a list of functions")
    return found


def policy(field: str, given: object, *, fair: bool) -> None:
    """How to ask again, or None. Whoever asks again stands in no line, so it cannot be fair."""
    if given is None:
        return
    if not callable(getattr(given, "delay", None)) or not hasattr(given, "attempts"):
        raise InvalidInput(field, given, "must be a leasehold.Backoff, or have its attempts and delay()")
    if fair:
        raise InvalidInput(field, given, "cannot go with fair=True: who asks again stands in no line; leave one out")
