"""Where a record lies in ZooKeeper, and what its node says. Pure.

A record is a node `records/BUCKET/FAMILY,MEMBER`; beside it lies its witness, a node
with a name that no other life of the key ever has. A node begins with one line:

    leasehold1 KIND MILLISECONDS BORN WITNESS

KIND is `session` (it lives in a session of that timeout), `end` (it ends so long
after the node was made) or `lasting`. BORN is 0 where the node's own creation counts.
"""

from __future__ import annotations

from enum import Enum
from urllib.parse import quote, unquote
from zlib import crc32

import msgspec

from leasehold.model import Key

ROOT = "/leasehold"
RECORDS = f"{ROOT}/records"
WITNESSES = f"{ROOT}/witnesses"
# Written to when it must be known what time it is there.
CLOCK = f"{ROOT}/clock"
# Lists of children travel in one piece of a mebibyte at most.
BUCKETS = 16

_MARK = "leasehold1"
# Readable where ZooKeeper allows it; a slash, a comma and whatever cannot be printed are written as %XX.
_PLAIN = " !$&'()*+:;=@"


class Kind(Enum):
    """What ends a record."""

    SESSION = "session"
    END = "end"
    LASTING = "lasting"


class Header(msgspec.Struct, frozen=True):
    """What stands before a value."""

    kind: Kind
    ttl: float | None
    born: int
    witness: str


def layout() -> list[str]:
    """The nodes that are there before any record, parents first."""
    buckets = [f"{place}/{bucket:02x}" for place in (RECORDS, WITNESSES) for bucket in range(BUCKETS)]
    return [ROOT, CLOCK, RECORDS, WITNESSES, *buckets]


def record_path(key: Key) -> str:
    return f"{bucket_path(key.family)}/{prefix(key.family)}{quote(key.member, safe=_PLAIN)}"


def witness_path(key: Key, witness: str) -> str:
    return f"{WITNESSES}/{_bucket(key.family):02x}/{witness}"


def bucket_path(family: str) -> str:
    """Where the records of a family are."""
    return f"{RECORDS}/{_bucket(family):02x}"


def bucket_paths() -> list[str]:
    return [f"{RECORDS}/{bucket:02x}" for bucket in range(BUCKETS)]


def prefix(family: str) -> str:
    """What the names of all members of a family begin with, and no others."""
    return f"{quote(family, safe=_PLAIN)},"


def key_of(name: str) -> Key | None:
    """The key of a node in a bucket; None if it is no record's."""
    family, comma, member = name.partition(",")
    try:
        key = Key(unquote(family, errors="strict"), unquote(member, errors="strict"))
    except UnicodeDecodeError:
        return None
    return key if comma and record_path(key).endswith(f"/{name}") else None


def write(header: Header, value: bytes) -> bytes:
    millis = 0 if header.ttl is None else round(header.ttl * 1000)
    return f"{_MARK} {header.kind.value} {millis} {header.born} {header.witness}\n".encode() + value


def read(data: bytes | None) -> tuple[Header, bytes] | None:
    """The header and the value, or None if somebody else wrote this."""
    line, newline, value = (data or b"").partition(b"\n")
    try:
        mark, kind, millis, born, witness = line.decode("ascii").split(" ")
        ttl = None if kind == Kind.LASTING.value else int(millis) / 1000
        header = Header(Kind(kind), ttl, int(born), witness)
    except ValueError:
        return None
    return (header, value) if newline and mark == _MARK else None


def _bucket(family: str) -> int:
    return crc32(family.encode()) % BUCKETS
