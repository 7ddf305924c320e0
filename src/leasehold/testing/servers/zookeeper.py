"""A private ZooKeeper, alone or as an ensemble."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

from leasehold.testing.servers import certificates, programs
from leasehold.testing.servers.clock import Clock
from leasehold.testing.servers.groups import Group
from leasehold.testing.servers.process import Home, PortTaken, Server, ServerFailed, free_ports, wait_until

# Whoever holds our port instead of us may never answer.
LOOK_TIMEOUT = 0.5
REQUEST_TIMEOUT = 20.0
# Milliseconds. A short tick ends sessions soon after their time; the limits are wide.
TICK = 100
SHORTEST = 200
LONGEST = 120_000
# A small server that starts quickly.
JAVA = (
    "-Xmx96m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-XX:-UsePerfData",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)  # fmt: skip
NETTY = "-Dzookeeper.serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory"
MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
PEERS = 10000
# Milliseconds. Whoever missed a vote asks again, ever more seldom: up to a minute, unless told otherwise.
ELECTION = ("-Dzookeeper.fastleader.minNotificationInterval=100", "-Dzookeeper.fastleader.maxNotificationInterval=1000")
LEAST_NODES = 3


class ZooKeeperServer(Server):
    """One ZooKeeper: `with ZooKeeperServer() as server: leasehold.connect(server.url)`.

    It syncs every write unless `sync` is False. `config` are further lines of zoo.cfg, `java` further options of the
    virtual machine. With `tls` it speaks TLS only; its certificate, signed by `ca`, is for `tls_name`.
    """

    look: ClassVar[float] = 0.02

    def __init__(
        self,
        *,
        tls: bool = False,
        tls_name: str = "localhost",
        sync: bool = True,
        config: Mapping[str, object] | None = None,
        java: tuple[str, ...] = (),
        clock: Clock | None = None,
    ) -> None:
        super().__init__(clock=clock)
        self.tls: bool = tls
        self._tls_name = tls_name
        self._config = dict(config or {})
        self._java = (*java, *(() if sync else ("-Dzookeeper.forceSync=no",)), *((NETTY,) if tls else ()))

    @property
    def url(self) -> str:
        """Without a login."""
        return f"{self._scheme()}://{self.host}:{self.port}"

    def url_for(self, user: str, password: str) -> str:
        """With a digest login."""
        return f"{self._scheme()}://{quote(user, safe='')}:{quote(password, safe='')}@{self.host}:{self.port}"

    @property
    def ca(self) -> Path:
        """The certificate of the authority that signed the server's, with `tls`."""
        return self.folder / certificates.AUTHORITY

    @property
    def mode(self) -> str:
        """standalone, leader or follower; empty while it serves nobody."""
        lines = self.word("srvr").splitlines()
        return next((line.partition(": ")[2] for line in lines if line.startswith("Mode: ")), "")

    def word(self, four: str, *, timeout: float = REQUEST_TIMEOUT) -> str:
        """What the server answers to one of its four-letter words, such as "srvr"."""
        with contextlib.ExitStack() as stack:
            plain = stack.enter_context(socket.create_connection((self.host, self.port), timeout))
            connection = stack.enter_context(self._context().wrap_socket(plain)) if self.tls else plain
            connection.sendall(four.encode())
            said = b""
            while data := connection.recv(65536):
                said += data
        return said.decode(errors="replace")

    def check_running(self) -> None:
        """Raise what has ended it, if something has."""
        if not self.is_running:
            kind = PortTaken if "ddress already in use" in self._tail() else ServerFailed
            raise kind(f"{self._name()} has ended{self._tail()}")

    def _prepare(self) -> None:
        if self.tls:
            certificates.make(self.home, self._tls_name)
            both = (self.folder / name for name in (certificates.KEY, certificates.CERTIFICATE))
            (self.folder / "server.pem").write_text("".join(file.read_text() for file in both))

    def _configure(self) -> None:
        lines = [f"{name}={value}" for name, value in self._settings().items()]
        self._file.write_text("\n".join([*lines, ""]))

    def _command(self) -> list[str]:
        return [programs.java(), *JAVA, *self._java, "-cp", programs.zookeeper_classes(), MAIN, str(self._file)]

    @property
    def _file(self) -> Path:
        return self.folder / "zoo.cfg"

    def _settings(self) -> dict[str, object]:
        port: dict[str, object] = {"clientPort": self.port, "clientPortAddress": self.host}
        if self.tls:
            port = {
                "secureClientPort": self.port,
                "secureClientPortAddress": self.host,
                "ssl.keyStore.location": self.folder / "server.pem",
                "ssl.keyStore.type": "PEM",
                "ssl.trustStore.location": self.ca,
                "ssl.trustStore.type": "PEM",
                "ssl.clientAuth": "none",
            }
        return {
            **port,
            "dataDir": self.folder / "data",
            "tickTime": TICK,
            "minSessionTimeout": SHORTEST,
            "maxSessionTimeout": LONGEST,
            "maxClientCnxns": 0,
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "*",
            **self._config,
        }

    def _is_ready(self) -> bool:
        try:
            return str(self.folder / "data") in self.word("conf", timeout=LOOK_TIMEOUT) and self.mode != ""
        except (OSError, ssl.SSLError):
            return False

    def _context(self) -> ssl.SSLContext:
        # The test knows this server by its authority; the name on its certificate may be wrong on purpose.
        context = ssl.create_default_context(cafile=str(self.ca))
        context.check_hostname = False
        return context

    def _scheme(self) -> str:
        return "zookeepers" if self.tls else "zookeeper"


class _Node(ZooKeeperServer):
    """A server of an ensemble: its room and its ports come from there."""

    def __init__(self, home: Home, number: int, ports: list[int], config: Mapping[str, object], **options: Any) -> None:
        peers = {f"server.{n}": f"127.0.0.1:{port + PEERS}:{port + PEERS + 1}" for n, port in enumerate(ports, start=1)}
        # Peers get twenty seconds of a busy machine's time to find each other, and three to be missed.
        times = {"initLimit": 200, "syncLimit": 30}
        super().__init__(config={**times, **peers, **config}, **options)
        self.port = ports[number - 1]
        self._number = number
        self._inside = home

    def _make_home(self) -> Home:
        return self._inside.room(str(self.port))

    def _prepare(self) -> None:
        super()._prepare()
        (self.folder / "data").mkdir()
        (self.folder / "data" / "myid").write_text(str(self._number))

    def _launch_on_free_port(self) -> None:
        # The others know this port already: if it is taken, the whole ensemble begins anew.
        self._configure()
        self._launch()

    def _is_ready(self) -> bool:
        # It answers, be it only that it does not serve: that takes a majority, which the last to start completes.
        try:
            return bool(self.word("conf", timeout=LOOK_TIMEOUT))
        except OSError:
            return False


class ZooKeeperEnsemble(Group):
    """Three servers (or more) that agree: `with ZooKeeperEnsemble() as ensemble: connect(ensemble.url)`."""

    def __init__(
        self,
        *,
        nodes: int = LEAST_NODES,
        sync: bool = True,
        config: Mapping[str, object] | None = None,
        java: tuple[str, ...] = (),
    ) -> None:
        super().__init__()
        self.nodes: list[ZooKeeperServer] = []
        self._count = nodes
        self._options: dict[str, Any] = {"sync": sync, "java": (*ELECTION, *java)}
        self._config = dict(config or {})

    @property
    def url(self) -> str:
        """All of them."""
        return "zookeeper://" + ",".join(f"{node.host}:{node.port}" for node in self.nodes)

    @property
    def leader(self) -> ZooKeeperServer:
        """The one that leads now; waits until there is one."""
        found: list[ZooKeeperServer] = []

        def elected() -> bool:
            found[:] = [node for node in self.nodes if node.is_running and _mode(node) == "leader"]
            return bool(found)

        wait_until(elected, lambda: "no leader was elected", LOOK_TIMEOUT / 10)
        return found[0]

    @property
    def followers(self) -> list[ZooKeeperServer]:
        """Those that follow it."""
        return [node for node in self.nodes if node.is_running and _mode(node) == "follower"]

    def await_agreement(self) -> None:
        """Return when one leads and all others follow."""
        agreed = ["follower"] * (self._count - 1) + ["leader"]

        def agree() -> bool:
            for node in self.nodes:
                node.check_running()
            return sorted(map(_mode, self.nodes)) == agreed

        wait_until(
            agree, lambda: f"the ensemble does not agree: {[_mode(node) for node in self.nodes]}", LOOK_TIMEOUT / 10
        )

    def _form(self, home: Home) -> None:
        # Two ports for the peers above each: every second one, where they mostly follow each other.
        ports = sorted(free_ports(self._count * 2))[::2]
        numbers = range(1, self._count + 1)
        self.nodes = [_Node(home, number, ports, self._config, **self._options) for number in numbers]
        for node in self.nodes:
            node.start()
        self.await_agreement()

    def _members(self) -> Sequence[ZooKeeperServer]:
        return self.nodes


def _mode(node: ZooKeeperServer) -> str:
    try:
        return node.mode
    except OSError:
        return ""
