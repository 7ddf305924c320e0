"""A lock's metrics in Prometheus' text format, made of what Leasehold tells its observers.

The programs of this platform share it; each has a prefix of its own: `gateway_lock_…`, `ro_lock_…`.
"""

from __future__ import annotations

from leasehold import events

BUCKETS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class LockMetrics:
    """An observer of one client. Adding is all it does: a count that is off by one under threads harms nobody."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._attempts = self._successes = self._releases = 0
        self._failures = {"contention": 0, "api_error": 0, "lost": 0}
        self._acquired = Histogram()
        self._held = Histogram()

    def __call__(self, event: events.Event) -> None:
        match event:
            case events.Attempt():
                self._attempts += 1
            case events.Granted():
                self._successes += 1
                self._acquired.note(event.waited)
            case events.Busy(gave_up=True):
                self._failures["contention"] += 1
            case events.Lost():
                self._failures["lost"] += 1
            case events.Released():
                self._releases += 1
                self._held.note(event.held_for)

    def failed(self) -> None:
        """An attempt that the API server did not answer, or refused."""
        self._failures["api_error"] += 1

    def text(self) -> str:
        """What Prometheus reads."""
        prefix = self._prefix
        counters = {
            "acquisition_attempts_total": self._attempts,
            "acquisition_successes_total": self._successes,
            "releases_total": self._releases,
        }
        lines = [f"# TYPE {prefix}_{name} counter\n{prefix}_{name} {value}" for name, value in counters.items()]
        lines.append(f"# TYPE {prefix}_acquisition_failures_total counter")
        failures = self._failures.items()
        lines += [f'{prefix}_acquisition_failures_total{{reason="{reason}"}} {value}' for reason, value in failures]
        lines += self._acquired.lines(f"{prefix}_acquisition_duration_seconds")
        lines += self._held.lines(f"{prefix}_hold_duration_seconds")
        return "\n".join(lines) + "\n"


class Histogram:
    """How many took how long."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BUCKETS) + 1)
        self._sum = 0.0

    def note(self, seconds: float) -> None:
        """Count one."""
        self._counts[next((at for at, limit in enumerate(BUCKETS) if seconds <= limit), len(BUCKETS))] += 1
        self._sum += seconds

    def lines(self, name: str) -> list[str]:
        """As Prometheus reads it: each bucket holds all below it, too."""
        limits = [*map(str, BUCKETS), "+Inf"]
        so_far = [sum(self._counts[: at + 1]) for at in range(len(limits))]
        buckets = [f'{name}_bucket{{le="{limit}"}} {number}' for limit, number in zip(limits, so_far, strict=True)]
        return [f"# TYPE {name} histogram", *buckets, f"{name}_sum {self._sum:.6f}", f"{name}_count {so_far[-1]}"]
