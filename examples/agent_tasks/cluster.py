"""The objects that this controller reads and writes, and their names. What they mean is said in `turns.py`."""

from __future__ import annotations

from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import Any, Self

import msgspec
import window as windows
from model import Answer
from window import Message, Window

from leasehold import kube
from leasehold.kube import aio as objects

Object = dict[str, Any]

TASK = kube.Kind("agents.example.com/v1", "Task", "tasks")
TOOL_CALL = kube.Kind("agents.example.com/v1", "ToolCall", "toolcalls")
EVENT = kube.Kind("v1", "Event", "events")
# By these a task's calls are found, whatever a later task of the same name has.
UID, TURN = "agents.example.com/task-uid", "agents.example.com/turn"
# What comes behind a task's name in another's, and still is a name.
ROOM = 180


class Cluster:
    """Tasks, their calls and events, in one namespace."""

    def __init__(self, tasks: objects.Objects, calls: objects.Objects, events: objects.Objects, holder: str) -> None:
        self.tasks = tasks
        self.calls = calls
        self._events = events
        self._holder = holder

    @classmethod
    async def connect(cls, stack: AsyncExitStack, url: str, holder: str) -> Self:
        """Connected until the stack is left."""
        kinds = (TASK, TOOL_CALL, EVENT)
        tasks, calls, events = [await stack.enter_async_context(await objects.connect(url, kind)) for kind in kinds]
        return cls(tasks, calls, events, holder)

    async def calls_of(self, task: Object, window: Window) -> list[Object]:
        """The tool calls of the turn that is over, as far as they were made."""
        return await self.calls.list({UID: task["metadata"]["uid"], TURN: str(windows.answers(window))})

    async def note(self, task: Object, changes: dict[str, Any]) -> Object | None:
        """Write this into the status of the very revision that was read; None if there is another by now."""
        revision = {"resourceVersion": task["metadata"]["resourceVersion"]}
        return await self.tasks.patch(task["metadata"]["name"], {"metadata": revision, "status": changes}, status=True)

    async def make_call(self, task: Object, call: dict[str, str]) -> None:
        """A tool call for the turn that is over. It goes with its task, by Kubernetes' own garbage collection."""
        meta, turn = task["metadata"], windows.answers(windows.of(task))
        owner = {"apiVersion": TASK.api_version, "kind": TASK.kind, "name": meta["name"], "uid": meta["uid"]}
        metadata = {
            "name": f"{_stem(task)}-t{turn}-{_place(task, call)}",
            "labels": {UID: meta["uid"], TURN: str(turn)},
            "ownerReferences": [owner],
        }
        await self.calls.create({"metadata": metadata, "spec": {"task": meta["name"], "turn": turn, **call}})

    async def finish_call(self, call: Object, phase: str, result: str) -> None:
        """The result of a call, unless there is one."""
        meta = call["metadata"]
        changes = {
            "metadata": {"resourceVersion": meta["resourceVersion"]},
            "status": {"phase": phase, "result": result},
        }
        await self.calls.patch(meta["name"], changes, status=True)

    async def tell(self, task: Object, turn: int, reason: str, text: str) -> None:
        """An Event about a task. Its name follows from task, turn and reason, so it is there once at most."""
        meta, now = task["metadata"], datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        about = {"apiVersion": TASK.api_version, "kind": TASK.kind, "namespace": self.tasks.namespace}
        told = {
            "metadata": {"name": f"{_stem(task)}-t{turn}.{reason.lower()}"},
            "involvedObject": about | {"name": meta["name"], "uid": meta["uid"]},
            "reason": reason,
            "message": text,
            "type": "Normal",
            "source": {"component": "agent-tasks", "host": self._holder},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        await self._events.create(told)


def phase(found: Object) -> str:
    """Of a task, or of a call: empty as long as there is none."""
    named: str = (found.get("status") or {}).get("phase", "")
    return named


def token(task: Object) -> int:
    """The largest token that has written the task."""
    return int((task.get("status") or {}).get("token", 0))


def message(answer: Answer) -> Message:
    """An answer as it stands in the window."""
    said: Message = {"role": "assistant", **msgspec.to_builtins(answer)}
    return said


def _stem(task: Object) -> str:
    """How the names begin of what belongs to this very task, and not to an earlier one of its name."""
    return f"{task['metadata']['name'][:ROOM].rstrip('.-')}-{task['metadata']['uid'][:8]}"


def _place(task: Object, call: dict[str, str]) -> int:
    """Which call of its answer it is."""
    return windows.open_calls(windows.of(task)).index(call)
