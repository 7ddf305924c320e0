"""Records in this process: for tests, for one process, and as the model the other stores are held to.

Shared by every client of the process that names it, in both colours, so plain
code under one lock changes it and signals wake those who watch.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Sequence
from typing import NamedTuple

from leasehold.model import KEEP, Conflict, Guarantees, Keep, Key, Record, Renewal, Scan, Swap
from leasehold.rules.values import MEBIBYTE, check_value
from leasehold.rules.windows import lies_in, scanned
from leasehold.wires.clock import Clock
from leasehold.wires.colour import Colour, Signal

GUARANTEES: Guarantees = Guarantees(
    store="memory",
    clock="this process's boot clock",
    persistence="none: records end with the process",
    failover="none",
    token_source="a counter of the process",  # noqa: S106  no password
    wake_up="at once",
    ttl_min=0.1,
    ttl_max=86_400.0,
    ttl_step=0.0,
    batch=500,
    value_max=MEBIBYTE,
    bequeaths=True,
)


class Memory:
    """The records themselves, by family and member, and who watches them."""

    def __init__(self, clock: Clock) -> None:
        self.clock: Clock = clock
        self.lock: threading.Lock = threading.Lock()
        self.revision: int = 0
        self.families: dict[str, dict[str, _Row]] = {}
        self.watchers: dict[Key, set[Signal]] = {}
        _ALIVE.add(self)

    def live(self, key: Key) -> _Row | None:
        """The row under a key, unless its time is over."""
        family = self.families.get(key.family)
        row = family.get(key.member) if family else None
        return row if row is not None and (row.ends is None or self.clock.now() < row.ends) else None

    def put(self, key: Key, row: _Row | None) -> None:
        """Write or remove a row and wake its watchers. The caller holds the lock."""
        if row is not None:
            self.families.setdefault(key.family, {})[key.member] = row
        elif family := self.families.get(key.family):
            family.pop(key.member, None)
            if not family:
                del self.families[key.family]
        for signal in self.watchers.get(key, ()):
            signal.set()

    def next_revision(self) -> int:
        self.revision += 1
        return self.revision

    def record(self, key: Key, row: _Row) -> Record:
        left = None if row.ends is None else row.ends - self.clock.now()
        return Record(key, row.value, row.revision, row.born, row.ttl, left)

    def after_fork_in_child(self) -> None:
        """The child's copy goes its own way; whoever held the lock or watched stayed behind."""
        self.lock = threading.Lock()
        self.watchers = {}


class _Row(NamedTuple):
    value: bytes
    revision: int
    born: int
    ttl: float | None
    ends: float | None


class MemoryStore:
    """One client's view of a `Memory`."""

    guarantees: Guarantees = GUARANTEES

    def __init__(self, memory: Memory, colour: Colour) -> None:
        self._memory = memory
        self._colour = colour
        self._watching: set[Signal] = set()

    async def open(self) -> None:
        """Nothing to reach."""

    async def close(self) -> None:
        """Wake whoever of this client still watches; the records stay for the other clients."""
        for signal in list(self._watching):
            signal.set()

    async def load(self, key: Key) -> Record | None:
        memory = self._memory
        with memory.lock:
            row = memory.live(key)
            return None if row is None else memory.record(key, row)

    async def swap(
        self, key: Key, expect: Record | None, value: bytes | None, ttl: float | Keep | None
    ) -> Record | Conflict:
        return self._swap(Swap(key, expect, value, ttl))

    def _swap(self, ask: Swap) -> Record | Conflict:
        key, expect, value, ttl = ask.key, ask.expect, ask.value, ask.ttl
        check_value(value, self.guarantees.value_max)
        memory = self._memory
        with memory.lock:
            row = memory.live(key)
            if (row.revision if row else None) != (expect.revision if expect else None):
                return Conflict(memory.record(key, row) if row else None)
            heir = None
            if row and value is None and ask.heirs:
                if ask.tells is not None:
                    memory.put(ask.tells, None)
                heir = self._heir(ask)
            if heir is not None:
                row, value, ttl = None, heir.value, heir.ttl
            if value is None:
                memory.put(key, None)
                return expect or Conflict(None)
            revision = memory.next_revision()
            if ttl is KEEP:
                ttl, ends = (row.ttl, row.ends) if row else (None, None)
            else:
                ends = None if ttl is None else memory.clock.now() + ttl
            fresh = _Row(value, revision, row.born if row else revision, ttl, ends)
            memory.put(key, fresh)
            return memory.record(key, fresh) if heir is None else expect or Conflict(None)

    def _heir(self, ask: Swap) -> _Row | None:
        """Whose value comes in place of a row that is deleted. The caller holds the lock."""
        memory, family = self._memory, ask.key.family
        keys = [Key(family, member) for member in memory.families[family] if member.startswith(ask.heirs)]
        heirs = [row for key in keys if (row := memory.live(key))]
        return min(heirs, key=lambda row: row.born, default=None)

    async def touch(self, holds: Sequence[tuple[Record, float]]) -> list[tuple[Renewal, Record | None]]:
        memory = self._memory
        with memory.lock:
            return [self._touched(held, ttl) for held, ttl in holds]

    def _touched(self, held: Record, ttl: float) -> tuple[Renewal, Record | None]:
        memory = self._memory
        row = memory.live(held.key)
        if row is None:
            return Renewal.LOST, None
        if row.revision != held.revision:
            return Renewal.LOST, memory.record(held.key, row)
        longer = row._replace(ttl=ttl, ends=memory.clock.now() + ttl)
        memory.families[held.key.family][held.key.member] = longer
        return Renewal.RENEWED, memory.record(held.key, longer)

    async def watch(self, key: Key, seen: Record | None, until: float) -> None:
        memory = self._memory
        signal = self._colour.signal()
        with memory.lock:
            row = memory.live(key)
            if (row.revision if row else None) != (seen.revision if seen else None):
                return
            memory.watchers.setdefault(key, set()).add(signal)
            self._watching.add(signal)
            ends = until if row is None or row.ends is None else min(until, row.ends)
        try:
            await signal.wait(ends)
        finally:
            with memory.lock:
                self._watching.discard(signal)
                watching = memory.watchers[key]
                watching.discard(signal)
                if not watching:
                    del memory.watchers[key]

    async def scan(self, family: str, windows: Sequence[tuple[str, str]] = ()) -> list[Record]:
        memory = self._memory
        with memory.lock:
            keys = [Key(family, member) for member in memory.families.get(family, ()) if lies_in(member, windows)]
            found = [memory.record(key, row) for key in keys if (row := memory.live(key))]
        return scanned(family, found, self.guarantees.scan_max)

    async def together(self, asks: Sequence[Swap | Scan]) -> list[Record | Conflict | list[Record]]:
        return [self._swap(ask) if isinstance(ask, Swap) else await self.scan(*ask) for ask in asks]

    async def page(self, root: str, after: Key | None, limit: int) -> list[Record]:
        memory = self._memory
        with memory.lock:
            keys = sorted(key for key in self._keys() if key.family.startswith(root) and (not after or key > after))
            return [memory.record(key, row) for key in keys if (row := memory.live(key))][:limit]

    async def collect(self, limit: int) -> int:
        memory = self._memory
        with memory.lock:
            dead = [key for key in self._keys() if memory.live(key) is None][:limit]
            for key in dead:
                memory.put(key, None)
        return len(dead)

    def _keys(self) -> list[Key]:
        return [Key(family, member) for family, members in self._memory.families.items() for member in members]


_ALIVE: weakref.WeakSet[Memory] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for memory in _ALIVE:
        memory.after_fork_in_child()


os.register_at_fork(after_in_child=_after_fork_in_child)
