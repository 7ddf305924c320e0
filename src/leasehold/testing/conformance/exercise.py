"""Which public verbs a law exercises. Claimed by the law, checked when it ran."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

Law = TypeVar("Law", bound=Callable[..., None])

CLAIM = "__exercises__"


def exercises(*verbs: str) -> Callable[[Law], Law]:
    """Mark a law with the verbs it is about: `Locks.acquire`, `Lease.release`, `Store.swap` …"""

    def mark(law: Law) -> Law:
        setattr(law, CLAIM, frozenset(verbs))
        return law

    return mark


def claims(law: object) -> frozenset[str]:
    """The verbs a law claims to exercise."""
    found: frozenset[str] = getattr(law, CLAIM, frozenset())
    return found
