"""The HTTP side: who asks, which requests are handled once, and what each of them is answered."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any

import asked
import msgspec
from asked import BODY_MAX, VOLATILE, Charge, Refund, Refused, problem
from charging import Payments
from gateway import NotReached, Unanswered
from metrics import Metrics
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from leasehold import FinishedLate, LeaseLost, OutcomeUnknown, StaleToken, StillRunning, StoreError, aio, web
from leasehold.web.asgi import IdempotencyMiddleware

DOCUMENT = Path(__file__).with_name("openapi.json")
PUBLIC = frozenset({"/healthz", "/metrics", "/openapi.json"})
# A charge is answered for good with `definite`. 503 says that nothing was sent to the gateway. After 502, an exception
# or a crash nobody knows, and the charge is done again from its beginning: everything in it is made for that.
ONCE = web.RoutePolicy(
    required=True,
    definite={201, 400, 402, 413, 415},
    again={503},
    rerun=True,
    volatile=VOLATILE,
    request_limit=BODY_MAX,
)
NOT_ONCE = web.RoutePolicy(methods=())
# What is told of errors: status, reason, detail, and after how many seconds the same may be sent again.
TOLD: list[tuple[tuple[type[Exception], ...], tuple[HTTPStatus, str, str, int | None]]] = [
    (
        (NotReached,),
        (
            HTTPStatus.SERVICE_UNAVAILABLE,
            "gateway-unavailable",
            "The gateway cannot be reached; nothing was charged.",
            2,
        ),
    ),
    (
        (Unanswered, StoreError),
        (HTTPStatus.BAD_GATEWAY, "unanswered", "What became of it is not known yet: send the same, for the answer.", 1),
    ),
    (
        (StillRunning,),
        (HTTPStatus.CONFLICT, "request-outstanding", "The same is being handled: send it again for its answer.", 1),
    ),
    (
        (StaleToken, LeaseLost, FinishedLate),
        (HTTPStatus.CONFLICT, "request-overtaken", "Another worker took over: send the same for what counts.", 1),
    ),
    (
        (OutcomeUnknown,),
        (
            HTTPStatus.CONFLICT,
            "outcome-unknown",
            "It may be charged: the gateway did not say. People look at it.",
            None,
        ),
    ),
]

_log = logging.getLogger("payments")


class Api:
    """The routes. Without `once` each request is handled as if it were new, to see what happens."""

    def __init__(
        self,
        payments: Payments,
        tenants: Mapping[str, str],
        metrics: Metrics,
        once: Callable[[], aio.Once] | None,
        wait: float,
    ) -> None:
        self._payments = payments
        self._metrics = metrics
        self._document = DOCUMENT.read_bytes()
        self._middleware = [Middleware(Tenants, tenants=tenants)]
        if once is not None:
            self._middleware.append(
                Middleware(
                    IdempotencyMiddleware,
                    once=once,
                    policy=NOT_ONCE,
                    policies={"/charges": msgspec.structs.replace(ONCE, wait=wait)},
                    tenant=lambda request: request.raw["tenant"],
                    # A tenant that gets a new API key is still the same one.
                    principal=lambda request: request.raw["tenant"],
                )
            )

    def app(self) -> Starlette:
        """What uvicorn serves."""
        routes = [
            Route("/charges", self.charge, methods=["POST"]),
            Route("/charges/{charge}", self.find, methods=["GET"]),
            Route("/charges/{charge}/refunds", self.refund, methods=["POST"]),
            Route("/healthz", self.alive, methods=["GET"]),
            Route("/metrics", self.metrics, methods=["GET"]),
            Route("/openapi.json", self.document, methods=["GET"]),
        ]
        kinds = [Refused, HTTPException, *(kind for kinds, _ in TOLD for kind in kinds)]
        handlers: dict[Any, Any] = dict.fromkeys(kinds, refused)
        return Starlette(routes=routes, middleware=self._middleware, exception_handlers=handlers)

    async def charge(self, request: Request) -> Response:
        """POST /charges"""
        wanted, printed = asked.read(Charge, await asked.body(request))
        work: aio.Work | None = request.scope.get("leasehold.work")
        charge = await self._payments.charge(work, request.scope["tenant"], wanted, printed)
        if charge["status"] == "declined":
            return problem(
                HTTPStatus.PAYMENT_REQUIRED, "card-declined", "The card was declined.", charge=str(charge["id"])
            )
        # Refunds come later, and are not part of what is replayed.
        del charge["refunds"]
        return JSONResponse(charge, HTTPStatus.CREATED, {"Location": f"/charges/{charge['id']}"})

    async def find(self, request: Request) -> Response:
        """GET /charges/{charge}"""
        return JSONResponse(await self._payments.find(request.scope["tenant"], request.path_params["charge"]))

    async def refund(self, request: Request) -> Response:
        """POST /charges/{charge}/refunds"""
        tenant, number = request.scope["tenant"], request.path_params["charge"]
        wanted, printed = asked.read(Refund, await asked.body(request))
        refund = await self._payments.refund(tenant, number, wanted, printed)
        return JSONResponse(refund, HTTPStatus.ACCEPTED, {"Location": f"/charges/{number}"})

    async def alive(self, _request: Request) -> Response:
        """GET /healthz"""
        return JSONResponse({"alive": True})

    async def metrics(self, _request: Request) -> Response:
        """GET /metrics"""
        return Response(await self._metrics.text(), media_type="text/plain; version=0.0.4")

    async def document(self, _request: Request) -> Response:
        """GET /openapi.json"""
        return Response(self._document, media_type="application/json")


class Tenants:
    """Lets in whoever shows the API key of a tenant, and says which one it is."""

    def __init__(self, app: ASGIApp, tenants: Mapping[str, str]) -> None:
        self._app = app
        # By digest: how long it takes to find one tells nothing of another.
        self._tenants = {_digest(key): tenant for key, tenant in tenants.items()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in PUBLIC:
            await self._app(scope, receive, send)
            return
        scheme, _, key = Request(scope).headers.get("authorization", "").partition(" ")
        tenant = self._tenants.get(_digest(key)) if scheme.lower() == "bearer" else None
        if tenant is None:
            answer = problem(HTTPStatus.UNAUTHORIZED, "no-tenant", "Send Authorization: Bearer and your API key.")
            answer.headers["WWW-Authenticate"] = "Bearer"
            await answer(scope, receive, send)
        else:
            await self._app({**scope, "tenant": tenant}, receive, send)


async def refused(_request: Request, error: Exception) -> Response:
    """What a client is told instead of an answer. What it may send again is safe to send again."""
    if isinstance(error, Refused):
        return problem(error.status, error.reason, str(error), retry_after=error.retry_after)
    if isinstance(error, HTTPException):
        status = HTTPStatus(error.status_code)
        answer = problem(status, status.phrase.lower().replace(" ", "-"), f"{status.phrase}.")
        answer.headers.update(error.headers or {})
        return answer
    if isinstance(error, StaleToken):
        _log.warning("a worker that was overtaken changes nothing: %s", error)
    status, reason, detail, retry_after = next(told for kinds, told in TOLD if isinstance(error, kinds))
    return problem(status, reason, detail, retry_after=retry_after)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
