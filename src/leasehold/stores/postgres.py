"""Records in PostgreSQL, each verb one call of a function in our schema (`sql/postgres_*.sql`).

A write first takes its family's turn (an advisory lock of its transaction, which
orders and never *is* the lock), then looks, then draws its revision from a
sequence: revisions become visible in the order in which they were drawn. The
server's `clock_timestamp()` decides what has ended, nobody else's clock does.

Assumed: the server's clock is not stepped ahead, and the server keeps what it
committed. Whoever is connected to a primary that lost its last commits in a
failover holds leases the new one does not know.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from leasehold.errors import PermissionDenied, StoreDamaged, StoreError, StoreUnavailable, one_line
from leasehold.model import KEEP, Conflict, Guarantees, Keep, Key, Record, Renewal, Scan, Swap
from leasehold.rules.backoff import Backoff
from leasehold.rules.values import MEBIBYTE, check_value
from leasehold.rules.windows import merged, scanned
from leasehold.stores.watching import is_still, next_look, watch_by_ear
from leasehold.wires.chance import chance
from leasehold.wires.colour import Colour
from leasehold.wires.ears import Ears
from leasehold.wires.postgres import PostgresLine, PostgresWire
from leasehold.wires.postgres_link import (
    BINARY,
    TEXT,
    Ask,
    Column,
    Facts,
    Link,
    Row,
    Statement,
    fields,
    real,
    text,
    whole,
)
from leasehold.wires.postgres_url import SCHEMA as DEFAULT_SCHEMA

SCHEMA = 2
POLL = Backoff(cap=1.0)
# How many characters of a family an index can hold, whatever they are.
HEAD = 600
TRUE = b"\1"

_HEARING = "LISTEN/NOTIFY on a connection of its own"
_LOOKING = "polling every 0.1 to 1 s: there is a pooler of transactions in front, through which LISTEN is not heard"

# Read now: a program may give up its rights, or its place in the file system, before it opens a store.
_BEFORE, *_STEPS = [
    (Path(__file__).with_name("sql") / f"postgres_{step:03}.sql").read_text(encoding="utf-8")
    for step in range(SCHEMA + 1)
]

# From the catalogue, which everybody may read.
_LOOK = Statement(
    b"",
    b"""SELECT EXISTS (SELECT FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace
            WHERE n.nspname = $1::text AND p.proname = 'hello'),
        EXISTS (SELECT FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
            WHERE n.nspname = $1::text AND c.relname IN ('leases', 'state', 'revisions'))""",
    (TEXT,),
)

# Under the lock that every draw conflicts with, as in `hello`.
_RAISING = """DO $$ BEGIN
    LOCK TABLE @schema@.leases IN EXCLUSIVE MODE;
    IF (SELECT s.last_value FROM @schema@.revisions AS s) < @least@ THEN
        PERFORM setval('@schema@.revisions', @least@);
    END IF;
END $$"""


class PostgresStore:
    """The five verbs on one schema of one database."""

    def __init__(self, wire: PostgresWire, colour: Colour) -> None:
        self.guarantees: Guarantees = Guarantees(
            store="postgres",
            clock="the server's wall clock: a lease ends early if it is stepped ahead",
            persistence="what the server says, known once it is open",
            failover="as the server's replication: a standby promoted without the last commits forgets their leases",
            token_source="a sequence, raised to the server's clock whenever a client connects",  # noqa: S106  no password
            wake_up=_HEARING,
            ttl_min=0.1,
            ttl_max=86_400.0,
            ttl_step=0.0,
            batch=500,
            value_max=MEBIBYTE,
        )
        self._wire = wire
        self._colour = colour
        self._clock = colour.clock
        self._schema = wire.config.schema
        self._where = one_line(wire.config.place)
        self._ears: Ears | None = None
        self._commit: bytes | None = None
        self._say = _Statements(self._schema)

    async def open(self) -> None:
        facts = await self._wire.open(self._welcome, self._say.often)
        commit = self._wire.config.commit or _at_least_on(facts.synchronous_commit)
        self._commit = commit.encode() if commit else None
        hears = not facts.pooled or await self._wire.can_hear()
        config = self._wire.config
        self._ears = Ears(lambda: PostgresLine(config), self._colour) if hears else None
        self.guarantees = msgspec.structs.replace(
            self.guarantees,
            persistence=_persistence(commit or facts.synchronous_commit, facts),
            wake_up=_HEARING if hears else _LOOKING,
        )

    async def close(self) -> None:
        if self._ears is not None:
            await self._ears.close()
        await self._wire.close()

    async def load(self, key: Key) -> Record | None:
        ((row,),) = await self._wire.ask(self._say.load, [_head(key.family), _digest(key)])
        return _record(key, *fields(row))

    async def swap(
        self, key: Key, expect: Record | None, value: bytes | None, ttl: float | Keep | None
    ) -> Record | Conflict:
        ask = Swap(key, expect, value, ttl)
        ((row,),) = await self._wire.ask(*self._swap(ask))
        return _swapped(ask, row)

    def _swap(self, ask: Swap) -> Ask:
        key, expect, value, ttl, *_ = ask
        check_value(value, self.guarantees.value_max)
        length = None if ttl is None or ttl is KEEP else repr(ttl).encode()
        if expect is None:
            if value is None:
                return self._say.load, [_head(key.family), _digest(key)]
            place = [_head(key.family), _rest(key.family), key.member.encode(), _digest(key)]
            return self._say.put, [*place, value, length, self._commit]
        params: list[bytes | None] = [_head(key.family), _digest(key), str(expect.revision).encode()]
        if value is None:
            return self._say.remove, [*params, self._commit]
        return self._say.rewrite, [*params, value, length, b"t" if ttl is KEEP else b"f", self._commit]

    async def touch(self, holds: Sequence[tuple[Record, float]]) -> list[tuple[Renewal, Record | None]]:
        params = [
            _array(_head(held.key.family).decode() for held, _ in holds),
            _array(f"\\x{_digest(held.key).hex()}" for held, _ in holds),
            _array(str(held.revision) for held, _ in holds),
            _array(repr(ttl) for _, ttl in holds),
            self._commit,
        ]
        answers: list[tuple[Renewal, Record | None]] = [(Renewal.UNKNOWN, None)] * len(holds)
        for nth, renewed, *found in await self._wire.ask(self._say.touch, params):
            place = whole(nth) - 1
            held, ttl = holds[place]
            if renewed == TRUE:
                answers[place] = (Renewal.RENEWED, msgspec.structs.replace(held, ttl=ttl, left=ttl))
            else:
                answers[place] = (Renewal.LOST, _record(held.key, *found))
        return answers

    async def watch(self, key: Key, seen: Record | None, until: float) -> None:
        if self._ears is not None:
            channel = channel_of(self._schema, key)
            try:
                await watch_by_ear(
                    self._ears, channel, lambda: self.load(key), seen=seen, until=until, clock=self._clock
                )
            except StoreUnavailable:
                # No connection left to listen on must not stop those who could look: if they cannot, they say so.
                await self._look_again_and_again(key, seen, until)
        else:
            await self._look_again_and_again(key, seen, until)

    async def scan(self, family: str, windows: Sequence[tuple[str, str]] = ()) -> list[Record]:
        ask = Scan(family, windows)
        return self._scanned(ask, await self._wire.ask(*self._scan(ask)))

    async def together(self, asks: Sequence[Swap | Scan]) -> list[Record | Conflict | list[Record]]:
        """One flight, and one transaction."""
        said = [self._swap(ask) if isinstance(ask, Swap) else self._scan(ask) for ask in asks]
        answers = await self._wire.ask_all(said)
        return [
            _swapped(ask, rows[0][0]) if isinstance(ask, Swap) else self._scanned(ask, rows)
            for ask, rows in zip(asks, answers, strict=True)
        ]

    def _scan(self, ask: Scan) -> Ask:
        firsts = ends = None
        if ask.windows:
            windows = merged(ask.windows)
            firsts, ends = (_array(window[edge] for window in windows) for edge in (0, 1))
        # One more than is answered shows that there are more.
        most = str(self.guarantees.scan_max + 1).encode()
        return self._say.scan, [_head(ask.family), _rest(ask.family), firsts, ends, most]

    def _scanned(self, ask: Scan, rows: Sequence[Row]) -> list[Record]:
        return scanned(ask.family, _records(rows), self.guarantees.scan_max)

    async def page(self, root: str, after: Key | None, limit: int) -> list[Record]:
        # Every root ends with a slash, and "0" is the character after it.
        (family, member), end = after or Key(root, ""), root[:-1] + "0"
        params = [_head(family), _rest(family), member.encode(), _head(end), _rest(end), str(limit).encode()]
        return _records(await self._wire.ask(self._say.page, params))

    async def collect(self, limit: int) -> int:
        ((gone,),) = await self._wire.ask(self._say.collect, [str(limit).encode()])
        return whole(gone)

    async def raise_revision(self, least: int) -> int:
        """As the owner of the schema: no function does it, since whoever may call those could use up the range."""
        try:
            ((reached,),) = await self._wire.ask(self._say.reached, [])
            await self._wire.ask(self._say.raising(least), [])
        except PermissionDenied as error:
            remedy = f"raise the tokens as the role that owns schema {self._schema}"
            raise PermissionDenied(f"{error}; {remedy}") from error
        return whole(reached)

    async def _look_again_and_again(self, key: Key, seen: Record | None, until: float) -> None:
        looks = 0
        while is_still(found := await self.load(key), seen):
            now = self._clock.now()
            left = next_look(found, until, now) - now
            if left <= 0:
                return
            await self._colour.sleep(min(POLL.delay(looks, chance()), left))
            looks += 1

    # The schema.

    def _welcome(self, link: Link, until: float) -> None:
        """Every new connection first says hello, which raises the sequence; one that finds no schema installs it."""
        version = self._version(link, until)
        while version < SCHEMA:
            try:
                link.run(installation(self._schema, version), until)
            except StoreError as error:
                # Unless somebody else was quicker.
                if self._version(link, until) == version:
                    raise self._not_installed(version, error) from error
            version = self._version(link, until)
        if version > SCHEMA:
            raise StoreDamaged(
                f"schema {self._schema} in {self._where} has version {version}, this Leasehold knows up to {SCHEMA}; "
                "update Leasehold on this host"
            )

    def _version(self, link: Link, until: float) -> int:
        """The version of our schema, 0 if there is none; refuses what was left of one."""
        ((hello, tables),) = link.ask(_LOOK, [self._schema.encode()], until)
        if hello == TRUE:
            ((version,),) = link.ask(self._say.hello, [], until)
            return whole(version)
        if tables == TRUE:
            raise StoreDamaged(
                f"schema {self._schema} in {self._where} has tables of Leasehold's names and not its functions: it is "
                "somebody else's, or damaged; name another with schema= in the URL, or drop it"
            )
        return 0

    def _not_installed(self, version: int, error: StoreError) -> StoreError:
        if not isinstance(error, PermissionDenied):
            return error
        words = f" {self._schema} {version}" if version else ""
        return PermissionDenied(
            f"{self._where} has no schema {self._schema} of version {SCHEMA}, and this role may not create it "
            f"({error}). Run what `python -m leasehold.stores.postgres{words}` prints as a role that may, then let it "
            f"GRANT USAGE ON SCHEMA {self._schema}, and EXECUTE ON ALL FUNCTIONS IN SCHEMA {self._schema}, TO this role"
        )


def _swapped(ask: Swap, row: Column) -> Record | Conflict:
    """What became of a swap, read from the one row that answers it."""
    key, expect, value, ttl, *_ = ask
    found = fields(row)
    if expect is None and value is None:
        return Conflict(_record(key, *found))
    done, *state = found
    if expect is not None and value is None:
        return expect if done == TRUE else Conflict(_record(key, *state))
    if done != TRUE:
        return Conflict(_record(key, *state))
    if expect is None:
        length, revision = None if ttl is KEEP else ttl, whole(state[1])
        return Record(key, value or b"", revision, revision, length, length)
    return _record(key, value, *state[1:]) or Conflict(None)


def installation(schema: str, version: int = 0) -> str:
    """The script that brings a schema from a version to ours. For one transaction; whoever runs it owns the result."""
    script = "".join([_BEFORE, *_STEPS[version:]])
    return script.replace("@schema@", schema).replace("@version@", str(version))


class _Statements:
    """The calls of our functions in one schema, and those among them that are made often."""

    def __init__(self, schema: str) -> None:
        def call(verb: str, *types: str, rows: bool = False) -> Statement:
            params = ", ".join(f"${nth}::{kind}" for nth, kind in enumerate(types, 1))
            # One answer comes as one composite value: the server need not make a table of it.
            sql = f"SELECT {'* FROM ' if rows else ''}{schema}.{verb}({params})"  # noqa: S608  the name was checked
            formats = tuple(BINARY if kind == "bytea" else TEXT for kind in types)
            return Statement(f"leasehold_{verb}".encode(), sql.encode(), formats)

        lasts = "double precision"
        self.hello: Statement = call("hello")
        self.load: Statement = call("load", "text", "bytea")
        self.put: Statement = call("put", "text", "text", "text", "bytea", "bytea", lasts, "text")
        self.rewrite: Statement = call("rewrite", "text", "bytea", "bigint", "bytea", lasts, "boolean", "text")
        self.remove: Statement = call("remove", "text", "bytea", "bigint", "text")
        self.touch: Statement = call("touch", "text[]", "bytea[]", "bigint[]", f"{lasts}[]", "text", rows=True)
        self.scan: Statement = call("scan", "text", "text", "text[]", "text[]", "integer", rows=True)
        self.page: Statement = call("page", "text", "text", "text", "text", "text", "integer", rows=True)
        self.collect: Statement = call("collect", "integer")
        self.reached: Statement = Statement(b"", f"SELECT last_value FROM {schema}.revisions".encode(), ())  # noqa: S608  as above
        self._raising = _RAISING.replace("@schema@", schema)
        self.often: tuple[Statement, ...] = (self.load, self.put, self.remove, self.touch, self.scan)

    def raising(self, least: int) -> Statement:
        """What brings the sequence to a number."""
        return Statement(b"", self._raising.replace("@least@", str(least)).encode(), ())


# Values on their way.


def _head(family: str) -> bytes:
    return family[:HEAD].encode()


def _rest(family: str) -> bytes:
    return family[HEAD:].encode()


def _digest(key: Key) -> bytes:
    """What tells keys apart. No family holds a NUL."""
    return hashlib.sha256("\0".join(key).encode()).digest()


def channel_of(schema: str, key: Key) -> str:
    """The channel on which changes of a key are told; `channel` in the schema makes the same."""
    digest = _digest(key)
    return f"leasehold_{digest[:1].hex()}_{hashlib.sha256(schema.encode() + digest).hexdigest()[:40]}"


def _record(key: Key, *state: Column) -> Record | None:
    value, revision, born, ttl, left = state
    if revision is None:
        return None
    return Record(key, value or b"", whole(revision), whole(born), real(ttl), real(left))


def _records(rows: Sequence[Row]) -> list[Record]:
    keyed = ((Key(text(family), text(member)), state) for family, member, *state in rows)
    found = (_record(key, *state) for key, state in keyed)
    return [record for record in found if record is not None]


def _array(items: Iterable[str]) -> bytes:
    """An array as PostgreSQL writes it; quoted, as a family may hold anything."""
    quoted = (item.replace("\\", "\\\\").replace('"', '\\"') for item in items)
    return ("{" + ",".join(f'"{item}"' for item in quoted) + "}").encode()


# What is promised.


def _at_least_on(setting: str) -> str | None:
    """A lease that was told must survive a crash, unless the URL says otherwise."""
    return "on" if setting == "off" else None


def _persistence(commit: str, facts: Facts) -> str:
    if facts.fsync != "on":
        return "none in a crash of the machine: the server runs with fsync=off"
    if commit == "off":
        return "a crash of the server can forget the last changes (synchronous_commit=off)"
    return f"every grant is on disk before it is told (synchronous_commit={commit})"


if __name__ == "__main__":
    import sys

    _schema, _version = (*sys.argv[1:], *(DEFAULT_SCHEMA, "0")[len(sys.argv) - 1 :])
    print(f"BEGIN;\n{installation(_schema, int(_version))}COMMIT;")  # noqa: T201  for psql
