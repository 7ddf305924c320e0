"""Who may read the keyboard: the foreground of the terminal on stdin, lent to the child's group and taken back.

A group in the background is stopped when it reads the terminal, and Ctrl-C does
not reach it; so the child's own group must be the foreground one. Nothing
happens where stdin is no terminal, or this process is in its background.
"""

from __future__ import annotations

import contextlib
import os
import signal

STDIN = 0


class Terminal:
    """The terminal on stdin, as far as it is ours to lend."""

    def __init__(self) -> None:
        self.lent: bool = False
        self._stopping = signal.getsignal(signal.SIGTTOU)

    def prepare(self) -> None:
        """Before a child is made: decide whether it gets the terminal."""
        self.lent = _foreground() == os.getpgrp()
        if self.lent:
            # From the background we must still be able to warn, and to take the terminal back.
            signal.signal(signal.SIGTTOU, signal.SIG_IGN)

    def seize(self) -> None:
        """In the child, before the command starts: it must never read too early and be stopped for it."""
        if self.lent:
            _set_foreground(os.getpgrp())
            signal.signal(signal.SIGTTOU, self._stopping)

    def lend(self, group: int) -> None:
        """Let the group read the keyboard (again)."""
        self.prepare()
        if self.lent:
            _set_foreground(group)

    def take_back(self) -> None:
        """Be the foreground again."""
        if self.lent:
            _set_foreground(os.getpgrp())
            signal.signal(signal.SIGTTOU, self._stopping)
            self.lent = False


def _foreground() -> int | None:
    try:
        return os.tcgetpgrp(STDIN)
    except OSError:  # no terminal, or not the one that controls us
        return None


def _set_foreground(group: int) -> None:
    with contextlib.suppress(OSError):  # the terminal was hung up: nobody reads it any more
        os.tcsetpgrp(STDIN, group)
