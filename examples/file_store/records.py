"""Records that show what became of them: each says which place it is for, its number there and who wrote it, and the
rest of it follows from that. A piece of another record, or of none, does not fit. Pure."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import NamedTuple

# Not a multiple of a chunk: records have chunks in common with their neighbours, and some lie across two.
SIZE = 3000
HEAD = 80


class Torn(Exception):
    """These bytes are not one whole record."""


class Record(NamedTuple):
    """The state of one place."""

    place: int
    number: int
    by: str

    def bytes(self) -> bytes:
        """All of it."""
        head = json.dumps(self._asdict()).encode().ljust(HEAD)
        fill = sha256(head).digest()
        return head + (fill * (SIZE // len(fill) + 1))[: SIZE - HEAD]


def read(place: int, data: bytes) -> Record:
    """The record in these bytes; Torn if they are not a whole one, or one of another place."""
    try:
        found = Record(**json.loads(data[:HEAD]))
    except (ValueError, TypeError):
        raise Torn(f"place {place}: no record begins here: {data[:HEAD]!r}") from None
    if found.place != place or found.bytes() != data:
        raise Torn(f"place {place}: {found} does not fit its bytes")
    return found


def digest(data: bytes) -> str:
    """A short name for these very bytes."""
    return sha256(data).hexdigest()[:16]
