"""What a resource makes of a token: the rule behind every fence. Pure.

A resource remembers the largest token it has seen, its mark. A holder raises it before its first
read; from then on nobody with a smaller token reads or writes. Checked on writes alone it would keep
them in order and still lose updates: what an old holder read is written back after a new one has read.
"""

from __future__ import annotations

from leasehold.errors import InvalidInput, ScopeMismatch, StaleToken

TOKEN_MAX = 2**63 - 1
DIGITS = 19


def checked_token(given: object) -> int:
    """A token as leases have them: a whole number of up to 63 bits. Text is no number: "9" would be above "10"."""
    if isinstance(given, bool) or not isinstance(given, int):
        remedy = f"must be a whole number, as lease.token is, not {type(given).__name__}"
        raise InvalidInput("token", given, remedy)
    if not 0 < given <= TOKEN_MAX:
        raise InvalidInput("token", given, f"must be from 1 to {TOKEN_MAX}, as lease.token is")
    return given


def read_token(text: object) -> int:
    """A token as it travels and is stored where numbers have too few digits: in decimal, and in one way only."""
    plain = isinstance(text, str) and text.isascii() and text.isdigit() and len(text) <= DIGITS
    if not plain or str(int(str(text))) != text:
        raise InvalidInput("token", text, "must be a whole number in decimal digits, as str(lease.token) is")
    return checked_token(int(str(text)))


def admit(resource: str, mark: int, token: int) -> int:
    """The mark after this token was seen; raises StaleToken if a larger one was seen before."""
    if checked_token(token) < mark:
        raise StaleToken(resource, token, mark)
    return token


def check_writes(resource: str, scope: str, *, shared: bool) -> None:
    """A sharer reads and changes nothing: others share it at the same time."""
    if shared:
        raise ScopeMismatch(resource, f"reading {scope}", f"writing {scope}")
