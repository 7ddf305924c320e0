"""Different things never share a key, whatever people call them, and no name reaches into another tenant."""

from __future__ import annotations

import enum
import random
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leasehold.errors import InvalidInput
from leasehold.model import Key, Name
from leasehold.rules.names import (
    KEY_MAX,
    LABEL_MAX,
    METADATA_BYTES,
    METADATA_ENTRIES,
    Names,
    check_metadata,
    check_text,
    scope_of,
)
from tests.rules.hostile import HOSTILE, KEYS, LABELS
from tests.support import count

PLACES = st.tuples(LABELS, LABELS, KEYS)
TEN_MEGABYTES = 10_000_000
UNUSABLE = ["", "a\0b", "\0", "\ud800", "a\udfff", "\udc80/x", "x" * (KEY_MAX + 1), "x" * TEN_MEGABYTES]
NOT_TEXT = [None, 5, 5.0, b"bytes", ["a"], ("a",), {"a": 1}, object(), True]


def key_of(place: tuple[str | None, str | None, str]) -> Key:
    prefix, tenant, text = place
    return Names(prefix, tenant).lock(scope_of(text))


@settings(max_examples=500)
@given(PLACES, PLACES)
def test_two_places_share_a_key_only_if_they_are_the_same_place(one, other) -> None:
    assert (key_of(one) == key_of(other)) == (one == other)


def random_places(number: int) -> set[tuple[str, str, str]]:
    """Short words of few characters, so that careless joining makes them meet."""
    chance = random.Random(7)

    def word() -> str:
        return "".join(chance.choices("ab/%2F5.:é", k=chance.randint(1, 6)))

    return {(word(), word(), word()) for _ in range(number)}


def test_no_two_of_many_random_places_meet() -> None:
    places = random_places(count(1_000_000))
    assert len({key_of(place) for place in places}) == len(places)


def test_joining_with_slashes_alone_would_let_such_places_meet() -> None:
    """The control of the test above: the same inputs break the obvious rule."""
    places = random_places(count(1_000_000))
    assert len({"/".join(place) for place in places}) < len(places)


def test_hostile_keys_are_all_different_keys() -> None:
    assert len({key_of((None, None, text)) for text in HOSTILE}) == len(set(HOSTILE)) == len(HOSTILE)


@settings(max_examples=300)
@given(PLACES)
def test_the_text_of_a_key_is_what_people_called_it(place) -> None:
    prefix, tenant, text = place
    names = Names(prefix, tenant)
    assert names.text(names.lock(Name(text))) == text


@settings(max_examples=500)
@given(PLACES, LABELS, LABELS)
def test_a_listing_of_one_tenant_never_shows_another(place, prefix, tenant) -> None:
    lister = Names(prefix, tenant)
    family = key_of(place).family
    mine = (prefix, tenant) == place[:2]
    assert family.startswith(lister.root) == mine
    # What a store with ordered keys reads instead: from the root to the character after its slash.
    assert (lister.root.encode() <= family.encode() < (lister.root[:-1] + "0").encode()) == mine


@given(KEYS, st.sampled_from(["NFC", "NFD", "NFKC", "NFKD"]))
def test_forms_that_look_alike_stay_apart(text, form) -> None:
    other = unicodedata.normalize(form, text)[:KEY_MAX]
    assert (key_of((None, None, text)) == key_of((None, None, other))) == (text == other)


@pytest.mark.parametrize("given", UNUSABLE, ids=lambda text: f"{len(text)} characters {text[:3]!a}")
def test_unusable_text_is_refused_in_a_few_words(given) -> None:
    for field, refuse in [
        ("scope", scope_of),
        ("scope", lambda text: scope_of(Name(text))),
        ("prefix", lambda text: Names(text, None)),
        ("tenant", lambda text: Names(None, text)),
    ]:
        with pytest.raises(InvalidInput) as caught:
            refuse(given)
        assert caught.value.field == field
        assert len(str(caught.value)) < 250
        assert str(caught.value).isascii() or "…" in str(caught.value)


@pytest.mark.parametrize("given", NOT_TEXT, ids=lambda given: type(given).__name__)
def test_what_is_not_text_is_refused_by_its_type(given) -> None:
    with pytest.raises(InvalidInput, match=f"scope: must be text, not {type(given).__name__}"):
        scope_of(given)
    with pytest.raises(InvalidInput, match=f"scope: must be text, not {type(given).__name__}"):
        scope_of(Name(given))


def test_the_longest_key_and_label_are_allowed_and_one_more_is_not() -> None:
    assert scope_of("é" * KEY_MAX).text == "é" * KEY_MAX
    Names("/" * LABEL_MAX, "%" * LABEL_MAX)
    with pytest.raises(InvalidInput, match=f"prefix: must be 1 to {LABEL_MAX} characters, not {LABEL_MAX + 1}"):
        Names("x" * (LABEL_MAX + 1), None)


def test_text_that_prints_as_something_else_is_taken_by_its_value() -> None:
    class Job(str, enum.Enum):  # noqa: UP042  the kind that prints its own name
        REPORT = "report"

    assert str(Job.REPORT) != "report"
    for asked in (Job.REPORT, Name(Job.REPORT)):
        named = scope_of(asked)
        assert type(named.text) is str
        assert str(named) == "report"
        assert Names(None, None).lock(named) == Names(None, None).lock(scope_of("report"))
    assert type(check_text("holder", Job.REPORT)) is str
    assert Names(Job.REPORT, None).root == Names("report", None).root


NOTES = st.dictionaries(
    st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), min_size=1, max_size=20),
    st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=20),
    max_size=METADATA_ENTRIES,
)


@given(NOTES)
def test_notes_within_the_limits_come_back_as_they_were(notes) -> None:
    kept = check_metadata(notes)
    assert kept == notes
    assert kept is not notes


def test_no_notes_are_an_empty_mapping() -> None:
    assert check_metadata(None) == {}


@pytest.mark.parametrize(
    ("given", "field"),
    [
        (5, "metadata"),
        ("who", "metadata"),
        ([("who", "me")], "metadata"),
        ({str(number): "" for number in range(METADATA_ENTRIES + 1)}, "metadata"),
        ({"a": "x" * (METADATA_BYTES - 1), "b": "y"}, "metadata"),
        ({"a": "é" * (METADATA_BYTES // 2)}, "metadata"),
        ({1: "x"}, "metadata name"),
        ({"": "x"}, "metadata name"),
        ({"a\0": "x"}, "metadata name"),
        ({"x" * (LABEL_MAX + 1): "x"}, "metadata name"),
        ({"who": None}, "metadata['who']"),
        ({"who": 5}, "metadata['who']"),
        ({"who": "\0"}, "metadata['who']"),
        ({"who": "\ud800"}, "metadata['who']"),
        ({"who": "x" * TEN_MEGABYTES}, "metadata['who']"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_notes_that_cannot_be_kept_are_refused_by_name(given, field) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_metadata(given)
    assert caught.value.field == field
    assert len(str(caught.value)) < 300
