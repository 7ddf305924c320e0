"""Records in one SQLite file, shared by the processes of one machine.

Revisions come from one counter row that changes in the same transaction as the
record, so no crash, deletion or clean-up can lower them. Opening the file raises
the counter to the wall clock's microseconds, so a new file, or an old one put
back, starts above what was given out before unless that clock was set back.

An end is a reading of the writer's boot clock. Readers of the same clock compare
it; after a restart of the machine it has passed; any other clock's is unreadable,
so the record is observed, unchanged, for one whole ttl of our own clock before it
counts as over, and the first observation is kept in the file for processes that
do not live that long.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from leasehold.errors import StoreDamaged, one_line
from leasehold.model import KEEP, Conflict, Guarantees, Keep, Key, Record, Renewal, Scan, Swap
from leasehold.rules.clocks import Relation, read_domain, relation, write_domain
from leasehold.rules.values import MEBIBYTE, check_value
from leasehold.rules.windows import merged, scanned
from leasehold.stores.watching import watch_by_ear
from leasehold.wires.colour import Colour
from leasehold.wires.ears import Ears
from leasehold.wires.sqlite import SqliteWire
from leasehold.wires.sqlite_line import SqliteLine

if TYPE_CHECKING:
    import apsw

SCHEMA = 2
APPLICATION_ID = 0x4C65_6173  # "Leas": tells our file from any other SQLite file
# The year 2255: a wall clock that is absurdly ahead must not use up the range of tokens.
COUNTER_START_MAX = 2**53
COLLECT_EVERY = 256
COLLECT_SOME = 32
# An end more than this many ttls away cannot come from this clock as it runs now.
PLAUSIBLE = 1.1

_PERSISTENCE = {
    "full": "every grant is on disk before it is told (synchronous=full)",
    "normal": "survives a crash of processes; after a power cut the last changes can be gone, "
    "and tokens can repeat if the wall clock was also set back (synchronous=normal)",
}

_NEXT = "UPDATE state SET revision = revision + 1 RETURNING revision"
_RAISE = "UPDATE state SET revision = max(revision, ?)"
_PUT = (
    "INSERT OR REPLACE INTO records_2 (family, member, value, revision, born, ttl, ends, clock) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)
_REWRITE = "UPDATE records_2 SET value = ?, revision = ? WHERE family = ? AND member = ?"
_TOUCH = "UPDATE records_2 SET ttl = ?, ends = ?, clock = ? WHERE family = ? AND member = ?"
_DELETE = "DELETE FROM records_2 WHERE family = ? AND member = ?"
_COLUMNS = "records_2.value, revision, born, ttl, ends, clock, family, member"
_ROWS = f"SELECT {_COLUMNS} FROM records_2"  # noqa: S608  our own words
_ONE = f"{_ROWS} WHERE family = ? AND member = ?"
# Where there is none it is the counter's: a record that came and went between two looks has moved it.
_REVISION = (
    "SELECT ifnull((SELECT revision FROM records_2 WHERE family = ? AND member = ?), -(SELECT revision FROM state))"
)
_SCAN = f"{_ROWS} WHERE family = ?"
# One statement, which sees one state of the file. CROSS JOIN: the windows come first, and the primary key finds each.
_PART = (
    f"SELECT {_COLUMNS} FROM json_each(?) AS given CROSS JOIN records_2 "  # noqa: S608  our own words
    "WHERE family = ? AND member >= json_extract(given.value, '$[0]') AND member < json_extract(given.value, '$[1]')"
)
_PAGE = f"{_ROWS} WHERE (family, member) > (?, ?) AND family < ? ORDER BY family, member"
_AFTER = f"{_ROWS} WHERE (family, member) > (?, ?) ORDER BY family, member LIMIT ?"
_FIRST_SEEN = "SELECT revision, ends, at FROM observations WHERE family = ? AND member = ? AND clock = ?"
_OBSERVE = "INSERT OR REPLACE INTO observations VALUES (?, ?, ?, ?, ?, ?)"


# Read now: a program may give up its rights, or its place in the file system, before it opens a store.
_STEPS = [
    (Path(__file__).with_name("sql") / f"sqlite_{step:03}.sql").read_text(encoding="utf-8")
    for step in range(1, SCHEMA + 1)
]


class _Row(NamedTuple):
    """A record as it stands in the file. Lasting ones have neither ttl nor end."""

    value: bytes
    revision: int
    born: int
    ttl: float | None
    ends: float | None
    clock: str


class SqliteStore:
    """The five verbs on one file."""

    def __init__(self, wire: SqliteWire, colour: Colour, synchronous: str) -> None:
        self.guarantees: Guarantees = Guarantees(
            store="sqlite",
            clock="the machine's boot clock; other clocks' leases are observed for one ttl",
            persistence=_PERSISTENCE[synchronous],
            failover="none: one file on one machine",
            token_source="a counter row in the file, raised to the wall clock when the file is opened",  # noqa: S106  no password
            wake_up="file change and a poll of 1 to 25 ms",
            ttl_min=0.1,
            ttl_max=86_400.0,
            ttl_step=0.0,
            batch=500,
            value_max=MEBIBYTE,
        )
        self._wire = wire
        self._ears = Ears(lambda: SqliteLine(wire, _revision), colour)
        self._clock = colour.clock
        self._mine = write_domain(self._clock.domain)
        self._relations = {self._mine: Relation.SAME}

    async def open(self) -> None:
        await self._wire.open(_is_ready, _prepare)

    async def close(self) -> None:
        await self._ears.close()
        await self._wire.close()

    async def load(self, key: Key) -> Record | None:
        found = await self._select(_ONE, key, 1)
        return found[0] if found else None

    async def swap(
        self, key: Key, expect: Record | None, value: bytes | None, ttl: float | Keep | None
    ) -> Record | Conflict:
        check_value(value, self.guarantees.value_max)
        return await self._wire.write(lambda db: self._swap(db, Swap(key, expect, value, ttl)))

    async def touch(self, holds: Sequence[tuple[Record, float]]) -> list[tuple[Renewal, Record | None]]:
        def work(db: apsw.Connection) -> list[tuple[Renewal, Record | None]]:
            return [self._touched(db, held, ttl) for held, ttl in holds]

        return await self._wire.write(work)

    async def watch(self, key: Key, seen: Record | None, until: float) -> None:
        channel = "\0".join(key)
        await watch_by_ear(self._ears, channel, lambda: self.load(key), seen=seen, until=until, clock=self._clock)

    async def scan(self, family: str, windows: Sequence[tuple[str, str]] = ()) -> list[Record]:
        most = self.guarantees.scan_max
        return scanned(family, await self._select(*_scan(family, windows), most + 1), most)

    async def together(self, asks: Sequence[Swap | Scan]) -> list[Record | Conflict | list[Record]]:
        """In one transaction."""
        most = self.guarantees.scan_max
        for ask in asks:
            if isinstance(ask, Swap):
                check_value(ask.value, self.guarantees.value_max)

        def work(db: apsw.Connection) -> list[Record | Conflict | list[Record]]:
            return [
                self._swap(db, ask)
                if isinstance(ask, Swap)
                else scanned(ask.family, self._look(db, *_scan(*ask), most + 1, observe=True) or [], most)
                for ask in asks
            ]

        return await self._wire.write(work)

    async def page(self, root: str, after: Key | None, limit: int) -> list[Record]:
        # Every root ends with a slash, and "0" is the character after it.
        return await self._select(_PAGE, (*(after or Key(root, "")), root[:-1] + "0"), limit)

    async def collect(self, limit: int) -> int:
        def look(db: apsw.Connection) -> list[Key]:
            now = self._clock.now()
            known = [(key, self._left(db, key, row, now)) for key, row in _rows(db, _ROWS, ())]
            over = [key for key, left in known if left is not None and left <= 0]
            unseen = [key for key, left in known if left is None]
            # In any order: those that are renewed, and so seen anew each time, must not hide the others.
            return over[:limit] + random.sample(unseen, min(limit, len(unseen)))

        # Looking takes long in a large file and disturbs nobody; only what was found is locked and looked at again.
        found = await self._wire.read(look)
        return await self._wire.write(lambda db: sum(self._dropped(db, key) for key in found))

    async def raise_revision(self, least: int) -> int:
        def work(db: apsw.Connection) -> int:
            reached = int(db.execute("SELECT revision FROM state").get)
            db.execute(_RAISE, (least,))
            return reached

        return await self._wire.write(work)

    async def _select(self, statement: str, bindings: tuple[str, ...], limit: int) -> list[Record]:
        """The live records a statement finds. Only the first sight of another clock's record needs a write."""
        found = await self._wire.read(lambda db: self._look(db, statement, bindings, limit, observe=False))
        if found is None:
            found = await self._wire.write(lambda db: self._look(db, statement, bindings, limit, observe=True))
        return found or []

    # What happens inside a transaction.

    def _look(
        self, db: apsw.Connection, statement: str, bindings: tuple[str, ...], limit: int, *, observe: bool
    ) -> list[Record] | None:
        """The live records; None if another clock's record is seen for the first time and must not be written down."""
        # Before the read: a renewal that lands after it must not look like an end.
        now = self._clock.now()
        found: list[Record] = []
        for key, row in _rows(db, statement, bindings):
            left = self._left(db, key, row, now)
            if left is None and not observe:
                return None
            record = _record(key, row, self._observed(db, key, row, now) if left is None else left)
            if record is not None:
                found.append(record)
            if len(found) == limit:
                break
        return found

    def _swap(self, db: apsw.Connection, ask: Swap) -> Record | Conflict:
        key, expect, value, ttl, *_ = ask
        row = _fetch(db, key)
        found = self._live(db, key, row)
        if (found.revision if found else None) != (expect.revision if expect else None):
            return Conflict(found)
        if row is not None and (value is None or found is None):
            # Also what is over before it is replaced: with it goes what others observed of it.
            db.execute(_DELETE, key)
        return (found or Conflict(None)) if value is None else self._put(db, key, found, value, ttl)

    def _live(self, db: apsw.Connection, key: Key, row: _Row | None) -> Record | None:
        """The record, if it lives."""
        if row is None:
            return None
        now = self._clock.now()
        left = self._left(db, key, row, now)
        return _record(key, row, self._observed(db, key, row, now) if left is None else left)

    def _put(
        self, db: apsw.Connection, key: Key, found: Record | None, value: bytes, ttl: float | Keep | None
    ) -> Record:
        revision = int(db.execute(_NEXT).get)
        born = found.born if found else revision
        if ttl is KEEP and found is not None:
            db.execute(_REWRITE, (value, revision, *key))
            return Record(key, value, revision, born, found.ttl, found.left)
        length = None if ttl is KEEP else ttl
        ends = None if length is None else self._clock.now() + length
        db.execute(_PUT, (*key, value, revision, born, length, ends, self._mine))
        if revision % COLLECT_EVERY == 0:
            self._drop_some(db, key)
        return Record(key, value, revision, born, length, length)

    def _touched(self, db: apsw.Connection, held: Record, ttl: float) -> tuple[Renewal, Record | None]:
        found = self._live(db, held.key, _fetch(db, held.key))
        if found is None or found.revision != held.revision:
            return Renewal.LOST, found
        db.execute(_TOUCH, (ttl, self._clock.now() + ttl, self._mine, *held.key))
        return Renewal.RENEWED, Record(held.key, found.value, found.revision, found.born, ttl, ttl)

    def _drop_some(self, db: apsw.Connection, key: Key) -> None:
        """Look at a few records after this one, and go on from the first: in time every one gets its turn."""
        near = list(_rows(db, _AFTER, (*key, COLLECT_SOME)))
        near += _rows(db, _AFTER, ("", "", COLLECT_SOME - len(near)))
        for other, row in near:
            left = self._left(db, other, row, self._clock.now())
            if left is not None and left <= 0:
                db.execute(_DELETE, other)

    def _dropped(self, db: apsw.Connection, key: Key) -> bool:
        row = _fetch(db, key)
        over = row is not None and self._live(db, key, row) is None
        if over:
            db.execute(_DELETE, key)
        return over

    # Whether a record lives, by this clock.

    def _left(self, db: apsw.Connection, key: Key, row: _Row, now: float) -> float | None:
        """The seconds a record has left: by its own end where that can be read, else by what was observed.

        Infinite for a lasting record. None for one whose end cannot be read and that
        was not observed yet: its time begins with `_observed`.
        """
        if row.ends is None or row.ttl is None:
            return math.inf
        related = self._relation(row.clock)
        if related is Relation.ENDED:
            return 0.0
        # Further away than its ttl: a machine put back to a snapshot, while its disk went on.
        if related is Relation.SAME and row.ends - now <= row.ttl * PLAUSIBLE:
            return row.ends - now
        first = db.execute(_FIRST_SEEN, (*key, self._mine)).fetchone()
        return first[2] + row.ttl - now if first and first[:2] == (row.revision, row.ends) else None

    def _observed(self, db: apsw.Connection, key: Key, row: _Row, now: float) -> float:
        """Begin to observe a record, in the file so that others of this clock can go on; the seconds it has left."""
        db.execute(_OBSERVE, (*key, self._mine, row.revision, row.ends, now))
        return row.ttl or 0.0

    def _relation(self, clock: str) -> Relation:
        known = self._relations.get(clock)
        if known is None:
            known = self._relations[clock] = relation(self._clock.domain, read_domain(clock))
        return known


def _scan(family: str, windows: Sequence[tuple[str, str]]) -> tuple[str, tuple[str, ...]]:
    """The statement that finds the records of a scan, in any order, and what it takes."""
    return (_PART, (msgspec.json.encode(merged(windows)).decode(), family)) if windows else (_SCAN, (family,))


def _record(key: Key, row: _Row, left: float) -> Record | None:
    if left <= 0:
        return None
    return Record(key, row.value, row.revision, row.born, row.ttl, None if row.ttl is None else left)


def _fetch(db: apsw.Connection, key: Key) -> _Row | None:
    row = db.execute(_ONE, key).fetchone()
    return _checked(row[:6]) if row else None


def _rows(db: apsw.Connection, statement: str, bindings: tuple[str | int, ...]) -> Iterator[tuple[Key, _Row]]:
    return ((msgspec.convert(row[6:], Key), _checked(row[:6])) for row in db.execute(statement, bindings))


def _checked(columns: tuple[object, ...]) -> _Row:
    """The row, unless a damaged page made something else of it: then a ValueError."""
    row = msgspec.convert(columns, _Row)
    if (row.ttl is None) is not (row.ends is None):
        raise ValueError("a length without an end, or an end without a length")
    return row


# The file itself.


def _version(db: apsw.Connection) -> int:
    """The schema of a file that is ours, 0 for an empty one. Changes nothing, and refuses everything else."""
    if db.execute("SELECT count(*) FROM sqlite_schema").get == 0:
        return 0
    if db.pragma("application_id") != APPLICATION_ID:
        raise StoreDamaged(
            f"{one_line(db.filename)} is a SQLite file of another program; give Leasehold a file of its own"
        )
    version = db.execute("SELECT schema FROM state").get
    if not isinstance(version, int) or version < 1:
        raise StoreDamaged(f"{one_line(db.filename)} has lost its counter; move it away and start a new one")
    if version > SCHEMA:
        raise StoreDamaged(
            f"{one_line(db.filename)} has schema {version}, this Leasehold knows up to {SCHEMA}; "
            "update Leasehold on this host"
        )
    return version


def _is_ready(db: apsw.Connection) -> bool:
    return _version(db) == SCHEMA


def _prepare(db: apsw.Connection) -> None:
    """Create or migrate the tables and raise the counter. All or nothing, by one process at a time."""
    version = _version(db)
    for step in _STEPS[version:]:
        db.execute(step)
    if version < SCHEMA:
        db.pragma("application_id", APPLICATION_ID)
        db.execute("UPDATE state SET schema = ?", (SCHEMA,))
    # Fewer than a million grants a second were made since the epoch: this is above them all.
    start = min(time.time_ns() // 1000, COUNTER_START_MAX)
    db.execute(_RAISE, (start,))


def _revision(db: apsw.Connection, channel: str) -> object:
    """What changes with every change of a record."""
    return db.execute(_REVISION, channel.split("\0")).fetchone()
