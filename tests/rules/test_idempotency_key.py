"""The header that carries a key, the keys that are made of it, and what tells two requests apart."""

from __future__ import annotations

import json
import re
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.errors import InvalidInput
from leasehold.rules.idempotency_answers import Response, kept_headers, replayed
from leasehold.rules.idempotency_key import carried, digest, downstream_key, operation_key, written
from leasehold.rules.request_print import request_print
from tests.rules.hostile import KEYS, LABELS

PRINTABLE = "".join(map(chr, range(0x20, 0x7F)))
STRING = re.compile(r'"(?:[\x20\x21\x23-\x5b\x5d-\x7e]|\\["\\])*"')
HOSTILE = [
    *("", " ", '"', '""', '"a', 'a"', '"a"b', '"a""b"', '"a" "b"', '"a","b"', "a,b", "a b", "a;b", '"a";b'),
    *('"a";b=1', '"a\\b"', '"a\\"', "a\\b", '"a\tb"', "a\tb", '"a\nb"', "a\nb", "a\r\nSet-Cookie: x", "\x00", '"\x00"'),
    *("\x7f", '"\x7f"', "é", '"é"', "\u202ea", "ａ", "x" * 256, f'"{"x" * 256}"', "\x85a", '"\xa0"', ":YWJj:;q"),
]


@pytest.mark.parametrize("value", HOSTILE, ids=ascii)
def test_a_header_that_is_no_key_is_refused_and_not_shown(value: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        carried([value])
    assert caught.value.field == "Idempotency-Key"
    assert "(not shown)" in str(caught.value)


@pytest.mark.parametrize("values", [[], ["a", "a"], ["a", "b"], ['"a"', ""]])
def test_a_key_is_given_once(values: list[str]) -> None:
    with pytest.raises(InvalidInput, match="given once"):
        carried(values)


@given(st.text(PRINTABLE, min_size=1, max_size=255))
def test_what_was_written_is_read(key: str) -> None:
    value = written(key)
    assert STRING.fullmatch(value)
    assert carried([value]) == key
    assert carried([f" {value}\t"]) == key


@given(st.text(PRINTABLE.translate({ord(letter): None for letter in ' ",;\\'}), min_size=1, max_size=255))
def test_with_quotes_and_without_it_is_one_key(key: str) -> None:
    assert carried([key]) == carried([written(key)]) == key


@given(st.text(max_size=300) | st.text('"\\;=, a\t\x00é', max_size=20))
def test_whatever_is_sent_is_a_key_of_printable_ascii_or_refused(value: str) -> None:
    try:
        key = carried([value])
    except InvalidInput:
        return
    assert 1 <= len(key) <= 255
    assert set(key) <= set(PRINTABLE)
    assert carried([written(key)]) == key


SCOPE = st.tuples(LABELS, LABELS, KEYS, KEYS, KEYS)


@given(SCOPE, SCOPE)
def test_no_two_scopes_meet(one: Any, other: Any) -> None:
    def made(scope: Any) -> str:
        tenant, principal, method, route, key = scope
        return operation_key(key, method=method, route=route, tenant=tenant, principal=principal)

    assert (made(one) == made(other)) is (one == other)
    assert made(one) == made(one)


@given(st.lists(st.none() | st.text("a-0:1", max_size=4)), st.lists(st.none() | st.text("a-0:1", max_size=4)))
def test_a_text_never_reaches_into_the_next(one: list[str | None], other: list[str | None]) -> None:
    assert (digest(*one) == digest(*other)) is (one == other)


@given(KEYS, KEYS, KEYS)
def test_a_call_to_another_service_has_always_the_same_key(key: str, call: str, other: str) -> None:
    found = downstream_key(key, call)
    assert uuid.UUID(found).version == 8
    assert uuid.UUID(found).variant == uuid.RFC_4122
    assert found == downstream_key(key, call)
    assert (found == downstream_key(key, other)) is (call == other)


@pytest.mark.parametrize(("key", "call"), [("", "a"), ("a", ""), ("a", "x" * 1025), ("a\0", "a"), ("a", None)])
def test_a_call_without_a_name_is_refused(key: str, call: Any) -> None:
    with pytest.raises(InvalidInput):
        downstream_key(key, call)


# Beyond these, programs read JSON differently, and its bytes count.
WHOLE = st.integers(1 - 2**53, 2**53 - 1)


@given(st.dictionaries(st.text(max_size=4), WHOLE | st.text(max_size=4), max_size=5), st.randoms())
def test_the_order_and_the_blanks_of_json_do_not_count(said: dict[str, Any], chance: Any) -> None:
    items = list(said.items())
    chance.shuffle(items)
    one, other = json.dumps(said).encode(), json.dumps(dict(items), indent=2).encode()
    assert request_print("/", "", "application/json", one, ()) == request_print("/", "", "application/json", other, ())
    more = json.dumps(said | {"more": 1}).encode()
    assert request_print("/", "", "application/json", more, ()) != request_print("/", "", "application/json", one, ())
    volatile = ("/more",)
    assert request_print("/", "", "application/json", more, volatile) == request_print(
        "/", "", "application/json; charset=utf-8", json.dumps({**said, "more": 2}).encode(), volatile
    )


@given(st.binary(max_size=20), st.binary(max_size=20), st.sampled_from(["application/json", "text/plain", ""]))
def test_other_bodies_count_by_their_bytes(one: bytes, other: bytes, kind: str) -> None:
    first, second = (request_print("/", "", kind, body, ()) for body in (one, other))
    if kind != "application/json":
        assert (first == second) is (one == other)
    assert first == request_print("/", "", kind, one, ())


def test_headers_of_the_connection_and_of_a_person_are_not_kept() -> None:
    given_ = [
        *(("Connection", "close, X-Hop"), ("X-Hop", "1"), ("Keep-Alive", "1"), ("Transfer-Encoding", "chunked")),
        *(("Proxy-Authenticate", "Basic"), ("Proxy-Status", "x"), ("Proxy-Connection", "x"), ("TE", "x")),
        *(("Upgrade", "x"), ("Trailer", "x"), ("Set-Cookie", "x"), ("WWW-Authenticate", "x"), ("Authorization", "x")),
        *(("Idempotent-Replayed", "true"), ("Idempotency-Stored", "false"), ("Content-Length", "5"), ("X-Own", "x")),
        *(("ETag", '"1"'), ("Location", "/1"), ("Link", "a"), ("Link", "b"), ("Content-Type", "text/plain")),
    ]
    kept = kept_headers(given_, {"x-own"})
    assert kept == (("etag", '"1"'), ("location", "/1"), ("link", "a"), ("link", "b"), ("content-type", "text/plain"))


def test_a_replay_says_how_long_it_is_unless_it_may_not() -> None:
    assert replayed(Response(200, (), b"12")).headers == (("content-length", "2"), ("idempotent-replayed", "true"))
    for status in (204, 304):
        assert replayed(Response(status)).headers == (("idempotent-replayed", "true"),)
