"""Idempotency-Key for ASGI applications: Starlette, FastAPI, Litestar, or none of them.

    app = IdempotencyMiddleware(app, once, principal=lambda request: request.raw["user"].id)

The handler runs apart from the request that asked for it: a client that goes away does not stop it. So it is never told
that the client is gone. Its answer is sent when the record says what it came to; one that outgrows the policy's limit
is passed on from there, as it comes.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from leasehold.aio import Once, Work
from leasehold.patterns.handling import Begun
from leasehold.rules.arguments import function as check_function
from leasehold.rules.http import Problem
from leasehold.rules.idempotency_answers import UNSTORED, Response, forbidden, refusal, too_large
from leasehold.rules.idempotency_key import NAME
from leasehold.web.gate import WORK, Asked, Gate, Text
from leasehold.web.policy import Request, RoutePolicy, credentials_of, nobody, path_of

__all__ = ["IdempotencyMiddleware"]

_NAME = NAME.lower().encode()
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]
Allowed = Callable[[Request], bool | Awaitable[bool]]


class IdempotencyMiddleware:
    """An ASGI application that handles a request once for each Idempotency-Key, and replays its answer.

    `once` is a leasehold.aio.Once, or a function that gives it when the first request comes. A key counts for one
    tenant, principal, method and route, which functions say of a request: by default there is one tenant, the principal
    is whoever shows the same Authorization, and the route is the path. `policies` are those of single routes, None
    where the header means nothing; `policy` is that of all others. `authorize` is asked before anything is
    told of an earlier request: False is answered with 403. The handler finds its Work in scope["leasehold.work"].
    """

    def __init__(
        self,
        app: App,
        once: Once | Callable[[], Once],
        *,
        policy: RoutePolicy = RoutePolicy(),  # noqa: B008  frozen
        policies: Mapping[str, RoutePolicy | None] = {},
        route: Callable[[Request], str] = path_of,
        tenant: Text = nobody,
        principal: Text = credentials_of,
        authorize: Allowed | None = None,
    ) -> None:
        if authorize is not None:
            check_function("authorize", authorize)
        self._app = app
        self._gate = Gate(Once, once, policy=policy, policies=policies, route=route, tenant=tenant, principal=principal)
        self._authorize = authorize

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer a request, or let the application answer it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        values = [value.decode("latin-1") for name, value in scope["headers"] if name.lower() == _NAME]
        asked = self._gate.look(_request(scope), values)
        if asked is None:
            await self._app({**scope, WORK: None}, receive, send)
        elif isinstance(asked, Problem):
            await _send(send, refusal(asked))
        else:
            await self._once(asked, scope, receive, send)

    async def _once(self, asked: Asked, scope: Message, receive: Receive, send: Send) -> None:
        body = await _read(receive, asked.policy.request_limit)
        if isinstance(body, bytes):
            await self._handled(asked, scope, body, send)
        elif body is None:
            return
        elif asked.policy.oversized == "pass":
            await self._app({**scope, WORK: None}, _first(body, receive), _marking(send))
        else:
            await _send(send, refusal(too_large(asked.policy.request_limit)))

    async def _handled(self, asked: Asked, scope: Message, body: bytes, send: Send) -> None:
        begun = await self._gate.begin(asked, body)
        if isinstance(begun, Begun):
            client = _Client(send)
            # In a task of its own, which goes on if this one is cancelled because the client is gone: work that was
            # begun and not done would leave its key unknown for ever.
            try:
                await self._gate.handling().engine.runtime.finish(self._work(begun, asked, scope, body, client))
            finally:
                client.gone = True
        elif begun.earlier and not await self._allows(asked.request):
            await _send(send, refusal(forbidden()))
        else:
            await _send(send, begun.response)

    async def _work(self, begun: Begun, asked: Asked, scope: Message, body: bytes, client: _Client) -> None:
        handling = self._gate.handling()
        given = False

        async def receive() -> Message:
            nonlocal given
            if given:
                # For ever: nobody else knows of this signal.
                await handling.engine.runtime.signal().wait()
                return {"type": "http.disconnect"}
            given = True
            return {"type": "http.request", "body": body, "more_body": False}

        answer = _Answer(client, asked.policy.response_limit)
        # What an answer can be made of besides its bytes could not be kept.
        extensions = {
            name: value
            for name, value in (scope.get("extensions") or {}).items()
            if not name.startswith("http.response.")
        }
        try:
            await self._app({**scope, "extensions": extensions, WORK: Work(handling, begun)}, receive, answer.take)
            response = answer.response()
        except BaseException as error:
            await self._gate.broke(begun, error)
            raise
        told = await self._gate.done(begun, asked, response)
        if told is response:
            await answer.pass_on()
        elif not answer.passed:
            await _send(client.send, told)

    async def _allows(self, request: Request) -> bool:
        if self._authorize is None:
            return True
        said = self._authorize(request)
        return bool(await said if inspect.isawaitable(said) else said)


class _Client:
    """Whoever asked. If it is gone the work is not stopped; it is only told nothing more."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.gone = False

    async def send(self, message: Message) -> None:
        """Tell it, while it is there."""
        if not self.gone:
            try:
                await self._send(message)
            except OSError:
                self.gone = True


class _Answer:
    """What a handler answers: held back up to a limit, and passed on as it comes from there."""

    def __init__(self, client: _Client, limit: int) -> None:
        self._client = client
        self._limit = limit
        self._start: Message = {}
        self._parts: list[bytes] = []
        self._size = 0
        self._ended = False
        self.passed = False

    async def take(self, message: Message) -> None:
        """As the handler's `send`."""
        if message["type"] == "http.response.start":
            self._start = message
            return
        if message["type"] != "http.response.body" or not self._start:
            raise RuntimeError(f"an answer here is made of a start and of bytes, not of {message['type']}")
        part = message.get("body", b"")
        self._ended = not message.get("more_body", False)
        self._size += len(part)
        if not self.passed:
            self._parts.append(part)
            if self._size <= self._limit:
                return
            self.passed = True
            part = b"".join(self._parts)
            mark = tuple(one.encode() for one in UNSTORED)
            await self._client.send({**self._start, "headers": [*self._start.get("headers", ()), mark]})
        await self._client.send({"type": "http.response.body", "body": part, "more_body": not self._ended})

    async def pass_on(self) -> None:
        """What was held back, as the handler gave it."""
        await self._client.send(self._start)
        await self._client.send({"type": "http.response.body", "body": b"".join(self._parts)})

    def response(self) -> Response:
        """All of it, or what is known of it if it was passed on."""
        if not self._start or not self._ended:
            raise RuntimeError("the application returned without having answered")
        given = self._start.get("headers", ())
        headers = tuple([(name.decode("latin-1"), value.decode("latin-1")) for name, value in given])
        body = b"" if self.passed else b"".join(self._parts)
        return Response(self._start["status"], headers, body, whole=not self.passed)


def _request(scope: Message) -> Request:
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
    return Request(scope["method"], scope["path"], scope.get("query_string", b"").decode("latin-1"), headers, scope)


async def _read(receive: Receive, limit: int) -> bytes | list[Message] | None:
    """The body; what was read of it if it is too large; None if the client went away meanwhile."""
    messages: list[Message] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        messages.append(message)
        size += len(message.get("body", b""))
        if size > limit:
            return messages
        if not message.get("more_body", False):
            return b"".join(one.get("body", b"") for one in messages)


def _first(messages: list[Message], receive: Receive) -> Receive:
    """What was read already, and then what comes."""
    waiting = iter(messages)

    async def next_one() -> Message:
        message = next(waiting, None)
        return await receive() if message is None else message

    return next_one


def _marking(send: Send) -> Send:
    async def marked(message: Message) -> None:
        if message["type"] == "http.response.start":
            mark = tuple(one.encode() for one in UNSTORED)
            message = {**message, "headers": [*message.get("headers", ()), mark]}
        await send(message)

    return marked


async def _send(send: Send, told: Response) -> None:
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in told.headers]
    await send({"type": "http.response.start", "status": told.status, "headers": headers})
    await send({"type": "http.response.body", "body": told.body})
