"""Optimistic updates: read, change, and replace it if nobody was quicker; else read again.

    total = optimistic.update(fence.File("/var/lib/app/total"), lambda old: str(int(old) + 1).encode())

No lease and no waiting in line: right for short changes that seldom meet. `docs/howto/lock-or-optimistic.md`
shows where a lease wins. `leasehold.optimistic.aio` has the same for asyncio.
"""

from leasehold.optimistic.blocking import Replaceable, update

__all__ = ["Replaceable", "update"]
