"""The fencing token: revision · 256 + n, where n counts passes inside one process.

The factor is part of the contract for every client and scope: a later revision
beats any number of local passes of an earlier one.
"""

from __future__ import annotations

from leasehold.errors import StoreDamaged

PASSES = 256
LARGEST = 2**63 - 1


def token(revision: int, passes: int = 0) -> int:
    """The token of a grant. Refuses what a signed 64-bit column could not hold."""
    made = revision * PASSES + passes
    if made > LARGEST:
        raise StoreDamaged(
            f"the store's revision {revision} makes a token above 2^63-1, which fences cannot compare; "
            "move the locks to a store with smaller revisions"
        )
    return made
