"""What Prometheus reads: what is in the ledger, the same from every worker, and what this worker has done itself."""

from __future__ import annotations

import asyncio
import os
from collections import Counter

from ledger import Ledger

from leasehold import events


class Metrics:
    """An observer of this worker's clients."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._handled: Counter[str] = Counter()
        self._lost = 0

    def __call__(self, event: events.Event) -> None:
        if isinstance(event, events.Handled):
            self._handled[event.outcome] += 1
        elif isinstance(event, events.Lost):
            self._lost += 1

    async def text(self) -> str:
        """All of it."""
        worker = f'worker="{os.getpid()}"'
        totals = await asyncio.to_thread(self._ledger.totals)
        lines = ["# TYPE payments_ledger gauge"]
        lines += [f'payments_ledger{{state="{state}"}} {count}' for state, count in sorted(totals.items())]
        lines.append("# TYPE payments_handled_total counter")
        done = sorted(self._handled.items())
        lines += [f'payments_handled_total{{{worker},outcome="{outcome}"}} {count}' for outcome, count in done]
        lines += ["# TYPE payments_leases_lost_total counter", f"payments_leases_lost_total{{{worker}}} {self._lost}"]
        return "\n".join(lines) + "\n"
