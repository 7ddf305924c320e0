"""What a record is called in Kubernetes: a name of at most 63 characters, readable where it can be.

A key that is a valid name already stays as it is behind its prefix, so that
`kubectl get lease task-llm-my-task` finds it; any other gets a readable part and a
hash of the whole key. Two keys of one prefix never share a name. Where two
prefixes meet in one (`a` with `b-c`, `a-b` with `c`), or an election, a guard and a lock,
the object itself says whose it is, and they stand in each other's way.
"""

from __future__ import annotations

import functools
import hashlib
import re

from leasehold.model import Key

NAME_MAX = 63
ELECTION = "election"
# Kinds of records people look for by name.
_PLAIN = ("name", ELECTION, "guard")
_MEMBER = "lock"
# 128 bits as 26 letters of base32; the x keeps a name that ends in a plain number or hash from looking like this.
_HASH = 26
_MARK = "-x"
_ROOM = NAME_MAX - len(_MARK) - _HASH
_VALID = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_HASHED = re.compile(rf".*{_MARK}[0-9a-v]{{{_HASH}}}")
_DIGITS = "0123456789abcdefghijklmnopqrstuv"


@functools.lru_cache(maxsize=4096)
def lease_name(key: Key) -> str:
    """The name of the object that keeps this record. Kept, because the same few keys come again and again."""
    prefix, tenant, kind, text = split_family(key.family)
    readable = prefix + ("" if not prefix or prefix.endswith("-") else "-") + text
    if not tenant and kind in _PLAIN and key.member == _MEMBER and _fits(readable) and _fits(text):
        return readable
    words = re.sub(r"[^a-z0-9]+", "-", text.lower())
    first = prefix.rstrip("-")
    start = readable if _VALID.fullmatch(readable) else f"{first}-{words}" if _VALID.fullmatch(first) else words
    short = start[:_ROOM].strip("-") or "lease"
    return f"{short}{_MARK}" + _hash(key.family + "\0" + key.member)


def label(text: str) -> str:
    """Text as the value of a label, to select by: a hash, because labels are short and text is not."""
    return _hash(text)


def root_of(family: str) -> str:
    """The prefix and tenant that a family belongs to, as `page` is asked for them."""
    first, slash, rest = family.partition("/")
    second, other, _ = rest.partition("/")
    return f"{first}{slash}{second}{other}"


def split_family(family: str) -> tuple[str, str, str, str]:
    """Prefix, tenant, kind and text. What is shorter than that is all text."""
    parts = family.split("/", 3)
    if len(parts) < len(("prefix", "tenant", "kind", "text")):
        return "", "", "", family
    prefix, tenant, kind, text = parts
    return prefix, tenant, kind, text


def is_election(key: Key) -> bool:
    """Whether others than Leasehold compete for this record, in the format of Kubernetes' own elections."""
    return split_family(key.family)[2] == ELECTION


def is_name(text: str) -> bool:
    """Whether a Lease or a namespace may be called that."""
    return len(text) <= NAME_MAX and bool(_VALID.fullmatch(text))


def _fits(name: str) -> bool:
    return is_name(name) and not _HASHED.fullmatch(name)


def _hash(text: str) -> str:
    number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:17]) >> 6
    return "".join(_DIGITS[number >> shift & 31] for shift in range(0, 5 * _HASH, 5))
