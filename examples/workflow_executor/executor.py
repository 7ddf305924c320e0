"""One WorkflowExecution, one step at a time: the part that this example is about.

Each step reads what is in the cluster and does what follows from it. Nothing is kept in memory, so a
step may be done by any replica, by two at once, or a second time after a kill. What makes that safe:

- The PipelineRun is the lock: its name follows from the target, so there is one (layer 2).
- It is made waiting, and started only once the execution's status says Running. A replica that was
  frozen and creates too late finds its note refused, and what it made has never run.
- Every write names the revision that it saw.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Any, NamedTuple

import decisions
import durations
import kopf
from decisions import Condition
from settings import Settings

from leasehold import InvalidInput, LeaseholdError, NotAcquired, StoreDamaged, StoreError, kube
from leasehold.kube import LockObject, aio

EXECUTION = kube.Kind("remediation.example.com/v1", "WorkflowExecution", "workflowexecutions")
RUN = kube.Kind("tekton.dev/v1", "PipelineRun", "pipelineruns")
FINALIZER = "remediation.example.com/workflow-execution"
# Tekton's words for a run that must not begin yet, and for one that must end.
WAITING, CANCELLED = "PipelineRunPending", "Cancelled"
TERMINAL = frozenset({"Completed", "Failed", "Skipped"})
AT_ONCE, SOON = 0.0, 0.1
# What is left of the lock when everything else has failed: an hour more than any run and rest takes.
LAST_RESORT = 3600.0

log = logging.getLogger("executor")
Object = dict[str, Any]


class Options(NamedTuple):
    """What a replica was started with. All replicas should have the same."""

    timeout: float
    look: float
    locking: bool


class Executor:
    """Steps of executions in one namespace, whose runs are in another."""

    def __init__(self, executions: aio.Objects, runs: aio.Objects, settings: Settings, options: Options) -> None:
        self._executions = executions
        self._runs = runs
        self._locks = aio.ObjectLocks(runs, prefix=decisions.PREFIX)
        self._settings = settings
        self._options = options

    async def step(self, name: str, uid: str) -> float | None:
        """Do what is next. Seconds until there may be more to do; None: it is over, or being deleted."""
        seen = await self._executions.get(name)
        if seen is None or seen["metadata"]["uid"] != uid or "deletionTimestamp" in seen["metadata"]:
            return None
        phase = decisions.status(seen).get("phase") or "Pending"
        if phase == "Pending":
            wait: float | None = await self._begin(seen)
        else:
            wait = await (self._rest(seen) if phase in TERMINAL else self._watch(seen))
        if wait != AT_ONCE and decisions.hindrance(decisions.status(seen)):
            return await self._note(seen, Condition("False", "Resumed", "the cluster answers", decisions.HINDERED))
        return wait

    async def free(self, seen: Object) -> None:
        """Delete what an execution holds, and nothing that is another's."""
        for run in await self._locks.owned_by(decisions.owner(seen)):
            if await self._locks.release(run):
                log.info("%s is deleted: its %s lets go of %s", run.name, run.owner, run.target)

    async def complain(self, name: str, error: LeaseholdError) -> None:
        """Say in an execution's status why it does not get on, if that is new and can be written."""
        try:
            seen = await self._executions.get(name)
            going = seen is None or "deletionTimestamp" in seen["metadata"]
            if seen is not None and not going and decisions.hindrance(decisions.status(seen)) != str(error):
                await self._note(seen, Condition("True", "ClusterRefused", str(error), decisions.HINDERED))
        except StoreError as refused:
            log.warning("%s: this cannot be written into its status: %s", name, refused)

    # Pending: both layers.

    async def _begin(self, seen: Object) -> float:
        target = decisions.target_of(seen)
        try:
            self._locks.name(target)
        except InvalidInput as error:
            return await self._fail(seen, "InvalidTarget", f"spec.targetResource: {error}; create another one")
        if FINALIZER not in seen["metadata"].get("finalizers", ()):
            # kopf is about to write it. Before that, a deletion would leave the run behind.
            return SOON
        index = self._index(target)
        if not index.items() <= (seen["metadata"].get("labels") or {}).items():
            await self._executions.patch(seen["metadata"]["name"], {"metadata": {"labels": index}})
            return AT_ONCE
        cooldown = await self._settings.cooldown()
        reason = await self._layer_one(seen, cooldown)
        if reason is not None:
            return await self._skip(seen, reason)
        return await self._layer_two(seen, cooldown)

    async def _layer_one(self, seen: Object, cooldown: float) -> str | None:
        """Whether a query finds another that is in the way. It fails open: layer 2 decides."""
        try:
            found = await self._executions.list(self._index(decisions.target_of(seen)))
        except StoreError as error:
            log.warning("%s: layer 1 cannot look, layer 2 decides: %s", seen["metadata"]["name"], error)
            return None
        return decisions.in_the_way(seen, found, cooldown, _now())

    async def _layer_two(self, seen: Object, cooldown: float) -> float:
        """Create the run, or meet our own from before a crash; the API server refuses a second one."""
        owner = decisions.owner(seen)
        ttl = self._options.timeout * decisions.LATE + cooldown + LAST_RESORT
        try:
            run = await self._locks.create(self._key(seen), owner=owner, manifest=self._manifest(seen), ttl=ttl)
        except NotAcquired as error:
            if error.holder is None:
                return await self._skip(seen, "ResourceBusy")
            if error.holder == owner:
                # Ours, deleted by somebody and not gone yet.
                return self._options.look
            if await self._is_left_behind(error.holder):
                await self._clear(seen, error.holder)
                return AT_ONCE
            return await self._skip(seen, f"ResourceBusy (held by {decisions.holder_name(error.holder)})")
        except StoreDamaged as error:
            return await self._fail(seen, "TargetCollision", str(error))
        said = Condition("True", "PipelineRunCreated", f"{self._runs.namespace}/{run.name} holds the target")
        await self._note(
            seen,
            said,
            phase="Running",
            reason=said.reason,
            targetResource=decisions.target_of(seen),
            pipelineRun=run.name,
            pipelineRunUID=run.uid,
            startTime=decisions.stamp(_now()),
        )
        # Refused or not: the next step reads what is there, and starts the run if we were the one who noted it.
        return AT_ONCE

    async def _is_left_behind(self, holder: str) -> bool:
        """Whether nobody will ever come for a run: its execution is gone, or over and has let go of the target."""
        namespace, _, rest = holder.partition("/")
        name, _, uid = rest.partition("/")
        if namespace != self._executions.namespace or not uid:
            return False
        found = await self._executions.get(name)
        if found is None or found["metadata"]["uid"] != uid:
            return True
        noted = decisions.status(found)
        return noted.get("phase") in TERMINAL and not decisions.is_locked(noted)

    async def _clear(self, seen: Object, holder: str) -> None:
        run = await self._locks.find(self._key(seen))
        if run is not None and run.owner == holder and await self._locks.release(run):
            _tell(seen, "LeftBehind", f"{run.name} was left behind by {holder}, which needs it no more; it is deleted")

    # Running.

    async def _watch(self, seen: Object) -> float:
        run = await self._own(seen)
        now = _now()
        if run is None:
            words = f"{decisions.status(seen).get('pipelineRun')} was deleted by somebody else; the target is free"
            said = Condition("False", "DeletedExternally", words)
            ended_now = {"phase": "Failed", "reason": "PipelineRun deleted", "completionTime": decisions.stamp(now)}
            return await self._note(seen, said, tell=True, **ended_now)
        ended = decisions.outcome(run.manifest)
        if ended is not None:
            return await self._end(seen, ended, decisions.moment(run.manifest["status"].get("completionTime")) or now)
        wanted = run.manifest.get("spec") or {}
        limit = self._limit(wanted)
        if run.age > limit:
            if wanted.get("status") != CANCELLED and not await self._change(run, CANCELLED):
                return AT_ONCE
            reason = f"TimedOut: {run.name} has not ended after {durations.spoken(run.age)}, and is cancelled"
            return await self._end(seen, decisions.Outcome("Failed", reason), now)
        if wanted.get("status") == WAITING and not await self._change(run, None):
            return AT_ONCE
        return min(self._options.look, max(limit - run.age, 0) + 1)

    def _limit(self, wanted: Object) -> float:
        """After how many seconds a run is ended: by what is written in it, whatever this replica was started with."""
        try:
            timeout = durations.seconds(wanted["timeouts"]["pipeline"])
        except (KeyError, TypeError, AttributeError, durations.Malformed):
            # Somebody has edited it.
            timeout = self._options.timeout
        return timeout * decisions.LATE

    async def _own(self, seen: Object) -> LockObject | None:
        """The very run that the status names; a later one of the same name is not it."""
        run = await self._locks.find(self._key(seen))
        return run if run is not None and run.uid == decisions.status(seen).get("pipelineRunUID") else None

    async def _change(self, run: LockObject, status: str | None) -> bool:
        """Start or cancel a run, if it is still as it was seen."""
        revision = run.manifest["metadata"]["resourceVersion"]
        changes = {"metadata": {"resourceVersion": revision}, "spec": {"status": status}}
        return await self._runs.patch(run.name, changes) is not None

    async def _end(self, seen: Object, ended: decisions.Outcome, completed: datetime) -> float:
        words = f"{decisions.status(seen).get('pipelineRun')} holds the target through the cooldown"
        return await self._note(
            seen,
            Condition("True", "Cooldown", words),
            phase=ended.phase,
            reason=ended.reason,
            completionTime=decisions.stamp(completed),
        )

    # Completed, Failed, Skipped: the rest, and the end of the lock.

    async def _rest(self, seen: Object) -> float | None:
        if not decisions.is_locked(decisions.status(seen)):
            # What a replica made too late, or before it was killed.
            await self.free(seen)
            return None
        run, now, cooldown = await self._own(seen), _now(), await self._settings.cooldown()
        completed = decisions.completion(seen) or now
        left = decisions.rest_left(completed, cooldown, now)
        if run is None and left > decisions.SKEW.total_seconds():
            words = "its PipelineRun was deleted by somebody else during the cooldown; the target is free"
            return await self._note(seen, Condition("False", "DeletedExternally", words), tell=True)
        if run is not None and decisions.is_future(completed, now):
            words = f"completion at {decisions.stamp(completed)} cannot be true: the cooldown begins now"
            said = Condition("True", "CompletionInFuture", words)
            return await self._note(seen, said, tell=True, completionTime=decisions.stamp(now))
        if run is not None and left > 0:
            return min(left, self._options.look)
        if run is not None:
            await self._locks.release(run)
        words = f"released after a cooldown of {durations.spoken(cooldown)}"
        return await self._note(seen, Condition("False", "CooldownOver", words))

    # Writing.

    async def _skip(self, seen: Object, reason: str) -> float:
        return await self._note(
            seen, Condition("False", reason.partition(" ")[0], reason), phase="Skipped", reason=reason
        )

    async def _fail(self, seen: Object, reason: str, message: str) -> float:
        return await self._note(seen, Condition("False", reason, message), tell=True, phase="Failed", reason=reason)

    async def _note(self, seen: Object, said: Condition, *, tell: bool = False, **fields: str) -> float:
        """Write the status, unless somebody wrote since it was read; either way it is read again at once.

        `tell` makes an event of it, too: by the one replica whose note it was.
        """
        meta = seen["metadata"]
        changes = {
            "metadata": {"resourceVersion": meta["resourceVersion"]},
            "status": fields | {"conditions": decisions.conditions(seen, said, _now())},
        }
        if await self._executions.patch(meta["name"], changes, status=True) is not None:
            log.info("%s: %s (%s)", meta["name"], fields.get("reason", said.type), said.reason)
            if tell:
                _tell(seen, said.reason, said.message)
        return AT_ONCE

    def _index(self, target: str) -> dict[str, str]:
        """By which executions of a target are found: what its run is called, whatever the workflow, less the prefix."""
        return {decisions.TARGET: self._locks.name(target).removeprefix(decisions.PREFIX)}

    def _key(self, seen: Object) -> str:
        """What is locked: the target. Without locking each execution has a run of its own, to see what happens."""
        target = decisions.target_of(seen)
        return target if self._options.locking else f"{target}@{seen['metadata']['uid']}"

    def _manifest(self, seen: Object) -> Object:
        spec = seen["spec"]
        params = [{"name": name, "value": value} for name, value in (spec.get("parameters") or {}).items()]
        timeouts = {"pipeline": durations.spoken(self._options.timeout)}
        run = {"pipelineRef": {"name": spec["workflow"]}, "params": params, "timeouts": timeouts, "status": WAITING}
        return {"spec": run}


def _tell(seen: Object, reason: str, message: str) -> None:
    """An event that `kubectl describe` shows."""
    kopf.event(kopf.Body(seen), type="Warning", reason=reason, message=message)


def _now() -> datetime:
    return datetime.now(UTC)
