"""What of the way to Redis lives on an event loop. A blocking program never imports this file."""

from __future__ import annotations

import asyncio
import ssl

from leasehold.rules.addresses import Address
from leasehold.wires.link import Link
from leasehold.wires.link_looped import LoopLink
from leasehold.wires.pool import Gate
from leasehold.wires.pool_looped import TaskGate
from leasehold.wires.redis_link import Replies


class LoopedSide:
    """Tasks of one loop."""

    def link(self, address: Address, tls: ssl.SSLContext | None, timeout: float) -> Link:
        return LoopLink(address, tls, timeout, Replies())

    def gate(self) -> Gate:
        return TaskGate()

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
