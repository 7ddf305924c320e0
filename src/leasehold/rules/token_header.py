"""A token as it travels in HTTP, and how its refusal is told there. Pure.

    Leasehold-Token: "7340032";scope="invoice/42"
    Leasehold-Token: "1.7340032.AGludm9pY2UvNDI.1Zs…"          sealed: the scope is inside

A string of RFC 8941 with parameters: its numbers have 15 digits, tokens up to 19. In `scope`, what is not printable
ASCII, and the characters % " \\, are percent-encoded. `;shared` stands for a lease that shares what it holds. Anything
else is refused: a parameter that is not understood could limit what the token is good for.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import quote, unquote_to_bytes

from leasehold.errors import ForgedToken, InvalidInput, ScopeMismatch, StaleToken, TokenRefused
from leasehold.rules.fencing import checked_token, read_token
from leasehold.rules.http import Problem, problem
from leasehold.rules.names import check_text
from leasehold.rules.sealing import Seal

NAME = "Leasehold-Token"
LENGTH_MAX = 16384
# Methods that change nothing, by RFC 9110.
READING = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
_TEXT = r'"((?:[ !#-\[\]-~]|\\["\\])*)"'
_ITEM = re.compile(_TEXT)
_PARAMETER = re.compile(rf"; *(?:scope={_TEXT}|(shared)(?:=\?1)?)(?=;|$)")
_ESCAPED = re.compile(r"\\(.)")
_BAD_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")
# Every printable character that may stand for itself inside quotes.
_PLAIN = "".join(map(chr, range(0x20, 0x7F))).translate({ord(letter): None for letter in '%"\\'})


class Carried(NamedTuple):
    """What a header says: the token as a number or still sealed, and what it was given for."""

    text: str
    scope: str | None
    shared: bool


def written(token: int, scope: str, *, seal: Seal | None = None, shared: bool = False) -> str:
    """The value of the header."""
    ending = ";shared" if shared else ""
    if seal is not None:
        return f'"{seal.seal(scope, token)}"{ending}'
    return f'"{checked_token(token)}";scope="{quote(check_text("scope", scope), safe=_PLAIN)}"{ending}'


def carried(values: Sequence[object]) -> Carried:
    """What the values of the header say, of which there must be one. Never shown in an error: it may be sealed."""
    if len(values) != 1:
        raise _unreadable("it must be given once")
    value = values[0]
    if not isinstance(value, str) or not value.isascii() or len(value) > LENGTH_MAX:
        raise _unreadable(f"it must be ASCII text of at most {LENGTH_MAX} characters")
    value = value.strip(" ")
    item = _ITEM.match(value)
    if item is None:
        raise _unreadable('it must be a quoted string with parameters, such as "7340032";scope="invoice/42"')
    scope: str | None = None
    shared = False
    place = item.end()
    while place < len(value):
        found = _PARAMETER.match(value, place)
        if found is None or (shared if found[2] else scope is not None):
            raise _unreadable('it has parameters other than scope="…" and shared, each once')
        place = found.end()
        if found[2]:
            shared = True
        else:
            scope = _scope(_plain(found[1]))
    return Carried(_plain(item[1]), scope, shared)


def token_of(told: Carried, scope: str | None, seal: Seal | None) -> tuple[int, str]:
    """The token and its scope, which must be this one if one is given."""
    if seal is not None:
        if scope is None:
            raise InvalidInput("scope", scope, "must be given with a seal: it is what the token was sealed for")
        if told.scope not in {None, scope}:
            raise ScopeMismatch(scope, told.scope or "", scope)
        return seal.token(told.text, scope), scope
    try:
        token = read_token(told.text)
    except InvalidInput:
        # Its message would show a sealed token that came to the wrong place.
        raise _unreadable("its string must be a whole number in decimal digits, as str(lease.token) is") from None
    if told.scope is None:
        raise _unreadable('it must say what it was given for, as scope="…"')
    if scope is not None and told.scope != scope:
        raise ScopeMismatch(scope, told.scope, scope)
    return token, told.scope


def missing() -> Problem:
    """The answer to a request that shows no token and has to."""
    return problem(HTTPStatus.PRECONDITION_REQUIRED, "token-missing", f"Show the token of your lease in {NAME}.")


def unreadable(error: InvalidInput) -> Problem:
    """The answer to a header that says nothing."""
    return problem(HTTPStatus.BAD_REQUEST, "token-unreadable", f"{NAME} cannot be read: {error.remedy}.")


def refused(error: TokenRefused) -> Problem:
    """The answer to a token that is not accepted. It names neither the resource nor what the server compared with."""
    if isinstance(error, StaleToken):
        detail = "A later holder was here: stop the protected work, and acquire again before going on."
        token, mark = str(error.token), str(error.mark)
        return problem(HTTPStatus.PRECONDITION_FAILED, "token-stale", detail, token=token, mark=mark)
    if isinstance(error, ForgedToken):
        detail = "The token is not sealed with a key that is accepted here."
        return problem(HTTPStatus.FORBIDDEN, "token-forged", detail)
    detail = "The token was given for something else, or for reading only."
    return problem(HTTPStatus.FORBIDDEN, "token-scope-mismatch", detail)


def _unreadable(remedy: str) -> InvalidInput:
    return InvalidInput(NAME, "(not shown)", remedy)


def _plain(text: str) -> str:
    return _ESCAPED.sub(r"\1", text)


def _scope(text: str) -> str:
    if _BAD_PERCENT.search(text):
        raise _unreadable("a % in its scope must be followed by two hexadecimal digits")
    try:
        return check_text("scope", unquote_to_bytes(text).decode())
    except (UnicodeDecodeError, InvalidInput):
        raise _unreadable("its scope must be 1 to 1024 characters of UTF-8, percent-encoded") from None
