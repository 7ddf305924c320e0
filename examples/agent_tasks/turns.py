"""One turn of a task: when all its tool calls are finished, one request to the model, and the answer into the window.

Tool calls that finish together each lead here, in every replica. So: lock (`task-llm-<task>`), read afresh, note
the lease's token in the task, ask, and write over the very revision that carries the token. A replica that lost its
lease without knowing finds a larger token there, and its write is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import cluster
import window as windows
from cluster import Cluster, Object
from model import Answer, Model
from window import Window

from leasehold import aio

# How long to wait for others: of this process, which costs no request, and of other replicas, for which one of
# this process stands in line. After that the task is requeued.
WAIT = 0.5
# How many look at once whether there is something to do: a flood must leave connections to those who hold a lease.
LOOKS = 8


class Overtaken(Exception):
    """Somebody else has written the task since it was read: what was to be written is dropped."""


class Ready(NamedTuple):
    """A task for which there is something to do: tool calls to be made, or else a window to be sent."""

    task: Object
    window: Window
    missing: list[dict[str, str]]


class Turns:
    """What takes tasks on. Without `locks` it shows what the lock is for."""

    def __init__(self, found: Cluster, model: Model, locks: aio.Locks | None, holder: str, ttl: float) -> None:
        self._cluster = found
        self._model = model
        self._locks = locks
        self._holder = holder
        self._ttl = ttl
        self._looks = asyncio.Semaphore(LOOKS)
        self._unseen: set[str] = set()

    async def reconcile(self, name: str) -> None:
        """Take a task one step on, if there is one to be taken. NotAcquired: another replica is at it."""
        if name in self._unseen:
            # Another that was led here has not looked yet, and will see what led us here, too.
            return
        self._unseen.add(name)
        async with self._looks:
            self._unseen.discard(name)
            seen = await self._look(name)
        if seen is None:
            return
        async with self._hold(name) as token:
            # Afresh: whoever had the lock before may have done what was seen to be done.
            ready = await self._look(name)
            if ready is not None and ready.missing:
                await self._make_calls(ready.task, ready.missing)
            elif ready is not None:
                await self._send(ready, token)

    @asynccontextmanager
    async def _hold(self, name: str) -> AsyncIterator[int]:
        """The token of the lease, held. If it is lost, what runs in here is cancelled."""
        if self._locks is None:
            yield 0
            return
        async with self._locks.hold(name, ttl=self._ttl, wait=WAIT) as lease:
            yield lease.token

    async def _look(self, name: str) -> Ready | None:
        """What is to be done; None if nothing is, or not yet: then a tool call that finishes leads here again."""
        task = await self._cluster.tasks.get(name)
        if task is None or cluster.phase(task) == "FinalAnswer":
            return None
        window = windows.of(task)
        asked = windows.open_calls(window)
        calls = {call["spec"]["id"]: call for call in await self._cluster.calls_of(task, window)} if asked else {}
        missing = [call for call in asked if call["id"] not in calls]
        if missing:
            return Ready(task, window, missing)
        if not all(map(cluster.phase, calls.values())):
            return None
        results = {name: call["status"]["result"] for name, call in calls.items()}
        return Ready(task, windows.with_results(window, results), [])

    async def _send(self, ready: Ready, token: int) -> None:
        """The request to the model, between two notes in the task."""
        task, window = ready.task, ready.window
        turn = windows.answers(window) + 1
        if self._locks is not None:
            task = await self._register(task, window, turn, token)
        await self._cluster.tell(task, turn, "SendingContextWindowToLLM", f"turn {turn}: {len(window)} messages")
        answer = await self._model.ask(task["metadata"]["name"], task["metadata"]["uid"], turn, window)
        if not answer.tool_calls:
            # Before the note: if this replica dies in between, the next one comes here again and the name is taken.
            await self._cluster.tell(task, turn, "LLMFinalAnswer", f"turn {turn}: the task is answered")
        window = [*window, cluster.message(answer)]
        task = await self._write(task, _outcome(window, turn, answer), token)
        await self._make_calls(task, windows.open_calls(window))

    # What is written into the task.

    async def _register(self, task: Object, window: Window, turn: int, token: int) -> Object:
        """Note the window that will be sent and who sends it. From here on nobody with a smaller token can write."""
        if cluster.token(task) > token:
            raise Overtaken(f"it carries token {cluster.token(task)}; ours is {token}")
        about = {"phase": "SendingContextWindow", "turn": turn, "contextWindow": window}
        noted = await self._cluster.note(task, about | {"holder": self._holder, "token": str(token)})
        if noted is None:
            raise Overtaken("it was written by somebody else since it was read")
        return noted

    async def _write(self, task: Object, changes: dict[str, Any], token: int) -> Object:
        """The answer; again where others (who edit a label, say) wrote meanwhile, as long as our token stands there."""
        while True:
            noted = await self._cluster.note(task, changes)
            if noted is not None:
                return noted
            again = await self._cluster.tasks.get(task["metadata"]["name"])
            if again is None or again["metadata"]["uid"] != task["metadata"]["uid"]:
                raise Overtaken("it was deleted")
            if cluster.token(again) != token:
                raise Overtaken(f"it carries token {cluster.token(again)}; ours is {token}")
            task = again

    async def _make_calls(self, task: Object, asked: list[dict[str, str]]) -> None:
        """The tool calls of an answer. Their names follow from task and turn: what is there is left alone."""
        for call in asked:
            await self._cluster.make_call(task, call)


def _outcome(window: Window, turn: int, answer: Answer) -> dict[str, Any]:
    """What an answer makes of a task."""
    if answer.tool_calls:
        return {"phase": "ToolCallsPending", "turn": turn, "contextWindow": window}
    return {"phase": "FinalAnswer", "turn": turn, "contextWindow": window, "output": answer.content}
