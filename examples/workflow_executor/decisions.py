"""What the executor decides, and nothing that it does: names, layer 1, rests, outcomes, conditions.

Pure: objects of Kubernetes and times in, values out. No clock, no cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from durations import spoken

PREFIX = "wfe-"
# The index of layer 1: executions of one target have one value here.
TARGET = "remediation.example.com/target"
# The conditions that the executor writes: whether an execution has its target, and whether the cluster is in its way.
LOCKED, HINDERED = "TargetLocked", "Hindered"
# How far the clocks of those who write completion times may be apart.
SKEW = timedelta(seconds=5)
# The runtime ends a run at its timeout; if it has not after a tenth more, the executor does.
LATE = 1.1

Object = Mapping[str, Any]


class Outcome(NamedTuple):
    """How a run ended."""

    phase: str
    reason: str


class Condition(NamedTuple):
    """What people are told in a status: True, False or Unknown, and why."""

    status: str
    reason: str
    message: str
    type: str = LOCKED


# Names.


def target_of(execution: Object) -> str:
    """What it was begun with; before that, what it asks for."""
    found: str = status(execution).get("targetResource") or execution["spec"].get("targetResource") or ""
    return found


def owner(execution: Object) -> str:
    """Who may come back for a run. With the uid: one that is made anew under an old name is somebody else."""
    meta = execution["metadata"]
    return f"{meta['namespace']}/{meta['name']}/{meta['uid']}"


def holder_name(owned: str) -> str:
    """Of whoever owns a run, for people."""
    parts = owned.split("/")
    return parts[1] if len(parts) == 3 else owned  # noqa: PLR2004  as `owner` makes it


# Layer 1.


def in_the_way(mine: Object, found: Iterable[Object], cooldown: float, now: datetime) -> str | None:
    """Why another execution of the same target keeps this one from running; None: none that is known does.

    `found` may hold others that only share the label: the whole target decides.
    """
    target, uid = target_of(mine), mine["metadata"]["uid"]
    others = [one for one in found if target_of(one) == target and one["metadata"]["uid"] != uid]
    for other in others:
        if status(other).get("phase") == "Running":
            return f"ResourceBusy (active: {other['metadata']['name']})"
    rested = [(ended, one) for one in others if is_locked(status(one)) and (ended := completion(one)) is not None]
    for ended, other in sorted(rested, key=lambda pair: pair[0], reverse=True):
        if rest_left(ended, cooldown, now) > 0:
            ago = max((now - ended).total_seconds(), 0)
            return f"RecentlyRemediated (by {other['metadata']['name']}, {spoken(ago)} ago)"
    return None


# Rests.


def rest_left(completed: datetime, cooldown: float, now: datetime) -> float:
    """Seconds until the target is free. A completion in the future is as good as one just now, and no better."""
    return min(cooldown, cooldown - (now - completed).total_seconds())


def is_future(completed: datetime, now: datetime) -> bool:
    """Whether a completion time cannot be true, even if clocks differ; then the rest begins now."""
    return completed > now + SKEW


def completion(execution: Object) -> datetime | None:
    """When its run ended, as written down."""
    return moment(status(execution).get("completionTime"))


# Runs.


def outcome(run: Object) -> Outcome | None:
    """How a PipelineRun ended, by its condition Succeeded; None: it has not."""
    for said in status(run).get("conditions") or ():
        if said.get("type") == "Succeeded" and said.get("status") in {"True", "False"}:
            phase = "Completed" if said["status"] == "True" else "Failed"
            words = [said.get("reason") or "", said.get("message") or ""]
            return Outcome(phase, ": ".join(filter(None, words)) or phase)
    return None


# What is written down.


def status(thing: Object) -> dict[str, Any]:
    """Of an object that may have none yet."""
    found: dict[str, Any] = thing.get("status") or {}
    return found


def conditions(before: Object, said: Condition, now: datetime) -> list[dict[str, Any]]:
    """The conditions with this one among them: others stay, and its time moves only when its status does."""
    found = status(before).get("conditions") or []
    (last,) = [one for one in found if one["type"] == said.type] or [{}]
    same = last.get("status") == said.status
    since = last["lastTransitionTime"] if same and "lastTransitionTime" in last else stamp(now)
    return [one for one in found if one["type"] != said.type] + [said._asdict() | {"lastTransitionTime": since}]


def is_locked(noted: Mapping[str, Any]) -> bool:
    """Whether a status says that its execution has the target, or may have it."""
    return bool(noted.get("pipelineRun")) and _condition(noted, LOCKED).get("status") != "False"


def hindrance(noted: Mapping[str, Any]) -> str | None:
    """What a status says the cluster has refused; None: nothing, or no longer."""
    found = _condition(noted, HINDERED)
    return found.get("message") if found.get("status") == "True" else None


def _condition(noted: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    return next((one for one in noted.get("conditions") or () if one["type"] == kind), {})


def stamp(now: datetime) -> str:
    """A time as Kubernetes writes it, but with its fractions: rests are counted from it."""
    return now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def moment(text: str | None) -> datetime | None:
    """The time that was written; None where there is none."""
    try:
        found = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
