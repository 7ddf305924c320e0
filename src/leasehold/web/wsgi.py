"""Idempotency-Key for WSGI applications: Flask, Django, or none of them.

    app.wsgi_app = IdempotencyMiddleware(app.wsgi_app, once)

The handler's answer is run to its end, also where it is a generator, before the client hears of it; one that outgrows
the policy's limit is passed on from there, and still run to its end if the client goes away.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from http import HTTPStatus
from types import TracebackType
from typing import Any

from leasehold.patterns.handling import Begun
from leasehold.patterns.once import Once, Work
from leasehold.rules.arguments import function as check_function
from leasehold.rules.http import Problem, wsgi_path
from leasehold.rules.idempotency_answers import UNSTORED, Response, forbidden, length_required, refusal, too_large
from leasehold.web.gate import WORK, Asked, Gate, Text
from leasehold.web.policy import Request, RoutePolicy, credentials_of, nobody, path_of
from leasehold.wires.colour import drive

__all__ = ["IdempotencyMiddleware"]

Environ = dict[str, Any]
StartResponse = Callable[..., Any]
App = Callable[[Environ, StartResponse], Iterable[bytes]]
Raised = tuple[type[BaseException], BaseException, TracebackType] | tuple[None, None, None] | None
CHUNK = 65536


class IdempotencyMiddleware:
    """A WSGI application that handles a request once for each Idempotency-Key, and replays its answer.

    `once` is a leasehold.Once, or a function that gives it when the first request comes. A key counts for one
    tenant, principal, method and route, which functions say of a request: by default there is one tenant, the principal
    is whoever shows the same Authorization, and the route is the path. `policies` are those of single routes, None
    where the header means nothing; `policy` is that of all others. `authorize` is asked before anything is
    told of an earlier request: False is answered with 403. The handler finds its Work in environ["leasehold.work"].
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
        authorize: Callable[[Request], bool] | None = None,
    ) -> None:
        if authorize is not None:
            check_function("authorize", authorize)
        self._app = app
        self._gate = Gate(Once, once, policy=policy, policies=policies, route=route, tenant=tenant, principal=principal)
        self._authorize = authorize

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """Answer a request, or let the application answer it."""
        # A server joins several values with commas, which no key may have outside its quotes.
        value = environ.get("HTTP_IDEMPOTENCY_KEY")
        asked = self._gate.look(_request(environ), [] if value is None else [value])
        if asked is None:
            return self._app({**environ, WORK: None}, start_response)
        if isinstance(asked, Problem):
            return _started(start_response, refusal(asked))
        limit = asked.policy.request_limit
        body = _read(environ, limit)
        if body is None:
            return _started(start_response, refusal(length_required()))
        if len(body) <= limit:
            return self._once(asked, environ, body, start_response)
        if asked.policy.oversized == "refuse":
            return _started(start_response, refusal(too_large(limit)))
        whole = io.BufferedReader(_Joined(body, environ))
        return self._app({**environ, "wsgi.input": whole, WORK: None}, _marking(start_response))

    def _once(self, asked: Asked, environ: Environ, body: bytes, start_response: StartResponse) -> Iterable[bytes]:
        begun = drive(self._gate.begin(asked, body))
        if isinstance(begun, Begun):
            return self._work(begun, asked, environ, body, start_response)
        if begun.earlier and self._authorize is not None and not self._authorize(asked.request):
            return _started(start_response, refusal(forbidden()))
        return _started(start_response, begun.response)

    def _work(
        self, begun: Begun, asked: Asked, environ: Environ, body: bytes, start_response: StartResponse
    ) -> Iterable[bytes]:
        given = {"wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))}
        environ = {**environ, **given, WORK: Work(self._gate.handling(), begun)}
        # The file of the server would leave without having been read here.
        environ.pop("wsgi.file_wrapper", None)
        answer = _Answer(self._app, environ, asked.policy.response_limit)
        try:
            whole = answer.run()
        except BaseException as error:
            drive(self._gate.broke(begun, error))
            raise
        if not whole:
            return _Passed(self._gate, begun, asked, answer, start_response)
        told = drive(self._gate.done(begun, asked, answer.response()))
        return _started(start_response, told, answer.status)


class _Answer:
    """What a handler answers: its status, its headers, and its bytes, held back up to a limit."""

    def __init__(self, app: App, environ: Environ, limit: int) -> None:
        self._app = app
        self._environ = environ
        self._limit = limit
        self._headers: list[tuple[str, str]] = []
        self._parts: list[bytes] = []
        self._body: Iterable[bytes] = ()
        self._left: Iterator[bytes] = iter(())
        self._whole = True
        self.status = ""
        self.passed = False

    def run(self) -> bool:
        """Run it to its end, or until it outgrows the limit: False."""
        size = 0
        self._body = self._app(self._environ, self._start)
        try:
            self._left = iter(self._body)
            for part in self._left:
                self._parts.append(part)
                size += len(part)
                if size > self._limit:
                    break
            # Some handlers write instead, which nobody counts on the way.
            self._whole = sum(map(len, self._parts)) <= self._limit
        finally:
            if self._whole:
                self.close()
        if not self.status:
            raise RuntimeError("the application returned without having answered")
        return self._whole

    def response(self) -> Response:
        """All of it, or what is known of it if it was passed on."""
        status = int(self.status.split(" ", 1)[0])
        body = b"".join(self._parts) if self._whole else b""
        return Response(status, tuple(self._headers), body, whole=self._whole)

    def begin(self, start_response: StartResponse) -> None:
        """Pass on how it begins, marked as not kept."""
        self.passed = True
        start_response(self.status, [*self._headers, UNSTORED])

    def rest(self) -> Iterator[bytes]:
        """What was held back, then what comes."""
        yield b"".join(self._parts)
        self._parts.clear()
        yield from self._left

    def close(self) -> None:
        """As WSGI wants it, when it is done."""
        close = getattr(self._body, "close", None)
        if close is not None:
            close()

    def _start(self, status: str, headers: list[tuple[str, str]], raised: Raised = None) -> Callable[[bytes], object]:
        if self.passed and raised and raised[1] is not None:
            raise raised[1]
        self.status, self._headers = status, list(headers)
        return self._parts.append


class _Passed:
    """An answer that is too large to keep, on its way. It is run to its end even if nobody listens any more."""

    def __init__(
        self, gate: Gate[Once], begun: Begun, asked: Asked, answer: _Answer, start_response: StartResponse
    ) -> None:
        self._gate, self._begun, self._asked, self._answer = gate, begun, asked, answer
        answer.begin(start_response)
        self._parts = self._run()

    def __iter__(self) -> Iterator[bytes]:
        return self._parts

    def close(self) -> None:
        """A server calls this when it is done, or when the client is gone."""
        for _ in self._parts:
            pass

    def _run(self) -> Iterator[bytes]:
        try:
            try:
                yield from self._answer.rest()
            finally:
                self._answer.close()
        except BaseException as error:
            drive(self._gate.broke(self._begun, error))
            raise
        drive(self._gate.done(self._begun, self._asked, self._answer.response()))


class _Joined(io.RawIOBase):
    """What was read of a request already, and then the rest of it."""

    def __init__(self, first: bytes, environ: Environ) -> None:
        self._first = io.BytesIO(first)
        self._rest = environ["wsgi.input"]
        # What comes after its end would be waited for, and is nobody's.
        self._left = int(environ["CONTENT_LENGTH"]) - len(first) if environ.get("CONTENT_LENGTH") else None

    def readable(self) -> bool:
        return True

    def readinto(self, space: Any) -> int:
        data: bytes = self._first.read(len(space))
        if not data:
            data = self._rest.read(len(space) if self._left is None else min(self._left, len(space)))
            self._left = None if self._left is None else self._left - len(data)
        space[: len(data)] = data
        return len(data)


def _request(environ: Environ) -> Request:
    headers = {name[5:].replace("_", "-").lower(): value for name, value in environ.items() if name.startswith("HTTP_")}
    if environ.get("CONTENT_TYPE"):
        headers["content-type"] = environ["CONTENT_TYPE"]
    query = environ.get("QUERY_STRING", "")
    return Request(environ["REQUEST_METHOD"], wsgi_path(environ), query, headers, environ)


def _read(environ: Environ, limit: int) -> bytes | None:
    """The body, or one byte more of it than the limit allows; None if WSGI does not say where it ends."""
    given = environ.get("CONTENT_LENGTH")
    if given:
        left = min(int(given), limit + 1)
    elif environ.get("wsgi.input_terminated"):
        left = limit + 1
    else:
        return None if environ.get("HTTP_TRANSFER_ENCODING") else b""
    parts = []
    while left > 0 and (part := environ["wsgi.input"].read(min(left, CHUNK))):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def _marking(start_response: StartResponse) -> StartResponse:
    def marked(status: str, headers: list[tuple[str, str]], *raised: Any) -> Any:
        return start_response(status, [*headers, UNSTORED], *raised)

    return marked


def _started(start_response: StartResponse, told: Response, line: str = "") -> list[bytes]:
    if not line.startswith(f"{told.status} "):
        known = {one.value: one.phrase for one in HTTPStatus}
        line = f"{told.status} {known.get(told.status, 'Unknown')}"
    start_response(line, list(told.headers))
    return [told.body]
