"""Places in the middle of a charge where a worker can be told to die or to stop: to see what comes of it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

# Nothing yet · the row is pending · the gateway has charged · that is noted · it is booked, and not answered yet.
POINTS = ("begun", "pending", "charged", "noted", "booked")


class Points:
    """The first worker that comes to one of `deadly` dies there, as by kill -9; at one of `sleepy` it stops.

    A file in `folder` says who was first. `kill -CONT` wakes one that sleeps.
    """

    def __init__(self, folder: Path, deadly: frozenset[str], sleepy: frozenset[str]) -> None:
        self._folder = folder
        self._deadly = deadly
        self._sleepy = sleepy

    def reach(self, name: str) -> None:
        """Go on, or not."""
        if name in self._deadly and self._is_first(f"died-at-{name}"):
            os.kill(os.getpid(), signal.SIGKILL)
        if name in self._sleepy and self._is_first(f"stopped-at-{name}"):
            os.kill(os.getpid(), signal.SIGSTOP)

    def _is_first(self, name: str) -> bool:
        try:
            with (self._folder / name).open("x") as file:
                file.write(str(os.getpid()))
        except FileExistsError:
            return False
        return True
