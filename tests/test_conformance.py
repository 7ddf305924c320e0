"""Every store × both colours."""

from __future__ import annotations

from leasehold.testing.conformance import Conformance, arenas
from leasehold.testing.conformance.worlds import MemoryWorld, SqliteWorld

WORLDS = {"memory": MemoryWorld, "sqlite": SqliteWorld}

arena = arenas(**WORLDS)


class TestStores(Conformance):
    pass
