"""What was seen of a store, as plain values. None is what could not be seen; `unseen` says why not."""

from __future__ import annotations

import msgspec


class Client(msgspec.Struct, frozen=True):
    """What the programs expect of the store: how long they wait for it, and their shortest ttl."""

    timeout: float
    ttl: float


class Trips(msgspec.Struct, frozen=True):
    """The seconds that round trips took."""

    count: int
    p50: float
    p99: float


class Times(msgspec.Struct, frozen=True):
    """The server's clock against ours, each with how far it may be off because a message takes time.

    `difference` is the server's wall clock less ours. `rate` is how many seconds
    passed there while one passed here.
    """

    difference: float
    difference_error: float
    rate: float
    rate_error: float


class Contents(msgspec.Struct, frozen=True):
    """The records in the store, and how many of them have expired and wait to be deleted."""

    records: int
    expired: int


class Refusal(msgspec.Struct, frozen=True):
    """A verb the store did not do for us, and its own words why. `denied`: we may not, rather than it cannot."""

    verb: str
    denied: bool
    message: str


class Unseen(msgspec.Struct, frozen=True):
    """Something this user may not look at, and what would let it."""

    what: str
    needs: str


class SqliteFacts(msgspec.Struct, frozen=True):
    """One SQLite file and its place."""

    trips: Trips
    contents: Contents
    refusals: tuple[Refusal, ...]
    version: str
    schema_version: int
    path: str
    mode: int
    file_system: str
    journal_mode: str
    synchronous: str
    damage: tuple[str, ...]
    file_bytes: int
    free_bytes: int
    log_bytes: int


class RedisNode(msgspec.Struct, frozen=True):
    """One server that keeps records: the master, or one of a Cluster's masters."""

    address: str
    software: str
    version: tuple[int, ...]
    log: bool
    log_sync: str | None
    snapshots: str | None
    writing_fails: tuple[str, ...]
    memory_used: int
    memory_limit: int
    eviction: str
    replicas: int
    replicas_needed: int | None
    replicas_good: int | None
    clients: int
    clients_limit: int | None


class RedisFacts(msgspec.Struct, frozen=True):
    """The Redis servers that keep records, and what the user in the URL needs there.

    `slots` is how many of a Cluster's slots are served, `confirmed_by` how many replicas a write waits for.
    """

    trips: Trips
    times: Times
    contents: Contents | None
    refusals: tuple[Refusal, ...]
    unseen: tuple[Unseen, ...]
    nodes: tuple[RedisNode, ...]
    slots: int | None
    confirmed_by: int
    pool: int
    user: str
    rights: str


class KubernetesFacts(msgspec.Struct, frozen=True):
    """The Leases of one namespace and what the user of the kubeconfig or pod may do with them.

    `difference` is the server's wall clock less ours, as far as a whole second and the time of a message show it.
    `lacking` are the verbs RBAC does not allow. What has expired is reckoned by the times in the Leases themselves.
    """

    trips: Trips | None
    contents: Contents | None
    refusals: tuple[Refusal, ...]
    unseen: tuple[Unseen, ...]
    version: tuple[int, ...] | None
    version_text: str
    namespace: str
    lacking: tuple[str, ...]
    difference: float
    difference_error: float
    max_skew: float | None
    newcomers: str
    names_cut: int


class ZooKeeperServer(msgspec.Struct, frozen=True):
    """One server of the URL. `mode` is empty where it does not serve; `limit` None where it does not tell.

    `connections` is the most that any one address has, which is what `limit` is about (0 is no limit).
    """

    address: str
    version: tuple[int, ...] | None
    mode: str
    limit: int | None
    connections: int


class ZooKeeperFacts(msgspec.Struct, frozen=True):
    """The servers of an ensemble that the URL names, the sessions they grant, and who may change our nodes."""

    trips: Trips
    times: Times
    contents: Contents | None
    refusals: tuple[Refusal, ...]
    unseen: tuple[Unseen, ...]
    servers: tuple[ZooKeeperServer, ...]
    shortest: float
    longest: float
    open_to_all: bool


class EtcdMember(msgspec.Struct, frozen=True):
    """One member that the URL names. `version` None: it did not answer. `sync_p99` in seconds."""

    address: str
    version: tuple[int, ...] | None
    leads: bool
    bytes: int
    quota: int | None
    sync_p99: float | None
    troubles: tuple[str, ...]


class EtcdFacts(msgspec.Struct, frozen=True):
    """An etcd cluster, as far as the URL names it. `voters` are all its members, `guarded`: not everybody gets in.

    `difference` is the members' wall clock less ours, as far as a whole second and the time of a message show it.
    """

    trips: Trips
    contents: Contents
    refusals: tuple[Refusal, ...]
    unseen: tuple[Unseen, ...]
    members: tuple[EtcdMember, ...]
    voters: int | None
    guarded: bool
    difference: float
    difference_error: float


class PostgresFacts(msgspec.Struct, frozen=True):
    """A PostgreSQL database and the table of leases in it. Ages are in seconds."""

    trips: Trips
    times: Times
    contents: Contents | None
    refusals: tuple[Refusal, ...]
    unseen: tuple[Unseen, ...]
    missing: tuple[str, ...]
    version: tuple[int, ...]
    schema: str
    schema_version: int
    fsync: bool
    full_page_writes: bool
    synchronous_commit: str
    standbys: int
    synchronous_standbys: str
    pooler: bool
    hears: bool
    wake_up: str
    rows_live: int
    rows_dead: int
    autovacuum: bool
    oldest_transaction: float | None
    connections: int
    connections_limit: int
    pool: int
