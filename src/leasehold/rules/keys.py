"""The schema key of a request: service, environment, tenant, resource type and hash, joined by colons. Pure.

No part may hold a colon, so two different requests never have one key, and no tenant can write itself into another's.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from leasehold.errors import InvalidInput
from leasehold.rules.names import LABEL_MAX, check_text

ALGORITHM = "sha256:"
_FORBIDDEN = re.compile(r"[:\x00-\x1f\x7f-\x9f]")
_DIGEST = re.compile(r"[0-9a-f]{64}")


class KeyParts(NamedTuple):
    """What a schema key is made of: `leasehold.key(**parts._asdict())` is the key again."""

    service: str
    environment: str
    tenant: str
    resource_type: str
    hash: str


def key(*, service: str, environment: str, tenant: str, resource_type: str, hash: str) -> str:  # noqa: A002  its name in the schema
    """`payments:prod:acme_corp:invoice:sha256:a1b2…`, checked before any store is asked.

    The parts are 1 to 128 characters, without colons and control characters. `hash` is what
    `leasehold.fingerprint` gives, or the 64 hex digits of a SHA-256 alone, which makes the same key.
    """
    parts = {"service": service, "environment": environment, "tenant": tenant, "resource_type": resource_type}
    return ":".join((*(_part(field, given) for field, given in parts.items()), _hash(hash)))


def parsed_key(text: str) -> KeyParts:
    """The parts of a schema key. InvalidInput if `leasehold.key` could not have made it."""
    pieces = check_text("key", text).split(":", 4)
    if len(pieces) != len(KeyParts._fields):
        raise InvalidInput("key", text, "must read service:environment:tenant:resource_type:sha256:…")
    parts = KeyParts(*pieces)
    if key(**parts._asdict()) != text:
        raise InvalidInput("hash", parts.hash, f"must begin with {ALGORITHM!r} in a key")
    return parts


def _part(field: str, given: object) -> str:
    text = check_text(field, given, LABEL_MAX)
    if _FORBIDDEN.search(text):
        raise InvalidInput(field, given, "must not contain colons or control characters; use '_', or a hash of it")
    return text


def _hash(given: object) -> str:
    digest = check_text("hash", given).removeprefix(ALGORITHM)
    if not _DIGEST.fullmatch(digest):
        raise InvalidInput(
            "hash", given, f"must be {ALGORITHM!r} and 64 lower-case hex digits: leasehold.fingerprint(body)"
        )
    return f"{ALGORITHM}{digest}"
