"""The real servers that several test files share, each started when first asked for."""

from __future__ import annotations

from leasehold.testing.servers import EtcdServer, PostgresServer, RedisServer, ZooKeeperServer
from leasehold.testing.servers.shared import shared


def redis() -> RedisServer:
    """One Redis in real time, without persistence."""
    return shared("redis", RedisServer(aof="no"))


def postgres() -> PostgresServer:
    """One PostgreSQL in real time, with everything a default one syncs."""
    return shared("postgres", PostgresServer(config={"max_connections": 300}))


def etcd() -> EtcdServer:
    """One etcd in real time."""
    return shared("etcd", EtcdServer())


def redis_with_log() -> RedisServer:
    """One Redis in real time that has every change on disk before it answers."""
    return shared("redis with log", RedisServer(aof="always"))


def zookeeper() -> ZooKeeperServer:
    """One ZooKeeper in real time, which leaves it to the system when changes reach the disk."""
    return shared("zookeeper", ZooKeeperServer(sync=False))
