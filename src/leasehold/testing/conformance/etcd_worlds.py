"""The worlds of a real etcd, in virtual time.

A Go program's clock cannot be moved from outside. So the world keeps the time of
etcd's leases itself: it hears of every grant and keepalive that etcd answered, and
revokes a lease at the moment at which it ends on the clients' clock. Leases are
granted for real, for longer than a law takes; that etcd itself ends them in time
is what the laws between processes are about, in real time.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Sequence
from pathlib import Path

from leasehold.rules.etcd_messages import Lived
from leasehold.rules.urls import split
from leasehold.stores.base import Store
from leasehold.stores.etcd import EtcdStore
from leasehold.testing.clock import VirtualClock
from leasehold.testing.servers import EtcdServer, ServerFailed
from leasehold.testing.servers.shared import shared
from leasehold.wires.colour import Colour
from leasehold.wires.etcd import EtcdWire
from leasehold.wires.etcd_url import EtcdConfig, etcd_config

USER = "leasehold_app"
PASSWORD = "of-one-run"  # noqa: S105  of servers that nobody else can reach

_turn = itertools.count()


class EtcdWorld:
    """The keys of one namespace, as somebody who may touch no others."""

    # A request takes real time, while a law that waits lets virtual time pass: this leaves room for a busy machine.
    ttl: float = 30.0
    # Processes live in real time, and see a clock of their own.
    url: str | None = None

    def __init__(self, folder: Path) -> None:  # noqa: ARG002  servers have their own
        self.clock: VirtualClock = VirtualClock()
        self._server = self._make_server()
        # Each law has keys of its own.
        mark = "&" if "?" in self._server.url else "?"
        url = f"{self._server.url_for(USER, PASSWORD)}{mark}namespace=world/{os.getpid()}-{next(_turn)}/"
        self._config = etcd_config(split(url), url)
        self._ends: dict[int, float] = {}
        self._lock = threading.Lock()

    def _make_server(self) -> EtcdServer:
        return shared("etcd world", EtcdServer(users=_USERS))

    def store(self, colour: Colour) -> Store:
        return EtcdStore(_TimedWire(self._config, colour, self), colour)

    def elapse(self, seconds: float) -> None:
        # The server first: whoever wakes and asks finds that its time has come.
        for lease in self._ended(self.clock.now() + seconds):
            self._revoke(lease)
        self.clock.advance(seconds)

    def close(self) -> None:
        """The server serves the next law. No lease of this one stays to burden it."""
        for lease in list(self._ends):
            self._revoke(lease)

    def lives(self, lease: int, ttl: float) -> None:
        """etcd has given a lease this much time from now."""
        with self._lock:
            self._ends[lease] = self.clock.now() + ttl

    def left(self, lease: int) -> float:
        """What remains of a lease."""
        return max(self._ends.get(lease, 0.0) - self.clock.now(), 0.0)

    def _ended(self, now: float) -> list[int]:
        with self._lock:
            over = [lease for lease, end in self._ends.items() if end <= now]
            for lease in over:
                del self._ends[lease]
        return over

    def _revoke(self, lease: int) -> None:
        try:
            self._server.request("lease/revoke", {"ID": str(lease)})
        except ServerFailed as error:
            # It may have ended by itself, after a very long law.
            if "lease not found" not in str(error):
                raise


class EtcdTlsWorld(EtcdWorld):
    """The same over TLS, the certificates of both sides checked."""

    def _make_server(self) -> EtcdServer:
        return shared("etcd tls world", EtcdServer(users=_USERS, tls=True))


class _TimedWire(EtcdWire):
    """Tells the world what becomes of leases."""

    def __init__(self, config: EtcdConfig, colour: Colour, world: EtcdWorld) -> None:
        super().__init__(config, timeout=5.0, colour=colour)
        self._world = world

    async def grant(self, ttl: int) -> Lived:
        granted = await super().grant(ttl)
        self._world.lives(granted.lease, granted.ttl)
        return granted

    async def keep_alive(self, leases: Sequence[int], *, patience: float | None = None) -> dict[int, Lived]:
        lived = await super().keep_alive(leases, patience=patience)
        for one in lived.values():
            if one.ttl > 0:
                self._world.lives(one.lease, one.ttl)
        return lived

    async def time_to_live(self, leases: Sequence[int]) -> dict[int, float]:
        await super().time_to_live(leases)
        return {lease: self._world.left(lease) for lease in leases}


_USERS = {USER: (PASSWORD, "world/")}
