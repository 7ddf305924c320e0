"""Real servers for tests, private to the test: started, stopped, killed, paused and restarted at will.

    with RedisServer(aof="always") as server:
        locks = leasehold.connect(server.url)
        server.kill()
        server.start()

They listen on loopback, on a free port, with temporary data, and never outlive the test process. The programs
come from the system's packages; a missing one is an error that names the package.
"""

from __future__ import annotations

from leasehold.testing.servers.clock import ServerClock, ShiftedClock
from leasehold.testing.servers.etcd import EtcdCluster, EtcdServer
from leasehold.testing.servers.kube import KubeRefused, KubeServer
from leasehold.testing.servers.pgbouncer import PgBouncer
from leasehold.testing.servers.postgres import PostgresServer
from leasehold.testing.servers.process import ServerFailed
from leasehold.testing.servers.programs import MissingProgram
from leasehold.testing.servers.redis import RedisServer
from leasehold.testing.servers.redis_groups import RedisCluster, RedisSentinels
from leasehold.testing.servers.zookeeper import ZooKeeperEnsemble, ZooKeeperServer

__all__ = [
    "EtcdCluster",
    "EtcdServer",
    "KubeRefused",
    "KubeServer",
    "MissingProgram",
    "PgBouncer",
    "PostgresServer",
    "RedisCluster",
    "RedisSentinels",
    "RedisServer",
    "ServerClock",
    "ServerFailed",
    "ShiftedClock",
    "ZooKeeperEnsemble",
    "ZooKeeperServer",
]
