"""What of the way to ZooKeeper has a colour, for threads; and how TLS begins, in both colours."""

from __future__ import annotations

import ssl
from typing import Protocol

from leasehold.rules.addresses import Address
from leasehold.wires.link import Link, SocketLink, make_tls
from leasehold.wires.pool import Gate, ThreadGate
from leasehold.wires.zookeeper_frames import Frames
from leasehold.wires.zookeeper_url import ZooKeeperConfig


class Side(Protocol):
    """What of the wire has a colour."""

    def link(self, address: Address, tls: ssl.SSLContext | None, timeout: float) -> Link:
        """A connection, not yet dialled."""
        ...

    def gate(self) -> Gate:
        """Where calls wait for their turn."""
        ...


def tls_context(config: ZooKeeperConfig) -> ssl.SSLContext | None:
    """The context of all connections, if there is TLS."""
    return make_tls(config.ca, config.cert, config.key) if config.tls else None


class BlockingSide:
    """Threads."""

    def link(self, address: Address, tls: ssl.SSLContext | None, timeout: float) -> Link:
        return SocketLink(address, tls, timeout, Frames())

    def gate(self) -> Gate:
        return ThreadGate()
