"""The fencing token: revision · 256 + n, where n counts passes inside one process.

The factor is part of the contract for every client and scope: a later revision
beats any number of local passes of an earlier one.
"""

from __future__ import annotations

from leasehold.errors import InvalidInput, StoreDamaged

PASSES = 256
LARGEST = 2**63 - 1
# Redis counts in doubles, exactly up to 2^53: whoever is raised must have as much left as was used.
RAISED_MAX = 2**52


def token(revision: int, passes: int = 0) -> int:
    """The token of a grant. Refuses what a signed 64-bit column could not hold."""
    made = revision * PASSES + passes
    if made > LARGEST:
        raise StoreDamaged(
            f"the store's revision {revision} makes a token above 2^63-1, which fences cannot compare; "
            "move the locks to a store with smaller revisions"
        )
    return made


def raised_to(above: int) -> int:
    """The revision after which every one makes a larger token, however often that one was passed on."""
    revision = above // PASSES
    if revision > RAISED_MAX:
        raise InvalidInput(
            "above", above, f"must be {(RAISED_MAX + 1) * PASSES - 1} at most; more would use up the range of tokens"
        )
    return revision
