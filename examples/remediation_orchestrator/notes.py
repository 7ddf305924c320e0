"""What is written into a request's status: phase, reason, and conditions as Kubernetes writes them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

TERMINAL = frozenset({"Completed", "Failed", "Cancelled", "Skipped"})
ROUTED = "Routed"


class Note(NamedTuple):
    """Where a request stands. `reason` is a word for programs, `words` are for people, `by` is what it waits for."""

    phase: str
    reason: str
    words: str
    by: str = ""
    execution: str = ""

    @property
    def is_routed(self) -> bool:
        return bool(self.execution)


def stands(status: Mapping[str, Any], note: Note) -> bool:
    """Whether the status says so already, but for words that change by themselves, such as seconds."""
    routed = _routed(status)
    said = (status.get("overallPhase"), routed.get("reason"), status.get("blockedBy"), status.get("workflowExecution"))
    return said == (note.phase, note.reason, note.by or None, note.execution or None)


def changes(status: Mapping[str, Any], note: Note, now: float) -> dict[str, Any]:
    """The status as a JSON merge patch: what no longer holds is taken away."""
    at = datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    word = "True" if note.is_routed else "False"
    before = _routed(status)
    since = before["lastTransitionTime"] if before.get("status") == word else at
    condition = {"type": ROUTED, "status": word, "reason": note.reason, "message": note.words}
    condition["lastTransitionTime"] = since
    return {
        "overallPhase": note.phase,
        "reason": note.words,
        "blockedBy": note.by or None,
        "workflowExecution": note.execution or None,
        "completionTime": at if note.phase in TERMINAL else None,
        "conditions": [*_others(status), condition],
    }


def _routed(status: Mapping[str, Any]) -> Mapping[str, Any]:
    return next((one for one in status.get("conditions") or () if one["type"] == ROUTED), {})


def _others(status: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Conditions that somebody else keeps."""
    return [one for one in status.get("conditions") or () if one["type"] != ROUTED]
