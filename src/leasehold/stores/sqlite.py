"""Records in one SQLite file, shared by the processes of one machine.

Revisions come from one counter row that changes in the same transaction as the
record, so no crash, deletion or clean-up can lower them. An end is a reading of
the writer's boot clock. Readers of the same clock compare it; after a restart
of the machine it has passed; any other clock's is unreadable, so the record is
observed, unchanged, for one whole ttl of our own clock before it counts as
over, and the first observation is kept in the file for processes that do not
live that long.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from leasehold.errors import StoreDamaged
from leasehold.model import KEEP, Conflict, Guarantees, Keep, Key, Record, Renewal
from leasehold.rules.clocks import ClockDomain, Relation, relation
from leasehold.wires.colour import Colour
from leasehold.wires.sqlite import SqliteWire

if TYPE_CHECKING:
    import apsw

SCHEMA = 2
APPLICATION_ID = 0x4C65_6173  # "Leas": tells our file from any other SQLite file
COLLECT_EVERY = 256
COLLECT_SOME = 32
POLL_FIRST = 0.001
POLL_LAST = 0.025
POLL_GROWTH = 1.3
# File times are only as fine as a kernel tick: look for real now and then.
POLL_ANYWAY = 8

_PERSISTENCE = {
    "full": "every grant is on disk before it is told (synchronous=full)",
    "normal": "survives a crash of processes, not of the machine: after a power cut tokens can repeat",
}

_ROW = "SELECT value, revision, born, ttl, ends, clock FROM records WHERE family = ? AND member = ?"
_NEXT = "UPDATE state SET revision = revision + 1 WHERE schema = ? RETURNING revision"
_PUT = (
    "INSERT OR REPLACE INTO records (family, member, value, revision, born, ttl, ends, clock) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)
_DELETE = "DELETE FROM records WHERE family = ? AND member = ?"
_TOUCH = "UPDATE records SET ttl = ?, ends = ?, clock = ? WHERE family = ? AND member = ?"
_ROWS = "SELECT value, revision, born, ttl, ends, clock, family, member FROM records"
_SCAN = f"{_ROWS} WHERE family = ? ORDER BY born"
_LIST = f"{_ROWS} WHERE (family, member) > (?, ?) AND family < ? ORDER BY family, member"
_OVER = f"{_ROWS} WHERE clock = ? AND ends <= ? LIMIT ?"
_UNREADABLE = f"{_ROWS} WHERE (clock < ? OR clock > ?) AND ends IS NOT NULL LIMIT ?"
_OBSERVED = "SELECT revision, ends, at FROM observations WHERE family = ? AND member = ? AND clock = ?"
_OBSERVE = "INSERT OR REPLACE INTO observations VALUES (?, ?, ?, ?, ?, ?)"
_FORGET = (
    "DELETE FROM observations WHERE NOT EXISTS (SELECT 1 FROM records WHERE records.family = observations.family "
    "AND records.member = observations.member AND records.revision = observations.revision)"
)


class _Row(NamedTuple):
    value: bytes
    revision: int
    born: int
    ttl: float | None
    ends: float | None
    clock: int


class SqliteStore:
    """The five verbs on one file."""

    def __init__(self, wire: SqliteWire, colour: Colour, synchronous: str) -> None:
        self.guarantees = Guarantees(
            store="sqlite",
            clock="the machine's boot clock; other clocks' leases are observed for one ttl",
            persistence=_PERSISTENCE[synchronous],
            failover="none: one file on one machine",
            token_source="a counter row in the file",  # noqa: S106  no password
            wake_up="file change and a poll of 1 to 25 ms",
            ttl_min=0.1,
            ttl_max=86_400.0,
            ttl_step=0.0,
            batch=500,
        )
        self._wire = wire
        self._colour = colour
        self._clock = colour.clock
        self._me = 0
        self._relations: dict[int, Relation] = {}

    async def open(self) -> None:
        await self._wire.open(self._prepare)

    async def close(self) -> None:
        self._wire.close()

    async def load(self, key: Key) -> Record | None:
        row = await self._wire.read(lambda db: _fetch(db, key))
        if row is None or self._readable(row):
            return self._record(key, row, self._clock.now()) if row else None
        return await self._wire.write(lambda db: self._live(db, key))

    async def swap(
        self, key: Key, expect: Record | None, value: bytes | None, ttl: float | Keep | None
    ) -> Record | Conflict:
        def work(db: apsw.Connection) -> Record | Conflict:
            found = self._live(db, key)
            if (found.revision if found else None) != (expect.revision if expect else None):
                return Conflict(found)
            if value is None:
                db.execute(_DELETE, key)
                return found or Conflict(None)
            return self._put(db, key, found, value, ttl)

        return await self._wire.write(work)

    async def touch(self, holds: Sequence[tuple[Record, float]]) -> list[tuple[Renewal, Record | None]]:
        def work(db: apsw.Connection) -> list[tuple[Renewal, Record | None]]:
            return [self._touched(db, held, ttl) for held, ttl in holds]

        return await self._wire.write(work)

    async def watch(self, key: Key, seen: Record | None, until: float) -> None:
        pause, polls = POLL_FIRST, 0
        stamp = self._wire.stamp()
        found = await self.load(key)
        while (found.revision if found else None) == (seen.revision if seen else None):
            now = self._clock.now()
            over = now + found.left if found and found.left is not None else until
            if now >= min(until, over):
                return
            await self._colour.sleep(min(pause, until - now, max(over - now, POLL_FIRST)))
            pause, polls = min(pause * POLL_GROWTH, POLL_LAST), polls + 1
            if self._clock.now() < over and self._wire.stamp() == stamp and polls % POLL_ANYWAY:
                continue
            stamp = self._wire.stamp()
            found = await self.load(key)

    async def scan(self, family: str) -> list[Record]:
        return await self._select(_SCAN, (family,))

    async def page(self, root: str, after: Key | None, limit: int) -> list[Record]:
        # Every root ends with a slash, and "0" is the character after it.
        return await self._select(_LIST, (*(after or Key(root, "")), root[:-1] + "0"), limit)

    async def collect(self, limit: int) -> int:
        return await self._wire.write(lambda db: self._collect(db, limit))

    # What happens inside a transaction.

    def _live(self, db: apsw.Connection, key: Key) -> Record | None:
        row = _fetch(db, key)
        return self._seen(db, key, row) if row else None

    def _seen(self, db: apsw.Connection, key: Key, row: _Row) -> Record | None:
        """The record, if it lives: by its own end where that can be read, else by observation."""
        now = self._clock.now()
        if self._readable(row) or self._learned(db, row):
            return self._record(key, row, now)
        first = db.execute(_OBSERVED, (*key, self._me)).get
        if first is None or first[:2] != (row.revision, row.ends):
            db.execute(_OBSERVE, (*key, self._me, row.revision, row.ends, now))
            first = (row.revision, row.ends, now)
        left = first[2] + row.ttl - now
        return Record(key, row.value, row.revision, row.born, row.ttl, left) if left > 0 else None

    def _put(
        self, db: apsw.Connection, key: Key, found: Record | None, value: bytes, ttl: float | Keep | None
    ) -> Record:
        revision = _next_revision(db)
        born = found.born if found else revision
        if ttl is KEEP and found is not None:
            db.execute(
                "UPDATE records SET value = ?, revision = ? WHERE family = ? AND member = ?", (value, revision, *key)
            )
            return Record(key, value, revision, born, found.ttl, found.left)
        length = None if ttl is KEEP else ttl
        ends = None if length is None else self._clock.now() + length
        db.execute(_PUT, (*key, value, revision, born, length, ends, self._me))
        if revision % COLLECT_EVERY == 0:
            self._collect(db, COLLECT_SOME)
        return Record(key, value, revision, born, length, length)

    def _touched(self, db: apsw.Connection, held: Record, ttl: float) -> tuple[Renewal, Record | None]:
        found = self._live(db, held.key)
        if found is None or found.revision != held.revision:
            return Renewal.LOST, found
        db.execute(_TOUCH, (ttl, self._clock.now() + ttl, self._me, *held.key))
        return Renewal.RENEWED, Record(held.key, found.value, found.revision, found.born, ttl, ttl)

    def _collect(self, db: apsw.Connection, limit: int) -> int:
        rows = db.execute(_OVER, (self._me, self._clock.now(), limit)).fetchall()
        rows += db.execute(_UNREADABLE, (self._me, self._me, limit)).fetchall()
        gone = [key for key, row in _parsed(rows) if self._seen(db, key, row) is None][:limit]
        db.executemany(_DELETE, gone)
        db.execute(_FORGET)
        return len(gone)

    # Clocks.

    def _readable(self, row: _Row) -> bool:
        return row.ends is None or self._relations.get(row.clock, Relation.FOREIGN) is not Relation.FOREIGN

    def _learned(self, db: apsw.Connection, row: _Row) -> bool:
        """Look up a clock met for the first time; True if it can be read after all."""
        if row.clock not in self._relations:
            known = db.execute("SELECT machine, boot, shifted FROM clocks WHERE id = ?", (row.clock,)).fetchone()
            theirs = ClockDomain(known[0], known[1], bool(known[2])) if known else None
            self._relations[row.clock] = relation(self._clock.domain, theirs) if theirs else Relation.FOREIGN
        return self._readable(row)

    def _record(self, key: Key, row: _Row, now: float) -> Record | None:
        if row.ends is None:
            return Record(key, row.value, row.revision, row.born, row.ttl, None)
        if row.ends <= now or self._relations[row.clock] is Relation.ENDED:
            return None
        return Record(key, row.value, row.revision, row.born, row.ttl, row.ends - now)

    async def _select(self, statement: str, bindings: tuple[object, ...], limit: int | None = None) -> list[Record]:
        def rows(db: apsw.Connection) -> Iterator[tuple[Key, _Row]]:
            return _parsed(db.execute(statement, bindings))

        def plain(db: apsw.Connection) -> list[Record] | None:
            now, found = self._clock.now(), []
            for key, row in rows(db):
                if not self._readable(row):
                    return None
                if (record := self._record(key, row, now)) is not None:
                    found.append(record)
                    if len(found) == limit:
                        break
            return found

        def observing(db: apsw.Connection) -> list[Record]:
            seen = [self._seen(db, key, row) for key, row in list(rows(db))]
            return [record for record in seen if record is not None][:limit]

        # Only the first sight of another clock's record has anything to write down.
        found = await self._wire.read(plain)
        return found if found is not None else await self._wire.write(observing)

    # The file itself.

    def _prepare(self, db: apsw.Connection) -> None:
        """Create or migrate the tables, and make this clock known. All or nothing, by one process at a time."""
        version = _version(db)
        if version > SCHEMA:
            raise StoreDamaged(
                f"the file has schema {version}, this Leasehold knows up to {SCHEMA}; update Leasehold on this host"
            )
        for step in range(version + 1, SCHEMA + 1):
            db.execute((Path(__file__).with_name("sql") / f"sqlite_{step:03}.sql").read_text(encoding="utf-8"))
        if version < SCHEMA:
            db.pragma("application_id", APPLICATION_ID)
            db.execute("UPDATE state SET schema = ?", (SCHEMA,))
        mine = self._clock.domain
        known = (mine.machine, mine.boot, int(mine.shifted))
        db.execute("INSERT OR IGNORE INTO clocks (machine, boot, shifted) VALUES (?, ?, ?)", known)
        self._me = db.execute("SELECT id FROM clocks WHERE machine = ? AND boot = ? AND shifted = ?", known).get
        self._relations[self._me] = Relation.SAME


def _fetch(db: apsw.Connection, key: Key) -> _Row | None:
    row = db.execute(_ROW, key).fetchone()
    return _Row(*row) if row else None


def _parsed(rows: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Key, _Row]]:
    return ((Key(*row[6:]), _Row(*row[:6])) for row in rows)


def _next_revision(db: apsw.Connection) -> int:
    row = db.execute(_NEXT, (SCHEMA,)).fetchone()
    if row is None:
        raise StoreDamaged("the file's schema changed while this process had it open; restart with the newer Leasehold")
    return int(row[0])


def _version(db: apsw.Connection) -> int:
    """0 for an empty file, else the schema version of a file that is ours."""
    if db.execute("SELECT count(*) FROM sqlite_schema").get == 0:
        return 0
    if db.pragma("application_id") != APPLICATION_ID:
        raise StoreDamaged("this SQLite file belongs to another program; give Leasehold a file of its own")
    return int(db.execute("SELECT schema FROM state").get)
