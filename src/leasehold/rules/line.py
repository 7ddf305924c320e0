"""Who stands in line for a lock, read from the records of its family. Pure.

The lock and the tickets of those who wait for it are one family. A ticket's place
is its `born`: nobody comes to stand before one who is there already. It is one's turn
when no ticket is ahead and the lock is free or reserved. Whoever waits watches
what is directly ahead: another's ticket, or at the head of the line the lock.
Safety never rests on the order: only the swap of the lock decides, be it ours or
the one that the store does for us (`Swap.heirs`).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from leasehold.model import Guarantees, Key, Record
from leasehold.rules.names import LOCK
from leasehold.rules.timing import granted_ttl

TICKET = "ticket/"


class View(msgspec.Struct, frozen=True):
    """The line as one who waits sees it. `mine` None: the ticket has ended, and so has the place."""

    lock: Record | None
    mine: Record | None
    ahead: tuple[Record, ...]
    behind: int


def read_line(records: Sequence[Record], ticket: Key) -> View:
    """What a scan of the family shows to the owner of a ticket."""
    lock = next((record for record in records if record.key.member == LOCK), None)
    mine = next((record for record in records if record.key == ticket), None)
    tickets = tickets_of(records)
    if mine is None:
        return View(lock, None, tuple(tickets), 0)
    ahead = tuple(record for record in tickets if record.born < mine.born)
    return View(lock, mine, ahead, len(tickets) - len(ahead) - 1)


def tickets_of(records: Sequence[Record]) -> list[Record]:
    """The tickets among the records of a family, the first in line first."""
    return sorted((record for record in records if is_ticket(record.key)), key=lambda record: record.born)


def is_ticket(key: Key) -> bool:
    """Whether a record only stands in line."""
    return key.member.startswith(TICKET)


def ticket_key(lock: Key, name: str) -> Key:
    """Where the ticket of this name for a lock lives."""
    return Key(lock.family, TICKET + name)


def lock_of(ticket: Key) -> Key:
    """The lock that a ticket is for."""
    return Key(ticket.family, LOCK)


def ticket_ttl(limits: Guarantees) -> float:
    """How long a ticket lasts without being renewed, and a lock is kept for who does not come."""
    return granted_ttl(min(max(limits.ticket_ttl, limits.ttl_min), limits.ttl_max), limits)
