"""What the engine tells observers: plain values. Logs, metrics and audit are made of these, outside the engine."""

from __future__ import annotations

from collections.abc import Callable

import msgspec


class Event(msgspec.Struct, frozen=True):
    """Something happened to a scope, as this client saw it."""

    scope: str
    holder: str


class Attempt(Event, frozen=True):
    """An acquisition begins."""


class Granted(Event, frozen=True):
    """The lease is ours. `waited` counts from the attempt."""

    token: int
    waited: float


class Busy(Event, frozen=True):
    """Somebody else holds it: `by`, or None if that cannot be read. `gave_up` once no further try follows."""

    by: str | None
    gave_up: bool


class Renewed(Event, frozen=True):
    """Trust was extended."""

    token: int


class Unanswered(Event, frozen=True):
    """A renewal got no answer. Trust is as it was; the heartbeat tries again until it ends."""

    token: int
    error: str


class Lagged(Event, frozen=True):
    """The heartbeat ran `lag` seconds late, so late that it matters for leases of this ttl."""

    lag: float
    ttl: float


class Lost(Event, frozen=True):
    """The lease is no longer ours, and why."""

    token: int
    reason: str


class Released(Event, frozen=True):
    """The holder let go. `removed` is None when the store did not say; the lease then ends by its ttl."""

    token: int
    removed: bool | None
    held_for: float


class Revoked(Event, frozen=True):
    """This client broke somebody's lease: revoked in place, or freed at once by force."""

    token: int
    reason: str
    forced: bool


class Finished(Event, frozen=True):
    """A guarded run came to its end, completed or failed, and its target rests for `cooldown` seconds."""

    token: int
    outcome: str
    cooldown: float


class Handled(Event, frozen=True):
    """Something happened to work that is done once, with the token of that run.

    `outcome` is begun, completed, failed, retried, replayed, unknown, late, settled or forgotten.
    """

    token: int
    outcome: str


class Doubted(Event, frozen=True):
    """A write of unknown outcome was looked for. `cleared` says whether its trace is known to be gone."""

    cleared: bool


class HelperEnded(Event, frozen=True):
    """The helper process is gone; this process renews its leases itself from now on. `scope` is one of them."""

    leases: int


Observer = Callable[[Event], None]


def log_fields(scope: str, holder: str, token: int | None) -> dict[str, object]:
    """The fields that every log line carries, whoever writes it."""
    return {"key": scope, "holder": holder, "token": token}
