"""What a Redis URL says. Pure: nothing is reached from here."""

from __future__ import annotations

from typing import Literal
from urllib.parse import SplitResult

import msgspec

from leasehold.errors import InvalidInput
from leasehold.rules.addresses import Address, plain, read_address
from leasehold.rules.urls import read_options

PORT = 6379
SENTINEL_PORT = 26379
POOL = 16
POOL_MAX = 1024
WAIT_MAX = 16

Mode = Literal["single", "sentinel", "cluster"]
_MODES: dict[str, Mode] = {
    "redis": "single",
    "rediss": "single",
    "redis+sentinel": "sentinel",
    "redis+cluster": "cluster",
}
_OPTIONS: dict[Mode, tuple[str, ...]] = {
    "single": ("pool", "wait", "ca", "cert", "key"),
    "sentinel": ("pool", "wait", "tls", "ca", "cert", "key", "sentinel_login"),
    "cluster": ("pool", "wait", "tls", "ca", "cert", "key"),
}
_YES = {"yes": True, "no": False}


class RedisConfig(msgspec.Struct, frozen=True):
    """Everything a URL can say, checked. `wait` is how many replicas must confirm a write."""

    mode: Mode
    hosts: tuple[Address, ...]
    master: str = ""
    db: int = 0
    user: str = ""
    password: str = ""
    tls: bool = False
    ca: str = ""
    cert: str = ""
    key: str = ""
    pool: int = POOL
    wait: int = 0
    sentinel_login: bool = False

    def __repr__(self) -> str:
        # Not the password.
        return f"<RedisConfig {self.mode} {', '.join(map(str, self.hosts))}>"


def redis_config(parts: SplitResult, safe_url: str) -> RedisConfig:
    """The configuration, or InvalidInput. `safe_url` is what an error may show of the URL."""
    url = safe_url.partition("?")[0]
    mode = _MODES[parts.scheme]
    options = read_options(parts.query, _OPTIONS[mode], url)
    login, _, hosts = parts.netloc.rpartition("@")
    user, _, password = login.partition(":")
    port = SENTINEL_PORT if mode == "sentinel" else PORT
    addresses = tuple(read_address(host, port, url) for host in hosts.split(","))
    if mode == "single" and len(addresses) > 1:
        raise InvalidInput("url", url, "one server has one host; several need redis+sentinel:// or redis+cluster://")
    master, db = _path(parts.path, url, mode)
    if bool(options.get("cert")) != bool(options.get("key")):
        raise InvalidInput("url", url, "cert and key need each other")
    tls = parts.scheme == "rediss" or _yes(options, "tls", url)
    if not tls and any(options.get(name) for name in ("ca", "cert", "key")):
        raise InvalidInput("url", url, "ca, cert and key need TLS: rediss://, or tls=yes for Sentinel and Cluster")
    return RedisConfig(
        mode,
        addresses,
        master=master,
        db=db,
        user=plain(user, url),
        password=plain(password, url),
        tls=tls,
        ca=options.get("ca", ""),
        cert=options.get("cert", ""),
        key=options.get("key", ""),
        pool=_number(options, "pool", POOL, range(1, POOL_MAX + 1), url),
        wait=_number(options, "wait", 0, range(WAIT_MAX + 1), url),
        sentinel_login=_yes(options, "sentinel_login", url),
    )


def _path(path: str, url: str, mode: Mode) -> tuple[str, int]:
    """The master's name and the number of the database."""
    words = path.strip("/").split("/") if path.strip("/") else []
    if mode == "sentinel":
        if not words:
            raise InvalidInput("url", url, "must name the master: redis+sentinel://host1,host2/MASTER[/db]")
        master, words = plain(words[0], url), words[1:]
    else:
        master = ""
    if not words:
        return master, 0
    if len(words) > 1 or not (words[0].isascii() and words[0].isdecimal() and len(words[0]) < len("12345")):
        raise InvalidInput("url", url, "the path may hold the number of a database, such as /0, and nothing else")
    if mode == "cluster" and int(words[0]):
        raise InvalidInput("url", url, "a Cluster has only database 0; leave the path out")
    return master, int(words[0])


def _number(options: dict[str, str], name: str, default: int, allowed: range, url: str) -> int:
    text = options.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) < len("12345") and int(text) in allowed):
        raise InvalidInput("url", url, f"{name} must be a whole number from {allowed[0]} to {allowed[-1]}")
    return int(text)


def _yes(options: dict[str, str], name: str, url: str) -> bool:
    text = options.get(name, "no").lower()
    if text not in _YES:
        raise InvalidInput("url", url, f"{name} must be yes or no")
    return _YES[text]
