"""What the command prints. Nothing that others wrote into a store reaches a terminal unescaped.

Keys, holders and notes are any text, also newlines, escape sequences and marks
that turn the direction of writing. People see them escaped; JSON is plain ASCII.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
import unicodedata
from collections.abc import Iterable, Sequence
from typing import TextIO

from leasehold.cli.codes import NOT_WRITTEN, PIPE_CLOSED
from leasehold.model import LeaseInfo

COLUMNS = ("KEY", "HOLDER", "TOKEN", "EXPIRES IN", "SINCE", "REVOKED", "METADATA")
NOTHING = "-"


def say(text: str) -> None:
    """Print the answer on stdout; exit with a code of its own if it could not be written."""
    try:
        print(text, flush=True)
    except OSError as error:
        _give_up(sys.stdout)
        if isinstance(error, BrokenPipeError):
            raise SystemExit(PIPE_CLOSED) from None
        complain(f"the answer could not be written: {error.strerror}")
        raise SystemExit(NOT_WRITTEN) from None


def complain(text: str) -> None:
    """One line on stderr, whatever the text holds."""
    tell(f"leasehold: {visible(text)}")


def tell(line: str) -> None:
    """A line on stderr, if anybody is there to read it: that nobody is must not change an exit code."""
    if sys.stderr is not None:
        try:
            print(line, file=sys.stderr, flush=True)
        except OSError:
            _give_up(sys.stderr)


def _give_up(stream: TextIO) -> None:
    # On its way out Python tries once more to write what is left, and exits with 120 if that fails: let it.
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def as_json(value: object) -> str:
    """One line of plain ASCII."""
    return json.dumps(value, ensure_ascii=True)


def visible(text: str) -> str:
    """The text with everything escaped that a terminal would obey instead of show."""
    return "".join(letter if letter.isprintable() else _escaped(letter) for letter in text)


def cell(text: str) -> str:
    """Somebody's text inside a line of ours: never ambiguous, and never to be taken for two cells."""
    shown = visible(text.replace("\\", "\\\\"))
    if shown and " " not in shown and '"' not in shown and shown != NOTHING:
        return shown
    return '"' + shown.replace('"', '\\"') + '"'


def table(leases: Iterable[LeaseInfo]) -> str:
    """The leases, one a line, in aligned columns."""
    rows = [COLUMNS, *(_row(lease) for lease in leases)]
    widths = [max(_width(row[place]) for row in rows) for place in range(len(COLUMNS))]
    return "\n".join(_line(row, widths) for row in rows)


def paragraph(lease: LeaseInfo) -> str:
    """One lease, one fact a line."""
    lines = [f"{name.lower() + ':':<12}{text}" for name, text in zip(COLUMNS, _row(lease), strict=True)]
    waiting = (f"{cell(one.holder)} since {_when(one.since) or NOTHING}" for one in lease.waiters)
    return "\n".join([*lines, *(f"{'waiting:':<12}{one}" for one in waiting)])


def fields(lease: LeaseInfo) -> dict[str, object]:
    """One lease for programs. The token is a decimal string: JSON numbers lose digits."""
    return {
        "key": lease.scope,
        "held": True,
        "holder": lease.holder,
        "token": str(lease.token),
        "ttl": lease.ttl,
        "expires_in": lease.expires_in,
        "since": _when(lease.since),
        "revoked": lease.revoked,
        "metadata": dict(lease.metadata),
        "reserved": lease.reserved,
        "waiters": [{"holder": one.holder, "since": _when(one.since)} for one in lease.waiters],
    }


def free(key: str) -> dict[str, object]:
    """A key nobody holds, for programs."""
    return {"key": key, "held": False}


class LogLines(logging.Handler):
    """The library's warnings as lines of ours on stderr; what repeats itself is told once."""

    _last = ""

    def emit(self, record: logging.LogRecord) -> None:
        said, self._last = self._last, record.getMessage()
        if said != self._last:
            complain(self._last)


def tell_warnings(*, wanted: bool) -> None:
    """Send the library's warnings to stderr, or nowhere where the command says everything itself."""
    log = logging.getLogger("leasehold")
    log.propagate = False
    log.addHandler(LogLines() if wanted else logging.NullHandler())


def _row(lease: LeaseInfo) -> tuple[str, ...]:
    notes = " ".join(f"{cell(name)}={cell(value)}" for name, value in lease.metadata.items())
    return (
        cell(lease.scope),
        cell(lease.holder),
        str(lease.token),
        "never" if lease.expires_in is None else f"{lease.expires_in:.1f} s",
        _when(lease.since) or NOTHING,
        NOTHING if lease.revoked is None else cell(lease.revoked),
        notes or NOTHING,
    )


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(text + " " * (width - _width(text)) for text, width in zip(row, widths, strict=True)).rstrip()


def _width(text: str) -> int:
    """How many columns a terminal needs for it."""
    if text.isascii():
        return len(text)
    shown = (letter for letter in text if not unicodedata.combining(letter))
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in shown)


def _when(seconds: float) -> str | None:
    """A holder's wall clock, in UTC; None where there is none, or nonsense."""
    try:
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds)) if seconds > 0 else None
    except (OverflowError, ValueError, OSError):
        return None


def _escaped(letter: str) -> str:
    return letter.encode("unicode_escape").decode("ascii")
