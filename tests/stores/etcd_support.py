"""What the tests of the etcd store share: a server, keys of one's own, and what etcd itself says of them."""

from __future__ import annotations

import itertools
import os
from base64 import b64decode, b64encode
from typing import Any

from leasehold.model import Key, Record
from leasehold.testing.proxy import Proxy
from leasehold.testing.servers import EtcdServer
from tests.servers import etcd
from tests.stores.redis_support import KEY, Driven, driven

__all__ = ["KEY", "Driven", "Place", "driven"]

_turn = itertools.count()


class Place:
    """Keys of one test in the etcd that all tests share, or in one of its own."""

    def __init__(self, server: EtcdServer | None = None) -> None:
        self.server = server or etcd()
        self.namespace = f"test/{os.getpid()}-{next(_turn)}/"

    @property
    def url(self) -> str:
        return self.at(self.server.url)

    def at(self, url: str) -> str:
        """The same keys by another way."""
        return f"{url}{'&' if '?' in url else '?'}namespace={self.namespace}"

    def behind(self, proxy: Proxy) -> str:
        """The same keys through a proxy."""
        return self.at(f"etcd://127.0.0.1:{proxy.port}")

    def name(self, key: Key = KEY) -> str:
        """The key as etcd's JSON has it."""
        return written(f"{self.namespace}leasehold/{key.family}\0{key.member}".encode())

    def found(self, key: Key = KEY) -> dict[str, Any] | None:
        """What etcd has under it."""
        kvs = self.server.request("kv/range", {"key": self.name(key)}).get("kvs")
        return kvs[0] if kvs else None

    def delete(self, key: Key = KEY) -> None:
        """As an operator would, with etcd's own tools."""
        self.server.request("kv/deleterange", {"key": self.name(key)})

    def put(self, value: bytes, key: Key = KEY, lease: object = 0) -> None:
        """As an operator would."""
        self.server.request("kv/put", {"key": self.name(key), "value": written(value), "lease": str(lease)})

    def keep_alive(self, record: Record) -> int:
        """What etcd answers to a keepalive of the lease a record hangs on: what it then has, in seconds."""
        said = self.server.request("lease/keepalive", {"ID": str(record.tag)})
        return int(said["result"].get("TTL", 0))

    def left(self, lease: object) -> int:
        """What remains of a lease, in seconds; -1 when it is gone."""
        return int(self.server.request("lease/timetolive", {"ID": str(lease)})["TTL"])


def written(data: bytes) -> str:
    return b64encode(data).decode()


def read(text: str) -> bytes:
    return b64decode(text)
