"""The header that carries a token: what was written is read, and nothing else."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.errors import ForgedToken, InvalidInput, ScopeMismatch, StaleToken, TokenRefused
from leasehold.rules import token_header
from leasehold.rules.fencing import TOKEN_MAX
from leasehold.rules.sealing import Seal
from leasehold.rules.token_header import carried, token_of, written
from tests.rules.hostile import VALID_TEXT

KEY, OTHER = b"k" * 32, b"o" * 32
TOKENS = st.integers(1, TOKEN_MAX)
# The characters that a reader of such a header must get right, and few others.
CROWDED = st.text('"\\;=, %27scoperhad?1.\t\x00é', max_size=40)
# RFC 8941: a string, and parameters whose values are strings or booleans.
STRING = r'"(?:[\x20\x21\x23-\x5b\x5d-\x7e]|\\["\\])*"'
GRAMMAR = re.compile(rf" *{STRING}(?:; *[a-z*][a-z0-9_.*-]*(?:=(?:{STRING}|\?[01]))?)* *")


def read(value: str, scope: str | None = None, seal: Seal | None = None) -> tuple[int, str]:
    return token_of(carried([value]), scope, seal)


@given(TOKENS, VALID_TEXT, st.booleans())
def test_what_was_written_is_read(token: int, scope: str, shared: object) -> None:
    value = written(token, scope, shared=bool(shared))
    assert GRAMMAR.fullmatch(value)
    assert value.isascii()
    assert value.isprintable()
    assert read(value, scope) == (token, scope)
    assert carried([value]).shared is shared


@given(TOKENS, VALID_TEXT, st.booleans())
def test_what_was_sealed_is_read_with_the_key_and_for_its_scope(token: int, scope: str, shared: object) -> None:
    value = written(token, scope, seal=Seal(KEY), shared=bool(shared))
    assert GRAMMAR.fullmatch(value)
    assert read(value, scope, Seal(KEY)) == (token, scope)
    with pytest.raises(ForgedToken):
        read(value, scope, Seal(OTHER))
    with pytest.raises(ScopeMismatch):
        read(value, f"{scope}x", Seal(KEY))
    with pytest.raises(InvalidInput) as refusal:
        read(value, scope)
    assert value.strip('"')[:20] not in str(refusal.value)


def test_a_token_reads_as_it_is_documented() -> None:
    assert written(7340032, "invoice/42") == '"7340032";scope="invoice/42"'
    assert written(TOKEN_MAX, 'é%"\\', shared=True) == f'"{TOKEN_MAX}";scope="%C3%A9%25%22%5C";shared'


@pytest.mark.parametrize(
    "value",
    [
        '"7";scope="job"',
        ' "7";scope="job" ',
        '"7"; scope="job"',
        '"7";   scope="%6Aob"',
    ],
)
def test_what_other_programs_may_write_is_read(value: str) -> None:
    assert read(value, "job") == (7, "job")


def test_what_is_escaped_stands_for_itself() -> None:
    assert read('"7";scope="a\\"b\\\\c"') == (7, 'a"b\\c')
    assert carried(['"7";shared=?1;scope="job"']).shared


HOSTILE = [
    *("", " ", "7", "7340032", "-7", '"-7"', '"+7"', '"7.0"', "7.0", '"1.5"', '"0"', '"007"', '"7e3"', '"0x7"', '"7 "'),
    *(
        '"7',
        '7"',
        "'7'",
        '""',
        '"7"7',
        '"7""8"',
        '"7","8"',
        '"7";scope="job","8";scope="job"',
        '"7", "7"',
        '"٧"',
        '"７"',
    ),
    *(f'"{TOKEN_MAX + 1}";scope="job"', f'"{"9" * 5000}";scope="job"', '"7";scope="job' + "x" * 20000 + '"'),
    *(
        '"7"',
        '"7";',
        '"7";scope',
        '"7";scope=',
        '"7";scope=job',
        '"7";scope=7',
        '"7";scope=""',
        '"7";scope="a";scope="b"',
    ),
    *('"7";scope="job";', '"7";scope="job";x', '"7";scope="job";x=1', '"7";scope="job" x', '"7" ;scope="job"'),
    *(
        '"7";Scope="job"',
        '"7";SCOPE="job"',
        '"7";scope ="job"',
        '"7";scope= "job"',
        '"7"\t;scope="job"',
        '"7";scope="a\tb"',
    ),
    *(
        '"7";scope="%"',
        '"7";scope="%2"',
        '"7";scope="%zz"',
        '"7";scope="%FF"',
        '"7";scope="%00"',
        '"7";scope="%ED%A0%80"',
    ),
    *(
        '"7";scope="é"',
        '"7";scope="job"\x00',
        '"7";scope="job"\n',
        '"7";scope="a\\b"',
        '"7";scope="a\\"',
        '"7\\";scope="job"',
    ),
    *('"7";scope="job";shared=?0', '"7";scope="job";shared=1', '"7";scope="job";shared;shared', '"7";shared'),
    *(":Nw==:", '("7")', "?1", "token", "*", '"1.7.am9i.x";scope="job"'),
]


@pytest.mark.parametrize("value", HOSTILE, ids=lambda value: repr(value)[:40])
def test_anything_else_is_refused_and_not_repeated(value: str) -> None:
    with pytest.raises(InvalidInput, match="given: '\\(not shown\\)'"):
        read(value, "job")


@pytest.mark.parametrize("values", [[], ['"7";scope="job"'] * 2, [7], [None], [b'"7";scope="job"'], [1.5]], ids=repr)
def test_a_header_is_one_text(values: list[object]) -> None:
    with pytest.raises(InvalidInput):
        carried(values)


@given(CROWDED | st.text(max_size=60))
def test_no_text_is_taken_for_a_token_by_accident(text: str) -> None:
    """Whatever is accepted is of RFC 8941's grammar, and written again says the same."""
    try:
        token, scope = read(text)
    except InvalidInput:
        return
    assert GRAMMAR.fullmatch(text)
    assert read(written(token, scope)) == (token, scope)


@given(TOKENS, st.integers(0, 60), st.characters(codec="ascii"))
def test_a_sealed_header_with_one_other_character_is_never_another_token(token: int, place: int, letter: str) -> None:
    value = written(token, "job", seal=Seal(KEY))
    place %= len(value)
    changed = value[:place] + letter + value[place + 1 :]
    try:
        assert read(changed, "job", Seal(KEY)) == (token, "job")
    except (InvalidInput, TokenRefused):
        assert changed != value


def test_a_scope_that_is_said_beside_a_seal_must_be_the_same() -> None:
    value = written(7, "job", seal=Seal(KEY))
    assert read(f'{value};scope="job"', "job", Seal(KEY)) == (7, "job")
    with pytest.raises(ScopeMismatch):
        read(f'{value};scope="other"', "job", Seal(KEY))
    with pytest.raises(InvalidInput, match="must be given with a seal"):
        read(value, None, Seal(KEY))


@pytest.mark.parametrize("token", [0, -1, 1.5, "7", True, None, TOKEN_MAX + 1], ids=repr)
def test_only_tokens_are_written(token: int) -> None:
    for seal in (None, Seal(KEY)):
        with pytest.raises(InvalidInput):
            written(token, "job", seal=seal)


def test_a_refusal_says_numbers_as_text_and_names_nothing_of_the_server() -> None:
    problem = token_header.refused(StaleToken("/var/lib/secret", TOKEN_MAX - 1, TOKEN_MAX))
    told = json.loads(problem.body)
    assert (problem.status, told["status"], told["reason"]) == (412, 412, "token-stale")
    assert (told["token"], told["mark"]) == (str(TOKEN_MAX - 1), str(TOKEN_MAX))
    for error in (
        StaleToken("/var/lib/secret", 5, 6),
        ScopeMismatch("/var/lib/secret", "acme: secret", "globex: secret"),
        ForgedToken("/var/lib/secret", "secret"),
    ):
        answer = token_header.refused(error)
        assert b"secret" not in answer.body
        assert ("content-length", str(len(answer.body))) in answer.headers
