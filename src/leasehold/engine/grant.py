"""One granted hold, from the engine's side, and what its record says in the store.

A `Grant` is the only mutable thing about a lease. It changes under the engine's
mutex, in plain code; whether it may be believed is read without one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from leasehold.engine.fork import life
from leasehold.model import Key, LeaseInfo, Record, Waiter
from leasehold.rules.overlap import Claim
from leasehold.rules.timing import renewal_window, trust_ends
from leasehold.rules.tokens import token

if TYPE_CHECKING:
    from leasehold.wires.clock import Clock
    from leasehold.wires.colour import Signal

FORKED = "this process was forked; the lease stayed with its parent"
LATE = "it was not renewed in time"
TOO_LONG = "it was held for max_hold"
RELEASED = "it was released"


class Hold(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the record of a lock or a ticket says. The secret proves whose it is; it is never shown.

    `granted` is the revision of the reservation that was taken over, and makes the token; 0 where the
    record was created. `reserved`: nobody holds it, but it is kept for the first in line. `ticket` is the member
    under which the holder stood in line, if it did. `claim`: the part of a resource that is wanted; whether it is held
    follows from who else is there.
    """

    scope: str
    holder: str
    secret: str
    since: float
    metadata: dict[str, str] = {}
    revoked: str | None = None
    granted: int = 0
    reserved: bool = False
    ticket: str = ""
    claim: Claim | None = None

    def __repr__(self) -> str:
        # Not the secret.
        return f"<Hold of {self.scope!r} by {self.holder!r}>"


write_hold: Callable[[Hold], bytes] = msgspec.json.Encoder().encode
_read = msgspec.json.Decoder(Hold).decode


def read_hold(record: Record | None) -> Hold | None:
    """What the record says, or None if there is none or somebody else wrote it."""
    if record is None:
        return None
    try:
        return _read(record.value)
    except msgspec.MsgspecError:
        return None


def is_ours(record: Record | None, hold: Hold) -> bool:
    """Whether the record was written by the acquisition that made `hold`: only the secret proves it."""
    found = read_hold(record)
    return found is not None and found.secret == hold.secret


def is_revoked(record: Record) -> bool:
    """Whether somebody broke the lease: then its owner may delete it, and nothing else."""
    found = read_hold(record)
    return found is not None and found.revoked is not None


def is_reserved(record: Record) -> bool:
    """Whether nobody holds it, and it is kept for the first in line."""
    found = read_hold(record)
    return found is not None and found.reserved


def reservation(hold: Hold) -> bytes:
    """What a holder leaves behind for the first in line. Nobody's secret is in it."""
    return write_hold(Hold(hold.scope, "", "", hold.since, reserved=True))


def describe(record: Record, scope: str) -> LeaseInfo:
    """A record as people see it: no secret, and no failure on what cannot be read."""
    hold = read_hold(record)
    return LeaseInfo(
        scope=scope,
        holder=hold.holder if hold else "(unreadable)",
        token=token((hold.granted if hold else 0) or record.born),
        ttl=record.ttl,
        expires_in=record.left,
        since=hold.since if hold else 0.0,
        metadata=hold.metadata if hold else {},
        revoked=hold.revoked if hold else None,
        reserved=hold is not None and hold.reserved,
        mode="shared" if hold and hold.claim and all(part.shared for part in hold.claim.parts) else "exclusive",
    )


def describe_waiter(ticket: Record) -> Waiter:
    """Somebody in line, as people see it."""
    hold = read_hold(ticket)
    return Waiter(hold.holder, hold.since, hold.metadata) if hold else Waiter("(unreadable)", 0.0, {})


class Grant:
    """A hold that was granted, for as long as anybody may ask about it."""

    __slots__ = (
        "_clock", "acquired", "awaited", "busy", "deadline", "depth", "due", "gone", "handle", "hold", "idle",
        "is_ticket", "keeper", "latest", "life", "lost", "on_end", "passes", "record", "released", "slot",
        "ticket", "token", "ttl", "window",
    )  # fmt: skip

    def __init__(
        self,
        clock: Clock,
        record: Record,
        hold: Hold,
        ttl: float,
        max_hold: float | None = None,
        *,
        is_ticket: bool = False,
    ) -> None:
        self._clock = clock
        # Only a place in line: kept alive like a lease, and nobody is told of it.
        self.is_ticket: bool = is_ticket
        self.record: Record = record
        self.hold: Hold = hold
        self.ttl: float = ttl
        self.token: int = token(hold.granted or record.born)
        # How often it was passed on inside this process since the store granted it.
        self.passes: int = 0
        # The ticket it was reached with, which goes when it goes; and whether others stood in line.
        self.ticket: Grant | None = None
        self.awaited: bool = False
        self.acquired: float = clock.now()
        self.latest: float | None = None if max_hold is None else self.acquired + max_hold
        self.keeper: object = None
        self.depth: int = 1
        self.life: int = life()
        self.lost: str | None = None
        self.released: bool = False
        self.gone: bool = False
        # A renewal or release is under way; `idle` wakes the one who waits for it.
        self.busy: bool = False
        self.idle: Signal | None = None
        # Called once when the hold ends, whether it was lost or released. Quick, and from any thread.
        self.on_end: list[Callable[[], None]] = []
        # The facade's lease for this grant, so that asking again gives the same one.
        self.handle: object = None
        # Where a helper process writes down how far it extended trust.
        self.slot: Callable[[], float] | None = None
        self.deadline: float = 0.0
        self.window: float = 0.0
        self.due: float = 0.0

    @property
    def key(self) -> Key:
        return self.record.key

    @property
    def scope(self) -> str:
        return self.hold.scope

    def trust(self, sent: float, chance: float) -> None:
        """Believe the hold on the strength of an answer to a request sent at `sent`."""
        if self.record.since is not None:
            # What it hangs on was last renewed before that.
            sent = min(sent, self.record.since)
        # What was bequeathed to us is shorter than what we shall renew it to.
        ttl = self.record.ttl or self.ttl
        self.deadline = self.capped(trust_ends(sent, ttl))
        self.window, self.due = renewal_window(sent, ttl, chance)

    def become(self, other: Grant) -> None:
        """Go on as another hold, which was granted in place of this one."""
        self.record, self.hold, self.token, self.ttl = other.record, other.hold, other.token, other.ttl
        self.deadline, self.window, self.due = self.capped(other.deadline), other.window, other.due

    def promoted(self, ttl: float, max_hold: float | None) -> Grant:
        """The place in line as the hold it has become, to be renewed to `ttl`. The caller has claimed it."""
        held = Grant(self._clock, self.record, self.hold, ttl, max_hold)
        held.deadline = held.capped(self.deadline)
        held.window, held.due = self.window, self.due
        return held

    def passed_on(self, max_hold: float | None) -> Grant:
        """The same hold for the next one of this process, with the next token. The caller has claimed it."""
        heir = Grant(self._clock, self.record, self.hold, self.ttl, max_hold)
        heir.passes = self.passes + 1
        heir.token = self.token + 1
        heir.ticket, heir.awaited = self.ticket, self.awaited
        heir.deadline = heir.capped(self.deadline)
        heir.window, heir.due = self.window, self.due
        return heir

    def capped(self, deadline: float) -> float:
        return deadline if self.latest is None else min(deadline, self.latest)

    def trusted_until(self) -> float:
        """The end of trust, as far as anybody extended it."""
        return self.deadline if self.slot is None else max(self.deadline, self.capped(self.slot()))

    def loss(self) -> str | None:
        """Why the hold may not be believed now, or None if it may."""
        if self.released:
            return RELEASED
        if self.life != life():
            return FORKED
        if self.lost is not None:
            return self.lost
        now = self._clock.now()
        if now < self.trusted_until():
            return None
        return TOO_LONG if self.latest is not None and now >= self.latest else LATE
