"""What tells one request from another under the same key: its path, its query, and what its body says. Pure.

A JSON body counts by its canonical form, without the fields that are declared volatile; any other by its bytes, and so
does JSON that programs read differently, or not at all: the handler is to judge it, not we.
"""

from __future__ import annotations

from collections.abc import Sequence

from leasehold.errors import InvalidInput
from leasehold.rules.canonical import canonical, is_json, media_type
from leasehold.rules.idempotency_key import digest


def request_print(path: str, query: str, content_type: str, body: bytes, volatile: Sequence[str]) -> str:
    """The fingerprint of a request."""
    media = media_type(content_type)
    said = _meant(body, volatile) if is_json(media) else None
    kind = "bytes" if said is None else "json"
    return f"sha256:{digest('leasehold request', path, query, media, kind, body if said is None else said)}"


def _meant(body: bytes, volatile: Sequence[str]) -> bytes | None:
    try:
        return canonical(body, volatile=volatile)
    except InvalidInput:
        return None
