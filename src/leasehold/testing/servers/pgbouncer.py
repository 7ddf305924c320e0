"""A private PgBouncer in front of a private PostgreSQL."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import ClassVar, Literal

from leasehold.errors import InvalidInput
from leasehold.testing.servers import programs
from leasehold.testing.servers.postgres import DATABASE, SUPERUSER, PostgresServer, login_url
from leasehold.testing.servers.process import Home, Server, unprivileged_user

Mode = Literal["session", "transaction", "statement"]
# Passwords come from the server itself, so that roles made during a test can log in through the pooler too.
AUTH_QUERY = "SELECT usename, passwd FROM pg_shadow WHERE usename = $1"


class PgBouncer(Server):
    """`with PgBouncer(postgres, mode="transaction") as pooler: leasehold.connect(pooler.url)`.

    `config` are further settings of the [pgbouncer] section. Roles and passwords are PostgreSQL's.
    """

    # Every version ends at once on SIGQUIT; on SIGTERM and SIGINT newer ones wait for their clients.
    polite: ClassVar[int] = signal.SIGQUIT

    def __init__(
        self, postgres: PostgresServer, *, mode: Mode = "transaction", config: Mapping[str, object] | None = None
    ) -> None:
        super().__init__()
        if mode not in {"session", "transaction", "statement"}:
            raise InvalidInput("mode", mode, 'use "session", "transaction" or "statement"')
        self.mode: Mode = mode
        self._postgres = postgres
        self._config = dict(config or {})

    @property
    def url(self) -> str:
        """As PostgreSQL's superuser."""
        return self.url_for(SUPERUSER, self._postgres.password, DATABASE)

    def url_for(self, user: str, password: str, database: str = DATABASE) -> str:
        """As another role, in any database."""
        return login_url(self, user, password, database)

    def _make_home(self) -> Home:
        return Home(unprivileged_user())

    def _configure(self) -> None:
        settings = {
            "listen_addr": self.host,
            "listen_port": self.port,
            "unix_socket_dir": "",
            "auth_type": "scram-sha-256",
            "auth_file": self.folder / "users",
            "auth_user": SUPERUSER,
            "auth_query": AUTH_QUERY,
            "pool_mode": self.mode,
            **self._config,
        }
        lines = [f"{name} = {value}" for name, value in settings.items()]
        server = f"* = host={self._postgres.host} port={self._postgres.port}"
        self._write("pgbouncer.ini", "\n".join(["[databases]", server, "[pgbouncer]", *lines, ""]))
        self._write("users", f'"{SUPERUSER}" "{self._postgres.password}"\n')

    def _command(self) -> list[str]:
        return [programs.pgbouncer(), str(self.folder / "pgbouncer.ini")]

    def _is_ready(self) -> bool:
        # Written after it listens; the log is this process's own.
        return f"[{self.pid}] LOG process up" in self.log.read_text(errors="replace")

    def _write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.touch(0o600)
        path.write_text(text)
        self.home.give(path)
