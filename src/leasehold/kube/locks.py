"""What an object that is a lock means, once, for both colours.

Its existence is the lock: a create is atomic, and its name follows from the target.
It is renewed by nobody, so it stays until it is released, or, as the last resort,
until somebody who wants it finds it older than its ttl by the API server's own
clock. An owner that comes back, after a crash or a lost reply, meets its own object
and adopts it, with a larger token; whoever held it before can then neither check nor release it.
"""

from __future__ import annotations

import builtins
from collections.abc import Mapping

import msgspec

from leasehold.errors import (
    InvalidInput,
    LeaseLost,
    PermissionDenied,
    ResourceBusy,
    StoreDamaged,
    StoreUnavailable,
    shown,
)
from leasehold.kube.objects import TRIES, ObjectStore
from leasehold.rules import kubernetes_objects as rules
from leasehold.rules.arguments import flag, whole
from leasehold.rules.backoff import retry_after
from leasehold.rules.kubernetes_leases import MANAGED_BY, MANAGER
from leasehold.rules.kubernetes_objects import LockObject, Object
from leasehold.rules.names import check_text, short_name
from leasehold.rules.timing import TRUST, seconds
from leasehold.rules.tokens import token
from leasehold.wires.chance import chance, secret

# Namespace, name and uid of a custom resource are 354 at most.
OWNER_MAX = 512
TTL_MIN = 1.0
# Thirty days: runs of a workflow may be long, and this is the last resort only.
TTL_MAX = 30 * 86_400.0


class Keeper:
    """The locks of one kind, namespace and prefix."""

    def __init__(self, objects: ObjectStore, prefix: str, finalizer: bool) -> None:  # noqa: FBT001
        self.objects: ObjectStore = objects
        self.prefix: str = rules.check_prefix(prefix)
        self._finalizer = flag("finalizer", finalizer)
        self._clock = objects.colour.clock

    def name(self, target: str) -> str:
        return short_name(self.prefix, check_text("target", target))

    async def create(self, target: str, owner: str, manifest: Mapping[str, object], ttl: float | None) -> LockObject:
        """One POST where it is free. Else: whose is it, and has it ended?"""
        name, owned = self.name(target), check_text("owner", owner, OWNER_MAX)
        wanted = rules.check_manifest(manifest, self.objects.kind)
        length = None if ttl is None else seconds("ttl", ttl, TTL_MIN, TTL_MAX)
        claim = rules.claim(owned, target, length, secret())
        made = rules.lock_object(name, wanted, claim, finalizer=self._finalizer)
        for _ in range(TRIES):
            sent = self._clock.now()
            said = await self.objects.make(made)
            if said.body is not None:
                held = _held(said.body, said.date, adopted=False)
                left = None if length is None else TRUST * length - (self._clock.now() - sent)
                return msgspec.structs.replace(held, expires_in=left)
            held_now = await self._in_the_way(name, target, owned, claim)
            if held_now is not None:
                return held_now
        raise _busy(target, None)

    async def find(self, target: str) -> LockObject | None:
        said = await self.objects.load(self.name(target))
        found = None if said.body is None else rules.read(said.body, said.date)
        if found is not None:
            _check_target(found, target)
        return found

    async def check(self, held: LockObject) -> LockObject:
        """The same lock as it is now, or LeaseLost."""
        said = await self.objects.load(_lock(held).name)
        found = None if said.body is None else rules.read(said.body, said.date, token=held.token, adopted=held.adopted)
        reason = _lost(held, found)
        if found is None or reason:
            raise LeaseLost(held.target, held.token or 0, reason or "its object is gone: somebody else deleted it")
        return found

    async def release(self, held: LockObject) -> bool:
        """Remove this very hold: True if it was there."""
        raw: Object | None = _lock(held).manifest
        for _ in range(TRIES):
            if raw is None:
                return False
            if await self._remove(raw):
                return True
            # Its controllers write, too: what counts is whether it is still the same hold.
            said = await self.objects.load(held.name)
            found = None if said.body is None else rules.read(said.body, said.date)
            raw = said.body if found is not None and _is_same(held, found) else None
        raise StoreUnavailable(f"{held.name} changes faster than it can be removed; try again", applied=False)

    async def owned_by(self, owner: str) -> builtins.list[LockObject]:
        text = check_text("owner", owner, OWNER_MAX)
        found = await self._select({rules.OWNER: rules.label_value(text)})
        return [one for one, _ in found if one.owner == text]

    async def list(self) -> builtins.list[LockObject]:
        return [one for one, _ in await self._select({})]

    async def collect(self, limit: int) -> int:
        """Remove what is past its ttl."""
        whole("limit", limit, 1)
        gone = 0
        for one, date in await self._select({}):
            if gone < limit and rules.has_ended(one, date, self._skew):
                gone += await self._remove(one.manifest)
        return gone

    # What is in the way.

    async def _in_the_way(self, name: str, target: str, owner: str, claim: Object) -> LockObject | None:
        """Our own object, adopted; None where it is worth another try; ResourceBusy where it is somebody's."""
        try:
            said = await self.objects.load(name)
        except (PermissionDenied, StoreUnavailable) as error:
            raise _busy(target, None) from error
        if said.body is None:
            return None
        found = rules.read(said.body, said.date)
        if found is None:
            raise _busy(target, None)
        _check_target(found, target)
        ended, mine = rules.has_ended(found, said.date, self._skew), found.owner == owner
        stuck = found.is_going and rules.without_finalizer(found.manifest) is None
        if stuck or not (ended or mine):
            raise _busy(target, found)
        if ended or found.is_going:
            # Past its time, or deleted by somebody and ours to let go: then it can be made anew.
            await self._remove(found.manifest)
            return None
        return await self._adopt(found, claim)

    async def _adopt(self, found: LockObject, claim: Object) -> LockObject | None:
        """A new hold on the same object, unless it changed meanwhile."""
        meta = found.manifest["metadata"]
        hold = claim["metadata"]["annotations"][rules.HOLD]
        changes = {"metadata": {"annotations": {rules.HOLD: hold}, "resourceVersion": meta["resourceVersion"]}}
        said = await self.objects.change(found.name, changes)
        return None if said.body is None else _held(said.body, said.date, adopted=True)

    async def _remove(self, raw: Object) -> bool:
        """Delete this very revision; False where it is another, or gone."""
        changes = rules.without_finalizer(raw)
        is_going = raw["metadata"].get("deletionTimestamp") is not None
        if changes is None:
            return is_going or await self.objects.delete(raw)
        # The finalizer first: a crash between the two leaves a lock that its owner can still adopt.
        said = await self.objects.change(raw["metadata"]["name"], changes)
        if said.body is None:
            return False
        return is_going or await self.objects.delete(said.body)

    async def _select(self, labels: Mapping[str, str]) -> builtins.list[tuple[LockObject, bytes]]:
        raws, date = await self.objects.scan({MANAGED_BY: MANAGER, **labels})
        named = (raw for raw in raws if raw["metadata"]["name"].startswith(self.prefix))
        return [(found, date) for raw in named if (found := rules.read(raw, date)) is not None]

    @property
    def _skew(self) -> float:
        return self.objects.config.max_skew or 0.0


def _held(raw: Object, date: bytes, *, adopted: bool) -> LockObject:
    held = rules.read(raw, date, token=token(rules.revision(raw)), adopted=adopted)
    if held is None:
        raise StoreDamaged(
            "the server did not keep the annotations of the lock; does an admission webhook remove them?"
        )
    return held


def _lock(given: object) -> LockObject:
    if not isinstance(given, LockObject):
        raise InvalidInput("held", given, "must be what create() or find() returned")
    return given


def _check_target(found: LockObject, target: str) -> None:
    if found.target != target:
        raise StoreDamaged(
            f"{found.name} stands for {shown(found.target)}, and would stand for {shown(target)}, too; "
            "use another prefix for one of them"
        )


def _is_same(held: LockObject, found: LockObject) -> bool:
    return (held.uid, held.hold) == (found.uid, found.hold)


def _lost(held: LockObject, found: LockObject | None) -> str:
    """Why it is no longer what was held; empty if it is."""
    if found is None:
        return "its object is gone, or no longer a lock: somebody else deleted or rewrote it"
    if not _is_same(held, found):
        again = (held.uid, held.owner) == (found.uid, found.owner)
        return f"a later run of {found.owner} has adopted it" if again else f"{found.owner} holds it now"
    if found.is_going:
        return "its object is being deleted by somebody else; release() lets it go"
    if found.expires_in is not None and found.expires_in <= 0:
        return f"it is older than nine tenths of its ttl of {found.ttl:g} s"
    return ""


def _busy(target: str, found: LockObject | None) -> ResourceBusy:
    left = None if found is None else found.expires_in
    holder = None if found is None else found.owner
    return ResourceBusy(target, holder=holder, expires_in=left, retry_after=retry_after(left, chance()))
