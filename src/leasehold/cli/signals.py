"""One bell for everything `run` waits for: signals, the end of children, a lost lease.

Signals come through Python's wake-up descriptor as the bytes of a pipe, so the
main thread waits in one place and nothing is missed between two looks. Until
the lease is granted there is nobody to pass a signal on to: then it ends the
waiting by an exception instead.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Iterator
from types import FrameType

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
LOSS = b"\0"


class Stopped(BaseException):
    """A signal that came before there was a child. Not an Exception: nothing on the way may swallow it."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Bell:
    """Rings for signals and losses. Made in the main thread; there is one a process."""

    def __init__(self) -> None:
        self._out, self._in = os.pipe()
        self._stops = False
        self._caught: list[signal.Signals] = []
        os.set_blocking(self._out, False)
        os.set_blocking(self._in, False)
        signal.set_wakeup_fd(self._in, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, self._heard)
        for number in FORWARDED:
            # What was ignored when we started (nohup, a job in the background) stays ignored, for the child too.
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._heard)
                self._caught.append(number)

    @contextlib.contextmanager
    def stopping(self) -> Iterator[None]:
        """Let signals end the block by Stopped. A second one then ends the program: the store may not answer."""
        self._stops = True
        try:
            for number in self.wait(0):
                raise Stopped(number)  # it came before the block
            yield
        finally:
            self._stops = False

    def ring(self) -> None:
        """A loss, from any thread."""
        os.write(self._in, LOSS)

    def wait(self, seconds: float) -> list[int]:
        """The signals to forward that came, at once or within the time; empty when something else rang."""
        select.select([self._out], [], [], max(seconds, 0.0))
        with contextlib.suppress(BlockingIOError):  # nothing rang: the time is over
            return [number for number in os.read(self._out, 4096) if number in FORWARDED]
        return []

    def _heard(self, number: int, _frame: FrameType | None) -> None:
        if self._stops and number in FORWARDED:
            self._stops = False
            for again in self._caught:
                signal.signal(again, signal.SIG_DFL)
            raise Stopped(number)
