"""A private PostgreSQL."""

from __future__ import annotations

import atexit
import contextlib
import functools
import secrets
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

from leasehold import extras
from leasehold.testing.servers import certificates, programs
from leasehold.testing.servers.clock import Clock
from leasehold.testing.servers.process import Home, Server, unprivileged_user

SUPERUSER = "postgres"
DATABASE = "postgres"
READY = 7
SHARED_MEMORY = 6


class PostgresServer(Server):
    """One PostgreSQL: `with PostgresServer() as server: leasehold.connect(server.url)`.

    `config` are settings of postgresql.conf; fsync is on, as what survives a kill is what tests ask about.
    Every role needs its password. With `tls` it also speaks TLS, with a certificate for `tls_name` signed by `ca`.
    """

    # SIGINT is PostgreSQL's fast shutdown. SIGQUIT ends it at once, but takes its shared memory with it.
    polite: ClassVar[int] = signal.SIGINT
    farewell: ClassVar[int] = signal.SIGQUIT

    def __init__(
        self,
        *,
        config: Mapping[str, object] | None = None,
        tls: bool = False,
        tls_name: str = "localhost",
        clock: Clock | None = None,
    ) -> None:
        super().__init__(clock=clock)
        self.tls: bool = tls
        self._tls_name = tls_name
        self._config = dict(config or {})

    @property
    def url(self) -> str:
        """As the superuser."""
        return self.url_for(SUPERUSER, self.password, DATABASE)

    def url_for(self, user: str, password: str, database: str = DATABASE) -> str:
        """As another role, in any database."""
        return login_url(self, user, password, database)

    @property
    def password(self) -> str:
        """The superuser's."""
        return _template().password

    @property
    def ca(self) -> Path:
        """The certificate of the authority that signed the server's, with `tls`."""
        return self.folder / certificates.AUTHORITY

    def execute(self, sql: str, *args: object, database: str = DATABASE) -> list[tuple[Any, ...]]:
        """The rows of one statement, as the superuser; %s stands for an argument. It is committed."""
        psycopg = extras.require("psycopg", feature="PostgresServer", extra="postgres")
        url = self.url_for(SUPERUSER, self.password, database)
        with psycopg.connect(url, autocommit=True, connect_timeout=20) as connection:
            cursor = connection.execute(sql, args or None)
            return list(cursor.fetchall()) if cursor.description else []

    def make_standby(self) -> None:
        """From its next start on it only follows (nobody, unless `config` names a primary) and refuses to write."""
        (self._data / "standby.signal").touch()

    def _make_home(self) -> Home:
        return Home(unprivileged_user())

    def _prepare(self) -> None:
        # Not with Python's copytree: the copy must belong to the user who copies.
        self.home.run(["cp", "-R", "--reflink=auto", str(_template().data), str(self._data)])
        self._data.chmod(0o700)
        if self.tls:
            certificates.make(self.home, self._tls_name)

    def _command(self) -> list[str]:
        settings = {
            "listen_addresses": self.host,
            "port": self.port,
            "unix_socket_directories": "",
            # In the data folder, not in /dev/shm, where a killed server would leave it.
            "dynamic_shared_memory_type": "mmap",
            "log_timezone": "UTC",
            "timezone": "UTC",
            **self._tls_settings(),
            **self._config,
        }
        options = [option for name, value in settings.items() for option in ("-c", f"{name}={value}")]
        return [programs.postgres("postgres"), "-D", str(self._data), *options]

    def _tls_settings(self) -> dict[str, object]:
        if not self.tls:
            return {}
        certificate, key = (self.folder / name for name in (certificates.CERTIFICATE, certificates.KEY))
        return {"ssl": "on", "ssl_cert_file": certificate, "ssl_key_file": key}

    def _is_ready(self) -> bool:
        status = self._status()
        return len(status) > READY and status[0] == str(self.pid) and status[READY].strip() in {"ready", "standby"}

    def _leave(self, home: Home) -> None:
        # A server that was killed leaves a few bytes of System V memory behind, which belong to the machine.
        status = self._status()
        if len(status) > SHARED_MEMORY:
            segment = status[SHARED_MEMORY].split()[-1]
            subprocess.run(["ipcrm", "-m", segment], check=False, capture_output=True)  # noqa: S607  util-linux
        super()._leave(home)

    def _status(self) -> list[str]:
        """postmaster.pid: process, folder, start, port, socket folder, address, shared memory, state."""
        with contextlib.suppress(FileNotFoundError):
            return (self._data / "postmaster.pid").read_text().splitlines()
        return []

    @property
    def _data(self) -> Path:
        return self.folder / "data"


def login_url(server: Server, user: str, password: str, database: str) -> str:
    """Where a role finds a database, with everything quoted that a URL wants quoted."""
    name, word, place = (quote(part, safe="") for part in (user, password, database))
    return f"postgresql://{name}:{word}@{server.host}:{server.port}/{place}"


class _Template:
    """An empty data folder to copy: making one takes a second, copying it a tenth."""

    def __init__(self) -> None:
        initdb = programs.postgres("initdb")
        self.password = secrets.token_hex(16)
        self._home = Home(unprivileged_user())
        atexit.register(self._home.close)
        self.data = self._home.folder / "data"
        word = self._home.folder / "password"
        word.touch(0o600)
        word.write_text(self.password)
        self._home.give(word)
        command = [initdb, "-D", str(self.data), "-U", SUPERUSER, "--pwfile", str(word)]
        looks = ["--auth=scram-sha-256", "--no-locale", "--encoding=UTF8", "--wal-segsize=1", "--no-sync"]
        self._home.run([*command, *looks])


@functools.cache
def _template() -> _Template:
    return _Template()
