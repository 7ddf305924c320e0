"""A counter behind HTTP, on a real ASGI and a real WSGI server, and a client with the three verbs."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any, NamedTuple
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import uvicorn

from leasehold import InvalidInput, NoSuchResource, StaleToken, fence
from leasehold.fence import aio
from tests.support import eventually


class Answer(NamedTuple):
    """What a server said."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def told(self) -> dict[str, Any]:
        assert self.headers["content-type"] == "application/problem+json"
        found: dict[str, Any] = json.loads(self.body)
        assert found["status"] == self.status
        return found


class Door(NamedTuple):
    """Where a server listens, and which of its applications is meant."""

    port: int
    number: int


def ask(door: Door, method: str, path: str, headers: list[tuple[str, str | bytes]], body: bytes = b"") -> Answer:
    """One request, with exactly these headers beside the usual ones."""
    with closing(http.client.HTTPConnection("127.0.0.1", door.port, timeout=20)) as connection:
        connection.putrequest(method, path)
        connection.putheader("Door", str(door.number))
        for name, value in headers:
            connection.putheader(name, value)
        connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        answer = connection.getresponse()
        return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())


class Client:
    """The three verbs over HTTP. Whatever is given for a token is sent as it is: the server is to refuse it."""

    def __init__(self, door: Door) -> None:
        self._door = door

    def open(self, token: Any) -> None:
        self._ask("POST", token)

    def read(self, token: Any) -> bytes:
        return self._ask("GET", token)

    def write(self, token: Any, value: bytes) -> None:
        self._ask("PUT", token, value)

    def _ask(self, method: str, token: Any, body: bytes = b"") -> bytes:
        answer = ask(self._door, method, "/total", [("Leasehold-Token", f'"{token!r}";scope="total"')], body)
        match answer.status:
            case 400:
                raise InvalidInput("token", token, answer.told["detail"])
            case 404:
                raise NoSuchResource("total", "write it first")
            case 412:
                raise StaleToken("total", int(answer.told["token"]), int(answer.told["mark"]))
        assert answer.status == 200, answer
        return answer.body


def scope_of(method: str, path: str) -> str | None:
    """Everything is protected by its own name, but /free."""
    return None if path == "/free" else path.removeprefix("/")


def asgi_counter(folder: Path) -> Any:
    """Numbers in files, each read and written under the token of the request."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        body = (await receive())["body"]
        answer = b""
        if scope["method"] != "POST":
            opened = await aio.File(folder / scope["path"].removeprefix("/")).open(scope["leasehold.token"])
            if scope["method"] == "PUT":
                await opened.write(body)
            else:
                answer = await opened.read()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": answer})

    return app


def wsgi_counter(folder: Path) -> Any:
    """The same, as a generator: it runs when the server asks for its answer."""

    def app(environ: Any, start_response: Any) -> Iterator[bytes]:
        answer = b""
        if environ["REQUEST_METHOD"] != "POST":
            opened = fence.File(folder / environ["PATH_INFO"].removeprefix("/")).open(environ["leasehold.token"])
            if environ["REQUEST_METHOD"] == "PUT":
                opened.write(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
            else:
                answer = opened.read()
        start_response("200 OK", [("Content-Type", "text/plain")])
        yield answer

    return app


@contextmanager
def asgi_server(apps: list[Any]) -> Iterator[int]:
    """The port of a uvicorn with these applications."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await apps[int(dict(scope["headers"])[b"door"])](scope, receive, send)

    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off", ws="none"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        eventually(lambda: server.started)
        yield listening.getsockname()[1]
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()


class _Threads(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 256


class _Quiet(WSGIRequestHandler):
    def log_message(self, *_given: Any) -> None:
        """Nothing: a test reads answers."""


@contextmanager
def wsgi_server(apps: list[Any]) -> Iterator[int]:
    """The port of a wsgiref server with these applications."""

    def app(environ: Any, start_response: Any) -> Any:
        return apps[int(environ["HTTP_DOOR"])](environ, start_response)

    with make_server("127.0.0.1", 0, app, _Threads, _Quiet) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join(20)


Middleware = Callable[..., Any]


class Side(NamedTuple):
    """One of the two kinds of servers, and what belongs to it."""

    name: str
    middleware: Middleware
    serve: Callable[[list[Any]], Any]
    counter: Callable[[Path], Any]
    file: Callable[[Path], Any]


ASGI = Side("asgi", fence.http.AsgiFence, asgi_server, asgi_counter, aio.File)
WSGI = Side("wsgi", fence.http.WsgiFence, wsgi_server, wsgi_counter, fence.File)
