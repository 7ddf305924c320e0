"""The worlds of Leasehold's own stores. Models for the world of yours."""

from __future__ import annotations

from pathlib import Path

from leasehold.stores.base import Store
from leasehold.stores.memory import Memory, MemoryStore
from leasehold.stores.open import open_store
from leasehold.testing.clock import VirtualClock
from leasehold.wires.colour import Colour


class MemoryWorld:
    """Records in this process, in virtual time. No other process can reach them."""

    url = None
    ttl: float = 10.0

    def __init__(self, folder: Path) -> None:  # noqa: ARG002  it needs none
        self.clock: VirtualClock = VirtualClock()
        self._memory = Memory(self.clock)

    def store(self, colour: Colour) -> Store:
        return MemoryStore(self._memory, colour)

    def elapse(self, seconds: float) -> None:
        self.clock.advance(seconds)

    def close(self) -> None:
        """Nothing to remove."""


class SqliteWorld:
    """A SQLite file, in virtual time: its expiry is computed by its clients' clock.

    Processes that use `url` live in real time; laws never mix the two.
    """

    ttl: float = 10.0

    def __init__(self, folder: Path) -> None:
        self.clock: VirtualClock = VirtualClock()
        self.url: str = f"sqlite://{folder / 'leases.db'}"

    def store(self, colour: Colour) -> Store:
        return open_store(self.url, timeout=5.0, colour=colour)

    def elapse(self, seconds: float) -> None:
        self.clock.advance(seconds)

    def close(self) -> None:
        """The folder belongs to the caller."""
