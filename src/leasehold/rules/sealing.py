"""Tokens that cannot be made up: sealed with a key that clients and the resource share. Pure.

Without a seal, whoever reaches a resource can show it a huge number and lock everybody out. The
seal covers tenant, scope and token. It proves that somebody with the key wrote them, not that the lease
lasts: only the mark says that somebody came later.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Sequence

from leasehold.errors import ForgedToken, InvalidInput, ScopeMismatch
from leasehold.rules.fencing import checked_token, read_token
from leasehold.rules.names import check_text

KEY_MIN = 16
KEYS_MAX = 8
SEALED_MAX = 8192
VERSION = "1"
FIELDS = 4


class Seal:
    """Seals tokens, and reads them, for one tenant.

    `keys` is a key of at least 16 bytes, or several: the first seals, all are accepted. To change
    keys, let every resource accept the new one, then every client seal with it, then drop the old.
    """

    __slots__ = ("_keys", "_tenant")

    def __init__(self, keys: bytes | Sequence[bytes], *, tenant: str = "") -> None:
        found: list[object] = [keys] if isinstance(keys, bytes) else list(keys)
        if not 0 < len(found) <= KEYS_MAX:
            raise InvalidInput("keys", len(found), f"must be 1 to {KEYS_MAX} keys")
        self._keys: list[bytes] = [_checked(key) for key in found]
        self._tenant: str = check_text("tenant", tenant) if tenant else ""

    def __repr__(self) -> str:
        return f"Seal({len(self._keys)} keys, tenant={self._tenant!r})"

    def seal(self, scope: str, token: int) -> str:
        """The token as text that a resource can check, made of printable ASCII without spaces or quotes."""
        body = f"{VERSION}.{checked_token(token)}.{_coded(_place(self._tenant, check_text('scope', scope)))}"
        return f"{body}.{_mac(self._keys[0], body)}"

    def token(self, sealed: object, scope: str) -> int:
        """The token inside. Raises ForgedToken, or ScopeMismatch if it was given for another scope or tenant."""
        fields = sealed.split(".") if isinstance(sealed, str) and len(sealed) <= SEALED_MAX else []
        if len(fields) != FIELDS or fields[0] != VERSION or not all(map(str.isascii, fields)):
            raise ForgedToken(scope, "it is not a sealed token")
        body = ".".join(fields[:3])
        if not any(hmac.compare_digest(_mac(key, body), fields[3]) for key in self._keys):
            raise ForgedToken(scope, "its seal was made with another key, or for other words")
        place, wanted = _decoded(fields[2]), _place(self._tenant, scope)
        if place != wanted:
            raise ScopeMismatch(scope, _told(place), _told(wanted))
        return read_token(fields[1])


def _checked(key: object) -> bytes:
    if not isinstance(key, bytes) or len(key) < KEY_MIN:
        # Never shown: it may be a real one, cut short.
        raise InvalidInput("keys", "(not shown)", f"each key must be bytes, and at least {KEY_MIN} of them")
    return key


def _place(tenant: str, scope: str) -> str:
    return f"{tenant}\0{scope}"


def _told(place: str) -> str:
    tenant, _, scope = place.partition("\0")
    return f"{tenant}: {scope}" if tenant else scope


def _coded(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _decoded(text: str) -> str:
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""


def _mac(key: bytes, body: str) -> str:
    return base64.urlsafe_b64encode(hmac.digest(key, body.encode(), hashlib.sha256)).decode().rstrip("=")
