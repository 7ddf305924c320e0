"""The parts of a store's URL."""

from __future__ import annotations

import re
from urllib.parse import SplitResult, urlsplit


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
