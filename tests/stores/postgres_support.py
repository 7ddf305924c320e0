"""A PostgreSQL store driven from plain tests, on one server that many tests share, each with a schema of its own."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import leasehold
from leasehold.engine.blocking import BlockingRuntime, drive
from leasehold.model import Conflict, Key, Record
from leasehold.stores.open import open_store
from leasehold.testing.proxy import Proxy
from leasehold.testing.servers import PostgresServer
from leasehold.testing.servers.shared import shared
from leasehold.wires.clock import Clock, system_clock

KEY = Key("app//name/job", "lock")
# Where nothing is meant to end, however busy the machine.
LONG = 60.0


def postgres() -> PostgresServer:
    """The shared server, in real time. Tests that stop, pause or fill one start their own."""
    return shared("postgres in real time", PostgresServer(config={"max_connections": 200, "autovacuum_naptime": "1s"}))


def fresh(url: str) -> str:
    """The same database with a schema nobody has used."""
    return f"{url}{'&' if '?' in url else '?'}schema=test_{secrets.token_hex(6)}"


def schema_of(url: str) -> str:
    return url.partition("schema=")[2].partition("&")[0]


def through(proxy: Proxy, server: PostgresServer, schema: str | None = None) -> str:
    """The server's URL with the proxy in between."""
    url = server.url.replace(f":{server.port}/", f":{proxy.port}/")
    return f"{url}?schema={schema}" if schema else fresh(url)


def role(server: PostgresServer, schema: str | None = None) -> tuple[str, str]:
    """A new role that may log in, and its password; with a schema, exactly the rights a program needs."""
    name, password = f"role_{secrets.token_hex(4)}", secrets.token_hex(8)
    server.execute(f"CREATE ROLE {name} LOGIN PASSWORD '{password}'")
    if schema is not None:
        server.execute(f"GRANT USAGE ON SCHEMA {schema} TO {name}")
        server.execute(f"GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA {schema} TO {name}")
    return name, password


def end_all(url: str) -> None:
    """Let every lease have ended a second ago."""
    sql = f"UPDATE {schema_of(url)}.leases SET ends = clock_timestamp() - interval '1 second'"  # noqa: S608  ours
    postgres().execute(f"{sql} WHERE ends IS NOT NULL")


class Driven:
    """The verbs of a store as plain calls of the blocking colour."""

    def __init__(self, url: str, clock: Clock | None = None, timeout: float = 20.0) -> None:
        self.store: Any = open_store(url, timeout=timeout, colour=BlockingRuntime(clock or system_clock()))
        drive(self.store.open())

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        return lambda *given: drive(getattr(self.store, verb)(*given))

    def grant(self, key: Key = KEY, ttl: float | None = LONG, value: bytes = b"mine") -> Record:
        """A swap that must succeed."""
        record = self.swap(key, None, value, ttl)
        assert isinstance(record, Record), record
        return record

    def refused(self, key: Key = KEY) -> Record:
        """A swap that must find somebody else; returns what it found."""
        answer = self.swap(key, None, b"theirs", LONG)
        assert isinstance(answer, Conflict), answer
        assert answer.record is not None
        return answer.record


@contextmanager
def driven(url: str, clock: Clock | None = None, timeout: float = 20.0) -> Iterator[Driven]:
    """An open store, closed at the end."""
    store = Driven(url, clock, timeout)
    try:
        yield store
    finally:
        store.close()


def nth_key(number: int) -> Key:
    """One of many keys."""
    return Key(f"app//name/job-{number:05}", "lock")


class Believers:
    """Who believes to hold one key, and whether two ever did at once, or a token did not grow."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._leases: list[leasehold.Lease] = []
        self.grants = self.overlaps = self.inversions = 0
        self._last = 0

    def enter(self, lease: leasehold.Lease) -> None:
        with self._lock:
            if not lease.held:
                return
            self.grants += 1
            self.overlaps += any(other.held for other in self._leases)
            self.inversions += lease.token <= self._last
            self._last = max(self._last, lease.token)
            self._leases.append(lease)

    def leave(self, lease: leasehold.Lease) -> None:
        with self._lock:
            self._leases = [other for other in self._leases if other is not lease]


def all_at_once(works: list[Callable[[], object]]) -> None:
    """Run each in a thread of its own; the first error is the test's."""
    errors: list[BaseException] = []

    def run(work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001  raised below, in the test's own thread
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
