"""The same small story in the frameworks that people use. They are imported here and nowhere else."""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from leasehold.web import RoutePolicy, asgi, wsgi
from tests.servers import redis
from tests.web.support import AsgiServer, Server, WsgiServer, is_replay, reason, send

POLICY = RoutePolicy(required=True, volatile=("/trace",))


class Ledger:
    """What the handlers of all frameworks write to, with the token of their work."""

    def __init__(self) -> None:
        self.charges: list[tuple[int, int]] = []

    def charge(self, amount: int, work: Any) -> dict[str, int]:
        work.check()
        self.charges.append((amount, work.token))
        return {"charged": amount, "number": len(self.charges)}


def starlette(once: Any, ledger: Ledger) -> Any:
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    async def pay(request: Request) -> JSONResponse:
        amount = (await request.json())["amount"]
        return JSONResponse(ledger.charge(amount, request.scope["leasehold.work"]), 201)

    inside = [Middleware(asgi.IdempotencyMiddleware, once=once, policy=POLICY)]
    return Starlette(routes=[Route("/payments", pay, methods=["POST"])], middleware=inside)


def starlette_stream(once: Any, ledger: Ledger) -> Any:
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.middleware.base import BaseHTTPMiddleware
    from starlette.requests import Request
    from starlette.responses import StreamingResponse
    from starlette.routing import Route

    async def pay(request: Request) -> StreamingResponse:
        said = ledger.charge((await request.json())["amount"], request.scope["leasehold.work"])

        async def parts() -> Any:
            for part in ('{"charged":', f"{said['charged']}", "}"):
                yield part

        return StreamingResponse(parts(), 201, media_type="application/json")

    async def passing(request: Request, go_on: Any) -> Any:
        return await go_on(request)

    inside = [
        Middleware(asgi.IdempotencyMiddleware, once=lambda: once, policy=POLICY),
        Middleware(BaseHTTPMiddleware, dispatch=passing),
    ]
    return Starlette(routes=[Route("/payments", pay, methods=["POST"])], middleware=inside)


def fastapi(once: Any, ledger: Ledger) -> Any:
    from fastapi import FastAPI, Request

    app = FastAPI()

    async def pay(payment: dict[str, Any], request: Request) -> dict[str, int]:
        return ledger.charge(payment["amount"], request.scope["leasehold.work"])

    # They are text in this file, and looked up among the names of the whole of it.
    pay.__annotations__ = {"payment": dict[str, Any], "request": Request, "return": dict[str, int]}
    app.post("/payments", status_code=201)(pay)
    app.add_middleware(asgi.IdempotencyMiddleware, once=once, policy=POLICY)
    return app


def litestar(once: Any, ledger: Ledger) -> Any:
    from litestar import Litestar, Request, post
    from litestar.middleware import DefineMiddleware

    async def pay(request: Request[Any, Any, Any]) -> dict[str, int]:
        amount = (await request.json())["amount"]
        return ledger.charge(amount, request.scope["leasehold.work"])  # type: ignore[typeddict-item]

    # As above.
    pay.__annotations__ = {"request": Request[Any, Any, Any], "return": dict[str, int]}
    inside = [DefineMiddleware(asgi.IdempotencyMiddleware, once=once, policy=POLICY)]
    return Litestar([post("/payments")(pay)], middleware=inside)


def flask(once: Any, ledger: Ledger) -> Any:
    from flask import Flask, request

    app = Flask("payments")

    @app.post("/payments")
    def pay() -> tuple[dict[str, int], int]:
        return ledger.charge(request.get_json()["amount"], request.environ["leasehold.work"]), 201

    app.wsgi_app = wsgi.IdempotencyMiddleware(app.wsgi_app, once, policy=POLICY)  # type: ignore[method-assign]
    return app


def django(once: Any, ledger: Ledger) -> Any:
    import json

    from django.conf import settings
    from django.core.handlers.wsgi import WSGIHandler
    from django.http import HttpRequest, JsonResponse
    from django.urls import path

    def pay(request: HttpRequest) -> JsonResponse:
        amount = json.loads(request.body)["amount"]
        return JsonResponse(ledger.charge(amount, request.environ["leasehold.work"]), status=201)

    urls = types.ModuleType("payments_urls")
    urls.urlpatterns = [path("payments", pay)]  # type: ignore[attr-defined]
    sys.modules["payments_urls"] = urls
    if not settings.configured:
        settings.configure(ROOT_URLCONF="payments_urls", ALLOWED_HOSTS=["*"], SECRET_KEY="x", LOGGING_CONFIG=None)  # noqa: S106  nothing is signed
        importlib.import_module("django").setup()
    from django.urls import clear_url_caches

    clear_url_caches()
    return wsgi.IdempotencyMiddleware(WSGIHandler(), once, policy=POLICY)


ASGI = [starlette, starlette_stream, fastapi, litestar]
WSGI = [flask, django]


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, Server]]:
    found: dict[str, Server] = {"asgi": AsgiServer(), "wsgi": WsgiServer()}
    with found["asgi"].running(), found["wsgi"].running():  # type: ignore[attr-defined]
        yield found


@pytest.mark.parametrize("store", ["memory", "redis"])
@pytest.mark.parametrize("build", [*ASGI, *WSGI], ids=lambda build: build.__name__)
def test_a_payment_is_charged_once(
    servers: dict[str, Server], url: str, store: str, build: Callable[[Any, Ledger], Any]
) -> None:
    ledger = Ledger()
    server = servers["asgi" if build in ASGI else "wsgi"]
    door = server.mount(lambda once: build(once, ledger), url if store == "memory" else redis().url, name=url)
    first = send(door, b'{"amount":5,"trace":1}')
    assert (first.status, is_replay(first)) == (201, False), first
    assert b'"charged":' in first.body
    again = send(door, b'{"trace":2,"amount":5}')
    assert is_replay(again)
    assert (again.status, again.body) == (201, first.body)
    assert again.headers["content-type"] == first.headers["content-type"]
    assert reason(send(door, b'{"amount":6}')) == (422, "key-reused")
    assert reason(send(door, key=None)) == (400, "key-missing")
    assert [amount for amount, _ in ledger.charges] == [5]
    # The control: another key charges again, with a token of its own.
    assert send(door, b'{"amount":7}', key="other").status == 201
    assert [amount for amount, _ in ledger.charges] == [5, 7]
    assert all(token > 0 for _, token in ledger.charges)
