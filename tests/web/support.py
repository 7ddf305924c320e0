"""Handlers behind the middleware on a real ASGI and a real WSGI server, and a client that sends what it is told."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any, NamedTuple

import uvicorn

import leasehold
from leasehold import aio
from leasehold.web import asgi, wsgi
from tests.fence.http_support import Answer, Door, ask, wsgi_server
from tests.support import eventually

KEY = '"8e03978e-40d5-43dd"'
TYPE = "application/json"


class Call(NamedTuple):
    """A request as a handler sees it, and the work that it is."""

    method: str
    path: str
    body: bytes
    work: Any


class Reply(NamedTuple):
    """What a handler answers."""

    status: int = 200
    body: bytes | Iterable[bytes] = b"{}"
    headers: tuple[tuple[str, str], ...] = (("Content-Type", TYPE),)


Handler = Callable[[Call], Reply]


class Counting:
    """A handler that tells every run from every other, and can be made to wait."""

    def __init__(self, reply: Callable[[Call], Reply] | None = None) -> None:
        self.calls: list[Call] = []
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self._reply = reply
        self._lock = threading.Lock()

    def __call__(self, call: Call) -> Reply:
        with self._lock:
            self.calls.append(call)
            number = len(self.calls)
        assert self.may_go_on.wait(20)
        if self._reply is not None:
            return self._reply(call)
        return Reply(201, json.dumps({"run": number}).encode(), (("Content-Type", TYPE), ("X-Run", str(number))))

    @property
    def runs(self) -> int:
        return len(self.calls)


def asgi_app(handler: Handler) -> Any:
    """The handler as an ASGI application. It runs in a thread, and so may wait."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        call = Call(scope["method"], scope["path"], body, scope["leasehold.work"])
        reply = await asyncio.to_thread(handler, call)
        headers = [(name.encode(), value.encode()) for name, value in reply.headers]
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})
        parts = iter([reply.body] if isinstance(reply.body, bytes) else reply.body)
        while (part := await asyncio.to_thread(next, parts, None)) is not None:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    return app


def wsgi_app(handler: Handler) -> Any:
    """The handler as a WSGI application, which is a generator: it runs when its answer is read."""

    def app(environ: Any, start_response: Any) -> Iterator[bytes]:
        body = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"] or 0))
        reply = handler(Call(environ["REQUEST_METHOD"], environ["PATH_INFO"], body, environ["leasehold.work"]))
        start_response(f"{reply.status} Told", list(reply.headers))
        yield from [reply.body] if isinstance(reply.body, bytes) else reply.body

    return app


class Server:
    """One of the two kinds, with whatever applications are put behind it."""

    name = ""

    def __init__(self) -> None:
        self.apps: list[Any] = []
        self.port = 0

    def serve(self, handler: Handler, url: str, *, once: dict[str, Any] | None = None, **options: Any) -> Door:
        """Put a handler behind the middleware."""
        return self.mount(lambda made: self.middleware(self.app(handler), made, **options), url, **(once or {}))

    def mount(self, build: Callable[[Any], Any], url: str, **once: Any) -> Door:
        """Put an application there that is made of a Once."""
        self.apps.append(build(self.once(url, **once)))
        return Door(self.port, len(self.apps) - 1)

    def app(self, handler: Handler) -> Any:
        raise NotImplementedError

    def middleware(self, app: Any, once: Any, **options: Any) -> Any:
        raise NotImplementedError

    def once(self, url: str, **options: Any) -> Any:
        raise NotImplementedError


class AsgiServer(Server):
    """uvicorn, in a thread."""

    name = "asgi"
    middleware = asgi.IdempotencyMiddleware

    def __init__(self) -> None:
        super().__init__()
        self.loop: asyncio.AbstractEventLoop | None = None
        self._locks: list[aio.Locks] = []

    def app(self, handler: Handler) -> Any:
        return asgi_app(handler)

    def once(self, url: str, **options: Any) -> aio.Once:
        assert self.loop is not None
        timeout = options.pop("timeout", 5)
        locks = asyncio.run_coroutine_threadsafe(_connected(url, timeout), self.loop).result(20)
        self._locks.append(locks)
        return aio.Once(locks, **options)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await receive()
            self.loop = asyncio.get_running_loop()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            for locks in self._locks:
                await locks.close()
            await send({"type": "lifespan.shutdown.complete"})
        else:
            await self.apps[int(dict(scope["headers"])[b"door"])](scope, receive, send)

    @contextmanager
    def running(self) -> Iterator[None]:
        with closing(socket.create_server(("127.0.0.1", 0), backlog=256)) as listening:
            server = uvicorn.Server(uvicorn.Config(self, log_config=None, lifespan="on", ws="none"))
            thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
            thread.start()
            eventually(lambda: server.started)
            self.port = listening.getsockname()[1]
            yield
            server.should_exit = True
            thread.join(20)
            assert not thread.is_alive()


async def _connected(url: str, timeout: float) -> aio.Locks:  # noqa: ASYNC109  the store's, not ours
    return await aio.connect(url, timeout=timeout)


class WsgiServer(Server):
    """wsgiref, with a thread for each connection."""

    name = "wsgi"
    middleware = wsgi.IdempotencyMiddleware

    def __init__(self) -> None:
        super().__init__()
        self._locks: list[leasehold.Locks] = []

    def app(self, handler: Handler) -> Any:
        return wsgi_app(handler)

    def once(self, url: str, **options: Any) -> leasehold.Once:
        self._locks.append(leasehold.connect(url, timeout=options.pop("timeout", 5)))
        return leasehold.Once(self._locks[-1], **options)

    @contextmanager
    def running(self) -> Iterator[None]:
        with wsgi_server(self.apps) as self.port:
            yield
        for locks in self._locks:
            locks.close()


def send(
    door: Door,
    body: bytes = b'{"amount":5}',
    *,
    key: str | None = KEY,
    method: str = "POST",
    path: str = "/payments",
    kind: str = TYPE,
    **headers: str,
) -> Answer:
    """One request with a key."""
    named = [(name.replace("_", "-"), value) for name, value in headers.items()]
    keyed = [] if key is None else [("Idempotency-Key", key)]
    return ask(door, method, path, [*keyed, ("Content-Type", kind), *named], body)


def send_all(times: int, request: Callable[[], Answer]) -> list[Answer]:
    """The same request many times at once."""
    with ThreadPoolExecutor(times) as pool:
        return [one.result() for one in [pool.submit(request) for _ in range(times)]]


def reason(answer: Answer) -> tuple[int, str]:
    """A refusal, in short."""
    told = answer.told
    assert told["title"]
    assert told["detail"]
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers.get("retry-after") == (str(told["retry_after"]) if "retry_after" in told else None)
    return answer.status, told["reason"]


def is_replay(answer: Answer) -> bool:
    """Whether the answer says so."""
    return answer.headers.get("idempotent-replayed") == "true"
