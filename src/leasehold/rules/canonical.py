"""One text for each JSON value (RFC 8785), and the fingerprint of it: how a repeated request is known. Pure.

Written here because the library for it (rfc8785, against which this is tested) takes no text, so cannot see
duplicate keys, bounds neither depth nor size, and leaves out no field. Bodies are never shown in an error: they
may hold a card number. Keys are, as the path to what is wrong.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from json.encoder import encode_basestring
from typing import Any, TypeAlias

from leasehold.errors import SHOWN, InvalidInput
from leasehold.rules.arguments import whole
from leasehold.rules.values import MEBIBYTE
from leasehold.rules.volatile import Steps, below, branches, escaped, volatile_paths

Json: TypeAlias = bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"] | None

JSON_TYPE = "application/json"
DEPTH = 64
# Each level is two nested calls: a body of this depth leaves most of Python's stack to the caller.
DEPTH_MAX = 128
INTEGER_MAX = 2**53 - 1
INTEGER_TEXT_MAX = len(str(-INTEGER_MAX))
# What ECMAScript writes without an exponent: 1e-6 up to, and not with, 1e21.
PLAIN_EXPONENTS = range(-6, 21)
FINITE = "JSON has only finite numbers; send null, or leave it out"

_STRING = re.compile(r'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_BRACKET = re.compile(r"[\[\]{}]")


def fingerprint(
    body: Json | bytes,
    *,
    volatile: Sequence[str] = (),
    content_type: str = JSON_TYPE,
    depth: int = DEPTH,
    size: int = MEBIBYTE,
) -> str:
    """`sha256:` and the hash of a request's body: the same for bodies that mean the same.

    The body is a JSON value, or text or bytes that are read as JSON (UTF-8): then order of keys, spaces,
    escapes and spellings of a number do not count, nor do the fields under the paths in `volatile`
    (`/meta/trace_id`, `/items/*/seen_at`). With another `content_type`, text and bytes count as they are, and
    never have the fingerprint of JSON. Everything that JSON programs read differently is InvalidInput:
    duplicate keys, numbers that are not finite, whole ones beyond ±(2^53−1), lone surrogates; so is
    a body nested deeper than `depth` or larger than `size` bytes, as given or as canonical JSON.
    """
    return f"sha256:{hashlib.sha256(_hashed(body, volatile, content_type, depth, size)).hexdigest()}"


def canonical(body: Json | bytes, *, volatile: Sequence[str] = (), depth: int = DEPTH, size: int = MEBIBYTE) -> bytes:
    """The RFC 8785 form of a JSON value, or of JSON text, without the volatile fields."""
    _check_limits(depth, size)
    paths = volatile_paths(volatile)
    value = _parsed(_text(body, size), depth) if isinstance(body, str | bytes) else body
    try:
        form = _Writer(depth, size).written(value, 0, size, paths).encode()
    except UnicodeEncodeError as error:
        raise InvalidInput("body", "(not shown)", "must be valid Unicode without lone surrogates") from error
    except _Refused as refused:
        raise InvalidInput(refused.field, refused.given, refused.remedy) from None
    if len(form) > size:
        raise _too_large(size)
    return form


def media_type(content_type: str) -> str:
    """What a header says without its parameters."""
    return content_type.partition(";")[0].strip().lower()


def is_json(media: str) -> bool:
    """Whether a body of this type is JSON: `application/json`, or any type that ends in `+json`."""
    return media == JSON_TYPE or media.endswith("+json")


def _hashed(body: Json | bytes, volatile: Sequence[str], content_type: str, depth: int, size: int) -> bytes:
    if not isinstance(content_type, str):
        raise InvalidInput("content_type", content_type, f"must be text such as '{JSON_TYPE}'")
    if is_json(media_type(content_type)):
        return canonical(body, volatile=volatile, depth=depth, size=size)
    _check_limits(depth, size)
    if not isinstance(body, str | bytes):
        raise InvalidInput("content_type", content_type, "a value can only be JSON; give other bodies as bytes")
    if volatile_paths(volatile):
        raise InvalidInput("content_type", content_type, "only JSON has fields to leave out; give no volatile paths")
    # No JSON begins with NUL, so no other body is hashed as some JSON is.
    return b"\0" + _bytes(body, size)


def _check_limits(depth: int, size: int) -> None:
    whole("depth", depth, 1, DEPTH_MAX)
    whole("size", size, 1)


def _bytes(body: str | bytes, size: int) -> bytes:
    if len(body) > size:
        raise _too_large(size)
    try:
        found = body.encode() if isinstance(body, str) else body
    except UnicodeEncodeError as error:
        raise InvalidInput("body", "(not shown)", "must be valid Unicode without lone surrogates") from error
    if len(found) > size:
        raise _too_large(size)
    return found


def _text(body: str | bytes, size: int) -> str:
    found = _bytes(body, size)
    try:
        return body if isinstance(body, str) else found.decode()
    except UnicodeDecodeError as error:
        raise InvalidInput("body", f"{len(found)} bytes", f"JSON must be UTF-8: {error.reason}") from error


# Reading.


def _parsed(text: str, depth: int) -> Json:
    _check_nesting(text, depth)
    try:
        found: Json = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        remedy = f"must be JSON ({error}), unless content_type says what it is"
        raise InvalidInput("body", f"{len(text)} characters", remedy) from error
    return found


def _check_nesting(text: str, depth: int) -> None:
    # Before parsing: the parser answers deep nesting with a RecursionError, and when depends on who calls.
    if text.count("[") + text.count("{") <= depth:
        return
    level = 0
    for bracket in _BRACKET.findall(_STRING.sub("", text)):
        level += 1 if bracket in "[{" else -1
        if level > depth:
            raise _too_deep(depth)


def _pairs(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise InvalidInput("body", twice, "this key is there twice in one object: send it once")
    return found


def _integer(text: str) -> int:
    # A longer one is out of bounds whatever its digits, and slow to read. Refused later: it may be in a volatile field.
    return int(text) if len(text) <= INTEGER_TEXT_MAX else INTEGER_MAX + 1


def _constant(name: str) -> float:
    raise InvalidInput("body", name, FINITE)


_DECODER = json.JSONDecoder(object_pairs_hook=_pairs, parse_int=_integer, parse_constant=_constant)


# Writing.


_NOTHING_VOLATILE = branches(())


class _Writer:
    """Writes a value within its limits. `level` counts the brackets around it, `room` the characters left for it."""

    __slots__ = ("_depth", "_size")

    def __init__(self, depth: int, size: int) -> None:
        self._depth = depth
        self._size = size

    def written(self, value: Json, level: int, room: int, paths: tuple[Steps, ...]) -> str:
        if isinstance(value, str):
            return encode_basestring(value)
        if value is None or isinstance(value, bool):
            return _WORDS[value]
        if isinstance(value, int):
            return _integral(value)
        if isinstance(value, float):
            return _number(value)
        if isinstance(value, (list, tuple)):
            return self._array(value, level + 1, room, paths)
        if isinstance(value, (dict, Mapping)):
            return self._object(value, level + 1, room, paths)
        raise _Refused(type(value).__name__, "must be text, a number, a bool, None, a list or a dict; convert it first")

    def _object(self, value: Mapping[str, Json], level: int, room: int, paths: tuple[Steps, ...]) -> str:
        if level > self._depth:
            raise _too_deep(self._depth)
        named, rest = branches(paths) if paths else _NOTHING_VOLATILE
        members = []
        for key in _ordered(value):
            left = below(paths, key) if key in named else rest
            if left is None:
                continue
            try:
                each = value[key]
                plain = _PLAIN.get(type(each))
                text = self.written(each, level, room, left) if plain is None else plain(each)
                member = f"{encode_basestring(key)}:{text}"
            except _Refused as refused:
                refused.steps.append(key)
                raise
            # Counted on the way: a small value that holds another many times over would else fill the memory.
            room -= len(member) + 1
            if room < 0:
                raise _too_large(self._size)
            members.append(member)
        return "{" + ",".join(members) + "}"

    def _array(self, value: Sequence[Json], level: int, room: int, paths: tuple[Steps, ...]) -> str:
        if level > self._depth:
            raise _too_deep(self._depth)
        named, rest = branches(paths) if paths else _NOTHING_VOLATILE
        members = []
        for index, each in enumerate(value):
            left = below(paths, str(index)) if named and str(index) in named else rest
            if left is None:
                continue
            try:
                plain = _PLAIN.get(type(each))
                member = self.written(each, level, room, left) if plain is None else plain(each)
            except _Refused as refused:
                refused.steps.append(str(index))
                raise
            room -= len(member) + 1
            if room < 0:
                raise _too_large(self._size)
            members.append(member)
        return "[" + ",".join(members) + "]"


class _Refused(Exception):
    """What cannot be written. Each container on the way out adds the step that led to it."""

    def __init__(self, given: str, remedy: str) -> None:
        super().__init__(remedy)
        self.given = given
        self.remedy = remedy
        self.steps: list[str] = []

    @property
    def field(self) -> str:
        path = "".join(f"/{escaped(step[:SHOWN])}" for step in reversed(self.steps))
        name = ascii(f"body{path[:SHOWN]}")[1:-1]
        return name if len(path) <= SHOWN else f"{name}…"


_WORDS = {None: "null", True: "true", False: "false"}


def _ordered(value: Mapping[Any, Json]) -> list[str]:
    """The keys by UTF-16 code units. For ASCII that is the order of Python."""
    try:
        plain = "".join(value).isascii()
    except TypeError:
        odd = next(type(key).__name__ for key in value if not isinstance(key, str))
        raise _Refused(f"a key that is {odd}", "keys must be text") from None
    return sorted(value) if plain else sorted(value, key=_utf_16)


def _utf_16(key: str) -> bytes:
    return key.encode("utf-16-be")


def _integral(value: int) -> str:
    if not -INTEGER_MAX <= value <= INTEGER_MAX:
        raise _Refused("a larger one", "a whole number must be within ±(2^53−1), which all programs share; send text")
    return int.__repr__(value)


def _number(value: float) -> str:
    """ECMAScript's Number::toString: the digits are those of Python, the shortest that read back; the form differs."""
    if not math.isfinite(value):
        raise _Refused(float.__repr__(value), FINITE)
    if value == 0:
        return "0"
    mantissa, _, exponent = float.__repr__(value).partition("e")
    if not exponent:
        return mantissa.removesuffix(".0")
    power = int(exponent)
    if power not in PLAIN_EXPONENTS:
        return f"{mantissa}e{power:+d}"
    sign, digits = "-" if value < 0 else "", mantissa.lstrip("-").replace(".", "")
    return f"{sign}0.{digits.zfill(len(digits) - power - 1)}" if power < 0 else f"{sign}{digits.ljust(power + 1, '0')}"


# How most values are written, without going through all that a value can be.
_PLAIN: dict[type, Callable[[Any], str]] = {
    str: encode_basestring,
    int: _integral,
    float: _number,
    **dict.fromkeys((bool, type(None)), _WORDS.__getitem__),
}


def _too_deep(depth: int) -> InvalidInput:
    return InvalidInput(
        "body", "(not shown)", f"must not be nested deeper than {depth}; send it flatter, or give depth="
    )


def _too_large(size: int) -> InvalidInput:
    return InvalidInput("body", "(not shown)", f"must be at most {size} bytes; send less, or give size=")
