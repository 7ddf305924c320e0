"""Tokens over HTTP: the header that carries one, and the middleware that checks it before the handler runs.

    requests.put(url, data, headers=fence.http.header(lease))                     a client

    app = fence.http.AsgiFence(app, scope=lambda method, path: path.strip("/"),   a service
                               fence=lambda scope: aio.File(f"/var/lib/app/{scope}"))

Refusals are `application/problem+json`: 428 no token, 400 none that can be read, 412 a later holder was here, with
`token` and `mark` as decimal strings, 403 a token for something else, or one that nobody with the key has sealed.

The mark is raised before the handler runs. What the handler does then is ordered only if it shows the token, which it
finds as `leasehold.token`, to what it reads and writes: by then somebody else may have come. Its own StaleToken
is answered like the middleware's. WebSockets pass unchecked.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, MutableMapping
from typing import Any, Protocol

from leasehold.engine.lease import BaseLease
from leasehold.errors import InvalidInput, ScopeMismatch, TokenRefused
from leasehold.fence.base import Shown
from leasehold.rules import token_header
from leasehold.rules.http import Problem, wsgi_path
from leasehold.rules.sealing import Seal
from leasehold.rules.token_header import NAME

__all__ = ["NAME", "AsgiFence", "WsgiFence", "header", "shown"]

TOKEN = "leasehold.token"  # noqa: S105  a key of the request
SHARED = "leasehold.shared"


class Opens(Protocol):
    """A fenced resource, as far as the middleware needs it. AsgiFence awaits what `open` returns, if it can be."""

    def open(self, lease: int, /) -> Any:
        """Raise the mark, or raise StaleToken."""
        ...


ScopeOf = Callable[[str, str], str | None]
FenceOf = Callable[[str], Opens | None]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Message, Receive, Send], Awaitable[None]]
Environ = dict[str, Any]
WsgiApp = Callable[[Environ, Callable[..., Any]], Iterable[bytes]]


def header(lease: BaseLease, *, seal: Seal | None = None) -> dict[str, str]:
    """The header that shows a lease's token, sealed if there is a seal."""
    if not isinstance(lease, BaseLease):
        raise InvalidInput("lease", lease, "must be a lease, as locks.acquire() and locks.hold() give it")
    return {NAME: token_header.written(lease.token, lease.scope, seal=seal, shared=lease.mode == "shared")}


def shown(value: str, *, scope: str | None = None, seal: Seal | None = None) -> Shown:
    """What the value of a header shows. Raises InvalidInput if it cannot be read, ScopeMismatch, ForgedToken."""
    told = token_header.carried([value])
    return Shown(*token_header.token_of(told, scope, seal), told.shared)


class _Gate:
    """What both colours decide before the handler runs."""

    def __init__(
        self, scope: ScopeOf, fence: FenceOf | None, seal: Seal | None, required: Collection[str] | None
    ) -> None:
        for field, given in (("scope", scope), ("fence", fence)):
            if not callable(given) and (field == "scope" or given is not None):
                raise InvalidInput(field, given, "must be a function")
        if seal is not None and not isinstance(seal, Seal):
            raise InvalidInput("seal", seal, "must be a leasehold.fence.Seal")
        if isinstance(required, str):
            raise InvalidInput("required", required, 'must be several methods, such as {"PUT", "DELETE"}')
        self._scope = scope
        self._fence = fence
        self._seal = seal
        self._required = None if required is None else frozenset(map(str.upper, required))

    def look(self, method: str, path: str, values: list[str]) -> Shown | Problem | None:
        """What the request shows, or the answer to it; None if it needs to show nothing."""
        scope = self._scope(method, path)
        if scope is None:
            return None
        if not values:
            return token_header.missing() if self._required is None or method in self._required else None
        try:
            told = token_header.carried(values)
            token, scope = token_header.token_of(told, scope, self._seal)
        except InvalidInput as error:
            return token_header.unreadable(error)
        except TokenRefused as error:
            return token_header.refused(error)
        if told.shared and method not in token_header.READING:
            return token_header.refused(ScopeMismatch(scope, f"reading {scope}", f"writing {scope}"))
        return Shown(token, scope, told.shared)

    def resource(self, found: Shown | None) -> Opens | None:
        """What to open before the handler runs. A sharer raises no mark."""
        return None if found is None or found.shared or self._fence is None else self._fence(found.scope)


class AsgiFence:
    """An ASGI application whose requests show tokens.

    `scope` says what protects a request, from its method and path; None: nothing does. `fence` gives, for
    that scope, what to open before the handler runs. With a `seal` tokens must be sealed, here and not
    at that fence. `required` are the methods that must show a token, all if None; one that is shown is always checked.
    """

    def __init__(
        self,
        app: AsgiApp,
        *,
        scope: ScopeOf,
        fence: FenceOf | None = None,
        seal: Seal | None = None,
        required: Collection[str] | None = None,
    ) -> None:
        self._app = app
        self._gate = _Gate(scope, fence, seal, required)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer a request, or let the application answer it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        name = NAME.lower().encode()
        values = [value.decode("latin-1") for key, value in scope["headers"] if key.lower() == name]
        found = self._gate.look(scope["method"], scope["path"], values)
        if isinstance(found, Problem):
            await _send(send, found)
            return
        started = False

        async def sent(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            resource = self._gate.resource(found)
            if resource is not None and found is not None:
                opening = resource.open(found.token)
                if inspect.isawaitable(opening):
                    await opening
            await self._app({**scope, **_left(found)}, receive, sent)
        except TokenRefused as error:
            if started:
                raise
            await _send(send, token_header.refused(error))


class WsgiFence:
    """A WSGI application whose requests show tokens.

    `scope` says what protects a request, from its method and path; None: nothing does. `fence` gives, for
    that scope, what to open before the handler runs. With a `seal` tokens must be sealed, here and not
    at that fence. `required` are the methods that must show a token, all if None; one that is shown is always checked.
    """

    def __init__(
        self,
        app: WsgiApp,
        *,
        scope: ScopeOf,
        fence: FenceOf | None = None,
        seal: Seal | None = None,
        required: Collection[str] | None = None,
    ) -> None:
        self._app = app
        self._gate = _Gate(scope, fence, seal, required)

    def __call__(self, environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Answer a request, or let the application answer it."""
        method = environ["REQUEST_METHOD"]
        # A server joins several values with commas, which no value may have outside its quotes.
        value = environ.get("HTTP_LEASEHOLD_TOKEN")
        found = self._gate.look(method, wsgi_path(environ), [] if value is None else [value])
        if isinstance(found, Problem):
            return _started(start_response, found, method)
        try:
            resource = self._gate.resource(found)
            if resource is not None and found is not None:
                resource.open(found.token)
            body = self._app({**environ, **_left(found)}, start_response)
        except TokenRefused as error:
            return _started(start_response, token_header.refused(error), method)
        return _Body(body, start_response, method)


class _Body:
    """What a handler answers. One that is a generator runs only now, and may find only now that it is too late."""

    def __init__(self, body: Iterable[bytes], start_response: Callable[..., Any], method: str) -> None:
        self._body = body
        self._start_response = start_response
        self._method = method

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._body
        except TokenRefused as error:
            # The server raises it again if something was sent already.
            yield from _started(self._start_response, token_header.refused(error), self._method)

    def close(self) -> None:
        """As WSGI wants it: a server calls this when it is done."""
        if hasattr(self._body, "close"):
            self._body.close()


def _left(found: Shown | None) -> dict[str, object]:
    """What the handler finds with the request."""
    return {TOKEN: None, SHARED: False} if found is None else {TOKEN: found.token, SHARED: found.shared}


async def _send(send: Send, problem: Problem) -> None:
    headers = [(name.encode(), value.encode()) for name, value in problem.headers]
    await send({"type": "http.response.start", "status": problem.status, "headers": headers})
    await send({"type": "http.response.body", "body": problem.body})


def _started(start_response: Callable[..., Any], problem: Problem, method: str) -> list[bytes]:
    raised = sys.exc_info()
    if raised[1] is None:
        start_response(problem.line, problem.headers)
    else:
        start_response(problem.line, problem.headers, raised)
    return [] if method == "HEAD" else [problem.body]
