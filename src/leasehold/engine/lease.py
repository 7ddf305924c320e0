"""What a lease shows without asking the store: the same in both colours."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Generic, TypeVar

from leasehold.errors import LeaseLost
from leasehold.model import Mode
from leasehold.rules.timing import seconds

if TYPE_CHECKING:
    from leasehold.engine.engine import Engine
    from leasehold.engine.grant import Grant


class BaseLoss:
    """Set when the lease is lost, before the store frees it. A voluntary release does not set it."""

    __slots__ = ("_engine", "_grant")

    def __init__(self, engine: Engine, grant: Grant) -> None:
        self._engine = engine
        self._grant = grant

    def is_set(self) -> bool:
        """Whether the lease is lost. Reads the clock: true in time even if every thread was stopped."""
        return not self._grant.released and self._grant.loss() is not None

    async def _told(self, patience: float | None) -> bool:
        runtime, grant = self._engine.runtime, self._grant
        runtime.check_here()
        until = None if patience is None else runtime.clock.now() + seconds("timeout", patience, 0, math.inf)
        signal = runtime.signal()
        grant.on_end.append(signal.set)
        try:
            if grant.loss() is None:
                await signal.wait(until)
        finally:
            grant.on_end.remove(signal.set)
        return self.is_set()


class BaseLease:
    """A granted hold of a scope. Any thread or task may use it; pass it around freely."""

    __slots__ = ("_engine", "_grant")

    def __init__(self, engine: Engine, grant: Grant) -> None:
        self._engine = engine
        self._grant = grant

    @property
    def scope(self) -> str:
        """What is held."""
        return self._grant.scope

    @property
    def token(self) -> int:
        """The fencing token: larger than that of every earlier lease on this scope."""
        return self._grant.token

    @property
    def holder(self) -> str:
        """The name this client shows to others."""
        return self._grant.hold.holder

    @property
    def mode(self) -> Mode:
        """How it is held: `exclusive`, or `shared` with others who share it."""
        claim = self._grant.hold.claim
        return "shared" if claim is not None and all(part.shared for part in claim.parts) else "exclusive"

    @property
    def metadata(self) -> Mapping[str, str]:
        """The notes given at acquisition."""
        return MappingProxyType(self._grant.hold.metadata)

    @property
    def ttl(self) -> float:
        """The length the store really granted, in seconds."""
        return self._grant.ttl

    @property
    def depth(self) -> int:
        """How many releases it takes; above 1 only with `reentrant=True`."""
        return self._grant.depth

    @property
    def held(self) -> bool:
        """Whether the lease may be believed at this instant. Asks the clock, never the store.

        No two clients see True at one instant while clock rates differ by less than
        1 / 0.9 and the store keeps its state. It says nothing about what happens after
        you looked: only a fence at the resource orders effects.
        """
        return self._grant.loss() is None

    @property
    def expires_in(self) -> float:
        """Seconds of trust left unless renewed; 0.0 when not held."""
        grant = self._grant
        return 0.0 if grant.loss() is not None else max(grant.trusted_until() - self._engine.clock.now(), 0.0)

    def check(self) -> None:
        """Raise LeaseLost unless the lease is held. Call it before every step that matters."""
        reason = self._grant.loss()
        if reason is not None:
            raise LeaseLost(self.scope, self.token, reason)

    def why_lost(self) -> str | None:
        """The reason if the lease was lost; None while it is held and after a voluntary release."""
        return None if self._grant.released else self._grant.loss()

    def adopt(self) -> None:
        """Make the calling thread or task the keeper: it is now the one that must not ask for the scope again."""
        self._engine.adopt(self._grant)

    def __repr__(self) -> str:
        state = "held" if self.held else f"not held: {self._grant.loss()}"
        return f"<Lease {self.scope!r} token={self.token} {state}>"


L = TypeVar("L", bound=BaseLease)


class BaseLeases(Mapping[str, L], Generic[L]):
    """Leases on several scopes that are held together, by scope. Each has its own token."""

    __slots__ = ("_engine", "_leases")

    def __init__(self, engine: Engine, leases: Mapping[str, L]) -> None:
        self._engine = engine
        self._leases = leases

    def __getitem__(self, scope: str) -> L:
        """The lease on one of the scopes."""
        return self._leases[scope]

    def __iter__(self) -> Iterator[str]:
        """The scopes, in the order in which they were acquired."""
        return iter(self._leases)

    def __len__(self) -> int:
        """How many there are."""
        return len(self._leases)

    @property
    def held(self) -> bool:
        """Whether all of them may be believed at this instant."""
        return self.lost() is None

    def check(self) -> None:
        """Raise LeaseLost unless all of them are held. Call it before every step that matters."""
        for lease in self._leases.values():
            lease.check()

    def lost(self) -> L | None:
        """The first that is no longer held, or None."""
        return next((lease for lease in self._leases.values() if not lease.held), None)

    def _grants(self) -> list[Grant]:
        # Parts of one resource are one lease.
        return [*dict.fromkeys(lease._grant for lease in self._leases.values())]  # noqa: SLF001  the same room

    def __repr__(self) -> str:
        return f"<Leases {list(self._leases.values())!r}>"
