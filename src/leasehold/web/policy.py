"""What a service says about its routes, and what it is told of a request when it is asked."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal

import msgspec

from leasehold.errors import InvalidInput
from leasehold.rules.arguments import choice, flag, whole
from leasehold.rules.idempotency_key import digest
from leasehold.rules.volatile import volatile_paths

REQUEST_MAX = 1024 * 1024
# Its base64 and its headers fit into a record of every store.
RESPONSE_MAX = 64 * 1024
WAIT = 10.0
# Nothing was done, or not yet: the same request may be tried again.
AGAIN = frozenset({408, 409, 425, 429})
DEFINITE = frozenset(range(200, 500)) - AGAIN


class Request:
    """A request, as functions of the service are asked about it. `headers` have lower-case names.

    `raw` is the scope of ASGI or the environ of WSGI, with all that other middleware has put there.
    """

    __slots__ = ("headers", "method", "path", "query", "raw")

    def __init__(self, method: str, path: str, query: str, headers: Mapping[str, str], raw: Mapping[str, Any]) -> None:
        self.method: str = method
        self.path: str = path
        self.query: str = query
        self.headers: Mapping[str, str] = headers
        self.raw: Mapping[str, Any] = raw

    def __repr__(self) -> str:
        # Neither its path nor its headers: both may carry what is secret.
        return f"<Request {self.method}>"


class RoutePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How requests of a route are handled. Where it says None, it is as the `Once` has it.

    `methods` are those that heed the header, and `required` says whether they must have it. A duplicate waits for the
    original for `wait` seconds, then gets 409. Answers with a status of `definite` are kept for `keep` seconds
    and replayed, unless they have more than `response_limit` bytes; after one of `again` the same request may
    begin anew; after any other, and after an error, the outcome is unknown, and `rerun` declares that such
    work may be done again. `unkept_headers` are not replayed, beside those that never are. Fields of JSON bodies in
    `volatile` do not count when two requests are compared: /meta/trace_id, /items/*/seen_at. A request of more
    than `request_limit` bytes is refused with 413, or with oversized="pass" handled as if it had no key.
    """

    methods: Collection[str] = frozenset({"POST", "PATCH"})
    required: bool = False
    wait: float = WAIT
    keep: float | None = None
    definite: Collection[int] = DEFINITE
    again: Collection[int] = AGAIN
    rerun: bool | None = None
    unkept_headers: Collection[str] = frozenset()
    volatile: tuple[str, ...] = ()
    request_limit: int = REQUEST_MAX
    oversized: Literal["refuse", "pass"] = "refuse"
    response_limit: int = RESPONSE_MAX

    def __post_init__(self) -> None:
        flag("required", self.required)
        volatile_paths(self.volatile)
        whole("request_limit", self.request_limit, 0)
        whole("response_limit", self.response_limit, 0)
        choice("oversized", self.oversized, "refuse", "pass")
        both = _statuses("definite", self.definite) & _statuses("again", self.again)
        if both:
            raise InvalidInput("again", sorted(both), "must not have what definite has, too")
        texts = {"methods": _texts("methods", self.methods), "unkept_headers": _texts("headers", self.unkept_headers)}
        msgspec.structs.force_setattr(self, "methods", frozenset(map(str.upper, texts["methods"])))
        msgspec.structs.force_setattr(self, "unkept_headers", frozenset(map(str.lower, texts["unkept_headers"])))


def path_of(request: Request) -> str:
    """The route of a request, where nobody says it: its path."""
    return request.path


def nobody(_request: Request) -> str | None:
    """The tenant of a request, where nobody says it: there is only one."""
    return None


def credentials_of(request: Request) -> str | None:
    """Who asks, where nobody says it: whoever shows the same Authorization, of which only a digest is used."""
    shown = request.headers.get("authorization")
    return None if shown is None else digest(shown)


def _texts(field: str, given: object) -> Collection[str]:
    if isinstance(given, str) or not isinstance(given, Collection) or not all(isinstance(one, str) for one in given):
        raise InvalidInput(field, given, 'must be several texts, such as {"POST", "PATCH"}')
    return given


def _statuses(field: str, given: object) -> frozenset[int]:
    if not isinstance(given, Collection) or not all(isinstance(one, int) and 200 <= one < 600 for one in given):  # noqa: PLR2004  as HTTP has them
        raise InvalidInput(field, given, "must be several statuses from 200 to 599, such as {201, 404}")
    return frozenset(given)
