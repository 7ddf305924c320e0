"""Keys built from a function's arguments: `report:{user_id}`.

Only plain parameter names: no attributes, indexes, conversions or formats, so
that a template cannot reach into objects. Values go in verbatim; put one field
last, or a separator between two that no value contains, if they must not meet.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from string import Formatter
from uuid import UUID

from leasehold.errors import InvalidInput
from leasehold.rules.names import KEY_MAX, check_text

_TOO_LARGE = 10**KEY_MAX


def parse(template: str, parameters: Collection[str]) -> list[tuple[str, str | None]]:
    """The template as (literal, field) pairs, or InvalidInput if it names what the function has not."""
    check_text("template", template)
    try:
        pieces = list(Formatter().parse(template))
    except ValueError as error:
        raise InvalidInput("template", template, f"cannot be read: {error}") from error
    parsed = []
    for literal, field, spec, conversion in pieces:
        if field is not None and (spec or conversion or not field.isidentifier()):
            raise InvalidInput("template", template, "may hold only plain parameter names such as {user_id}")
        if field is not None and field not in parameters:
            known = ", ".join(parameters) or "none"
            raise InvalidInput("template", template, f"{{{field}}} is no parameter of the function (it has: {known})")
        parsed.append((literal, field))
    return parsed


def fill(parsed: list[tuple[str, str | None]], arguments: Mapping[str, object]) -> str:
    """The key for one call. Only text, whole numbers and UUIDs name things; None never does."""
    return "".join(literal + (_word(field, arguments[field]) if field else "") for literal, field in parsed)


def _word(field: str, value: object) -> str:
    # By value, not by str(): an enum member that is text or a number prints as something else.
    match value:
        case str():
            return str.__str__(value)
        case int() if not isinstance(value, bool) and abs(value) < _TOO_LARGE:
            return int.__repr__(value)
        case UUID():
            return str(value)
    raise InvalidInput(field, value, "must be text, a UUID or a whole number (not too long for a key) to name a lock")
