"""A private redis-server."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from leasehold import extras
from leasehold.errors import InvalidInput
from leasehold.testing.servers import certificates, programs
from leasehold.testing.servers.clock import Clock
from leasehold.testing.servers.process import Server

Aof = Literal["always", "everysec", "no"]
ADMINISTRATOR = "leasehold-testing"
REQUEST_TIMEOUT = 20.0
# Whoever holds our port instead of us may never answer.
LOOK_TIMEOUT = 0.25


class RedisServer(Server):
    """One redis-server: `with RedisServer() as server: leasehold.connect(server.url)`.

    `aof` is Redis's appendfsync, or "no" for no persistence at all: then a stop or a kill forgets everything.
    `config` are further lines of redis.conf; `acl` are lines such as "user app on >secret ~* &* +@all".
    `program` is another redis-server, or a valkey-server, by name or path.
    With `tls` it speaks TLS only; its certificate, signed by `ca`, is for `tls_name` and nothing else.
    """

    def __init__(
        self,
        *,
        aof: Aof = "always",
        tls: bool = False,
        tls_name: str = "localhost",
        config: Mapping[str, object] | None = None,
        acl: Sequence[str] = (),
        clock: Clock | None = None,
        program: str = "redis-server",
    ) -> None:
        super().__init__(clock=clock)
        if aof not in {"always", "everysec", "no"}:
            raise InvalidInput("aof", aof, 'use "always", "everysec" or "no"')
        self.tls: bool = tls
        self._program = program
        self._aof = aof
        self._tls_name = tls_name
        self._config = dict(config or {})
        self._acl = tuple(acl)
        self._password = secrets.token_hex(16)

    @property
    def url(self) -> str:
        """As the default user, who needs no password unless `acl` or `config` says so."""
        return f"{self._scheme()}://{self.host}:{self.port}/0"

    def url_for(self, user: str, password: str) -> str:
        """As another user of `acl`."""
        return f"{self._scheme()}://{quote(user, safe='')}:{quote(password, safe='')}@{self.host}:{self.port}/0"

    @property
    def ca(self) -> Path:
        """The certificate of the authority that signed the server's, with `tls`."""
        return self.folder / certificates.AUTHORITY

    def command(self, *words: object, timeout: float = REQUEST_TIMEOUT) -> Any:
        """What Redis answers to a command, as an administrator who may do everything: text, numbers, lists, dicts."""
        redis = extras.require("redis", feature="RedisServer", extra="testing")
        # One connection a command: it needs no care when the server is killed or paused in between.
        with redis.Redis(
            host=self.host,
            port=self.port,
            username=ADMINISTRATOR,
            password=self._password,
            protocol=3,
            decode_responses=True,
            encoding_errors="backslashreplace",
            socket_timeout=timeout,
            socket_connect_timeout=timeout,
            retry=redis.retry.Retry(redis.backoff.NoBackoff(), 0),
            **self._client_tls(),
        ) as client:
            return client.execute_command(*words)

    def _prepare(self) -> None:
        if self.tls:
            certificates.make(self.home, self._tls_name)

    def _configure(self) -> None:
        self._file.write_text("\n".join([*self._lines(), ""]))

    def _lines(self) -> list[str]:
        """Of redis.conf."""
        settings = [f"{name} {_written(value)}" for name, value in self._settings().items()]
        return [*settings, f"user {ADMINISTRATOR} on >{self._password} ~* &* +@all", *self._acl]

    def _command(self) -> list[str]:
        return [programs.redis_server(self._program), str(self._file)]

    @property
    def _file(self) -> Path:
        return self.folder / "redis.conf"

    def _settings(self) -> dict[str, object]:
        ports: dict[str, object] = {"port": self.port}
        if self.tls:
            ports = {"port": 0, "tls-port": self.port, "tls-auth-clients": "no", **self._server_tls()}
        return {
            "bind": self.host,
            **ports,
            "dir": self.folder,
            "save": "",
            "appendonly": "no" if self._aof == "no" else "yes",
            "appendfsync": self._aof,
            **self._config,
        }

    def _server_tls(self) -> dict[str, object]:
        return {
            "tls-ca-cert-file": self.ca,
            "tls-cert-file": self.folder / certificates.CERTIFICATE,
            "tls-key-file": self.folder / certificates.KEY,
        }

    def _client_tls(self) -> dict[str, object]:
        # The administrator knows this server by its authority; the name on its certificate may be wrong on purpose.
        return {"ssl": True, "ssl_ca_certs": str(self.ca), "ssl_check_hostname": False} if self.tls else {}

    def _is_ready(self) -> bool:
        redis = extras.require("redis", feature="RedisServer", extra="testing")
        try:
            info = self.command("INFO", timeout=LOOK_TIMEOUT)
        except redis.exceptions.RedisError:
            return False
        return bool(info.get("process_id") == self.pid and not info.get("loading"))

    def _scheme(self) -> str:
        return "rediss" if self.tls else "redis"


def _written(value: object) -> object:
    """A path is one word, whatever is in it; other values may be several, or none."""
    return f'"{value}"' if isinstance(value, Path) or value == "" else value
