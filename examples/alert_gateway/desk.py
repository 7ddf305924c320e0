"""From signals to RemediationRequests: one active object for each fingerprint, and a count of the rest.

Its name carries the second in which it was made, so the API server alone does not keep two
replicas from making two: each looks, sees none, and creates. Between looking and creating a
lease on the fingerprint is held (`gw-lock-…`). Requests for one fingerprint that reach one
replica together are settled together: one lease, one look and one count for all of them.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
import uuid
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import Any, NamedTuple

from common.lock_metrics import LockMetrics
from webhook import Signal

from leasehold import StoreError, StoreUnavailable, aio, kube
from leasehold.kube import aio as objects

KIND = kube.Kind("remediation.example.com/v1", "RemediationRequest", "remediationrequests")
FINGERPRINT = "remediation.example.com/fingerprint"
BATCH = "remediation.example.com/batch"
# A signal that fires after one of these is a new one.
TERMINAL = frozenset({"Completed", "Failed", "Cancelled", "Skipped"})
# How long the lock may be taken, or the API server away, before the sender is told to come again.
PATIENCE = 10.0
PAUSE = 0.2
# Before a count that somebody else's write came before is tried again: longer each time, by chance.
STEP, STEP_MAX = 0.02, 1.0


class Outcome(NamedTuple):
    """What became of a signal: the object it made, or was counted in."""

    created: bool
    name: str


class Batch(NamedTuple):
    """Requests for one fingerprint that are settled together. The id tells a repeated write from a second one."""

    id: str
    signal: Signal
    size: int


class Desk:
    """Where signals are settled. Without `locks` each is settled for itself, as it was before there were any."""

    def __init__(self, requests: objects.Objects, locks: aio.Locks | None, ttl: float, metrics: LockMetrics) -> None:
        self._requests = requests
        self._locks = locks
        self._ttl = ttl
        self._metrics = metrics
        self._lines: dict[str, list[asyncio.Future[Outcome]]] = {}
        self._clerks: set[asyncio.Task[None]] = set()

    async def settle(self, signal: Signal) -> Outcome:
        """What became of one signal, or an error of Leasehold's tree."""
        if self._locks is None:
            return await self._settled(Batch(uuid.uuid4().hex, signal, 1))
        place: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        line = self._lines.get(signal.fingerprint)
        if line is not None:
            line.append(place)
        else:
            self._lines[signal.fingerprint] = [place]
            clerk = asyncio.create_task(self._work_off(signal, self._locks))
            self._clerks.add(clerk)
            clerk.add_done_callback(self._clerks.discard)
        return await place

    async def ready(self) -> None:
        """Raise what would keep a signal from being settled."""
        await self._requests.list({FINGERPRINT: "none"})

    async def close(self) -> None:
        """Finish what was begun."""
        await asyncio.gather(*self._clerks)

    # One fingerprint.

    async def _work_off(self, signal: Signal, locks: aio.Locks) -> None:
        """Settle the line, all that stand in it at a time, until nobody does."""
        line = self._lines[signal.fingerprint]
        while line:
            served: list[asyncio.Future[Outcome]] = []
            try:
                async with AsyncExitStack() as stack:
                    await self._enter(stack, locks, signal.fingerprint)
                    served, line[:] = line[:], []
                    outcome = await self._settled(Batch(uuid.uuid4().hex, signal, len(served)))
            except Exception as error:  # noqa: BLE001  raised again by everybody who waits for it
                served, line[:] = served + line, []
                for place in _waiting(served):
                    place.set_exception(error)
            else:
                for place in _waiting(served):
                    place.set_result(outcome._replace(created=outcome.created and place is served[0]))
        del self._lines[signal.fingerprint]

    async def _enter(self, stack: AsyncExitStack, locks: aio.Locks, fingerprint: str) -> None:
        """Hold the lease until the stack is left; if it is lost, what runs in there is cancelled."""
        try:
            await stack.enter_async_context(locks.hold(fingerprint, ttl=self._ttl, wait=PATIENCE))
        except StoreError:
            self._metrics.failed()
            raise

    async def _settled(self, batch: Batch) -> Outcome:
        """Through a restart of the API server: a write whose answer was lost is looked for before it is repeated."""
        until = time.monotonic() + PATIENCE
        while True:
            try:
                outcome = await self._check_then_create(batch)
            except StoreUnavailable:
                if time.monotonic() > until:
                    raise
            else:
                if outcome is not None:
                    return outcome
            await asyncio.sleep(PAUSE)

    async def _check_then_create(self, batch: Batch) -> Outcome | None:
        """None: the name is taken, by one that ended within this very second."""
        found = await self._requests.list({FINGERPRINT: batch.signal.fingerprint})
        active = [one for one in found if (one.get("status") or {}).get("overallPhase") not in TERMINAL]
        if active:
            return await self._count(oldest(active), batch)
        made = await self._requests.create(manifest(batch))
        return None if made is None else await self._count(made, batch)

    async def _count(self, request: dict[str, Any], batch: Batch) -> Outcome:
        """Add the batch to an object's status, less the one that made it; again where others wrote meanwhile."""
        name = request["metadata"]["name"]
        ours = request["metadata"].get("annotations", {}).get(BATCH) == batch.id
        more, seen = batch.size - ours, request
        for attempt in itertools.count():
            counted = (seen.get("status") or {}).get("deduplication") or {}
            if not more or counted.get("lastBatch") == batch.id:
                break
            total = counted.get("duplicates", 0) + more
            changes = {"duplicates": total, "lastSeen": timestamp(), "lastBatch": batch.id}
            revision = {"resourceVersion": seen["metadata"]["resourceVersion"]}
            status = {"metadata": revision, "status": {"deduplication": changes}}
            if await self._requests.patch(name, status, status=True) is not None:
                break
            await asyncio.sleep(random.uniform(0, min(STEP * 2**attempt, STEP_MAX)))  # noqa: S311  no secret
            again = await self._requests.get(name)
            if again is None:
                # Deleted: there is nothing left to count in.
                break
            seen = again
        return Outcome(ours, name)


def manifest(batch: Batch) -> dict[str, Any]:
    """The object for a signal. Its name has the second in it: a signal that fires again later gets another."""
    signal = batch.signal
    target = {"namespace": signal.namespace, "kind": signal.kind, "name": signal.resource}
    spec = {
        "signalFingerprint": signal.fingerprint,
        "signalName": signal.name,
        "severity": signal.severity,
        "firingSince": signal.firing_since,
        "receivedAt": timestamp(),
        "targetResource": {name: value for name, value in target.items() if value},
        "signalLabels": signal.labels,
        "signalAnnotations": signal.annotations,
    }
    name = f"rr-{signal.fingerprint[:12]}-{int(time.time())}"
    metadata = {"name": name, "labels": {FINGERPRINT: signal.fingerprint}, "annotations": {BATCH: batch.id}}
    return {"metadata": metadata, "spec": spec}


def oldest(found: list[dict[str, Any]]) -> dict[str, Any]:
    """The one that counts where there are several."""
    return min(found, key=lambda one: (one["metadata"]["creationTimestamp"], one["metadata"]["name"]))


def timestamp() -> str:
    """Now, as Kubernetes writes it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _waiting(places: list[asyncio.Future[Outcome]]) -> list[asyncio.Future[Outcome]]:
    """Without those who hung up."""
    return [place for place in places if not place.done()]
