"""What Leasehold tells its observers, as the log lines and metrics that people look for when tasks stand still."""

from __future__ import annotations

import logging
from collections import Counter

from leasehold import events

PREFIX = "agent_task"
LEASE = "task-llm-"
OUTCOMES = ("acquired", "passed_on", "held", "lost")
REASONS = ("held", "lost", "cluster", "model", "fault")

log = logging.getLogger("agent_tasks")


class Metrics:
    """An observer of one client, and a count of requeues."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter(
            {f'lease_acquisitions_total{{outcome="{outcome}"}}': 0 for outcome in OUTCOMES}
            | {f'requeues_total{{reason="{reason}"}}': 0 for reason in REASONS}
        )
        self._held_for = 0.0
        self._releases = 0

    def __call__(self, event: events.Event) -> None:
        match event:
            case events.Granted():
                # A token counts in its last eight bits how often the lease was passed on inside this process.
                outcome = "passed_on" if event.token % 256 else "acquired"
                self._counts[f'lease_acquisitions_total{{outcome="{outcome}"}}'] += 1
                log.info("acquired lease %s%s, token %d", LEASE, event.scope, event.token)
            case events.Busy(gave_up=True):
                self._counts['lease_acquisitions_total{outcome="held"}'] += 1
                where = "in this pod" if event.by == event.holder else "by another pod"
                log.info("lease held %s: %s%s", where, LEASE, event.scope)
            case events.Lost():
                self._counts['lease_acquisitions_total{outcome="lost"}'] += 1
                log.warning("lost lease %s%s, token %d: %s", LEASE, event.scope, event.token, event.reason)
            case events.Released():
                self._held_for += event.held_for
                self._releases += 1
                log.info("deleted or passed on lease %s%s after %.3f s", LEASE, event.scope, event.held_for)

    def requeued(self, reason: str) -> None:
        """Something will be tried again."""
        self._counts[f'requeues_total{{reason="{reason}"}}'] += 1

    def text(self) -> str:
        """What Prometheus reads."""
        families = sorted({name.partition("{")[0] for name in self._counts})
        lines: list[str] = []
        for family in families:
            lines.append(f"# TYPE {PREFIX}_{family} counter")
            lines += [f"{PREFIX}_{name} {n}" for name, n in self._counts.items() if name.startswith(family)]
        hold = f"{PREFIX}_lease_hold_seconds"
        lines += [f"# TYPE {hold} summary", f"{hold}_sum {self._held_for:.6f}", f"{hold}_count {self._releases}"]
        return "\n".join(lines) + "\n"
