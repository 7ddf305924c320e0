"""Several redis-servers that belong together: a Cluster, and a master with replicas watched by Sentinels."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from leasehold import extras
from leasehold.errors import InvalidInput
from leasehold.testing.servers.clock import Clock, ServerClock
from leasehold.testing.servers.groups import Group
from leasehold.testing.servers.process import Home, ServerFailed, free_ports, wait_until
from leasehold.testing.servers.redis import ADMINISTRATOR, Aof, RedisServer

SLOTS = 16384
# Redis lets a master of a cluster serve only after 2 s of its clock, and 5 s more if it has missed the others.
SETTLING = 60
LOOK = 0.05
# Milliseconds.
NODE_TIMEOUT = 5000
NEVER = 3_600_000
LEAST_MASTERS = 3


class _Member(RedisServer):
    """A server of a group: its room, its port and the administrator's password come from the group."""

    def __init__(self, home: Home, port: int, password: str, **options: Any) -> None:
        super().__init__(**options)
        self.port = port
        self._inside = home
        self._password = password

    def _make_home(self) -> Home:
        return self._inside.room(str(self.port))

    def _launch_on_free_port(self) -> None:
        # The others know this port already: if it is taken, the whole group begins anew.
        self._configure()
        self._launch()

    def _settings(self) -> dict[str, object]:
        # Replication must not wait for further replicas, least of all on a clock that stands still.
        login = {"masteruser": ADMINISTRATOR, "masterauth": self._password, "repl-diskless-sync-delay": 0}
        return super()._settings() | login | self._config


class _ClusterNode(_Member):
    """Knows the whole cluster from its first start on, through the file in which nodes write it down."""

    def __init__(self, *args: Any, nodes: str, **options: Any) -> None:
        super().__init__(*args, **options)
        self._nodes = nodes

    def _prepare(self) -> None:
        (self.folder / "nodes.conf").write_text(self._nodes)
        if isinstance(self.clock, ServerClock):
            self.clock.keep_behind(self.folder, SETTLING)


class _Sentinel(_Member):
    """redis-server as a Sentinel, told whom to watch. It writes what it learns into its own file."""

    def __init__(self, *args: Any, told: Sequence[str], **options: Any) -> None:
        super().__init__(*args, **options)
        self._told = told

    def _settings(self) -> dict[str, object]:
        return {"bind": self.host, "port": self.port, "dir": self.folder}

    def _lines(self) -> list[str]:
        return [*super()._lines(), *(f"sentinel {line}" for line in self._told)]

    def _command(self) -> list[str]:
        return [*super()._command(), "--sentinel"]


class _Group(Group):
    """A group of redis-servers, and what they have in common."""

    def __init__(
        self, *, aof: Aof, config: Mapping[str, object] | None, acl: Sequence[str], clock: Clock | None
    ) -> None:
        super().__init__()
        self.clock: Clock | None = clock
        self._options: dict[str, Any] = {"aof": aof, "acl": acl, "clock": clock}
        self._config = dict(config or {})
        self._password = secrets.token_hex(16)


class RedisCluster(_Group):
    """A Redis Cluster of masters that share the slots evenly, each with `replicas` replicas.

    With a `ServerClock`, which jumps, no node ever suspects another; a node started again serves
    when the clock has gone on by some seconds, as Redis wants it.
    """

    def __init__(
        self,
        *,
        masters: int = 3,
        replicas: int = 0,
        aof: Aof = "always",
        config: Mapping[str, object] | None = None,
        acl: Sequence[str] = (),
        clock: Clock | None = None,
    ) -> None:
        super().__init__(aof=aof, config=config, acl=acl, clock=clock)
        if masters < LEAST_MASTERS:
            raise InvalidInput("masters", masters, f"a cluster needs at least {LEAST_MASTERS}")
        self.masters: int = masters
        self.replicas: int = replicas
        # The masters first, in the order of their slots.
        self.nodes: list[RedisServer] = []

    @property
    def url(self) -> str:
        """With every node in it."""
        return f"redis+cluster://{','.join(f'{node.host}:{node.port}' for node in self.nodes)}"

    def _form(self, home: Home) -> None:
        patience = NEVER if isinstance(self.clock, ServerClock) else NODE_TIMEOUT
        config = {"cluster-enabled": "yes", "cluster-node-timeout": patience, **self._config}
        ports = free_ports(self.masters * (1 + self.replicas))
        names = [secrets.token_hex(20) for _ in ports]
        self.nodes = [
            _ClusterNode(
                home, port, self._password, config=config, nodes=self._map(ports, names, name), **self._options
            )
            for port, name in zip(ports, names, strict=True)
        ]
        for node in self.nodes:
            node.start()
        self._settle()

    def _map(self, ports: list[int], names: list[str], mine: str) -> str:
        """The cluster as each node writes it down: nobody needs to meet the others first."""
        lines = []
        for number, (port, name) in enumerate(zip(ports, names, strict=True)):
            myself = "myself," if name == mine else ""
            master = number % self.masters
            if number < self.masters:
                first, last = (SLOTS * step // self.masters for step in (master, master + 1))
                role = f"{myself}master - 0 0 {number + 1} connected {first}-{last - 1}"
            else:
                role = f"{myself}slave {names[master]} 0 0 {master + 1} connected"
            lines.append(f"{name} 127.0.0.1:{port}@{port + 10000} {role}")
        return "\n".join([*lines, f"vars currentEpoch {self.masters} lastVoteEpoch 0", ""])

    def _settle(self) -> None:
        lags = iter(range(SETTLING, 0, -1))

        def serves() -> bool:
            self._keep_behind(next(lags, 0))
            return all("cluster_state:ok" in node.command("CLUSTER", "INFO") for node in self.nodes)

        wait_until(serves, lambda: f"the cluster does not form:\n{self.nodes[0].command('CLUSTER', 'INFO')}", look=LOOK)
        self._keep_behind(0)

    def _keep_behind(self, seconds: float) -> None:
        if isinstance(self.clock, ServerClock):
            for node in self.nodes:
                self.clock.keep_behind(node.folder, seconds)

    def _members(self) -> Sequence[RedisServer]:
        return self.nodes


class RedisSentinels(_Group):
    """One master with replicas, and Sentinels that watch them and promote a replica when the master is gone.

    The Sentinels live in real time, also with a `clock`: that is the data servers' alone.
    A master that is gone for `down_after` seconds is replaced.
    """

    def __init__(
        self,
        *,
        replicas: int = 1,
        sentinels: int = 3,
        down_after: float = 2.0,
        aof: Aof = "always",
        config: Mapping[str, object] | None = None,
        acl: Sequence[str] = (),
        clock: Clock | None = None,
    ) -> None:
        super().__init__(aof=aof, config=config, acl=acl, clock=clock)
        self.name: str = "leasehold"
        self.servers: list[RedisServer] = []
        self.sentinels: list[RedisServer] = []
        self._replica_count = replicas
        self._sentinel_count = sentinels
        self._down_after = down_after

    @property
    def url(self) -> str:
        """Through the Sentinels, to whoever is master."""
        hosts = ",".join(f"{sentinel.host}:{sentinel.port}" for sentinel in self.sentinels)
        return f"redis+sentinel://{hosts}/{self.name}/0"

    @property
    def master(self) -> RedisServer:
        """Whom the Sentinels call the master now."""
        port = self._named_port(self._asked())
        return next(server for server in self.servers if server.port == port)

    @property
    def replicas(self) -> list[RedisServer]:
        """The data servers that are not the master; a former master that is down is one of them."""
        master = self.master
        return [server for server in self.servers if server is not master]

    def failover(self) -> None:
        """Make the Sentinels promote a replica, and return when all of them name it and it takes writes.

        The former master goes on for some seconds, until a Sentinel has made it a replica.
        """
        former = self.master.port
        wait_until(self._is_accepted, lambda: "the Sentinels find no replica that they can promote", look=LOOK)

        def is_over() -> bool:
            ports = {self._named_port(sentinel) for sentinel in self.sentinels if sentinel.is_running}
            return former not in ports and len(ports) == 1 and self.master.command("ROLE")[0] == "master"

        wait_until(is_over, lambda: "the Sentinels do not agree on a new master", look=LOOK)

    def _form(self, home: Home) -> None:
        ports = free_ports(1 + self._replica_count + self._sentinel_count)
        data, watching = ports[: 1 + self._replica_count], ports[1 + self._replica_count :]
        self.servers = [self._data_server(home, port, data[0]) for port in data]
        ids = {port: secrets.token_hex(20) for port in watching}
        self.sentinels = [self._sentinel(home, port, data, ids) for port in watching]
        for server in self._members():
            server.start()
        wait_until(self._is_watched, lambda: f"the Sentinels do not find the others:{self._state()}", look=LOOK)

    def _data_server(self, home: Home, port: int, master: int) -> RedisServer:
        follow = {} if port == master else {"replicaof": f"127.0.0.1 {master}"}
        return _Member(home, port, self._password, config={**follow, **self._config}, **self._options)

    def _sentinel(self, home: Home, port: int, data: list[int], ids: dict[int, str]) -> RedisServer:
        """Told of everybody from the start, as it would write it down itself: they need not find each other."""
        quorum = self._sentinel_count // 2 + 1
        told = [
            f"myid {ids[port]}",
            f"monitor {self.name} 127.0.0.1 {data[0]} {quorum}",
            f"down-after-milliseconds {self.name} {round(self._down_after * 1000)}",
            f"auth-user {self.name} {ADMINISTRATOR}",
            f"auth-pass {self.name} {self._password}",
            *(f"known-replica {self.name} 127.0.0.1 {replica}" for replica in data[1:]),
            *(f"known-sentinel {self.name} 127.0.0.1 {other} {ids[other]}" for other in ids if other != port),
        ]
        return _Sentinel(home, port, self._password, told=told)

    def _is_watched(self) -> bool:
        return all(self._sees_everybody(sentinel) for sentinel in self.sentinels)

    def _sees_everybody(self, sentinel: RedisServer) -> bool:
        master = sentinel.command("SENTINEL", "MASTER", self.name)
        replicas = sentinel.command("SENTINEL", "REPLICAS", self.name)
        others = sentinel.command("SENTINEL", "SENTINELS", self.name)
        return (
            master["flags"] == "master"
            and [each["flags"] for each in others] == ["sentinel"] * (self._sentinel_count - 1)
            and [each["flags"] for each in replicas] == ["slave"] * self._replica_count
            and all(each["master-link-status"] == "ok" for each in replicas)
        )

    def _is_accepted(self) -> bool:
        redis = extras.require("redis", feature="RedisSentinels", extra="testing")
        try:
            self._asked().command("SENTINEL", "FAILOVER", self.name)
        except redis.exceptions.ResponseError as error:
            # NOGOODSLAVE until they have heard from a replica, INPROG while another failover runs.
            if not str(error).startswith(("NOGOODSLAVE", "INPROG")):
                raise
            return False
        return True

    def _asked(self) -> RedisServer:
        for sentinel in self.sentinels:
            if sentinel.is_running:
                return sentinel
        raise ServerFailed("no Sentinel runs")

    def _named_port(self, sentinel: RedisServer) -> int:
        return int(sentinel.command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.name)[1])

    def _state(self) -> str:
        return "".join(f"\n    {sentinel.command('INFO', 'sentinel')}" for sentinel in self.sentinels)

    def _members(self) -> Sequence[RedisServer]:
        return [*self.servers, *self.sentinels]
