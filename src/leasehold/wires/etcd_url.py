"""What an etcd URL says. Pure: no file is read and nothing is reached."""

from __future__ import annotations

from urllib.parse import SplitResult

import msgspec

from leasehold.errors import InvalidInput
from leasehold.rules.addresses import Address, plain, read_address
from leasehold.rules.urls import read_options

PORT = 2379
NAMESPACE_MAX = 512
OPTIONS = ("namespace", "ca", "cert", "key")


class EtcdConfig(msgspec.Struct, frozen=True):
    """Everything a URL can say, checked. `namespace` stands before every key."""

    hosts: tuple[Address, ...]
    user: str = ""
    password: str = ""
    namespace: str = ""
    tls: bool = False
    ca: str = ""
    cert: str = ""
    key: str = ""

    def __repr__(self) -> str:
        # Not the password.
        return f"<EtcdConfig {', '.join(map(str, self.hosts))}>"


def etcd_config(parts: SplitResult, safe_url: str) -> EtcdConfig:
    """The configuration, or InvalidInput. `safe_url` is what an error may show of the URL."""
    url = safe_url.partition("?")[0]
    options = read_options(parts.query, OPTIONS, url)
    if parts.path.strip("/"):
        raise InvalidInput("url", url, "must have no path; a prefix for every key is ?namespace=…")
    login, _, hosts = parts.netloc.rpartition("@")
    user, _, password = login.partition(":")
    if bool(password) != bool(user):
        raise InvalidInput("url", url, "user and password need each other: etcd://user:password@host")
    if bool(options.get("cert")) != bool(options.get("key")):
        raise InvalidInput("url", url, "cert and key need each other")
    tls = parts.scheme == "etcds"
    if not tls and any(options.get(name) for name in ("ca", "cert", "key")):
        raise InvalidInput("url", url, "ca, cert and key need TLS: etcds://")
    return EtcdConfig(
        tuple(read_address(host, PORT, url) for host in hosts.split(",")),
        user=plain(user, url),
        password=plain(password, url),
        namespace=_namespace(options.get("namespace", ""), url),
        tls=tls,
        ca=options.get("ca", ""),
        cert=options.get("cert", ""),
        key=options.get("key", ""),
    )


def _namespace(text: str, url: str) -> str:
    if len(text) > NAMESPACE_MAX or "\0" in text or not text.isprintable():
        raise InvalidInput("url", url, f"namespace must be at most {NAMESPACE_MAX} printable characters")
    return text
