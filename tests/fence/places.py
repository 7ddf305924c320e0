"""Where a total can be kept, for processes that add to it: one sort of fenced resource each.

`made` gives a new one, told by a text; `reach` is a client of it, in another process. What is written
is `{"total": text}`, whatever the resource keeps. `load` looks past the fence.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import redis

from leasehold import fence, kube
from leasehold.fence.files import FileResource
from leasehold.fence.kubernetes import KubernetesResource
from leasehold.fence.redis import RedisResource
from leasehold.fence.sql import RowResource
from leasehold.fence.sql_connections import database
from leasehold.wires.colour import drive
from tests import servers
from tests.fence.http_support import WSGI, Client, Door, scope_of
from tests.kube.support import Place as KubePlace

CONFIG = kube.Kind("v1", "ConfigMap", "configmaps")

Value = dict[str, str]


class Place(NamedTuple):
    """How one sort of resource is made, and reached."""

    made: Callable[[Path], AbstractContextManager[str]]
    reach: Callable[[str], AbstractContextManager[Any]]


class OfBytes:
    """A resource of bytes as one of a dict."""

    def __init__(self, core: Any) -> None:
        self._core = core
        self.open, self.name = core.open, core.name

    async def read(self, token: int) -> Value:
        return {"total": (await self._core.read(token)).decode()}

    async def load(self) -> tuple[Value, object]:
        value, version = await self._core.load()
        return {"total": value.decode()}, version

    async def write(self, token: int, value: Value) -> None:
        await self._core.write(token, value["total"].encode())


# Files.


@contextlib.contextmanager
def file_made(folder: Path) -> Iterator[str]:
    drive(FileResource(folder / "total", 30).write(1, b"{}"))
    yield str(folder / "total")


@contextlib.contextmanager
def file_reached(place: str) -> Iterator[OfBytes]:
    yield OfBytes(FileResource(place, 30))


# Rows. Each statement is a transaction of its own.


def row_made(connection: Any) -> None:
    connection.execute("CREATE TABLE accounts (id INTEGER PRIMARY KEY, total TEXT)")
    connection.execute("INSERT INTO accounts VALUES (7, '{}')")
    fence.add_mark(connection, "accounts")


def row_reached(connection: Any) -> RowResource:
    return RowResource(database(connection), "accounts", 7, "id", "lease_mark")


@contextlib.contextmanager
def sqlite_made(folder: Path) -> Iterator[str]:
    with contextlib.closing(sqlite3.connect(folder / "accounts.db", isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = wal").fetchall()
        row_made(connection)
    yield str(folder / "accounts.db")


@contextlib.contextmanager
def sqlite_reached(place: str) -> Iterator[RowResource]:
    with contextlib.closing(sqlite3.connect(place, timeout=30, isolation_level=None)) as connection:
        yield row_reached(connection)


@contextlib.contextmanager
def postgres_made(_folder: Path) -> Iterator[str]:
    url, schema = servers.postgres().url, f"paused_{secrets.token_hex(8)}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {schema}")
        connection.execute(f"SET search_path TO {schema}")
        row_made(connection)
        yield json.dumps([url, schema])
        connection.execute(f"DROP SCHEMA {schema} CASCADE")


@contextlib.contextmanager
def postgres_reached(place: str) -> Iterator[RowResource]:
    url, schema = json.loads(place)
    with psycopg.connect(url, autocommit=True, options=f"-c search_path={schema}") as connection:
        yield row_reached(connection)


# Redis, Kubernetes and HTTP.


@contextlib.contextmanager
def redis_made(_folder: Path) -> Iterator[str]:
    url = servers.redis().url
    with redis.Redis.from_url(url) as client:
        client.set("total", "{}")
    yield url


@contextlib.contextmanager
def redis_reached(place: str) -> Iterator[OfBytes]:
    with redis.Redis.from_url(place) as client:
        yield OfBytes(RedisResource(client, "total", awaited=False))


class OfConfig(OfBytes):
    """A ConfigMap's data."""

    async def read(self, token: int) -> Value:
        found: Value = (await self._core.read(token))["data"]
        return found

    async def load(self) -> tuple[Value, object]:
        found, version = await self._core.load()
        return found["data"], version

    async def write(self, token: int, value: Value) -> None:
        await self._core.write(token, {"data": value})


@contextlib.contextmanager
def kubernetes_made(_folder: Path) -> Iterator[str]:
    place = KubePlace(CONFIG)
    manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "total"}, "data": {"total": "{}"}}
    place.server.request("POST", place.path, manifest)
    yield place.url


@contextlib.contextmanager
def kubernetes_reached(place: str) -> Iterator[OfConfig]:
    with kube.connect(place, CONFIG, timeout=30) as objects:
        yield OfConfig(KubernetesResource(objects._store, "total"))


class Remote:
    """A file that is reached over HTTP alone, but for a look past the fence."""

    name = "total"

    def __init__(self, door: Door, look: Callable[[], bytes]) -> None:
        self._client, self._look = Client(door), look

    async def open(self, token: int) -> None:
        self._client.open(token)

    async def read(self, token: int) -> bytes:
        return self._client.read(token)

    async def load(self) -> tuple[bytes, object]:
        return self._look(), None

    async def write(self, token: int, value: bytes) -> None:
        self._client.write(token, value)


@contextlib.contextmanager
def http_made(folder: Path) -> Iterator[str]:
    drive(FileResource(folder / "total", 30).write(1, b"{}"))
    app = WSGI.middleware(WSGI.counter(folder), scope=scope_of, fence=lambda scope: WSGI.file(folder / scope))
    with WSGI.serve([app]) as port:
        yield json.dumps([port, str(folder / "total")])


@contextlib.contextmanager
def http_reached(place: str) -> Iterator[OfBytes]:
    port, path = json.loads(place)
    yield OfBytes(Remote(Door(port, 0), Path(path).read_bytes))


PLACES = {
    "file": Place(file_made, file_reached),
    "sqlite": Place(sqlite_made, sqlite_reached),
    "postgresql": Place(postgres_made, postgres_reached),
    "redis": Place(redis_made, redis_reached),
    "kubernetes": Place(kubernetes_made, kubernetes_reached),
    "http": Place(http_made, http_reached),
}
