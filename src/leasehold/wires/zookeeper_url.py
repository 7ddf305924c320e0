"""What a ZooKeeper URL says. Pure: nothing is reached from here."""

from __future__ import annotations

from urllib.parse import SplitResult, parse_qsl, unquote

import msgspec

from leasehold.errors import InvalidInput, shown
from leasehold.wires.redis_url import PORT_MAX, Address

PORT = 2181
PORT_TLS = 2281
_OPTIONS = ("ca", "cert", "key")


class ZooKeeperConfig(msgspec.Struct, frozen=True):
    """Everything a URL can say, checked. `chroot` is empty, or a path that begins with a slash and ends without."""

    hosts: tuple[Address, ...]
    chroot: str = ""
    user: str = ""
    password: str = ""
    tls: bool = False
    ca: str = ""
    cert: str = ""
    key: str = ""

    def __repr__(self) -> str:
        # Not the password.
        return f"<ZooKeeperConfig {', '.join(map(str, self.hosts))}{self.chroot}>"


def zookeeper_config(parts: SplitResult, safe_url: str) -> ZooKeeperConfig:
    """The configuration, or InvalidInput. `safe_url` is what an error may show of the URL."""
    url = safe_url.partition("?")[0]
    options = _options(parts, url)
    tls = parts.scheme == "zookeepers"
    login, _, hosts = parts.netloc.rpartition("@")
    user, _, password = login.partition(":")
    if bool(user) != bool(password):
        raise InvalidInput("url", url, "a login has a user and a password: zookeeper://user:password@host")
    if bool(options.get("cert")) != bool(options.get("key")):
        raise InvalidInput("url", url, "cert and key need each other")
    if options and not tls:
        raise InvalidInput("url", url, "ca, cert and key need TLS: zookeepers://")
    return ZooKeeperConfig(
        tuple(_address(host, PORT_TLS if tls else PORT, url) for host in hosts.split(",")),
        chroot=_chroot(parts.path, url),
        user=_plain(user, url),
        password=_plain(password, url),
        tls=tls,
        ca=options.get("ca", ""),
        cert=options.get("cert", ""),
        key=options.get("key", ""),
    )


def _options(parts: SplitResult, url: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name not in _OPTIONS or name in found:
            allowed = ", ".join(_OPTIONS)
            raise InvalidInput("url", url, f"option {shown(name)} is unknown or repeated; this store has: {allowed}")
        found[name] = value
    return found


def _address(text: str, port: int, url: str) -> Address:
    host, colon, digits = text.rpartition(":")
    if not colon or digits.endswith("]"):
        host, digits = text, ""
    bracketed = host.startswith("[") and host.endswith("]")
    host = _plain(host[1:-1] if bracketed else host, url)
    if not host or (":" in host) is not bracketed or "[" in host or "]" in host or host != host.strip():
        raise InvalidInput("url", url, "each host must read host, host:port or [IPv6]:port, with commas between them")
    if digits and not (digits.isascii() and digits.isdecimal() and 0 < int(digits[:6]) <= PORT_MAX):
        raise InvalidInput("url", url, f"a port must be a whole number from 1 to {PORT_MAX}")
    return Address(host, int(digits) if digits else port)


def _chroot(path: str, url: str) -> str:
    """A path that ZooKeeper takes: no empty step, no dots alone, nothing that cannot be printed."""
    text = _plain(path, url).rstrip("/")
    steps = text.split("/")[1:]
    if any(step in {"", ".", ".."} or not step.isprintable() for step in steps):
        raise InvalidInput("url", url, "the path is a chroot such as /apps/billing, without empty steps, . or ..")
    return text


def _plain(text: str, url: str) -> str:
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError as error:
        raise InvalidInput("url", url, "holds %XX that is not UTF-8") from error
