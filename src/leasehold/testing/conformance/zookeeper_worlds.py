"""The worlds of nodes in a real ZooKeeper.

One server serves all laws, under a fresh chroot each, as a user whose nodes nobody
else may touch. Its sessions run on the Java machine's own clock, which no library
moves without moving its waits too. So a law moves the clients' clock, and the world
ends each session whose timeout has passed on it since it was last asked anything:
which is what the server would do, after the same time in its own.
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path

from leasehold.engine.blocking import BlockingRuntime, drive
from leasehold.rules.addresses import Address
from leasehold.stores.base import Store
from leasehold.stores.open import open_store
from leasehold.stores.zookeeper import ZooKeeperStore
from leasehold.testing.clock import VirtualClock
from leasehold.testing.servers import ZooKeeperServer
from leasehold.testing.servers.shared import shared
from leasehold.wires import zookeeper_frames as frames
from leasehold.wires.clock import system_clock
from leasehold.wires.colour import Colour
from leasehold.wires.zookeeper import TROUBLE, Session, ZooKeeperWire
from leasehold.wires.zookeeper_url import ZooKeeperConfig

USER = "leasehold_app"
PASSWORD = "of-one-run"  # noqa: S105  of servers that nobody else can reach

_turn = itertools.count()


class ZooKeeperWorld:
    """Nodes under one chroot, in virtual time."""

    # A request takes real time, while a law that waits lets virtual time pass: this leaves room for a busy machine.
    ttl: float = 20.0
    # Processes live in real time, and no world ends their sessions.
    url: str | None = None

    def __init__(self, folder: Path) -> None:  # noqa: ARG002  servers have their own
        self.clock: VirtualClock = VirtualClock()
        self._server = zookeeper()
        chroot = f"/world-{os.getpid()}-{next(_turn)}"
        make_chroot(self._server, chroot)
        self._url = f"{self._server.url_for(USER, PASSWORD)}{chroot}"
        self._stores: list[ZooKeeperStore] = []
        # 0 is no session.
        self._ended = {0}

    def store(self, colour: Colour) -> Store:
        made = open_store(self._url, timeout=5.0, colour=colour)
        if isinstance(made, ZooKeeperStore):
            self._stores.append(made)
        return made

    def elapse(self, seconds: float) -> None:
        # The server first: whoever wakes and asks finds that its time has come.
        target = self.clock.now() + seconds
        for session in [session for store in self._stores for session in store.sessions()]:
            while session.id not in self._ended and session.fresh + session.timeout <= target:
                self._end(session)
        self.clock.advance(seconds)

    def close(self) -> None:
        """The server serves the next law."""

    def _end(self, session: Session) -> None:
        """As an administrator would: take the session over, and close it. Its client may take it back meanwhile."""
        number, password = session.id, session.password
        link = plain_wire(self._server).line()
        try:
            drive(link.dial())
            (frame, *_) = drive(link.exchange(frames.pack_connect(0, session.timeout, number, password), 1))
            if frames.read_connect(frame).session:
                drive(link.exchange(frames.pack_close(), 1))
            self._ended.add(number)
        except TROUBLE:
            return  # the caller looks again
        finally:
            link.close()


class ZooKeeperTlsWorld(ZooKeeperWorld):
    """The same over TLS, its certificate checked."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._server = zookeeper_with_tls()
        chroot = self._url.rpartition("/")[2]
        make_chroot(self._server, f"/{chroot}")
        url = self._server.url_for(USER, PASSWORD).replace(self._server.host, "localhost")
        self._url = f"{url}/{chroot}?ca={self._server.ca}"


def zookeeper() -> ZooKeeperServer:
    """The one server."""
    # Sessions may last a day: what would outlast them ends by the leader's wall clock, which no world moves.
    return shared("zookeeper world", ZooKeeperServer(sync=False, config={"maxSessionTimeout": 86_400_000}))


def zookeeper_with_tls() -> ZooKeeperServer:
    """The one that speaks TLS."""
    return shared("zookeeper tls world", ZooKeeperServer(sync=False, tls=True))


def plain_wire(server: ZooKeeperServer) -> ZooKeeperWire:
    """A way to a server without a login."""
    ca = str(server.ca) if server.tls else ""
    host = "localhost" if server.tls else server.host
    config = ZooKeeperConfig((Address(host, server.port),), tls=server.tls, ca=ca)
    wire = ZooKeeperWire(config, timeout=5.0, colour=BlockingRuntime(system_clock()))
    drive(wire.open())
    return wire


def make_chroot(server: ZooKeeperServer, path: str) -> None:
    """A node for everybody to lie under."""
    session = Session(plain_wire(server), 5.0)
    drive(session.ask([frames.Create(path, b"", frames.OPEN_ACL_UNSAFE, 0)]))
    drive(session.end())
