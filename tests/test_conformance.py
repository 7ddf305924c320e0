"""Every store × both colours; servers are real ones, in virtual time."""

from __future__ import annotations

from leasehold.testing.conformance import Conformance, arenas
from leasehold.testing.conformance.etcd_worlds import EtcdTlsWorld, EtcdWorld
from leasehold.testing.conformance.kube_worlds import KubernetesWorld
from leasehold.testing.conformance.server_worlds import (
    PooledPostgresWorld,
    PostgresWorld,
    RedisClusterWorld,
    RedisSentinelWorld,
    RedisTlsWorld,
    RedisWorld,
)
from leasehold.testing.conformance.worlds import MemoryWorld, SqliteWorld
from leasehold.testing.conformance.zookeeper_worlds import ZooKeeperTlsWorld, ZooKeeperWorld

WORLDS = {
    "memory": MemoryWorld,
    "sqlite": SqliteWorld,
    "redis": RedisWorld,
    "rediss": RedisTlsWorld,
    "redis+sentinel": RedisSentinelWorld,
    "redis+cluster": RedisClusterWorld,
    "postgresql": PostgresWorld,
    "postgres": PooledPostgresWorld,
    "kubernetes": KubernetesWorld,
    "zookeeper": ZooKeeperWorld,
    "zookeepers": ZooKeeperTlsWorld,
    "etcd": EtcdWorld,
    "etcds": EtcdTlsWorld,
}

arena = arenas(**WORLDS)


class TestStores(Conformance):
    pass
