"""The values that travel between the layers. Frozen; they carry no behaviour that reads a clock or a store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Final, Literal, NamedTuple

import msgspec


class Name(msgspec.Struct, frozen=True):
    """A scope that is just a name. Always exclusive."""

    text: str

    def __str__(self) -> str:
        return self.text


class Shared(msgspec.Struct, frozen=True):
    """A name that readers share and a writer has to itself: `mode="shared"` or `mode="exclusive"`."""

    name: str


class Inode(msgspec.Struct, frozen=True):
    """A whole file or directory, by its number. In the way of every range of it."""

    inode: int


class ByteRange(msgspec.Struct, frozen=True):
    """The bytes of a file from `start` up to, and without, `end`; None is the end of the file, wherever that is."""

    inode: int
    start: int
    end: int | None


class Path(msgspec.Struct, frozen=True):
    """A path and everything below it. All paths of one `root` are looked at together, those of different ones never."""

    path: str
    root: str = "/"


class Permit(msgspec.Struct, frozen=True):
    """One of the permits of a semaphore; see `leasehold.Semaphore`."""

    name: str
    permits: int


Resource = Shared | Inode | ByteRange | Path | Permit
Scope = Name | Resource
Mode = Literal["exclusive", "shared"]


class Key(NamedTuple):
    """Where a record lives. A family is what a store orders and scans together."""

    family: str
    member: str


class Keep(Enum):
    """In place of a ttl: leave the end of the record where it is."""

    KEEP = "keep"


KEEP: Final = Keep.KEEP


class Unrenewed(float):
    """The ttl of a record that nobody will renew: it counts from the very write, also where records share an expiry."""


class Record(msgspec.Struct, frozen=True):
    """A small versioned value that may expire, as a store last showed it.

    `revision` names this state of the record and proves ownership; `born` is the
    revision of the write that created it, so tokens and order come from it. `ttl`
    None means lasting. `left` is what the store says remains, for people and
    timers; no promise rests on it. `tag` belongs to the store that wrote it. `since`,
    where records share an expiry, is the reading of our own clock from which the ttl
    counts: the shared one was last renewed then, and not when the record was written.
    """

    key: Key
    value: bytes
    revision: int
    born: int
    ttl: float | None
    left: float | None
    tag: object = None
    since: float | None = None

    def __repr__(self) -> str:
        # Not the value: it holds the secret of whoever wrote it.
        return f"<Record {self.key} revision={self.revision} born={self.born} ttl={self.ttl} left={self.left}>"


class Conflict(msgspec.Struct, frozen=True):
    """A swap that found something else: the live record, or None where there is none."""

    record: Record | None


class Swap(NamedTuple):
    """One swap among several that are asked for together; see `Store.together`.

    `heirs` is how the members of heirs begin, where the store bequeaths: what is deleted is followed, in the same step,
    by a new record with the value and the ttl of the heir that was born first. `tells` is another record of the family,
    which is deleted along and is no heir: whoever watches it is told of the new record.
    """

    key: Key
    expect: Record | None
    value: bytes | None
    ttl: float | Keep | None
    heirs: str = ""
    tells: Key | None = None


class Scan(NamedTuple):
    """One scan among several things that are asked for together. `windows`: see `Store.scan`."""

    family: str
    windows: Sequence[tuple[str, str]] = ()


class Renewal(Enum):
    """What a renewal came to. Only RENEWED extends trust, and only RENEWED is true."""

    RENEWED = "renewed"
    HELD = "held"
    LOST = "lost"
    UNKNOWN = "unknown"

    def __bool__(self) -> bool:
        return self is Renewal.RENEWED


class Guarantees(msgspec.Struct, frozen=True):
    """What a store declares of itself: the limits it sets and the assumptions it rests on.

    `shared_expiry` is true where many records live on one server-side session, so
    that an orphan lives as long as the client renews anything. `newcomers` says what
    short-lived processes must know, where a dead holder's record must be observed before it ends.
    `left_is_bound` is true where a record is known to end within `Record.left`, but not when it was written.
    `ticket_ttl` is how long somebody who died in line delays the next: longer where every renewal is a request.
    `bequeaths`: `Swap.heirs` counts.
    `scan_max` is how many records one scan answers; where there are more, it raises and answers none.
    `unrenewed_max` is the longest ttl of a record that nobody renews, where that is more than a lease may have.
    """

    store: str
    clock: str
    persistence: str
    failover: str
    token_source: str
    wake_up: str
    ttl_min: float
    ttl_max: float
    ttl_step: float
    batch: int
    value_max: int
    shared_expiry: bool = False
    newcomers: str = ""
    left_is_bound: bool = False
    unrenewed_max: float = 0.0
    ticket_ttl: float = 5.0
    bequeaths: bool = False
    scan_max: int = 20_000


class Waiter(msgspec.Struct, frozen=True):
    """Somebody who stands in line for a lease. `since` is its own wall clock and decides nothing."""

    holder: str
    since: float
    metadata: Mapping[str, str]


class LeaseInfo(msgspec.Struct, frozen=True):
    """A lease as the store shows it to people. `since` is the holder's wall clock and decides nothing.

    `waiters` stand in line for it, the next one first; only `inspect` looks for them. `reserved`: its last holder
    kept it for the first of them, who has not taken it yet.
    """

    scope: str
    holder: str
    token: int
    ttl: float | None
    expires_in: float | None
    since: float
    metadata: Mapping[str, str]
    revoked: str | None
    reserved: bool = False
    waiters: tuple[Waiter, ...] = ()
    mode: Mode = "exclusive"


class ResourceInfo(msgspec.Struct, frozen=True):
    """Who holds and who waits for parts of a resource, the first who came first. `map` draws the ranges of a file.

    One line each: W who has it alone, R who shares it, w and r who wait for that.
    """

    scope: str
    holders: tuple[LeaseInfo, ...]
    waiters: tuple[Waiter, ...]
    map: str
