"""What is kept of an answer, what is passed on, and who may see it."""

from __future__ import annotations

import asyncio
import inspect
import logging
import socket
from collections.abc import Iterator
from typing import Any

import pytest

import leasehold
from leasehold import web
from leasehold.web import RoutePolicy
from leasehold.web import asgi as asgi_middleware
from leasehold.web import wsgi as wsgi_middleware
from tests.support import eventually
from tests.web.support import KEY, TYPE, AsgiServer, Call, Counting, Reply, Server, is_replay, reason, send

SECRETS = (
    *(("Set-Cookie", "session=hush-1"), ("Set-Cookie", "other=hush-2"), ("WWW-Authenticate", "Basic hush-3")),
    *(("Authorization", "Bearer hush-4"), ("X-Own", "hush-6")),
    *(("Authentication-Info", "hush-7"),),
)


def test_a_replay_carries_no_cookie_no_credentials_and_nothing_of_the_connection(server: Server, url: str) -> None:
    given = (("Content-Type", TYPE), ("X-Kept", "kept"), ("Location", "/payments/1"), *SECRETS)
    door = server.serve(
        Counting(lambda _call: Reply(201, b"{}", given)), url, policy=RoutePolicy(unkept_headers={"X-Own"})
    )
    first = send(door)
    for name, _ in SECRETS:
        assert name.lower() in first.headers, name
    second = send(door)
    assert is_replay(second)
    assert "hush" not in str(second)
    assert second.headers["x-kept"] == "kept"
    assert second.headers["location"] == "/payments/1"
    assert second.headers["content-length"] == "2"


def test_nothing_secret_is_logged_or_told_or_kept(server: Server, url: str, caplog: pytest.LogCaptureFixture) -> None:
    key, body, credentials = "hush-key-1", b'{"card":"hush-2"}', "Bearer hush-3"
    statuses = iter([500, 201])
    door = server.serve(
        Counting(lambda _call: Reply(next(statuses), b"{}", SECRETS)), url, policy=RoutePolicy(unkept_headers={"X-Own"})
    )
    with caplog.at_level(logging.DEBUG, logger="leasehold"):
        send(door, body, key=key, Authorization=credentials)
        told = [send(door, other, key=key, Authorization=credentials) for other in (body, b"other")]
        told.append(send(door, body, key="hush,key"))
        send(door, body, key="hush-key-2")
    assert [one.status for one in told] == [409, 422, 400]
    assert "hush" not in str([one.body for one in told])
    assert [record for record in caplog.records if record.levelno == logging.DEBUG]
    assert "hush" not in str([vars(record) for record in caplog.records])
    with leasehold.connect(url) as locks:
        memory: Any = locks._engine.store
        families = repr(vars(memory._memory))
    # The control: it is the store of these requests that was looked at.
    assert "http/" in families
    assert "hush" not in families


def parts(count: int, size: int) -> Iterator[bytes]:
    for number in range(count):
        yield bytes([65 + number]) * size


def test_a_stream_within_the_limit_is_replayed_and_one_beyond_it_is_passed_on(server: Server, url: str) -> None:
    handler = Counting(lambda call: Reply(200, parts(int(call.body), 100), (("Content-Type", "text/plain"),)))
    door = server.serve(handler, url, policy=RoutePolicy(response_limit=1000))
    whole = b"".join(parts(10, 100))
    assert (send(door, b"10", key="a").body, send(door, b"10", key="a").body) == (whole, whole)
    assert handler.runs == 1
    beyond = send(door, b"11", key="b")
    assert (beyond.body, beyond.headers["idempotency-stored"]) == (b"".join(parts(11, 100)), "false")
    for _ in range(2):
        told = send(door, b"11", key="b")
        assert reason(told) == (410, "response-not-stored")
        assert (told.told["original_status"], told.told["retry"]) == (200, False)
    assert handler.runs == 2


def test_what_is_beyond_the_limit_is_passed_on_as_it_comes(server: Server, url: str) -> None:
    handler = Counting()
    came: list[int] = []

    def slow(_call: Call) -> Iterator[bytes]:
        yield b"x" * 20
        # Only a client that has read the first part lets it go on.
        assert handler.may_go_on.wait(20)
        yield b"y" * 20
        came.append(1)

    door = server.serve(lambda call: Reply(200, slow(call)), url, policy=RoutePolicy(response_limit=0))
    handler.may_go_on.clear()
    with opened(door.port, door.number) as connection:
        data = b""
        while b"x" * 20 not in data:
            data += connection.recv(4096)
        assert not came
        handler.may_go_on.set()
        while b"y" * 20 not in data:
            data += connection.recv(4096)
    eventually(lambda: came)


def opened(port: int, number: int, key: str = KEY, body: bytes = b"1") -> Any:
    """A connection that has sent a request, and may go away when it likes."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=20)
    head = f"POST /payments HTTP/1.1\r\nHost: a\r\nDoor: {number}\r\nIdempotency-Key: {key}\r\n"
    connection.sendall(f"{head}Content-Type: text/plain\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    return connection


def test_a_client_that_goes_away_does_not_stop_the_work(server: Server, url: str) -> None:
    handler = Counting()
    handler.may_go_on.clear()
    door = server.serve(handler, url)
    connection = opened(*door)
    eventually(lambda: handler.runs)
    connection.close()
    handler.may_go_on.set()
    again = send(door, b"1", kind="text/plain")
    assert is_replay(again)
    assert again.body == b'{"run": 1}'
    assert handler.runs == 1


def test_a_client_that_goes_away_from_a_long_answer_does_not_stop_it(server: Server, url: str) -> None:
    handler = Counting()
    handler.may_go_on.clear()
    ended: list[int] = []

    def endless(_call: Call) -> Iterator[bytes]:
        yield b"x" * 5000
        assert handler.may_go_on.wait(20)
        for _ in range(100):
            yield b"y" * 50000
        ended.append(1)

    door = server.serve(lambda call: Reply(200, endless(call)), url, policy=RoutePolicy(response_limit=10))
    connection = opened(*door)
    assert connection.recv(100)
    connection.close()
    handler.may_go_on.set()
    eventually(lambda: ended)
    assert reason(send(door, b"1", kind="text/plain")) == (410, "response-not-stored")


def test_a_cancelled_request_does_not_stop_the_work(url: str) -> None:
    """Servers of ASGI may cancel the task of a request whose client is gone."""

    async def play() -> None:
        began, goes_on, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            began.set()
            await goes_on.wait()
            await send({"type": "http.response.start", "status": 201, "headers": []})
            await send({"type": "http.response.body", "body": b"done"})
            ended.set()

        async def receive() -> Any:
            return {"type": "http.request", "body": b"1"}

        async def never(message: Any) -> None:
            raise AssertionError(f"the client is gone: {message}")

        sent: list[Any] = []

        async def send_back(message: Any) -> None:
            sent.append(message)

        headers = [(b"idempotency-key", b"k")]
        scope = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": headers}
        async with await leasehold.aio.connect(url) as locks:
            wrapped = asgi_middleware.IdempotencyMiddleware(app, leasehold.aio.Once(locks))
            request = asyncio.create_task(wrapped(scope, receive, never))
            await began.wait()
            request.cancel()
            await asyncio.wait([request])
            assert request.cancelled()
            assert not ended.is_set()
            goes_on.set()
            await wrapped(scope, receive, send_back)
            assert ended.is_set()
            assert sent[-1]["body"] == b"done"
            assert (b"idempotent-replayed", b"true") in sent[-2]["headers"]

    asyncio.run(play())


def test_a_request_that_is_too_large_is_refused_or_passed_on_unkept(server: Server, url: str) -> None:
    echo = Counting(lambda call: Reply(200, str(len(call.body)).encode()))
    policies = {"/pass": RoutePolicy(request_limit=1000, oversized="pass")}
    door = server.serve(echo, url, policy=RoutePolicy(request_limit=1000), policies=policies)
    refused = send(door, b"x" * 1001)
    assert reason(refused) == (413, "request-too-large")
    assert refused.told["limit"] == 1000
    assert echo.runs == 0
    assert [is_replay(send(door, b"x" * 1000)) for _ in range(2)] == [False, True]
    for size in (1001, 200_000):
        for _ in range(2):
            passed = send(door, b"x" * size, path="/pass")
            assert (passed.body, passed.headers["idempotency-stored"]) == (str(size).encode(), "false")
            assert echo.calls[-1].work is None
    assert echo.runs == 5


def test_whoever_may_no_longer_see_it_gets_no_replay(server: Server, url: str) -> None:
    allowed = {"said": True}
    asked: list[str] = []

    def authorize(request: web.Request) -> Any:
        asked.append(request.headers["x-user"])
        if not isinstance(server, AsgiServer):
            return allowed["said"]

        async def later() -> bool:
            return allowed["said"]

        return later()

    handler = Counting()
    door = server.serve(handler, url, authorize=authorize)
    send(door, X_User="ann")
    assert asked == []
    assert is_replay(send(door, X_User="ann"))
    assert asked == ["ann"]
    allowed["said"] = False
    for body in (b'{"amount":5}', b"other"):
        refused = send(door, body, X_User="ann")
        assert reason(refused) == (403, "replay-forbidden")
    assert handler.runs == 1


def test_a_body_without_an_end_is_refused_where_nobody_could_read_it(url: str) -> None:
    started: list[Any] = []
    with leasehold.connect(url) as locks:
        wrapped = wsgi_middleware.IdempotencyMiddleware(lambda _environ, _start: [b"ran"], leasehold.Once(locks))
        environ = {"REQUEST_METHOD": "POST", "HTTP_IDEMPOTENCY_KEY": "k", "HTTP_TRANSFER_ENCODING": "chunked"}
        body = b"".join(wrapped(environ, lambda *given: started.append(given)))
    assert started[0][0].startswith("411 ")
    assert b"length-required" in body


@pytest.mark.parametrize(
    "options",
    [
        *({"policy": None}, {"policies": {"/": "x"}}, {"route": "x"}, {"tenant": 5}, {"principal": ""}),
        *({"authorize": True}, {"policy": RoutePolicy(response_limit=2**20)}, {"policy": RoutePolicy(keep=-1)}),
        {"policy": RoutePolicy(wait=-1)},
    ],
)
def test_what_cannot_work_is_refused_when_the_application_is_made(
    server: Server, url: str, options: dict[str, Any]
) -> None:
    with pytest.raises(leasehold.InvalidInput):
        server.serve(Counting(), url, **options)
    with pytest.raises(leasehold.InvalidInput):
        server.middleware(None, "once")


def test_a_once_with_a_hook_of_its_own_is_refused_as_nobody_would_call_it(url: str) -> None:
    with leasehold.connect(url) as locks:
        once = leasehold.Once(locks, on_replay=lambda _key, value: value)
        with pytest.raises(leasehold.InvalidInput, match="`authorize` is asked before a replay"):
            wsgi_middleware.IdempotencyMiddleware(lambda _environ, _start: [], once)


@pytest.mark.parametrize(
    "options",
    [
        *({"methods": "POST"}, {"methods": {5}}, {"required": 1}, {"definite": {42}}, {"again": {200}}),
        *(
            {"volatile": ("a",)},
            {"volatile": "/a"},
            {"request_limit": -1},
            {"oversized": "cut"},
            {"oversized": ["pass"]},
        ),
    ],
)
def test_a_policy_that_cannot_work_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(leasehold.InvalidInput):
        RoutePolicy(**options)


def test_both_middlewares_take_the_same_options() -> None:
    def options(middleware: Any) -> dict[str, Any]:
        return {name: one.default for name, one in inspect.signature(middleware).parameters.items()}

    asgi, wsgi = asgi_middleware.IdempotencyMiddleware, wsgi_middleware.IdempotencyMiddleware
    assert options(asgi) == options(wsgi)
    said = str(inspect.getdoc(asgi)).replace("aio.", "").replace("ASGI", "WSGI").replace("scope[", "environ[")
    assert said.split() == str(inspect.getdoc(wsgi)).replace("A WSGI", "An WSGI").split()
