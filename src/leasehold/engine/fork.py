"""Which life of the process this is. A fork starts a new one, and nothing held in the old one is held in it."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Survivor(Protocol):
    """Something that must be put in order in a forked child, before anybody uses it there."""

    def after_fork_in_child(self) -> None:
        """Forget what stayed behind in the parent."""
        ...


class _Process:
    __slots__ = ("life",)

    def __init__(self) -> None:
        self.life = 0


_process = _Process()
_survivors: weakref.WeakSet[Survivor] = weakref.WeakSet()


def life() -> int:
    """A number that differs between a process and its forked children."""
    return _process.life


def survive(thing: Survivor) -> None:
    """Have `after_fork_in_child` called on it in every forked child, for as long as it is alive."""
    _survivors.add(thing)


def _after_fork_in_child() -> None:
    _process.life += 1
    for thing in list(_survivors):
        thing.after_fork_in_child()


os.register_at_fork(after_in_child=_after_fork_in_child)
