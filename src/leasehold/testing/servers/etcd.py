"""A private etcd, and a cluster of them."""

from __future__ import annotations

import contextlib
import http.client
import json
import secrets
import ssl
from base64 import b64encode
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

from leasehold.errors import InvalidInput
from leasehold.testing.servers import certificates, programs
from leasehold.testing.servers.groups import Group
from leasehold.testing.servers.process import Home, Server, ServerFailed, free_ports, wait_until

REQUEST_TIMEOUT = 20.0
# Whoever holds our port instead of us may never answer.
LOOK_TIMEOUT = 0.5
# Every etcd has a second port, for other members; the search for a free port looks 10000 above it too.
PEERS = 10000
ADMINISTRATOR = "root"
LOOK = 0.02
READWRITE = "READWRITE"


class EtcdServer(Server):
    """One etcd, a cluster of its own: `with EtcdServer() as server: leasehold.connect(server.url)`.

    It syncs every write. `config` are further flags, without their dashes. With `tls` it speaks TLS only, by a
    certificate for localhost and 127.0.0.1; with `client_certs` it wants one from its clients, too. With `users`
    (name: (password, prefix)) it lets nobody in but them, each to read and write the keys that start so.
    """

    def __init__(
        self,
        *,
        config: Mapping[str, object] | None = None,
        tls: bool = False,
        client_certs: bool = False,
        users: Mapping[str, tuple[str, str]] | None = None,
    ) -> None:
        super().__init__()
        self.tls: bool = tls or client_certs
        self._client_certs = client_certs
        self._users = dict(users or {})
        self._config = dict(config or {})
        if "name" in self._config:
            raise InvalidInput("config", self._config, "the name is how this server is recognised; leave it out")
        self._member = secrets.token_hex(8)
        self._password = secrets.token_hex(16)
        self.guarded: bool = False

    @property
    def name(self) -> str:
        """What the member is called."""
        return self._member

    @property
    def endpoint(self) -> str:
        """Where it answers, as etcd's own tools want it."""
        return f"{'https' if self.tls else 'http'}://{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """As somebody without a name, who may do everything where there are no `users`."""
        return f"{'etcds' if self.tls else 'etcd'}://{self.host}:{self.port}{self._options()}"

    def url_for(self, user: str, password: str) -> str:
        """As one of `users`."""
        return self.url.replace("://", f"://{quote(user, safe='')}:{quote(password, safe='')}@", 1)

    @property
    def ca(self) -> Path:
        """The certificate of the authority that signed the server's, with `tls`."""
        return self.folder / certificates.AUTHORITY

    def start(self) -> None:
        super().start()
        if self._users and not self.guarded:
            self.guard(self._users)

    def request(self, path: str, body: Mapping[str, object], *, timeout: float = REQUEST_TIMEOUT) -> dict[str, Any]:
        """What etcd answers to a call of its v3 API in JSON, such as "kv/put", as an administrator; keys and values
        are base64.
        """
        token = self._token(timeout) if self.guarded else None
        return self._request(path, body, timeout, token)

    def metrics(self) -> str:
        """What it says of itself to Prometheus."""
        with contextlib.closing(self._connection(REQUEST_TIMEOUT)) as connection:
            connection.request("GET", "/metrics")
            return connection.getresponse().read().decode()

    def _request(self, path: str, body: Mapping[str, object], timeout: float, token: str | None) -> dict[str, Any]:
        headers = {} if token is None else {"Authorization": token}
        # One connection a request: it needs no care when the server is killed or paused in between.
        with contextlib.closing(self._connection(timeout)) as connection:
            connection.request("POST", f"/v3/{path}", json.dumps(body), headers)
            answer = connection.getresponse()
            text = answer.read().decode(errors="replace")
        if answer.status != http.client.OK:
            raise ServerFailed(f"etcd refused {path} with {answer.status}: {text}")
        found: dict[str, Any] = json.loads(text)
        return found

    def _connection(self, timeout: float) -> http.client.HTTPConnection:
        if not self.tls:
            return http.client.HTTPConnection(self.host, self.port, timeout=timeout)
        context = ssl.create_default_context(cafile=str(self.ca))
        if self._client_certs:
            context.load_cert_chain(self.folder / certificates.CERTIFICATE, self.folder / certificates.KEY)
        return http.client.HTTPSConnection(self.host, self.port, timeout=timeout, context=context)

    def _token(self, timeout: float) -> str:
        login = {"name": ADMINISTRATOR, "password": self._password}
        token: str = self._request("auth/authenticate", login, timeout, None)["token"]
        return token

    def guard(self, users: Mapping[str, tuple[str, str]]) -> None:
        """Make the users, and let in nobody else from now on."""
        self.request("auth/user/add", {"name": ADMINISTRATOR, "password": self._password})
        self.request("auth/role/add", {"name": ADMINISTRATOR})
        self.request("auth/user/grant", {"user": ADMINISTRATOR, "role": ADMINISTRATOR})
        for name, (password, prefix) in users.items():
            first, end = prefix.encode(), prefix.encode() + b"\xff"
            may = {"permType": READWRITE, "key": _written(first), "range_end": _written(end)}
            self.request("auth/user/add", {"name": name, "password": password})
            self.request("auth/role/add", {"name": name})
            self.request("auth/role/grant", {"name": name, "perm": may})
            self.request("auth/user/grant", {"user": name, "role": name})
        self.request("auth/enable", {})
        self.guarded = True

    def _prepare(self) -> None:
        if self.tls:
            certificates.make(self.home, "localhost")

    def _command(self) -> list[str]:
        peers = f"http://{self.host}:{self.port + PEERS}"
        settings: dict[str, object] = {
            "name": self._member,
            "data-dir": self.folder / "data",
            "listen-client-urls": self.endpoint,
            "advertise-client-urls": self.endpoint,
            "listen-peer-urls": peers,
            "initial-advertise-peer-urls": peers,
            "initial-cluster": f"{self._member}={peers}",
            # Milliseconds. It is alone, and needs not wait a second for others before it leads.
            "heartbeat-interval": 20,
            "election-timeout": 200,
            # The least: passwords of tests need no protection from who has stolen the data.
            "bcrypt-cost": 4,
            **self._server_tls(),
            **self._config,
        }
        return [programs.etcd(), *(f"--{name}={value}" for name, value in settings.items())]

    def _server_tls(self) -> dict[str, object]:
        if not self.tls:
            return {}
        files = {"cert-file": self.folder / certificates.CERTIFICATE, "key-file": self.folder / certificates.KEY}
        return files | ({"client-cert-auth": "true", "trusted-ca-file": self.ca} if self._client_certs else {})

    def _options(self) -> str:
        return f"?ca={self.ca}" if self.tls else ""

    def _is_ready(self) -> bool:
        try:
            answer = self.request("cluster/member/list", {"linearizable": True}, timeout=LOOK_TIMEOUT)
        except (OSError, http.client.HTTPException, ValueError, ServerFailed):
            return False
        return self._member in {member.get("name") for member in answer.get("members", [])}


class _Member(EtcdServer):
    """One of several: its room, its port and whom it belongs to come from the cluster."""

    def __init__(self, home: Home, port: int, password: str, config: Mapping[str, object]) -> None:
        super().__init__(config=config)
        self.port = port
        self._inside = home
        self._password = password

    def _make_home(self) -> Home:
        return self._inside.room(str(self.port))

    def _launch_on_free_port(self) -> None:
        # The others know this port already: if it is taken, the whole cluster begins anew.
        self._launch()

    def _command(self) -> list[str]:
        return [*super()._command(), f"--initial-cluster={self.cluster}"]

    cluster: str = ""

    @property
    def said_name(self) -> str:
        """As the others know it."""
        return f"{self._member}=http://{self.host}:{self.port + PEERS}"


class EtcdCluster(Group):
    """Several etcds that vote: `with EtcdCluster() as cluster: leasehold.connect(cluster.url)`.

    Each of `members` has the verbs of a server. As packaged, a new leader is chosen about a second after one was lost.
    `users` are as those of an EtcdServer.
    """

    def __init__(
        self,
        *,
        members: int = 3,
        config: Mapping[str, object] | None = None,
        users: Mapping[str, tuple[str, str]] | None = None,
    ) -> None:
        super().__init__()
        self._count = members
        self._users = users
        self._password = secrets.token_hex(16)
        # Milliseconds, as packaged.
        self._config = {"heartbeat-interval": 100, "election-timeout": 1000, **(config or {})}
        self.members: Sequence[EtcdServer] = ()

    @property
    def url(self) -> str:
        """With every member in it."""
        return f"etcd://{','.join(f'{member.host}:{member.port}' for member in self.members)}"

    @property
    def leader(self) -> EtcdServer:
        """Who leads now, once there is one that a majority follows."""
        found: list[EtcdServer] = []

        def agreed() -> bool:
            found[:] = [member for member in self.members if member.is_running and _leads(member)]
            return len(found) == 1

        wait_until(agreed, lambda: "the members do not agree on a leader", look=LOOK)
        return found[0]

    @property
    def followers(self) -> list[EtcdServer]:
        """The members that do not lead."""
        leader = self.leader
        return [member for member in self.members if member is not leader]

    def _form(self, home: Home) -> None:
        members = [_Member(home, port, self._password, self._config) for port in free_ports(self._count)]
        self.members = members
        for member in members:
            member.cluster = ",".join(one.said_name for one in members)
        # None is ready before a majority is there.
        with ThreadPoolExecutor(len(members)) as threads:
            list(threads.map(lambda member: member.start(), members))
        if self._users:
            members[0].guard(self._users)
            for member in members:
                member.guarded = True

    def _members(self) -> Sequence[EtcdServer]:
        return self.members


def _leads(member: EtcdServer) -> bool:
    try:
        said = member.request("maintenance/status", {}, timeout=LOOK_TIMEOUT)
        # One that was paused takes itself for the leader still: it must be able to prove it.
        member.request("kv/range", {"key": _written(b"\0")}, timeout=LOOK_TIMEOUT)
    except (OSError, http.client.HTTPException, ValueError, ServerFailed):
        return False
    return bool(said.get("leader") == said["header"]["member_id"])


def _written(key: bytes) -> str:
    return b64encode(key).decode()
