"""What of the way to ZooKeeper lives on an event loop. A blocking program never imports this file."""

from __future__ import annotations

import ssl

from leasehold.rules.addresses import Address
from leasehold.wires.link import Link
from leasehold.wires.link_looped import LoopLink
from leasehold.wires.pool import Gate
from leasehold.wires.pool_looped import TaskGate
from leasehold.wires.zookeeper_frames import Frames


class LoopedSide:
    """Tasks of one loop."""

    def link(self, address: Address, tls: ssl.SSLContext | None, timeout: float) -> Link:
        return LoopLink(address, tls, timeout, Frames())

    def gate(self) -> Gate:
        return TaskGate()
