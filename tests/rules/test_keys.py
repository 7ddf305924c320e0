"""A schema key says whose request it is: two requests never share one, and no tenant reaches into another."""

from __future__ import annotations

import enum
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import leasehold
from leasehold.errors import InvalidInput, shown
from leasehold.rules.keys import KeyParts, key, parsed_key
from leasehold.rules.names import KEY_MAX, LABEL_MAX, check_text

DIGEST = "a1b2c3d4" * 8
GOOD: dict[str, Any] = {
    "service": "payments",
    "environment": "prod",
    "tenant": "acme_corp",
    "resource_type": "invoice",
    "hash": f"sha256:{DIGEST}",
}
CROWDED = st.text(alphabet="a%3A;.sh", min_size=1, max_size=6)
LETTERS = st.characters(exclude_categories=("Cs", "Cc"), exclude_characters=":")
WORDS = CROWDED | st.text(LETTERS, min_size=1, max_size=20)
DIGESTS = st.binary(min_size=32, max_size=32).map(bytes.hex) | st.just(DIGEST)
PARTS = st.builds(KeyParts, WORDS, WORDS, WORDS, WORDS, DIGESTS.map("sha256:{}".format))


def test_a_key_reads_as_the_schema_says() -> None:
    assert key(**GOOD) == f"payments:prod:acme_corp:invoice:sha256:{DIGEST}"
    assert key(**GOOD | {"hash": DIGEST}) == key(**GOOD)


def test_a_fingerprint_is_a_hash_for_a_key() -> None:
    for found in (leasehold.fingerprint({"amount": 5}), leasehold.fingerprint(b"\xff", content_type="image/png")):
        assert leasehold.key(**GOOD | {"hash": found}).endswith(f":{found}")


@settings(max_examples=500)
@given(PARTS, PARTS)
def test_two_requests_share_a_key_only_if_all_their_parts_are_the_same(one: KeyParts, other: KeyParts) -> None:
    assert (key(**one._asdict()) == key(**other._asdict())) == (one == other)


def test_without_the_rule_about_colons_two_tenants_would_meet() -> None:
    """The control: joining alone lets one tenant write itself into another's keys."""
    one, other = GOOD | {"tenant": "a:b", "resource_type": "c"}, GOOD | {"tenant": "a", "resource_type": "b:c"}
    assert ":".join(one.values()) == ":".join(other.values())
    for parts in (one, other):
        with pytest.raises(InvalidInput, match="must not contain colons"):
            key(**parts)


@given(PARTS)
def test_a_key_tells_its_parts(parts: KeyParts) -> None:
    assert parsed_key(key(**parts._asdict())) == parts


def test_the_longest_parts_make_a_key_that_every_store_takes() -> None:
    parts = {field: "é" * LABEL_MAX for field in GOOD if field != "hash"}
    assert len(check_text("key", key(**parts, hash=DIGEST))) <= KEY_MAX


@pytest.mark.parametrize("field", [field for field in GOOD if field != "hash"])
@pytest.mark.parametrize(
    "value",
    [
        *("", ":", "a:b", "a\0b", "a\nb", "\t", "\x7f", "\x85", "\ud800", "x" * (LABEL_MAX + 1), "x" * 10_000_000),
        *(5, None, b"x"),
    ],
    ids=shown,
)
def test_a_part_that_cannot_stand_in_a_key_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        key(**GOOD | {field: value})
    assert caught.value.field == field
    assert len(str(caught.value)) < 300
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "value",
    [
        *("", "sha256:", "a1b2", DIGEST[:-1], f"{DIGEST}0", f"{DIGEST}\n"),
        *(f"sha256:{DIGEST[:-1]}", f"sha256:{DIGEST}0", f" sha256:{DIGEST}"),
        *(DIGEST.upper(), f"SHA256:{DIGEST}", f"sha512:{DIGEST}", f"md5:{DIGEST[:32]}", f"sha256:sha256:{DIGEST}"),
        *(f"sha256: {DIGEST[:-1]}", "g" * 64, "１" * 64, "x" * 10_000_000, None, 5, bytes.fromhex(DIGEST)),
    ],
    ids=shown,
)
def test_a_hash_that_is_malformed_or_too_short_is_refused(value: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        key(**GOOD | {"hash": value})
    assert caught.value.field == "hash"
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("", "key"),
        ("invoice/42", "key"),
        (f"payments:prod:acme_corp:sha256:{DIGEST}", "hash"),
        (f"payments:prod:acme_corp:invoice:{DIGEST}", "hash"),
        (f"payments:prod:acme_corp:invoice:x:sha256:{DIGEST}", "hash"),
        (f"payments:prod::invoice:sha256:{DIGEST}", "tenant"),
        (f"payments:prod:a\nb:invoice:sha256:{DIGEST}", "tenant"),
        ("payments:prod:acme_corp:invoice:sha256:a1b2", "hash"),
        (5, "key"),
    ],
)
def test_a_text_that_is_no_schema_key_is_refused(text: Any, field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parsed_key(text)
    assert caught.value.field == field


def test_a_part_counts_by_its_value() -> None:
    class Stage(str, enum.Enum):  # noqa: UP042  the kind that prints its own name
        PROD = "prod"

    assert key(**GOOD | {"environment": Stage.PROD}) == key(**GOOD)


def test_parts_are_given_by_name_only() -> None:
    unnamed: Any = key
    with pytest.raises(TypeError, match=re.escape("key() takes 0 positional arguments")):
        unnamed(*GOOD.values())
