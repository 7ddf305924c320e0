"""From what people call a thing to the key it is kept under.

A family reads `prefix/tenant/kind/text`. Prefix and tenant are escaped so that
they hold no slash, and the text comes last and verbatim: two different
(prefix, tenant, kind, text) never meet in one family, and no text reaches into
another tenant. Text is compared code point by code point; look-alikes differ.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from leasehold.errors import InvalidInput, shown
from leasehold.model import Key, Name

KEY_MAX = 1024
LABEL_MAX = 128
METADATA_ENTRIES = 32
METADATA_BYTES = 4096
NAME_KIND = "name"
ELECTION_KIND = "election"
GUARD_KIND = "guard"
LOCK = "lock"
INTERVAL = "interval"
# 64 bits: two targets of one short name are hardly ever met, and told apart by the full target nevertheless.
DIGITS = 16


def check_text(field: str, given: object, longest: int = KEY_MAX) -> str:
    """Text that every store can carry: 1 to `longest` characters, no NUL, no lone surrogate.

    Returned as plain `str`: an enum member that is text may print as something else than it equals.
    """
    if not isinstance(given, str):
        raise InvalidInput(field, given, f"must be text, not {type(given).__name__}")
    if not 1 <= len(given) <= longest:
        raise InvalidInput(field, given, f"must be 1 to {longest} characters, not {len(given)}")
    if not given.isascii():
        try:
            given.encode()
        except UnicodeEncodeError as error:
            raise InvalidInput(field, given, "must be valid Unicode without lone surrogates") from error
    if "\0" in given:
        raise InvalidInput(field, given, "must not contain NUL")
    return str.__str__(given)


def short_name(prefix: str, target: str) -> str:
    """The name of a target's record or object: the same on every machine and in every language that has SHA-256."""
    return prefix + hashlib.sha256(target.encode()).hexdigest()[:DIGITS]


def scope_of(given: object, field: str = "scope") -> Name:
    """The scope a caller means: a `Name`, or text that makes one."""
    return Name(check_text(field, given.text if isinstance(given, Name) else given))


class Names:
    """The keys of one prefix and tenant."""

    __slots__ = ("_names", "root")

    def __init__(self, prefix: str | None, tenant: str | None) -> None:
        self.root: str = f"{_label('prefix', prefix)}/{_label('tenant', tenant)}/"
        self._names = f"{self.root}{NAME_KIND}/"

    def lock(self, scope: Name) -> Key:
        """Where the one record lives that says who holds the scope."""
        return Key(self._names + scope.text, LOCK)

    def family(self, kind: str, text: str) -> str:
        """Where all records live of those who want some of a resource."""
        return f"{self.root}{kind}/{text}"

    def election(self, name: str) -> Key:
        """Where the one record lives that says who leads. Never the key of a lock, whatever its name."""
        return Key(f"{self.root}{ELECTION_KIND}/{name}", LOCK)

    def guard(self, name: str) -> Key:
        """Where the one record lives that says who works on a guarded target."""
        return Key(f"{self.root}{GUARD_KIND}/{name}", LOCK)

    def interval(self, name: str) -> Key:
        """Where the one record lives that says when a target last had its turn."""
        return Key(f"{self.root}{GUARD_KIND}/{name}", INTERVAL)

    def text(self, key: Key) -> str:
        """The text a key was made of: what people called it, and before that its kind if it is no plain name."""
        _, _, kind, text = key.family.split("/", 3)
        return text if kind == NAME_KIND else f"{kind}:{text}"


def check_metadata(given: object) -> dict[str, str]:
    """A few short text notes: who, where, why."""
    if given is None:
        return {}
    if not isinstance(given, Mapping) or len(given) > METADATA_ENTRIES:
        raise InvalidInput("metadata", given, f"must be a mapping of at most {METADATA_ENTRIES} entries")
    notes = {check_text("metadata name", name, LABEL_MAX): _note(name, value) for name, value in given.items()}
    size = sum(len(name.encode()) + len(value.encode()) for name, value in notes.items())
    if size > METADATA_BYTES:
        raise InvalidInput("metadata", given, f"must be at most {METADATA_BYTES} bytes in all, not {size}")
    return notes


def _note(name: str, value: object) -> str:
    return "" if value == "" else check_text(f"metadata[{shown(name)}]", value, METADATA_BYTES)


def _label(field: str, given: str | None) -> str:
    if given is None:
        return ""
    return check_text(field, given, LABEL_MAX).replace("%", "%25").replace("/", "%2F")
