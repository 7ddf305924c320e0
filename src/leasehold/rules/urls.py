"""The parts of a store's URL."""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import SplitResult, parse_qsl, urlsplit

from leasehold.errors import InvalidInput, shown


def split(url: str) -> SplitResult:
    """The parts as `urlsplit` names them; ValueError if it cannot be read.

    The part with the hosts is taken as it stands: newer Pythons refuse brackets in it
    unless there is a single host, and a store's URL may name several.
    """
    scheme, mark, rest = url.partition("://")
    if not mark:
        return urlsplit(url)
    hosts = re.split(r"[/?#]", rest, maxsplit=1)[0]
    if hosts.count("[") != hosts.count("]"):
        raise ValueError("a bracket among its hosts is not closed")
    return urlsplit(f"{scheme}{mark}{rest[len(hosts) :]}")._replace(netloc=hosts)


def read_options(query: str, known: Sequence[str], url: str) -> dict[str, str]:
    """What stands behind the question mark: known names, none twice. `url` is what an error may show."""
    found: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in known or name in found:
            allowed = ", ".join(known) or "none"
            raise InvalidInput("url", url, f"option {shown(name)} is unknown or repeated; this store has: {allowed}")
        found[name] = value
    return found
