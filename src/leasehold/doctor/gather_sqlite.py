"""What can be seen of a SQLite file: through a connection of its wire, and from the outside."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import apsw

from leasehold.doctor.facts import Contents, SqliteFacts
from leasehold.doctor.gather_common import time_trips, try_verbs
from leasehold.rules.clocks import write_domain
from leasehold.stores.sqlite import SCHEMA, SqliteStore
from leasehold.wires.colour import Colour
from leasehold.wires.sqlite import file_system_of

SYNCHRONOUS = ("off", "normal", "full", "extra")
DAMAGE_SHOWN = 5

# Ends that other clocks wrote are not compared: whoever observes them knows when they are over.
_COUNT = "SELECT count(*), count(*) FILTER (WHERE clock = ? AND ends <= ?) FROM records_2"


async def gather(store: SqliteStore, colour: Colour) -> SqliteFacts:
    """Look at the file, and read all of it once."""
    wire = store._wire  # noqa: SLF001  the doctor looks behind the verbs, over the store's own wire
    trips = await time_trips(store)
    refusals = await try_verbs(store, colour.clock)
    clock = (write_domain(colour.clock.domain), colour.clock.now())

    def look(db: apsw.Connection) -> SqliteFacts:
        size = _pragma(db, "page_size")
        ((records, expired),) = db.execute(_COUNT, clock)
        damage = [str(row[0]) for row in db.execute(f"PRAGMA quick_check({DAMAGE_SHOWN})")]
        return SqliteFacts(
            trips=trips,
            contents=Contents(records, expired),
            refusals=refusals,
            version=apsw.sqlitelibversion(),
            # Another one would have been migrated or refused at opening.
            schema_version=SCHEMA,
            path=wire.path,
            mode=os.stat(wire.path).st_mode,
            file_system=file_system_of(os.path.dirname(wire.path), _mounts()),
            journal_mode=str(db.pragma("journal_mode")),
            synchronous=SYNCHRONOUS[_pragma(db, "synchronous")],
            damage=() if damage == ["ok"] else tuple(damage),
            file_bytes=_pragma(db, "page_count") * size,
            free_bytes=_pragma(db, "freelist_count") * size,
            log_bytes=_size(wire.path + "-wal"),
        )

    return await wire.read(look)


def _pragma(db: apsw.Connection, name: str) -> int:
    value = db.pragma(name)
    return value if isinstance(value, int) else 0


def _mounts() -> str:
    with contextlib.suppress(OSError):  # no such table outside Linux: then the file system stays unknown
        return Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    return ""


def _size(path: str) -> int:
    with contextlib.suppress(FileNotFoundError):  # the log goes when the last process closes the file
        return os.stat(path).st_size
    return 0
