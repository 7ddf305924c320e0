"""From a URL to a store. Each store is imported when its scheme is first asked for, never before."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, unquote

from leasehold.errors import InvalidInput
from leasehold.extras import require
from leasehold.rules.urls import read_options, split
from leasehold.stores.base import Store
from leasehold.wires.clock import Clock
from leasehold.wires.colour import Colour

if TYPE_CHECKING:
    from leasehold.stores.memory import Memory


def open_store(url: str, *, timeout: float, colour: Colour) -> Store:
    """The store a URL names, not yet opened."""
    if not isinstance(url, str):
        raise InvalidInput(
            "url", url, f"must be text such as sqlite:///var/lib/app/leases.db, not {type(url).__name__}"
        )
    # urlsplit would drop line breaks and leading blanks in silence, and so name another file.
    if not url.isprintable() or url != url.strip():
        raise InvalidInput("url", _safe(url), "must be one line of printable characters; write others as %XX")
    try:
        parts = split(url)
    except ValueError as error:
        raise InvalidInput("url", _safe(url), f"cannot be read as a URL: {error}") from error
    make = SCHEMES.get(parts.scheme)
    if make is None:
        known = ", ".join(f"{scheme}://" for scheme in SCHEMES)
        raise InvalidInput("url", _safe(url), f"the scheme must be one of {known}")
    if not url[len(parts.scheme) :].startswith("://") or "#" in url:
        raise InvalidInput("url", _safe(url), f"must start with {parts.scheme}:// and hold no #; write that as %23")
    return make(parts, timeout, colour)


def _memory(parts: SplitResult, _timeout: float, colour: Colour) -> Store:
    from leasehold.stores.memory import Memory, MemoryStore  # noqa: PLC0415  lazily, see above

    _query(parts, {})
    if parts.path.strip("/"):
        raise InvalidInput("url", _safe(parts.geturl()), "must be memory:// or memory://NAME")
    place = (parts.netloc, colour.clock)
    if place not in _MEMORIES:
        _MEMORIES.setdefault(place, Memory(colour.clock))
    return MemoryStore(_MEMORIES[place], colour)


def _sqlite(parts: SplitResult, timeout: float, colour: Colour) -> Store:
    from leasehold.stores.sqlite import SqliteStore  # noqa: PLC0415  lazily, see above
    from leasehold.wires.sqlite import SqliteWire  # noqa: PLC0415

    options = _query(parts, {"synchronous": ("full", "normal")})
    try:
        path = "/" + unquote(parts.path, errors="strict").lstrip("/")
    except UnicodeDecodeError as error:
        raise InvalidInput("url", _safe(parts.geturl()), "holds %XX that is not UTF-8") from error
    if parts.netloc or path == "/" or path.endswith("/") or "\0" in path:
        raise InvalidInput("url", _safe(parts.geturl()), "must name an absolute file: sqlite:///var/lib/app/leases.db")
    synchronous = options.get("synchronous", "full")
    return SqliteStore(SqliteWire(path, synchronous=synchronous, timeout=timeout, colour=colour), colour, synchronous)


def _redis(parts: SplitResult, timeout: float, colour: Colour) -> Store:
    require("hiredis", feature=f"the store {parts.scheme}://", extra="redis")
    from leasehold.stores.redis import RedisStore  # noqa: PLC0415  lazily, see above
    from leasehold.wires.redis_url import redis_config  # noqa: PLC0415

    return RedisStore(redis_config(parts, _safe(parts.geturl())), timeout=timeout, colour=colour)


def _postgres(parts: SplitResult, timeout: float, colour: Colour) -> Store:
    require("psycopg", feature=f"the store {parts.scheme}://", extra="postgres")
    from leasehold.stores.postgres import PostgresStore  # noqa: PLC0415  lazily, see above
    from leasehold.wires.postgres import PostgresWire  # noqa: PLC0415
    from leasehold.wires.postgres_url import postgres_config  # noqa: PLC0415

    return PostgresStore(PostgresWire(postgres_config(parts, timeout), colour), colour)


def _kubernetes(parts: SplitResult, timeout: float, colour: Colour) -> Store:
    require("h11", feature=f"the store {parts.scheme}://", extra="kubernetes")
    from leasehold.stores.kubernetes import KubernetesStore  # noqa: PLC0415  lazily, see above
    from leasehold.wires.kubernetes_url import kubernetes_config  # noqa: PLC0415

    return KubernetesStore(kubernetes_config(parts), timeout=timeout, colour=colour)


def _zookeeper(parts: SplitResult, timeout: float, colour: Colour) -> Store:
    require("kazoo", feature=f"the store {parts.scheme}://", extra="zookeeper")
    from leasehold.stores.zookeeper import ZooKeeperStore  # noqa: PLC0415  lazily, see above
    from leasehold.wires.zookeeper_url import zookeeper_config  # noqa: PLC0415

    return ZooKeeperStore(zookeeper_config(parts, _safe(parts.geturl())), timeout=timeout, colour=colour)


def _etcd(parts: SplitResult, timeout: float, colour: Colour) -> Store:
    # Which asks for its package itself: gRPC must be told to be silent before it is imported.
    from leasehold.stores.etcd import EtcdStore  # noqa: PLC0415  lazily, see above
    from leasehold.wires.etcd import EtcdWire  # noqa: PLC0415
    from leasehold.wires.etcd_url import etcd_config  # noqa: PLC0415

    config = etcd_config(parts, _safe(parts.geturl()))
    return EtcdStore(EtcdWire(config, timeout=timeout, colour=colour), colour)


SCHEMES: dict[str, Callable[[SplitResult, float, Colour], Store]] = {
    "memory": _memory,
    "sqlite": _sqlite,
    "redis": _redis,
    "rediss": _redis,
    "redis+sentinel": _redis,
    "redis+cluster": _redis,
    "postgresql": _postgres,
    "postgres": _postgres,
    "kubernetes": _kubernetes,
    "zookeeper": _zookeeper,
    "zookeepers": _zookeeper,
    "etcd": _etcd,
    "etcds": _etcd,
}

_MEMORIES: dict[tuple[str, Clock], Memory] = {}


def _safe(url: str) -> str:
    """A URL as it may be shown: what stands before an @ may be a password."""
    scheme, mark, rest = url.partition("://")
    return f"{scheme}{mark}…@{rest.rpartition('@')[2]}" if "@" in rest else url


def _query(parts: SplitResult, known: dict[str, tuple[str, ...]]) -> dict[str, str]:
    """The options of a URL: only known names, only known values, none twice."""
    options = read_options(parts.query, tuple(known), _safe(parts.geturl()))
    for name, value in options.items():
        if value.lower() not in known[name]:
            raise InvalidInput("url", _safe(parts.geturl()), f"{name} must be one of {', '.join(known[name])}")
    return {name: value.lower() for name, value in options.items()}
