"""Hearing of changes to a file, which tells nobody of them: one look at its log now and then, for all who wait.

A commit changes the log's times or its size. Only then are the rows read that
somebody waits for, all of them at once, and only those are told whose row has changed.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection

import apsw

from leasehold.wires.sqlite import SqliteWire

POLL_FIRST = 0.001
POLL_LAST = 0.025
POLL_GROWTH = 1.3
# File times are only as fine as a kernel tick: read the rows now and then all the same.
POLL_ANYWAY = 8


class SqliteLine:
    """A `Line`. `read` says what a row holds now, as a value that changes with it."""

    def __init__(self, wire: SqliteWire, read: Callable[[apsw.Connection, str], object]) -> None:
        self._wire = wire
        self._read = read
        self._rows: dict[str, object] = {}
        self._news: set[str] = set()
        self._stamp: object = None
        self._looks = 0
        self._pause = POLL_FIRST
        # Nothing is ever said here: whoever hears looks instead, after each `silence`.
        self._mute, self._other = socket.socketpair()

    @property
    def silence(self) -> float:
        return self._pause

    def connect(self) -> None:
        """Nothing to do: every look takes a connection of the wire's."""

    def fileno(self) -> int:
        return self._mute.fileno()

    def listen(self, channel: str) -> None:
        self._rows[channel] = self._wire.read_now(lambda db: self._read(db, channel))
        self._pause = POLL_FIRST

    def unlisten(self, channels: Collection[str]) -> None:
        for channel in channels:
            del self._rows[channel]

    def drain(self) -> dict[str, bytes]:
        news, self._news = self._news, set()
        return dict.fromkeys(news, b"")

    def ping(self) -> None:
        """Look."""
        self._looks += 1
        stamp = self._wire.stamp_now()
        if stamp == self._stamp and self._looks % POLL_ANYWAY:
            self._pause = min(self._pause * POLL_GROWTH, POLL_LAST)
            return
        rows = self._wire.read_now(lambda db: {channel: self._read(db, channel) for channel in self._rows})
        # Only now: a commit while we read must be seen by the next look.
        self._stamp = stamp
        self._news |= {channel for channel, row in rows.items() if row != self._rows[channel]}
        self._rows = rows
        if self._news:
            self._pause = POLL_FIRST

    def close(self) -> None:
        self._mute.close()
        self._other.close()
