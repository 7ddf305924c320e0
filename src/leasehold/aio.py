"""Every awaited name of Leasehold, where people look for them.

    locks = await leasehold.aio.connect("sqlite:///var/lib/app/leases.db")
    async with locks.hold("invoice/42", ttl=30) as lease:
        await charge(invoice, token=lease.token)

Nothing is written here: `client_aio.py` has the client, `patterns/` what is built on it.
"""

from __future__ import annotations

from leasehold.client_aio import Hold, HoldAll, Lease, Leases, Locks, Loss, OnLost, connect
from leasehold.patterns.election_aio import Election, Leadership
from leasehold.patterns.guard_aio import Guard, Run
from leasehold.patterns.once_aio import Once, Work
from leasehold.patterns.semaphore_aio import Semaphore

__all__ = [
    "Election",
    "Guard",
    "Hold",
    "HoldAll",
    "Leadership",
    "Lease",
    "Leases",
    "Locks",
    "Loss",
    "OnLost",
    "Once",
    "Run",
    "Semaphore",
    "Work",
    "connect",
]
