"""Asking the model: one HTTP request a turn, with a key by which it knows a repeated one."""

from __future__ import annotations

import aiohttp
import msgspec
from window import Window

# A model may think for long. What ends sooner is the lease, if this replica no longer renews it.
PATIENCE = aiohttp.ClientTimeout(total=600, sock_connect=10)


class ModelFailed(Exception):
    """The model did not answer, or not with what can be used. It is asked again later."""


class ToolCall(msgspec.Struct):
    """A tool that the model wants to be called. `arguments` is a JSON object in text."""

    id: str
    tool: str
    arguments: str


class Answer(msgspec.Struct, rename="camel", omit_defaults=True):
    """What the model says: something for its tools to do, or the final answer."""

    content: str
    tool_calls: list[ToolCall] = []


class Model:
    """A model behind a URL."""

    def __init__(self, session: aiohttp.ClientSession, url: str, replica: str) -> None:
        self._session = session
        self._url = url
        self._replica = replica

    async def ask(self, task: str, uid: str, turn: int, window: Window) -> Answer:
        """The answer to a window. The same task and turn is the same request, whoever sends it, however often."""
        headers = {"Idempotency-Key": f"{uid}-{turn}", "X-Replica": self._replica}
        payload = {"task": task, "turn": turn, "messages": window}
        try:
            async with self._session.post(self._url, json=payload, headers=headers, timeout=PATIENCE) as said:
                body = await said.read()
                if not said.ok:
                    raise ModelFailed(f"the model answered {said.status}: {body[:500].decode(errors='replace')}")
            return msgspec.json.decode(body, type=Answer)
        except (aiohttp.ClientError, TimeoutError, msgspec.MsgspecError) as error:
            raise ModelFailed(f"the model did not answer: {error!r}") from error
