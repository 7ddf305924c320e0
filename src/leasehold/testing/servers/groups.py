"""Servers that belong together: started as one, gone as one."""

from __future__ import annotations

import abc
from collections.abc import Sequence

from leasehold.testing.servers.process import TRIES, Home, PortTaken, Server, ServerFailed, Started


class Group(Started):
    """Starts its members together and takes them all away at the end. Each member has the verbs of a server."""

    def __init__(self) -> None:
        self._home: Home | None = None

    def start(self) -> None:
        """Start all, and return when they work together."""
        if self._home is not None:
            raise ServerFailed(f"this {type(self).__name__} runs already")
        for tries_left in reversed(range(TRIES)):
            self._home = Home()
            try:
                self._form(self._home)
            except PortTaken:
                self.close()
                if not tries_left:
                    raise
            else:
                return

    def close(self) -> None:
        """End all in whatever state they are, and remove everything they had."""
        for member in self._members():
            member.close()
        if self._home is not None:
            self._home.close()
            self._home = None

    @abc.abstractmethod
    def _form(self, home: Home) -> None:
        """Make the members, start them, and return when they work together."""

    @abc.abstractmethod
    def _members(self) -> Sequence[Server]:
        """All that were made."""
