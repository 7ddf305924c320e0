"""Durations as Go writes them, because the configuration is read by people who know Kubernetes: 5m, 1h30m, 0.

Pure: text in, seconds out.
"""

from __future__ import annotations

import re

UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
# A week: longer is a mistake, and a lock that stays for it would be in everybody's way.
LONGEST = 7 * 24 * 3600.0
_PART = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|ms|s|m|h)")
_WHOLE = re.compile(rf"(?:{_PART.pattern})+")


class Malformed(ValueError):
    """Text that is no duration, or none that can be meant; it says what to write instead."""


def seconds(text: str) -> float:
    """How long that is, from 0 to a week."""
    plain = text.strip()
    if plain.startswith("-"):
        raise Malformed(f"{_shown(text)} is negative; write 0 for none, or a duration such as 5m")
    if plain != "0" and not _WHOLE.fullmatch(plain):
        raise Malformed(f"{_shown(text)} is no duration; write a number and a unit, such as 90s, 5m or 1h30m")
    total = sum(float(number) * UNITS[unit] for number, unit in _PART.findall(plain))
    if total > LONGEST:
        raise Malformed(f"{_shown(text)} is longer than a week; write 168h or less")
    return total


def spoken(length: float) -> str:
    """Whole seconds as Go prints them: 42s, 1m42s, 1h0m5s."""
    minutes, rest = divmod(round(length), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes}m{rest}s"
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:40] + "…")  # noqa: PLR2004  enough to be recognized
