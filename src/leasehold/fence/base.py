"""What every fence does, whatever it protects: one source for both colours.

    open(token)           raise the mark, before the first read; refuse whoever comes too late
    read(token)           refuse whoever comes too late
    write(token, value)   the same, and change mark and data in one step

A resource is anything with these three verbs. An adapter is one file with one of them; your own
is checked by `leasehold.testing.fences`.
"""

from __future__ import annotations

from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from leasehold.engine.lease import BaseLease
from leasehold.errors import InvalidInput, ScopeMismatch, StaleToken, StoreWentBack
from leasehold.model import Renewal
from leasehold.rules.fencing import check_writes, checked_token
from leasehold.rules.names import check_text
from leasehold.rules.sealing import Seal

T = TypeVar("T")


class Resource(Protocol[T]):
    """Something that remembers the largest token it has seen, and refuses smaller ones with StaleToken."""

    @property
    def name(self) -> str:
        """What people call it."""
        ...

    async def open(self, token: int) -> None:
        """Raise the mark to the token. It lasts before this returns, or with the caller's own transaction."""
        ...

    async def read(self, token: int) -> T:
        """What is there."""
        ...

    async def write(self, token: int, value: T) -> None:
        """Replace it, and raise the mark, in one step."""
        ...


class Versioned(Protocol[T]):
    """Something that can be replaced if it is still what was read, for `leasehold.optimistic`. It looks at no mark."""

    @property
    def name(self) -> str:
        """What people call it."""
        ...

    async def load(self) -> tuple[T, Any]:
        """What is there, and what tells whether it still is."""
        ...

    async def replace(self, value: T, version: Any) -> bool:
        """Replace it, if nobody has since it was loaded, in one step. False says that nothing was written."""
        ...


class Shown(NamedTuple):
    """What a caller showed: its token, and what that was given for."""

    token: int
    scope: str
    shared: bool


class Fence(Generic[T]):
    """A resource, the scope that protects it, and how tokens are sealed on their way to it."""

    def __init__(self, resource: Resource[T], scope: str | None, seal: Seal | None) -> None:
        self.resource: Resource[T] = resource
        self.scope: str | None = None if scope is None else check_text("scope", scope)
        self.seal: Seal | None = seal
        if seal is not None and not isinstance(seal, Seal):
            raise InvalidInput("seal", seal, "must be a leasehold.fence.Seal")
        if seal is not None and scope is None:
            raise InvalidInput("scope", scope, "must be given with a seal: it is what the token was sealed for")

    async def open(self, given: BaseLease | int | str) -> Shown:
        """Raise the mark. A sharer raises none: others share it, with smaller tokens and larger ones."""
        shown = self.shown(given)
        if shown.shared:
            return shown
        try:
            await self.resource.open(shown.token)
        except StaleToken as refusal:
            if isinstance(given, BaseLease) and await _is_held(given):
                # Nobody was granted it after us: so a larger token is from before the store went back.
                raise StoreWentBack(given.scope, refusal.token, refusal.mark) from refusal
            raise
        return shown

    def shown(self, given: BaseLease | int | str) -> Shown:
        """What was shown, checked before the resource is reached."""
        name = self.resource.name
        if isinstance(given, BaseLease):
            if self.scope is not None and given.scope != self.scope:
                raise ScopeMismatch(name, given.scope, self.scope)
            return Shown(given.token, given.scope, given.mode == "shared")
        if self.seal is None or self.scope is None:
            return Shown(checked_token(given), self.scope or name, shared=False)
        return Shown(self.seal.token(given, self.scope), self.scope, shared=False)

    async def read(self, shown: Shown) -> T:
        """What is there."""
        return await self.resource.read(shown.token)

    async def write(self, shown: Shown, value: T) -> None:
        """Replace it."""
        check_writes(self.resource.name, shown.scope, shared=shown.shared)
        await self.resource.write(shown.token, value)


async def _is_held(lease: BaseLease) -> bool:
    """Whether the store says at this moment that the lease is ours."""
    return await lease._engine.renew(lease._grant) is Renewal.RENEWED  # noqa: SLF001  one library, two rooms
