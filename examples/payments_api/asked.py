"""What clients ask for, and what they are told if they ask for something else. Knows nothing of ledger or gateway."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Annotated, Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

import leasehold

BODY_MAX = 64 * 1024
# Clients make these anew when they send the same request again.
VOLATILE = ("/sent_at", "/trace_id")
PROBLEM = "application/problem+json"
Amount = Annotated[int, msgspec.Meta(ge=1, le=99_999_999)]
Currency = Annotated[str, msgspec.Meta(pattern=r"\A(EUR|GBP|USD)\Z")]
Card = Annotated[str, msgspec.Meta(pattern=r"\Atok_[a-z0-9_]{1,40}\Z")]
Note = Annotated[str, msgspec.Meta(max_length=200)]
Reference = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9._-]{1,64}\Z")]


class Charge(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A charge as it is asked for. Cards are tokens of the gateway: no number of one ever comes here."""

    amount: Amount
    currency: Currency
    card: Card
    description: Note = ""
    sent_at: Note = ""
    trace_id: Note = ""


class Refund(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A refund as it is asked for. The reference is the merchant's own: two of one amount differ by it."""

    amount: Amount
    reference: Reference
    sent_at: Note = ""
    trace_id: Note = ""


T = TypeVar("T", Charge, Refund)


class Refused(Exception):
    """A request that gets a problem (RFC 9457) instead of what it asked for."""

    def __init__(self, status: HTTPStatus, reason: str, detail: str, *, retry_after: int | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.reason = reason
        self.retry_after = retry_after


async def body(request: Request) -> bytes:
    """The bytes of a JSON body, which has a limit."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "not-json", "Send application/json.")
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > BODY_MAX:
            raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too-large", f"Send {BODY_MAX} bytes at most.")
        parts.append(part)
    return b"".join(parts)


def read(kind: type[T], data: bytes) -> tuple[T, str]:
    """What a body asks for, and its fingerprint: the same for bodies that ask for the same."""
    try:
        # First: it refuses whatever programs read differently, and what is nested too deep to be read.
        printed = leasehold.fingerprint(data, volatile=VOLATILE)
        return msgspec.convert(json.loads(data, parse_float=_number), type=kind), printed
    except leasehold.InvalidInput as error:
        raise Refused(HTTPStatus.BAD_REQUEST, "malformed", f"The body {error.remedy}.") from None
    except (msgspec.ValidationError, ValueError) as error:
        raise Refused(HTTPStatus.BAD_REQUEST, "malformed", f"The body is not what is asked for here: {error}") from None


def _number(text: str) -> float:
    """JSON Schema knows one kind of number: 512.0 is a whole one."""
    found = float(text)
    return int(found) if found.is_integer() else found


def problem(status: HTTPStatus, reason: str, detail: str, *, retry_after: int | None = None, **more: str) -> Response:
    """A refusal: `reason` and `retry_after` are for programs, `detail` is for people."""
    told: dict[str, Any] = {"type": "about:blank", "title": status.phrase, "status": int(status)}
    told |= {"detail": detail, "reason": reason, "retry": retry_after is not None, **more}
    headers = {"Cache-Control": "no-store"}
    if retry_after is not None:
        told["retry_after"] = retry_after
        headers["Retry-After"] = str(retry_after)
    return Response(msgspec.json.encode(told), status, headers, PROBLEM)
