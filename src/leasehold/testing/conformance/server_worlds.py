"""Worlds on real servers, in virtual time: a law moves the clients' clock and the server's together.

One server of a kind serves all laws, one after the other, and is emptied before
each. Clients reach it with the least rights that the store's page documents.
"""

from __future__ import annotations

from pathlib import Path

from leasehold.engine.blocking import BlockingRuntime, drive
from leasehold.stores.base import Store
from leasehold.stores.open import open_store
from leasehold.stores.redis import MINIMAL_ACL, MINIMAL_ACL_CLUSTER
from leasehold.testing.clock import VirtualClock
from leasehold.testing.servers import PgBouncer, PostgresServer, RedisCluster, RedisSentinels, RedisServer, ServerClock
from leasehold.testing.servers.shared import shared
from leasehold.wires.clock import system_clock
from leasehold.wires.colour import Colour

USER = "leasehold_app"
PASSWORD = "of-one-run"  # noqa: S105  of servers that nobody else can reach

# One time for all of them, which only goes on.
_TIME = ServerClock()


class ServerWorld:
    """What the worlds below share: two clocks that move together, and a store by its URL."""

    ttl: float = 10.0
    # Processes live in real time, and these servers do not.
    url: str | None = None

    def __init__(self, url: str) -> None:
        self.clock: VirtualClock = VirtualClock()
        self._url = url

    def store(self, colour: Colour) -> Store:
        return open_store(self._url, timeout=5.0, colour=colour)

    def elapse(self, seconds: float) -> None:
        # The server first: whoever wakes and asks finds that its time has come.
        _TIME.advance(seconds)
        self.clock.advance(seconds)

    def close(self) -> None:
        """The server serves the next law."""


class RedisWorld(ServerWorld):
    """One Redis, as a user who may do no more than the store needs."""

    def __init__(self, folder: Path) -> None:  # noqa: ARG002  servers have their own
        server = shared("redis world", RedisServer(aof="no", acl=[_user(MINIMAL_ACL)], clock=_TIME))
        server.command("FLUSHALL")
        super().__init__(server.url_for(USER, PASSWORD))


class RedisTlsWorld(ServerWorld):
    """The same over TLS, its certificate checked."""

    def __init__(self, folder: Path) -> None:  # noqa: ARG002  servers have their own
        server = shared("redis tls world", RedisServer(aof="no", tls=True, acl=[_user(MINIMAL_ACL)], clock=_TIME))
        server.command("FLUSHALL")
        super().__init__(f"{server.url_for(USER, PASSWORD).replace(server.host, 'localhost')}?ca={server.ca}")


class RedisSentinelWorld(ServerWorld):
    """A master that three Sentinels name."""

    def __init__(self, folder: Path) -> None:  # noqa: ARG002  servers have their own
        group = shared("redis sentinel world", RedisSentinels(aof="no", acl=[_user(MINIMAL_ACL)], clock=_TIME))
        group.master.command("FLUSHALL")
        super().__init__(_as_user(group.url))


class RedisClusterWorld(ServerWorld):
    """Three masters that share the buckets."""

    def __init__(self, folder: Path) -> None:  # noqa: ARG002  servers have their own
        cluster = shared("redis cluster world", RedisCluster(aof="no", acl=[_user(MINIMAL_ACL_CLUSTER)], clock=_TIME))
        for node in cluster.nodes:
            node.command("FLUSHALL")
        super().__init__(_as_user(cluster.url))


class PostgresWorld(ServerWorld):
    """One PostgreSQL, as a role that may call the functions of the schema and nothing else."""

    def __init__(self, folder: Path) -> None:  # noqa: ARG002  servers have their own
        super().__init__(_postgres().url_for(USER, PASSWORD))


class PooledPostgresWorld(ServerWorld):
    """The same behind a pooler of transactions."""

    def __init__(self, folder: Path) -> None:  # noqa: ARG002  servers have their own
        pooler = shared("pgbouncer world", PgBouncer(_postgres(), mode="transaction"))
        super().__init__(pooler.url_for(USER, PASSWORD).replace("postgresql://", "postgres://"))


def _user(rights: str) -> str:
    return f"user {USER} on >{PASSWORD} {rights}"


def _as_user(url: str) -> str:
    return url.replace("://", f"://{USER}:{PASSWORD}@", 1)


def _postgres() -> PostgresServer:
    """The server with our schema in it, installed by its owner, and empty."""
    config = {"fsync": "off", "max_connections": 300}
    server = shared("postgres world", PostgresServer(config=config, clock=_TIME))
    if not server.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", USER):
        store = open_store(server.url, timeout=5.0, colour=BlockingRuntime(system_clock()))
        drive(store.open())
        drive(store.close())
        server.execute(f"CREATE ROLE {USER} LOGIN PASSWORD '{PASSWORD}'")
        server.execute(f"GRANT USAGE ON SCHEMA leasehold TO {USER}")
        server.execute(f"GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA leasehold TO {USER}")
    server.execute("TRUNCATE leasehold.leases")
    return server
