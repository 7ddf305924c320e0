"""A few connections, handed out one call at a time, the last used first. One source for both colours.

The pool opens and closes nothing itself: it keeps places and what is idle. In a
forked child it starts empty; the parent's connections are neither used nor closed.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from leasehold.errors import StoreUnavailable


class Closable(Protocol):
    """A connection, as far as a pool is concerned."""

    def close(self) -> None:
        """Let go of it, without waiting for anybody."""
        ...


class Gate(Protocol):
    """Where those wait for whom there is no place. Its limits are in real time."""

    waiting: int

    async def until(self, ready: Callable[[], bool], seconds: float) -> bool:
        """Try again at every knock; False if it did not come true for so long."""
        ...

    def knock(self) -> None:
        """Let one of those who wait try again."""
        ...


C = TypeVar("C", bound=Closable)


class Pool(Generic[C]):
    """At most `size` connections at once; `option` is what its user would raise it by."""

    def __init__(self, size: int, timeout: float, make_gate: Callable[[], Gate], option: str) -> None:
        self._size = size
        self._timeout = timeout
        self._make_gate = make_gate
        self._option = option
        self._left_behind: list[C | None] = []
        self._closed = False
        self._start()
        _POOLS.add(self)

    def _start(self) -> None:
        # A place without a connection is None. Popping and appending need no lock.
        self._places: list[C | None] = [None] * self._size
        self._gate = self._make_gate()

    async def take(self) -> C | None:
        """A place, with the connection used last, or None where one must be opened. Every take needs a give."""
        try:
            return self._places.pop()
        except IndexError:
            return await self._take_later()

    async def _take_later(self) -> C | None:
        taken: list[C | None] = []

        def ready() -> bool:
            if self._places:
                # Another thread may have been quicker.
                with contextlib.suppress(IndexError):
                    taken.append(self._places.pop())
            return bool(taken)

        if not await self._gate.until(ready, self._timeout):
            raise StoreUnavailable(
                f"all {self._size} connections were in use for {self._timeout:g} s; "
                f"make fewer calls at once, or raise {self._option} in the URL",
                applied=False,
            )
        return taken[0]

    def give(self, connection: C | None) -> None:
        """Give the place back, and the connection if it is fit for another call."""
        if connection is not None and self._closed:
            connection.close()
            connection = None
        if connection is None:
            # Below those that are open: they are used first.
            self._places.insert(0, None)
        else:
            self._places.append(connection)
        if self._gate.waiting:
            self._gate.knock()

    def clear(self) -> None:
        """Close what is idle: it leads to a server that is no longer the right one."""
        for _ in range(self._size):
            try:
                connection = self._places.pop()
            except IndexError:
                return
            if connection is not None:
                connection.close()
            self.give(None)

    def reopen(self) -> None:
        """Keep connections again after a close."""
        self._closed = False

    def close(self) -> None:
        """Close what is idle; what is in use is closed when it comes back."""
        self._closed = True
        self.clear()

    def after_fork_in_child(self) -> None:
        """Start empty. What is the parent's is kept where nobody uses it, so that nothing here closes it."""
        self._left_behind += self._places
        self._start()


class ThreadGate:
    """For threads."""

    def __init__(self) -> None:
        self.waiting: int = 0
        self._knock = threading.Condition(threading.Lock())

    async def until(self, ready: Callable[[], bool], seconds: float) -> bool:
        with self._knock:
            # Counted before the first try: whoever gives after it, knocks.
            self.waiting += 1
            try:
                return self._knock.wait_for(ready, seconds)
            finally:
                self.waiting -= 1

    def knock(self) -> None:
        with self._knock:
            self._knock.notify()


_POOLS: weakref.WeakSet[Pool[Any]] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for pool in list(_POOLS):
        pool.after_fork_in_child()


os.register_at_fork(after_in_child=_after_fork_in_child)
