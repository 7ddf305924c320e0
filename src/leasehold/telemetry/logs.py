"""Events as log lines on the logger `leasehold`: key, token and holder as fields, never a secret."""

from __future__ import annotations

import logging

from leasehold.engine import events
from leasehold.errors import one_line

_log = logging.getLogger("leasehold")


_WARNINGS = frozenset({events.Lost, events.Lagged, events.Unanswered, events.Revoked, events.HelperEnded})
# Nobody knows what was done, or somebody did it in vain: for people to look into.
_UNSETTLED = frozenset({"unknown", "late"})


def log_event(event: events.Event) -> None:
    """Write one event down, at the level people expect of it."""
    level = logging.WARNING if _is_warning(event) else logging.DEBUG
    if _log.isEnabledFor(level):
        fields = events.log_fields(event.scope, event.holder, getattr(event, "token", None))
        _log.log(level, "%s: %s", one_line(event.scope), one_line(_sentence(event)), extra=fields)


def _is_warning(event: events.Event) -> bool:
    if isinstance(event, events.Released):
        return event.removed is None
    if isinstance(event, events.Handled):
        return event.outcome in _UNSETTLED
    return type(event) in _WARNINGS


def _sentence(event: events.Event) -> str:  # noqa: C901, PLR0911  one sentence for each event, nothing else
    match event:
        case events.Granted():
            return f"granted to {event.holder} after {event.waited:.3f} s, token {event.token}"
        case events.Released(removed=None):
            return "released, but the store did not answer; the lease ends by its ttl"
        case events.Released():
            return f"released after {event.held_for:.3f} s"
        case events.Busy():
            return f"held by {event.by or 'somebody'}" + (", gave up" if event.gave_up else "")
        case events.Lost():
            return f"lease lost (token {event.token}): {event.reason}"
        case events.Lagged():
            return f"the heartbeat is {event.lag:.3f} s late for a ttl of {event.ttl:g} s"
        case events.Unanswered():
            return f"no answer to a renewal: {event.error}"
        case events.Revoked():
            how = "freed by force" if event.forced else "revoked"
            return f"lease of {event.holder} (token {event.token}) {how}: {event.reason}"
        case events.Finished():
            return f"run of {event.holder} (token {event.token}) {event.outcome}; rests for {event.cooldown:g} s"
        case events.Handled():
            return f"handled once (token {event.token}): {event.outcome}"
        case events.HelperEnded():
            return f"the helper process ended; this process renews its {event.leases} leases now"
        case events.Doubted():
            return "a write of unknown outcome " + ("is settled" if event.cleared else "is looked for again")
    return type(event).__name__.lower()
