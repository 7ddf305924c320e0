"""What a ZooKeeper URL says. Pure: nothing is reached from here."""

from __future__ import annotations

from urllib.parse import SplitResult

import msgspec

from leasehold.errors import InvalidInput
from leasehold.rules.addresses import Address, plain, read_address
from leasehold.rules.urls import read_options

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
    options = read_options(parts.query, _OPTIONS, url)
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
        tuple(read_address(host, PORT_TLS if tls else PORT, url) for host in hosts.split(",")),
        chroot=_chroot(parts.path, url),
        user=plain(user, url),
        password=plain(password, url),
        tls=tls,
        ca=options.get("ca", ""),
        cert=options.get("cert", ""),
        key=options.get("key", ""),
    )


def _chroot(path: str, url: str) -> str:
    """A path that ZooKeeper takes: no empty step, no dots alone, nothing that cannot be printed."""
    text = plain(path, url).rstrip("/")
    steps = text.split("/")[1:]
    if any(step in {"", ".", ".."} or not step.isprintable() for step in steps):
        raise InvalidInput("url", url, "the path is a chroot such as /apps/billing, without empty steps, . or ..")
    return text
