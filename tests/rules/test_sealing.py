"""Sealed tokens: what was sealed is read, and nothing else."""

from __future__ import annotations

import secrets

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.errors import ForgedToken, InvalidInput, ScopeMismatch, TokenRefused
from leasehold.rules.fencing import TOKEN_MAX, checked_token, read_token
from leasehold.rules.sealing import Seal
from tests.rules.hostile import HOSTILE

KEY, OTHER = b"k" * 32, b"o" * 32
TOKENS = st.integers(1, TOKEN_MAX)
SCOPES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=50)


@given(SCOPES, TOKENS)
def test_what_was_sealed_is_read(scope: str, token: int) -> None:
    sealed = Seal(KEY).seal(scope, token)
    assert Seal(KEY).token(sealed, scope) == token
    assert sealed.isascii()
    assert sealed.isprintable()
    assert not set(sealed) & set(' "\\,;')


@given(SCOPES, SCOPES, TOKENS)
def test_a_token_for_one_scope_is_none_for_another(scope: str, other: str, token: int) -> None:
    sealed = Seal(KEY).seal(scope, token)
    if scope != other:
        with pytest.raises(ScopeMismatch):
            Seal(KEY).token(sealed, other)


def test_tenants_do_not_meet() -> None:
    sealed = Seal(KEY, tenant="acme").seal("invoice/42", 7)
    assert Seal(KEY, tenant="acme").token(sealed, "invoice/42") == 7
    for tenant in ("", "globex"):
        with pytest.raises(ScopeMismatch, match="acme: invoice/42"):
            Seal(KEY, tenant=tenant).token(sealed, "invoice/42")


def test_two_keys_are_valid_at_once_while_they_change() -> None:
    old, new, both = Seal(KEY), Seal(OTHER), Seal([OTHER, KEY])
    assert both.token(old.seal("job", 7), "job") == 7
    assert new.token(both.seal("job", 8), "job") == 8
    with pytest.raises(ForgedToken):
        new.token(old.seal("job", 7), "job")


@given(st.integers(0, 200), st.characters(codec="ascii"), TOKENS)
def test_no_character_of_it_can_be_changed(place: int, letter: str, token: int) -> None:
    sealed = Seal(KEY).seal("invoice/42", token)
    place %= len(sealed)
    changed = sealed[:place] + letter + sealed[place + 1 :]
    if changed != sealed:
        with pytest.raises(TokenRefused):
            Seal(KEY).token(changed, "invoice/42")


def test_none_of_many_made_up_tokens_is_accepted() -> None:
    seal, scope = Seal(KEY), "invoice/42"
    sealed = seal.seal(scope, 7)
    body, mac = sealed.rsplit(".", 1)
    version, _, place = body.split(".")
    forged = [
        *(f"{version}.{token}.{place}.{mac}" for token in range(8, 500)),
        *(f"{body}.{secrets.token_urlsafe(32)}" for _ in range(500)),
        *(Seal(secrets.token_bytes(32)).seal(scope, TOKEN_MAX) for _ in range(100)),
        sealed + "=", sealed + ".", "." + sealed, sealed.upper(), f"{body}.", body, "", "7", str(TOKEN_MAX),
    ]  # fmt: skip
    for text in forged:
        with pytest.raises(ForgedToken):
            seal.token(text, scope)


@pytest.mark.parametrize("given", HOSTILE, ids=repr)
def test_whatever_is_shown_is_refused_with_an_error_of_ours(given: object) -> None:
    with pytest.raises(ForgedToken):
        Seal(KEY).token(given, "invoice/42")


@pytest.mark.parametrize("keys", [b"", b"short", [], [KEY, b"short"], "k" * 32, [None], [KEY] * 9])
def test_keys_that_cannot_work_are_refused_and_never_shown(keys) -> None:
    with pytest.raises(InvalidInput) as refusal:
        Seal(keys)
    assert "short" not in str(refusal.value)
    assert "kkk" not in str(refusal.value)
    assert "kkk" not in repr(Seal(KEY))


@pytest.mark.parametrize("given", [0, -1, TOKEN_MAX + 1, 1.0, "7", True, None])
def test_what_is_no_token_is_not_sealed(given) -> None:
    with pytest.raises(InvalidInput, match="token"):
        Seal(KEY).seal("job", given)
    with pytest.raises(InvalidInput, match="token"):
        checked_token(given)


@pytest.mark.parametrize("text", ["", "0", "-1", "07", "+7", "7.0", " 7", "٧", "1" * 20, "7\n", 7, None])
def test_a_token_is_written_in_one_way_only(text) -> None:
    with pytest.raises(InvalidInput, match="token"):
        read_token(text)
    assert read_token(str(TOKEN_MAX)) == TOKEN_MAX
