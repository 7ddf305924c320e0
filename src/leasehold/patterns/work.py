"""How work is handled once, work that was begun, and what the function is given that does it.

Shared by those whose record is in the store and those whose record is in their own database.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec

from leasehold.engine.grant import Grant
from leasehold.errors import LeaseLost
from leasehold.rules.once import OnceRecord
from leasehold.rules.timing import DEFAULT_TTL

KEEP = 86400.0
RESULT_MAX = 256 * 1024
OVER = "the work is over"

Duplicates = Literal["wait", "raise", "skip"]
Errors = tuple[type[BaseException], ...]


class Policy(msgspec.Struct, frozen=True):
    """How one kind of work is handled. All of it can be said for each run anew.

    `ttl` is how long after its worker died somebody else may take over, `keep` how long a result is replayed: from a
    day on until it is forgotten, where the store keeps time for no longer.
    `duplicates` is what becomes of who comes while the work goes on: it waits for the result for `wait` seconds
    (None: as long as it takes), gets StillRunning, or None. Errors in `definite` are kept and replayed as RunFailed;
    after those in `retry` the next one may begin anew; all others leave the outcome unknown. `rerun` declares that
    work of unknown outcome may be done again. `result` is the type of what is returned, `limit` how many bytes of it
    are kept. `on_replay(key, value)` is called before a result is given again, and gives what is returned instead: it
    may raise, if the caller may not have it.
    """

    ttl: float = DEFAULT_TTL
    keep: float = KEEP
    duplicates: Duplicates = "wait"
    wait: float | None = None
    definite: Errors = ()
    retry: Errors = ()
    rerun: bool = False
    result: Any = Any
    limit: int = RESULT_MAX
    on_replay: Callable[[str, Any], Any] | None = None


class Kept(msgspec.Struct, frozen=True):
    """What was done before: the value to answer with, once the hook of the one who asks has seen it."""

    value: Any
    hook: Callable[[Any], Any] | None = None


class BaseBegun:
    """Work that this client has begun: its lease, and what its record says."""

    __slots__ = ("grant", "over", "policy", "said")

    def __init__(self, grant: Grant, said: OnceRecord, policy: Policy) -> None:
        # The function came to its end; the lease only goes with the record of that.
        self.over: bool = False
        self.grant: Grant = grant
        self.said: OnceRecord = said
        self.policy: Policy = policy

    def check(self) -> None:
        """Raise LeaseLost unless it is still ours."""
        reason = self.loss()
        if reason is not None:
            raise LeaseLost(self.said.key, self.grant.token, reason)

    def loss(self) -> str | None:
        """Why it is not ours to go on with; None if it is."""
        return OVER if self.over else self.grant.loss()


class BaseWork:
    """What a function is given that does the work: show its token to whatever it changes."""

    def __init__(self, begun: BaseBegun) -> None:
        self._begun = begun

    @property
    def key(self) -> str:
        """What is handled."""
        return self._begun.said.key

    @property
    def token(self) -> int:
        """The fencing token: larger than that of every earlier run of this key."""
        return self._begun.grant.token

    @property
    def held(self) -> bool:
        """Whether nobody else may have taken over, at this instant."""
        return self._begun.loss() is None

    def check(self) -> None:
        """Raise LeaseLost unless it is held: before every step that matters."""
        self._begun.check()
