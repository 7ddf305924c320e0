"""What every middleware here shares of HTTP: refusals as RFC 9457 has them, and the path of a WSGI request. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, NamedTuple

import msgspec


class Problem(NamedTuple):
    """A refusal as RFC 9457 has it."""

    status: int
    body: bytes
    retry_after: int | None = None

    @property
    def line(self) -> str:
        """The status with its phrase."""
        return f"{self.status} {HTTPStatus(self.status).phrase}"

    @property
    def headers(self) -> list[tuple[str, str]]:
        """What goes before the body."""
        length = str(len(self.body))
        kind = "application/problem+json"
        told = [("content-type", kind), ("content-length", length), ("cache-control", "no-store")]
        return told if self.retry_after is None else [*told, ("retry-after", str(self.retry_after))]


def problem(status: HTTPStatus, reason: str, detail: str, *, retry_after: int | None = None, **more: Any) -> Problem:
    """A refusal: `reason` and `more` are for programs, `detail` for people."""
    told = {"type": "about:blank", "title": status.phrase, "status": int(status), "detail": detail, "reason": reason}
    later = {} if retry_after is None else {"retry_after": retry_after}
    return Problem(int(status), msgspec.json.encode(told | more | later), retry_after)


def wsgi_path(environ: Mapping[str, Any]) -> str:
    """The path as ASGI has it: WSGI hands over the bytes of UTF-8 as if each were a character."""
    path = f"{environ.get('SCRIPT_NAME', '')}{environ.get('PATH_INFO', '')}"
    return path.encode("latin-1").decode(errors="replace")
