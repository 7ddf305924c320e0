"""A model that needs no GPU: `python examples/agent_tasks/fake_model.py --port 8090 --turns 2 --calls 4 --delay 3`.

It asks for tool calls for some turns, then answers. It trusts nobody: every request is noted with its times, and what
a correct controller never sends is refused, and kept as a violation: two requests of one task at the same time, a
window that is not in order, a window that lacks what an earlier one had.

    POST /v1/chat      {"task": …, "turn": …, "messages": […]} with an Idempotency-Key
    GET /notes         what was asked so far, and the violations
    PUT /held/TASK     answer this task only after DELETE /held/TASK
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections import defaultdict
from typing import Any

from aiohttp import web

Messages = list[dict[str, Any]]


class FakeModel:
    """What it was asked, and what it has answered."""

    def __init__(self, turns: int, calls: int, delay: float) -> None:
        self._turns = turns
        self._calls = calls
        self._delay = delay
        self._notes: list[dict[str, Any]] = []
        self._violations: list[dict[str, Any]] = []
        self._held: dict[str, asyncio.Event] = {}
        self._answers: dict[str, dict[str, Any]] = {}
        self._longest: defaultdict[str, Messages] = defaultdict(list)

    def app(self) -> web.Application:
        """What aiohttp serves."""
        app = web.Application()
        app.add_routes(
            [
                web.post("/v1/chat", self.chat),
                web.get("/notes", self.notes),
                web.put("/held/{task}", self.hold),
                web.delete("/held/{task}", self.free),
            ]
        )
        return app

    async def chat(self, request: web.Request) -> web.Response:
        """One request: refused, or thought about and answered. The same key is answered the same."""
        asked, key = await request.json(), request.headers["Idempotency-Key"]
        note = {"task": asked["task"], "turn": asked["turn"], "key": key, "replica": request.headers["X-Replica"]}
        note |= {"messages": asked["messages"], "begin": time.time(), "end": None, "outcome": None}
        wrong = self._wrong(note)
        self._notes.append(note)
        try:
            if wrong:
                note["outcome"] = "refused"
                self._violations.append({"task": note["task"], "turn": note["turn"], "wrong": wrong})
                return web.json_response({"error": wrong}, status=409)
            await self._think(asked["task"])
            note["outcome"] = "repeated" if key in self._answers else "answered"
            answer = self._answers.setdefault(key, self._answer(asked["turn"]))
            return web.json_response(answer)
        except asyncio.CancelledError:
            note["outcome"] = "hung up"
            raise
        finally:
            note["end"] = time.time()

    async def notes(self, _request: web.Request) -> web.Response:
        """For whoever wants to know how the controller behaved."""
        return web.json_response({"requests": self._notes, "violations": self._violations})

    async def hold(self, request: web.Request) -> web.Response:
        """Think about this task until told otherwise."""
        self._held.setdefault(request.match_info["task"], asyncio.Event())
        return web.json_response({})

    async def free(self, request: web.Request) -> web.Response:
        """Go on with this task."""
        self._held.pop(request.match_info["task"]).set()
        return web.json_response({})

    # Answering.

    async def _think(self, task: str) -> None:
        await asyncio.sleep(self._delay)
        if task in self._held:
            await self._held[task].wait()

    def _answer(self, turn: int) -> dict[str, Any]:
        if turn > self._turns:
            return {"content": f"It is {turn}."}
        calls = [
            {"id": f"call-{turn}-{number}", "tool": "add", "arguments": json.dumps({"a": turn, "b": number})}
            for number in range(self._calls)
        ]
        return {"content": "", "toolCalls": calls}

    # Trusting nobody.

    def _wrong(self, note: dict[str, Any]) -> str:
        """Why this request must not be; empty if it may."""
        if any(other["end"] is None for other in self._notes if other["task"] == note["task"]):
            return "another request of this task is not answered yet"
        messages = note["messages"]
        wrong = disorder(messages)
        if wrong:
            return wrong
        answered = sum(message["role"] == "assistant" for message in messages)
        if answered != note["turn"] - 1:
            return f"{answered} answers in a window of turn {note['turn']}"
        before = self._longest[note["task"]]
        if messages[: len(before)] != before:
            return "the window lacks what an earlier one had"
        self._longest[note["task"]] = messages
        return ""


def disorder(messages: Messages) -> str:
    """What is wrong with a window that is to be sent; empty if nothing is: every tool call answered, roles in order."""
    rest = messages[1:] if messages and messages[0]["role"] == "system" else messages
    if not rest or rest[0]["role"] != "user":
        return "the first message is not the user's"
    rest = rest[1:]
    while rest:
        asked = [call["id"] for call in rest[0].get("toolCalls", [])]
        told = rest[1 : 1 + len(asked)]
        if rest[0]["role"] != "assistant" or not asked:
            return f"a message of {rest[0]['role']} where one of the assistant with tool calls belongs"
        if [(message["role"], message.get("toolCallId")) for message in told] != [("tool", one) for one in asked]:
            return f"the results of {asked} do not follow"
        rest = rest[1 + len(asked) :]
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(prog="fake_model", description="A model that needs no GPU, and notes everything.")
    parser.add_argument("--port", type=int, default=8090)
    parser.add_argument("--turns", type=int, default=2, help="with tool calls, before the final answer")
    parser.add_argument("--calls", type=int, default=4, help="tool calls a turn")
    parser.add_argument("--delay", type=float, default=1, help="seconds until it answers")
    given = parser.parse_args()
    app = FakeModel(given.turns, given.calls, given.delay).app()
    # Who hangs up is no longer thought about.
    web.run_app(app, host="127.0.0.1", port=given.port, access_log=None, print=None, handler_cancellation=True)


if __name__ == "__main__":
    main()
