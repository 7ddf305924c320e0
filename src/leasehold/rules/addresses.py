"""Where a server listens, as a URL says it."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import unquote

from leasehold.errors import InvalidInput

PORT_MAX = 65535


class Address(NamedTuple):
    """Where a server listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def read_address(text: str, port: int, url: str) -> Address:
    """One of the hosts of a URL; `port` where it names none."""
    host, colon, digits = text.rpartition(":")
    if not colon or digits.endswith("]"):
        host, digits = text, ""
    # urlsplit looks at the brackets of an IPv6 address only where there is one host.
    bracketed = host.startswith("[") and host.endswith("]")
    host = plain(host[1:-1] if bracketed else host, url)
    if not host or (":" in host) is not bracketed or "[" in host or "]" in host or host != host.strip():
        raise InvalidInput("url", url, "each host must read host, host:port or [IPv6]:port, with commas between them")
    if digits and not (digits.isascii() and digits.isdecimal() and 0 < int(digits[:6]) <= PORT_MAX):
        raise InvalidInput("url", url, f"a port must be a whole number from 1 to {PORT_MAX}")
    return Address(host, int(digits) if digits else port)


def plain(text: str, url: str) -> str:
    """Text whose %XX are read."""
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError as error:
        raise InvalidInput("url", url, "holds %XX that is not UTF-8") from error
