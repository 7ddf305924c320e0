"""From a RemediationRequest to its WorkflowExecution, and on to its end: never two active ones for one target.

Two replicas, or one with two requests, look, see no active execution, and both create one. So between
looking and creating a lease on the target is held (`ro-lock-…`). Before that, layer 1 looks at what the
watch has told so far, which costs no request; it may be behind, and decides only that somebody waits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

import executions as runs
import target as targets
from common.lock_metrics import LockMetrics
from executions import Blocked, Execution
from notes import TERMINAL, Note, changes, stands

from leasehold import LeaseLost, NotAcquired, StoreError, StoreUnavailable, aio
from leasehold.kube import aio as objects

PAUSE = 0.1
# How often a lock may be found taken before the request says so: a routing takes milliseconds, a dead holder seconds.
PATIENCE = 10
# After its end a request is looked at no more.
DONE = 3600.0


class Rules(NamedTuple):
    """What the options say."""

    workflow: str
    cooldown: float
    again: float
    ttl: float


class Known(NamedTuple):
    """What the watch has told: the executions of a target, and one by its name."""

    of_target: Callable[[str], Iterable[Execution]]
    named: Callable[[str], Execution | None]


class Memory:
    """What one replica remembers of one request. Losing it costs a wait that begins anew."""

    def __init__(self) -> None:
        self.refusals = 0
        self.skipped: dict[str, float] = {}
        self.outdated = ""


class Router:
    """Where requests are routed. Without `locks` it shows what the lock is for."""

    def __init__(
        self,
        requests: objects.Objects,
        executions: objects.Objects,
        locks: aio.Locks | None,
        *,
        rules: Rules,
        metrics: LockMetrics,
        tell: Callable[[Mapping[str, Any], Note], None],
    ) -> None:
        self._requests = requests
        self._executions = executions
        self._locks = locks
        self._rules = rules
        self._metrics = metrics
        self._tell = tell

    async def step(self, request: Mapping[str, Any], known: Known, memory: Memory) -> float:
        """Take a request one step on from where it is; how long to wait until the next."""
        status = request.get("status") or {}
        if status.get("overallPhase") in TERMINAL:
            return DONE
        if request["metadata"]["resourceVersion"] == memory.outdated:
            # There is a newer one, which the watch has not told of yet.
            return PAUSE
        if status.get("workflowExecution"):
            note = await self._follow(status["workflowExecution"], known)
        else:
            note = await self._route(request, known, memory)
        if note is not None:
            await self._note(request, note, memory)
        return PAUSE

    async def ready(self) -> None:
        """Raise what would keep a request from being routed."""
        for kind in (self._requests, self._executions):
            await kind.list({runs.TARGET: "none"})

    # Routing.

    async def _route(self, request: Mapping[str, Any], known: Known, memory: Memory) -> Note | None:
        """Where the request stands now. None: nothing to say, look again."""
        try:
            return await self._attempt(request, targets.read(request["spec"]), known, memory)
        except targets.InvalidTarget as error:
            return Note("Failed", "InvalidTarget", str(error))
        except StoreUnavailable:
            # It can be told to nobody now, and passes by itself.
            raise
        except StoreError as error:
            await self._note(request, Note("Blocked", type(error).__name__, str(error)), memory)
            raise

    async def _attempt(self, request: Mapping[str, Any], target: str, known: Known, memory: Memory) -> Note | None:
        """Layer 1 from memory; then the lock, and the decision under it."""
        found = list(known.of_target(target))
        mine = _unfinished(request, found)
        if mine:
            return _executes(mine)
        blocked = self._resting(request, found, memory) or self._blocking(request, found)
        if blocked is not None:
            return _waits(blocked)
        try:
            async with AsyncExitStack() as stack:
                await self._enter(stack, target)
                note = await self._decide(request, target)
        except NotAcquired as error:
            memory.refusals += 1
            if memory.refusals < PATIENCE:
                return None
            by = error.holder or "somebody whose name cannot be read"
            return _waits(Blocked("LockBusy", by, f"LockBusy (held by {by})"))
        except LeaseLost:
            # Whatever was under way is found by the next look.
            return None
        memory.refusals = 0
        return note

    async def _enter(self, stack: AsyncExitStack, target: str) -> None:
        """Hold the lease until the stack is left; if it is lost, what runs in there is cancelled."""
        if self._locks is None:
            return
        try:
            await stack.enter_async_context(self._locks.hold(target, ttl=self._rules.ttl, wait=0))
        except StoreError:
            self._metrics.failed()
            raise

    async def _decide(self, request: Mapping[str, Any], target: str) -> Note | None:
        """Check, then create. Nothing here is taken from memory, and nothing fails open."""
        meta = request["metadata"]
        listed = await self._executions.list({runs.TARGET: targets.label(target)})
        found = [one for one in map(runs.read, listed) if one.target == target]
        mine = _unfinished(request, found)
        if mine:
            return _executes(mine)
        blocked = self._blocking(request, found)
        if blocked is not None:
            return _waits(blocked)
        if not await self._is_open(meta):
            return None
        name = runs.free_name(meta["uid"], found)
        wanted = runs.manifest(request, name, target, self._rules.workflow)
        made = await self._executions.create(wanted) or await self._executions.get(name)
        if made is not None and runs.read(made).request != meta["uid"]:
            return _waits(Blocked("NameTaken", name, f"NameTaken: {name} is not ours; delete it, or this request"))
        return None if made is None else _executes(name)

    async def _is_open(self, meta: Mapping[str, Any]) -> bool:
        """Whether the request is still there and unrouted: the watch may be behind."""
        now = await self._requests.get(meta["name"])
        if now is None or now["metadata"]["uid"] != meta["uid"] or now["metadata"].get("deletionTimestamp"):
            return False
        status = now.get("status") or {}
        return not status.get("workflowExecution") and status.get("overallPhase") not in TERMINAL

    def _blocking(self, request: Mapping[str, Any], found: Iterable[Execution]) -> Blocked | None:
        """What others do to the target."""
        others = [one for one in found if one.request != request["metadata"]["uid"]]
        return runs.blocking(others, self._rules.cooldown, time.time())

    def _resting(self, request: Mapping[str, Any], found: Iterable[Execution], memory: Memory) -> Blocked | None:
        """After an execution of ours was skipped: not again before its time, counted from when we saw it."""
        now = time.monotonic()
        skipped = [one for one in found if one.request == request["metadata"]["uid"] and one.phase == "Skipped"]
        for one in skipped:
            if now - memory.skipped.setdefault(one.name, now) < self._rules.again:
                return Blocked("Skipped", one.name, f"Skipped: {one.name} {one.reason}".rstrip())
        return None

    # Following.

    async def _follow(self, name: str, known: Known) -> Note | None:
        """What became of the execution; None as long as it runs."""
        one = known.named(name)
        if one is None:
            raw = await self._executions.get(name)
            if raw is None:
                words = f"{name} was deleted before its end; its target is free, and a new signal begins anew"
                return Note("Failed", "WorkflowExecutionDeleted", words, execution=name)
            one = runs.read(raw)
        if one.phase in {"Completed", "Failed"}:
            return Note(one.phase, f"Workflow{one.phase}", f"{name} {one.reason}".rstrip(), execution=name)
        if one.phase == "Skipped":
            return _waits(Blocked("Skipped", name, f"Skipped: {name} {one.reason}".rstrip()))
        return None

    # Noting.

    async def _note(self, request: Mapping[str, Any], note: Note, memory: Memory) -> None:
        """Write down where the request stands, once; whoever wrote meanwhile is heard first, by the watch."""
        meta, status = request["metadata"], request.get("status") or {}
        if stands(status, note):
            return
        revision = meta["resourceVersion"]
        patch = {"metadata": {"resourceVersion": revision}, "status": changes(status, note, time.time())}
        written = await self._requests.patch(meta["name"], patch, status=True)
        memory.outdated = revision
        if written is not None:
            self._tell(request, note)


def _unfinished(request: Mapping[str, Any], found: Iterable[Execution]) -> str:
    """Our own: made by a replica that could not note it any more, or by one whose note we have not heard of."""
    mine = (one for one in found if one.request == request["metadata"]["uid"])
    return next((one.name for one in mine if one.phase != "Skipped"), "")


def _waits(blocked: Blocked) -> Note:
    return Note("Blocked", blocked.reason, blocked.words, by=blocked.by)


def _executes(name: str) -> Note:
    return Note("Executing", "WorkflowExecutionCreated", f"{name} remedies it", execution=name)
