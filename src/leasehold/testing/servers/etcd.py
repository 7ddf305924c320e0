"""A private etcd."""

from __future__ import annotations

import contextlib
import http.client
import json
import secrets
from collections.abc import Mapping
from typing import Any

from leasehold.errors import InvalidInput
from leasehold.testing.servers import programs
from leasehold.testing.servers.process import Server, ServerFailed

REQUEST_TIMEOUT = 20.0
# Whoever holds our port instead of us may never answer.
LOOK_TIMEOUT = 0.5
# Every etcd has a second port, for other members; the search for a free port looks 10000 above it too.
PEERS = 10000


class EtcdServer(Server):
    """One etcd, a cluster of its own: `with EtcdServer() as server: server.request("kv/range", {"key": …})`.

    It syncs every write, without TLS and without users. `config` are further flags, without their dashes.
    """

    def __init__(self, *, config: Mapping[str, object] | None = None) -> None:
        super().__init__()
        self._config = dict(config or {})
        if "name" in self._config:
            raise InvalidInput("config", self._config, "the name is how this server is recognised; leave it out")
        self._member = secrets.token_hex(8)

    @property
    def url(self) -> str:
        """Where clients ask."""
        return f"http://{self.host}:{self.port}"

    def request(self, path: str, body: Mapping[str, object], *, timeout: float = REQUEST_TIMEOUT) -> dict[str, Any]:
        """What etcd answers to a call of its v3 API in JSON, such as "kv/put"; keys and values are base64."""
        # One connection a request: it needs no care when the server is killed or paused in between.
        with contextlib.closing(http.client.HTTPConnection(self.host, self.port, timeout=timeout)) as connection:
            connection.request("POST", f"/v3/{path}", json.dumps(body))
            answer = connection.getresponse()
            text = answer.read().decode(errors="replace")
        if answer.status != http.client.OK:
            raise ServerFailed(f"etcd refused {path} with {answer.status}: {text}")
        found: dict[str, Any] = json.loads(text)
        return found

    def _command(self) -> list[str]:
        peers = f"http://{self.host}:{self.port + PEERS}"
        settings = {
            "name": self._member,
            "data-dir": self.folder / "data",
            "listen-client-urls": self.url,
            "advertise-client-urls": self.url,
            "listen-peer-urls": peers,
            "initial-advertise-peer-urls": peers,
            "initial-cluster": f"{self._member}={peers}",
            # Milliseconds. It is alone, and needs not wait a second for others before it leads.
            "heartbeat-interval": 20,
            "election-timeout": 200,
            **self._config,
        }
        return [programs.etcd(), *(f"--{name}={value}" for name, value in settings.items())]

    def _is_ready(self) -> bool:
        try:
            answer = self.request("cluster/member/list", {"linearizable": True}, timeout=LOOK_TIMEOUT)
        except (OSError, http.client.HTTPException, ValueError, ServerFailed):
            return False
        return [member.get("name") for member in answer.get("members", [])] == [self._member]
