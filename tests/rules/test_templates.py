"""A template names parameters and nothing else; a wrong one is refused before the function is ever called."""

from __future__ import annotations

import enum
import re
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.errors import InvalidInput
from leasehold.rules.templates import fill, parse

PARAMETERS = ("user_id", "day")
PLAIN = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0{}"), max_size=12)


@given(PLAIN, PLAIN, st.text(max_size=12), st.integers())
def test_values_go_in_verbatim_between_the_literals(before, between, user, day) -> None:
    parsed = parse(f"{before}{{user_id}}{between}{{day}}", PARAMETERS)
    assert fill(parsed, {"user_id": user, "day": day}) == f"{before}{user}{between}{day}"


@given(st.text(min_size=1, max_size=12))
def test_braces_in_a_value_are_only_text(value) -> None:
    parsed = parse("{user_id}", PARAMETERS)
    for text in (value, f"{{{value}}}", "{day}", "{user_id.__class__}"):
        assert fill(parsed, {"user_id": text, "day": 1}) == text


def test_doubled_braces_stand_for_themselves() -> None:
    assert fill(parse("a{{b}}{day}", PARAMETERS), {"day": 7}) == "a{b}7"


def test_a_template_without_fields_is_one_key() -> None:
    assert fill(parse("nightly", ()), {}) == "nightly"


@pytest.mark.parametrize(
    "template",
    [
        "{user_id.name}",
        "{user_id.__class__.__mro__}",
        "{user_id[0]}",
        "{user_id!r}",
        "{user_id:>10}",
        "{user_id:{day}}",
        "{}",
        "{0}",
        "{ user_id }",
        "{user-id}",
        "{unknown}",
        "{user_id}{unknown}",
        "{",
        "}",
        "{user_id",
        "user_id}",
        "{{user_id}",
        "{user_id!x}",
        "",
        "a\0b",
        "\ud800",
        "x" * 1025,
    ],
)
def test_anything_but_plain_parameter_names_is_refused(template) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse(template, PARAMETERS)
    assert caught.value.field == "template"
    assert len(str(caught.value)) < 300


def test_an_unknown_name_is_refused_with_those_there_are() -> None:
    with pytest.raises(InvalidInput, match=re.escape("{user} is no parameter of the function (it has: user_id, day)")):
        parse("{user}", PARAMETERS)


@given(st.text(alphabet="{}ab!:.[]0", max_size=10))
def test_whatever_is_not_refused_fills_with_plain_values_only(template) -> None:
    try:
        parsed = parse(template, ("a", "b"))
    except InvalidInput as error:
        assert error.field == "template"  # noqa: PT017  refusing is the other right answer here
    else:
        assert fill(parsed, {"a": "x", "b": "y"}) == template.format(a="x", b="y")


@pytest.mark.parametrize("template", [None, 5, b"x", ["x"]])
def test_a_template_that_is_not_text_is_refused(template) -> None:
    with pytest.raises(InvalidInput, match="template: must be text"):
        parse(template, PARAMETERS)


VALUES = [None, 1.5, True, False, b"x", ["x"], object(), 10**2000, 10**6000]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_values_that_name_nothing_are_refused_by_the_name_of_the_parameter(value) -> None:
    parsed = parse("report:{user_id}", PARAMETERS)
    with pytest.raises(InvalidInput) as caught:
        fill(parsed, {"user_id": value, "day": 1})
    assert caught.value.field == "user_id"
    assert len(str(caught.value)) < 300


def test_text_numbers_and_uuids_name_things_by_their_value() -> None:
    class Kind(str, enum.Enum):  # noqa: UP042  the kind that prints its own name
        DAILY = "daily"

    class Level(int, enum.Enum):
        HIGH = 3

    parsed = parse("{user_id}", PARAMETERS)
    uuid = UUID(int=7)
    for value, word in [("x", "x"), (-5, "-5"), (uuid, str(uuid)), (Kind.DAILY, "daily"), (Level.HIGH, "3")]:
        assert fill(parsed, {"user_id": value}) == word
