"""The key of a request as it travels in HTTP, and the keys that are made of it. Pure.

    Idempotency-Key: "8e03978e-40d5-43dd-bc93-6894a57f9324"

A string of RFC 8941, or the same text without quotes, as most clients send it: both are one key. Text without quotes
has no space, quote, backslash, comma or semicolon: with a comma, a server may have made it of two headers.
Parameters are refused: one that is not understood could change what the key means.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Sequence

from leasehold.errors import InvalidInput
from leasehold.rules.names import check_text

NAME = "Idempotency-Key"
LENGTH_MAX = 255
_QUOTED = re.compile(r'"((?:[ !#-\[\]-~]|\\["\\])*)"')
_BARE = re.compile(r"[!#-+\--:<-\[\]-~]+")
_ESCAPED = re.compile(r"\\(.)")
# What the digests below are for: none is ever equal to one made for something else.
_OPERATION = "leasehold operation"
_DOWNSTREAM = "leasehold downstream"


def carried(values: Sequence[str]) -> str:
    """The key that the values of the header say, of which there must be one. It is never shown in an error."""
    if len(values) != 1:
        raise _unreadable("it must be given once")
    # Servers take most blanks away, and not all of them.
    value = values[0].strip(" \t")
    quoted = _QUOTED.fullmatch(value)
    if quoted is None and not _BARE.fullmatch(value):
        raise _unreadable('it must be one quoted string of printable ASCII, such as "8e03978e-40d5-43dd"')
    key = value if quoted is None else _ESCAPED.sub(r"\1", quoted[1])
    if not 1 <= len(key) <= LENGTH_MAX:
        raise _unreadable(f"it must have 1 to {LENGTH_MAX} characters")
    return key


def written(key: str) -> str:
    """The value of the header, as RFC 8941 has it."""
    escaped = key.replace("\\", "\\\\").replace('"', '\\"')
    if not _QUOTED.fullmatch(f'"{escaped}"') or not 1 <= len(key) <= LENGTH_MAX:
        raise _unreadable(f"it must be 1 to {LENGTH_MAX} characters of printable ASCII")
    return f'"{escaped}"'


def operation_key(key: str, *, method: str, route: str, tenant: str | None = None, principal: str | None = None) -> str:
    """Under which key `Once` handles a request: the digest of all five, so no two meet and none can be read from it."""
    return f"http/{digest(_OPERATION, tenant, principal, method, route, key)}"


def downstream_key(key: str, call: str) -> str:
    """The key of a call that is made while a request is handled: always the same for the same two texts.

    A UUID (version 8 of RFC 9562), which every service takes.
    """
    name = digest(_DOWNSTREAM, check_text("key", key), check_text("downstream", call))
    return str(_uuid(bytes.fromhex(name)[:16]))


def digest(*parts: str | bytes | None) -> str:
    """SHA-256 of several texts, each behind its length: what one of them says never reaches into the next."""
    encoded = [part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part for part in parts]
    framed = [b"-" if data is None else b"%d:%b" % (len(data), data) for data in encoded]
    return hashlib.sha256(b"".join(framed)).hexdigest()


def _uuid(data: bytes) -> uuid.UUID:
    number = int.from_bytes(data)
    number = number & ~(0xF << 76) | (8 << 76)
    number = number & ~(0x3 << 62) | (2 << 62)
    return uuid.UUID(int=number)


def _unreadable(remedy: str) -> InvalidInput:
    return InvalidInput(NAME, "(not shown)", remedy)
