"""What a service answers about a key, and what of an answer is kept to be given again. Pure.

Refusals have members for programs: `reason`, `retry` (whether sending the same request again may help), `retry_after`
in seconds, and `operation`, by which people find the record. None says the key, or anything of another request.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from http import HTTPStatus

import msgspec

from leasehold.errors import InvalidInput
from leasehold.rules.http import Problem, problem
from leasehold.rules.idempotency_key import NAME

REPLAYED = ("idempotent-replayed", "true")
UNSTORED = ("idempotency-stored", "false")
Headers = tuple[tuple[str, str], ...]
# Of one connection (RFC 9110, 7.6.1), of one person, or made anew for each answer.
_UNKEPT = frozenset(
    {
        *("connection", "keep-alive", "te", "trailer", "trailers", "transfer-encoding", "upgrade"),
        *("set-cookie", "set-cookie2", "authorization", "www-authenticate", "authentication-info", "clear-site-data"),
        *("content-length", "date", "server", REPLAYED[0], UNSTORED[0]),
    }
)


class Response(msgspec.Struct, frozen=True):
    """An answer as it is kept: headers in the characters of Latin-1. `whole` is False if it was too large to keep."""

    status: int
    headers: Headers = ()
    body: bytes = b""
    whole: bool = True

    def __repr__(self) -> str:
        # Neither headers nor body: they are somebody's.
        return f"<Response {self.status} with {len(self.body)} bytes>"


def kept_headers(headers: Iterable[tuple[str, str]], unkept: Collection[str]) -> Headers:
    """Those that may be given again, to whoever may see the answer."""
    given = [(name.lower(), value) for name, value in headers]
    named = [word.strip().lower() for name, value in given if name == "connection" for word in value.split(",")]
    unwanted = _UNKEPT.union(unkept, named)
    return tuple([(name, value) for name, value in given if name not in unwanted and not name.startswith("proxy-")])


def replayed(kept: Response) -> Response:
    """What a duplicate gets."""
    # Answers of these two have no body, and may not say how long it is.
    bare = kept.status in {HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED}
    length = () if bare else (("content-length", str(len(kept.body))),)
    return msgspec.structs.replace(kept, headers=(*kept.headers, *length, REPLAYED))


def marked_unstored(given: Response) -> Response:
    """The answer of whoever did the work, where a duplicate will not get the same."""
    return msgspec.structs.replace(given, headers=(*given.headers, UNSTORED))


def refusal(told: Problem) -> Response:
    """A problem, as an answer like every other."""
    return Response(told.status, tuple(told.headers), told.body)


def missing() -> Problem:
    """The answer to a request without a key, where one is required."""
    detail = f"Send {NAME} with a value of your own, and the same one when you send the same request again."
    return problem(HTTPStatus.BAD_REQUEST, "key-missing", detail, retry=False)


def unreadable(error: InvalidInput) -> Problem:
    """The answer to a header that is no key."""
    return problem(HTTPStatus.BAD_REQUEST, "key-unreadable", f"{NAME} cannot be read: {error.remedy}.", retry=False)


def too_large(limit: int) -> Problem:
    """The answer to a request whose body is too large to be compared."""
    detail = f"With {NAME}, a request may have {limit} bytes."
    return problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "request-too-large", detail, retry=False, limit=limit)


def length_required() -> Problem:
    """The answer to a request whose body has no end that could be seen."""
    detail = f"With {NAME}, a request must say how long it is: send Content-Length."
    return problem(HTTPStatus.LENGTH_REQUIRED, "length-required", detail, retry=False)


def outstanding(operation: str, retry_after: float) -> Problem:
    """The answer while the original request is being handled."""
    detail = "The original request is still being handled: send the same again later for its answer."
    return _later(HTTPStatus.CONFLICT, "request-outstanding", detail, retry_after, operation=operation)


def overtaken(operation: str, retry_after: float) -> Problem:
    """The answer to who was so slow that somebody else took over."""
    detail = "Handling took so long that another request took over: send the same again for the answer that counts."
    return _later(HTTPStatus.CONFLICT, "request-overtaken", detail, retry_after, operation=operation)


def unknown(operation: str) -> Problem:
    """The answer if the original request was begun and never finished. Nothing says that asking again helps."""
    detail = (
        "The original request was begun and not finished: it may have taken effect, in part or as a whole. It is not "
        "done again. Look at what it was to do before you send it with a new key."
    )
    return problem(HTTPStatus.CONFLICT, "outcome-unknown", detail, retry=False, operation=operation)


def other_payload(operation: str) -> Problem:
    """The answer to a key that was used for another request."""
    detail = "The key was used for a request with another payload: use a new key for a new request."
    return problem(HTTPStatus.UNPROCESSABLE_ENTITY, "key-reused", detail, retry=False, operation=operation)


def not_stored(operation: str, status: int | None) -> Problem:
    """The answer if the work was done, but its answer was not kept."""
    detail = "The original request was handled, and is not handled again; its answer was not kept."
    told = {} if status is None else {"original_status": status}
    return problem(HTTPStatus.GONE, "response-not-stored", detail, retry=False, operation=operation, **told)


def forbidden() -> Problem:
    """The answer to who may not, or no longer, see what the work came to."""
    detail = "You may not see the answer to this request."
    return problem(HTTPStatus.FORBIDDEN, "replay-forbidden", detail, retry=False)


def unavailable(retry_after: float) -> Problem:
    """The answer if nobody can tell whether the request was handled before: it is not handled now."""
    detail = "It cannot be told whether this request was handled before. It was not handled now: send the same later."
    return _later(HTTPStatus.SERVICE_UNAVAILABLE, "store-unavailable", detail, retry_after)


def _later(status: HTTPStatus, reason: str, detail: str, retry_after: float, **more: str) -> Problem:
    whole = max(math.ceil(retry_after), 1)
    return problem(status, reason, detail, retry=True, retry_after=whole, **more)
