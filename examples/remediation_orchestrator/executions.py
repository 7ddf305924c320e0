"""WorkflowExecutions: how one is made for a request, and what those of a target say about the next. Pure."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

import target as targets

from leasehold import kube

KIND = kube.Kind("remediation.example.com/v1", "WorkflowExecution", "workflowexecutions")
REQUEST_KIND = kube.Kind("remediation.example.com/v1", "RemediationRequest", "remediationrequests")
TARGET = "remediation.example.com/target"
REQUEST = "remediation.example.com/request"
TERMINAL = frozenset({"Completed", "Failed", "Skipped"})
# A completion further in the future than this cannot be true, and is not waited for.
SKEW = 5.0


class Execution(NamedTuple):
    """What the orchestrator looks at. `request` is the uid of the request it was made for."""

    name: str
    target: str
    request: str
    phase: str
    reason: str
    completion_time: str

    @property
    def is_active(self) -> bool:
        """Whether it may still touch its target. One without a phase is about to begin."""
        return self.phase not in TERMINAL


class Blocked(NamedTuple):
    """Why a request has to wait: a word for programs, the object or replica that it waits for, words for people."""

    reason: str
    by: str
    words: str


def read(raw: Mapping[str, Any]) -> Execution:
    """One as the API server shows it."""
    meta, status = raw["metadata"], raw.get("status") or {}
    return Execution(
        name=meta["name"],
        target=raw["spec"]["targetResource"],
        request=meta.get("labels", {}).get(REQUEST, ""),
        phase=status.get("phase", ""),
        reason=status.get("reason", ""),
        completion_time=status.get("completionTime") or "",
    )


def blocking(found: Iterable[Execution], cooldown: float, now: float) -> Blocked | None:
    """What is in the way of another one for the same target: an active one first, then a rest."""
    resting = None
    for one in sorted(found):
        if one.is_active:
            return Blocked("ResourceBusy", one.name, f"ResourceBusy (active: {one.name})")
        ago = _ago(one, now)
        if one.phase != "Skipped" and ago is not None and ago < cooldown:
            words = f"RecentlyRemediated (by {one.name}, {ago:.0f}s ago)"
            resting = Blocked("RecentlyRemediated", one.name, words)
    return resting


def free_name(request: str, found: Iterable[Execution]) -> str:
    """Of the next execution: it follows from the request's uid, so that a second replica would make the same one.

    Those that were skipped keep their names.
    """
    taken = {one.name for one in found}
    names = (hashlib.sha256(f"{request}/{number}".encode()).hexdigest()[:16] for number in itertools.count(1))
    return next(f"we-{name}" for name in names if f"we-{name}" not in taken)


def manifest(request: Mapping[str, Any], name: str, target: str, workflow: str) -> dict[str, Any]:
    """The execution of a request, which owns it: Kubernetes deletes it with the request."""
    meta, spec = request["metadata"], request["spec"]
    uid = meta["uid"]
    owner = {
        "apiVersion": REQUEST_KIND.api_version,
        "kind": REQUEST_KIND.kind,
        "name": meta["name"],
        "uid": uid,
        "controller": True,
    }
    parameters = {"signal": spec["signalName"], "severity": spec.get("severity", "unknown")}
    return {
        "metadata": {
            "name": name,
            "labels": {TARGET: targets.label(target), REQUEST: uid},
            "ownerReferences": [owner],
        },
        "spec": {
            "targetResource": target,
            "workflow": workflow,
            "remediationRequest": meta["name"],
            "parameters": parameters,
        },
    }


def _ago(one: Execution, now: float) -> float | None:
    """How long ago it ended; None where that cannot be read, or cannot be true."""
    try:
        ago = now - datetime.fromisoformat(one.completion_time).timestamp()
    except ValueError:
        return None
    return max(ago, 0.0) if ago >= -SKEW else None
