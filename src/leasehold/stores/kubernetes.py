"""Records as `coordination.k8s.io/v1` Leases, one object each.

A create is one POST, a release one DELETE of that very revision; every other
write names the revision it changes, so that a late one changes nothing (a plain
PUT after a DELETE would create the object again). Revisions are resourceVersions:
one counter for all Leases of the cluster. Nothing ends by itself: a record has
ended once it stood unchanged for its time on our own clock (`kubernetes_sight`);
with `max_skew` the times written in it count, too. What others wrote counts as
client-go counts it: held by its holder, for its duration, in our sight.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import msgspec

from leasehold.errors import PermissionDenied, StoreDamaged, StoreError, StoreUnavailable, shown
from leasehold.model import KEEP, Conflict, Guarantees, Keep, Key, Record, Renewal, Scan, Swap
from leasehold.rules import kubernetes_leases as leases
from leasehold.rules.backoff import Backoff
from leasehold.rules.kubernetes_leases import Object, Seen
from leasehold.rules.kubernetes_names import is_election, label, lease_name, root_of
from leasehold.rules.values import check_value
from leasehold.rules.windows import lies_in, scanned
from leasehold.stores.base import one_by_one
from leasehold.stores.kubernetes_sight import sights_of
from leasehold.stores.watching import is_still, next_look, watch_by_ear
from leasehold.wires.chance import chance
from leasehold.wires.colour import Colour
from leasehold.wires.ears import Ears
from leasehold.wires.kubernetes import Ask, KubernetesWire, Said
from leasehold.wires.kubernetes_errors import CONFLICT, NOT_FOUND
from leasehold.wires.kubernetes_line import KubernetesLine
from leasehold.wires.kubernetes_url import KubernetesConfig

# How often one write is tried that somebody else's deletion came between.
TRIES = 5
PAGE = 500
POLL = Backoff(base=0.5, cap=5.0)
# How long to go on polling before it is tried again whether we may watch.
DEAF = 300.0
# So many deletions at once, and so long a rest after them.
BURST = 10
REST = 0.2
# Annotations together may have 256 KiB, and a value that is no text grows by a third.
VALUE_MAX = 128 * 1024
MANAGED = f"{leases.MANAGED_BY}={leases.MANAGER}"

_HEARING = "watch, one for each Lease waited for; polling every 0.5 to 5 s where the role does not allow it"
_LOOKING = "polling every 0.5 to 5 s: the role does not allow `watch` on leases"
_ASKED_TO_LOOK = "polling every 0.5 to 5 s: watch=no is in the URL"
_NEWCOMERS = (
    "a process that has just started sees a dead holder's lease as held for its whole ttl: wait longer than that, "
    "or, where the machines' wall clocks are kept together, add max_skew= to the URL"
)


class Tag(msgspec.Struct, frozen=True):
    """What a record remembers of its object: how long this revision counts from when it is first seen (None: for
    as long as it is there), whether it is this key's, and all of it where a write must send the whole.
    """

    uid: str
    lasts: float | None
    ours: bool
    raw: Object | None = None


class KubernetesStore:
    """The five verbs on the Leases of one namespace."""

    def __init__(
        self, config: KubernetesConfig, *, timeout: float, colour: Colour, wall: Callable[[], float] = time.time
    ) -> None:
        self._wire = KubernetesWire(config, timeout=timeout, colour=colour)
        self._ears = Ears(lambda: KubernetesLine(self._wire, lambda: self._newest), colour)
        self._colour = colour
        self._clock = colour.clock
        self._wall = wall
        self._skew = config.max_skew
        self._sights = sights_of(colour.clock)
        self._newest = 0
        self._deaf_until = 0.0 if config.watch else math.inf
        # What the last page left for the next.
        self._rest: tuple[Key, list[Record]] | None = None
        self._version = ""
        self._wake_up = _HEARING if config.watch else _ASKED_TO_LOOK
        self.guarantees: Guarantees = _guarantees(self._skew, "", self._wake_up)

    async def open(self) -> None:
        self._version = await self._wire.open()
        self._declare(self._wake_up)

    async def close(self) -> None:
        await self._ears.close()
        await self._wire.close()

    # The verbs.

    async def load(self, key: Key) -> Record | None:
        sent = self._clock.now()
        said = await self._wire.ask(Ask("GET", lease_name(key)))
        return None if said.body is None else self._live(key, leases.read(said.body), sent)

    async def swap(
        self, key: Key, expect: Record | None, value: bytes | None, ttl: float | Keep | None
    ) -> Record | Conflict:
        check_value(value, self.guarantees.value_max)
        if expect is None:
            return Conflict(await self.load(key)) if value is None else await self._create(key, value, ttl)
        if self._has_ended(expect):
            if value is None:
                # Too late to count, and still to be tidied away: nobody else would.
                await self._remove(key, expect)
            return Conflict(await self.load(key))
        if value is None:
            return await self._remove(key, expect)
        return await self._rewrite(key, expect, value, ttl)

    async def touch(self, holds: Sequence[tuple[Record, float]]) -> list[tuple[Renewal, Record | None]]:
        """One request each, several at once."""
        asks = {place: self._renewal(held, ttl) for place, (held, ttl) in enumerate(holds) if not self._has_ended(held)}
        answers = dict(zip(asks, await self._wire.ask_all(list(asks.values())), strict=True))
        failed = [answer for answer in answers.values() if isinstance(answer, StoreError)]
        if failed and len(failed) == len(holds):
            raise failed[0]
        return [await self._touched(*hold, answers.get(place)) for place, hold in enumerate(holds)]

    async def watch(self, key: Key, seen: Record | None, until: float) -> None:
        if self._clock.now() >= self._deaf_until:
            try:
                await watch_by_ear(
                    self._ears, lease_name(key), lambda: self.load(key), seen=seen, until=until, clock=self._clock
                )
            except PermissionDenied:
                # It may be the look that is forbidden: then the one below says so.
                self._deaf_until = self._clock.now() + DEAF
                self._declare(_LOOKING)
            else:
                return
        await self._look_again_and_again(key, seen, until)

    async def scan(self, family: str, windows: Sequence[tuple[str, str]] = ()) -> list[Record]:
        """The API cannot choose by member: all of the family are read."""
        selector = f"{MANAGED},{leases.FAMILY_LABEL}={label(family)}"
        mine = (record for record in await self._records(selector) if record.key.family == family)
        found = [record for record in mine if lies_in(record.key.member, windows)]
        return scanned(family, found, self.guarantees.scan_max)

    async def together(self, asks: Sequence[Swap | Scan]) -> list[Record | Conflict | list[Record]]:
        return await one_by_one(self, asks)

    async def page(self, root: str, after: Key | None, limit: int) -> list[Record]:
        """The API lists by name, not by key: all are read for the first page, and kept for those that follow."""
        if after is not None and self._rest is not None and self._rest[0] == after:
            found = self._rest[1]
        else:
            one_root = root.endswith("/") and root_of(root) == root
            selector = f"{MANAGED},{leases.ROOT_LABEL}={label(root)}" if one_root else MANAGED
            records = [record for record in await self._records(selector) if record.key.family.startswith(root)]
            later = (record for record in records if after is None or record.key > after)
            found = sorted(later, key=lambda record: record.key)
        page, rest = found[:limit], found[limit:]
        self._rest = (page[-1].key, rest) if page and rest else None
        return page

    async def collect(self, limit: int) -> int:
        """Delete what has ended, each only if it is still that very revision; a few at a time, with a rest."""
        sent, found = await self._list(MANAGED)
        dead = [seen for seen in found if _is_collected(seen) and self._is_over(seen, sent)][:limit]
        gone = 0
        for start in range(0, len(dead), BURST):
            if start:
                await self._wire.side.pause(REST)
            asks = [_deletion(seen.name, seen.uid, seen.revision) for seen in dead[start : start + BURST]]
            for answer in await self._wire.ask_all(asks):
                if isinstance(answer, StoreError):
                    raise answer
                gone += answer.body is not None
        return gone

    # Writing.

    async def _create(self, key: Key, value: bytes, ttl: float | Keep | None) -> Record | Conflict:
        """One POST. Where something stands in the way: what is it, and has it ended?"""
        name, length = lease_name(key), None if ttl is None or ttl is KEEP else _whole(ttl)
        kept = is_election(key)
        for _ in range(TRIES):
            if not kept:
                # An election's object is there nearly always; whoever may not create it must not be asked to.
                changes = leases.grant(key, value, length, leases.write_time(self._wall()), 0)
                said = await self._wire.ask(Ask("POST", None, leases.object_of(name, changes)))
                if said.body is not None:
                    return self._written(key, said.body)
            sent = self._clock.now()
            found = await self._wire.ask(Ask("GET", name))
            kept = kept and found.body is not None
            if found.body is None:
                continue
            seen = leases.read(found.body)
            live = self._live(key, seen, sent)
            if live is not None:
                return Conflict(live)
            changes = leases.grant(key, value, length, leases.write_time(self._wall()), seen.transitions + 1)
            said = await self._wire.ask(self._write(self._record(key, seen), changes))
            if said.body is not None:
                return self._written(key, said.body)
        return Conflict(None)

    async def _rewrite(self, key: Key, expect: Record, value: bytes, ttl: float | Keep | None) -> Record | Conflict:
        if not _tag(expect).ours:
            raise StoreDamaged(
                f"the Lease {shown(lease_name(key))} was not written by Leasehold and is left as it is; "
                "use force=True to free it"
            )
        now = leases.write_time(self._wall())
        if ttl is KEEP:
            ends = self._ends_at(expect)
            length, lasts = expect.ttl, _tag(expect).lasts if ends is None else ends - self._clock.now()
        else:
            length = lasts = None if ttl is None else _whole(ttl)
        changes = _with_born(leases.rewrite(value, length, lasts, now, before=expect.value), expect)
        return await self._answered(key, await self._wire.ask(self._write(expect, changes)))

    async def _remove(self, key: Key, expect: Record) -> Record | Conflict:
        if is_election(key):
            ask = self._write(expect, leases.release(leases.write_time(self._wall())))
        else:
            ask = _deletion(lease_name(key), _tag(expect).uid, expect.revision)
        said = await self._wire.ask(ask)
        if said.body is None:
            return await self._answered(key, said)
        self._sights.forget(_tag(expect).uid)
        return expect

    def _write(self, held: Record, changes: Object) -> Ask:
        """A write that is refused unless the Lease is still exactly what was seen.

        An election's is a PUT of the whole object, as client-go's is: a role may allow
        no more than that. With its uid it cannot create what was deleted meanwhile.
        """
        tag, name = _tag(held), lease_name(held.key)
        changes["metadata"]["resourceVersion"] = str(held.revision)
        if tag.raw is None:
            return Ask("PATCH", name, changes)
        changes["metadata"]["uid"] = tag.uid
        return Ask("PUT", name, leases.merged(tag.raw, changes))

    async def _answered(self, key: Key, said: Said) -> Record | Conflict:
        if said.body is not None:
            return self._written(key, said.body)
        return Conflict(None if said.status == NOT_FOUND else await self.load(key))

    def _renewal(self, held: Record, ttl: float) -> Ask:
        length, now = _whole(ttl), leases.write_time(self._wall())
        return self._write(held, _with_born(leases.renewal(length, length, now), held))

    async def _touched(
        self, held: Record, ttl: float, answer: Said | StoreError | None
    ) -> tuple[Renewal, Record | None]:
        """What a renewal came to; `answer` None if it was not even sent, because the record had ended."""
        found = None
        try:
            if answer is None or _is_conflict(answer):
                found = await self.load(held.key)
            if found is not None and answer is not None and _is_same(found, held):
                # Our own write moved the revision, and its reply was lost: renew what is there.
                (answer,) = await self._wire.ask_all([self._renewal(found, ttl)])
        except StoreError as error:
            answer = error
        if isinstance(answer, StoreError):
            return Renewal.UNKNOWN, None
        if answer is None or answer.body is None:
            return Renewal.LOST, found
        fresh = self._written(held.key, answer.body)
        # Being deleted: nobody may rely on it any more.
        return Renewal.UNKNOWN if fresh.left is None else Renewal.RENEWED, fresh

    # Reading.

    def _written(self, key: Key, raw: Object) -> Record:
        """The record as our own write left it."""
        return self._record(key, leases.read(raw))

    async def _records(self, selector: str) -> list[Record]:
        """The live records among all that a selector finds, as they were at one moment after we asked."""
        sent, found = await self._list(selector)
        records = (self._live(seen.key, seen, sent) for seen in found if seen.key is not None)
        return [record for record in records if record is not None]

    async def _list(self, selector: str) -> tuple[float, list[Seen]]:
        """In pages of one snapshot, which is no older than the first request; begun anew if the server drops it."""
        for _ in range(TRIES):
            sent = self._clock.now()
            found: list[Seen] = []
            query = {"labelSelector": selector, "limit": str(PAGE)}
            while (said := await self._wire.ask(Ask("GET", None, None, query))).body is not None:
                found += [leases.read(raw) for raw in said.body.get("items") or ()]
                onward = said.body["metadata"].get("continue")
                if not onward:
                    return sent, found
                query["continue"] = onward
        raise StoreUnavailable("the list of Leases changed faster than it could be read; try again", applied=False)

    def _live(self, key: Key, seen: Seen, sent: float) -> Record | None:
        """The record in an object that was asked for at `sent`; None where there is none that counts.

        It has ended if it was first seen so long before `sent`: the answer showed it
        unchanged at some moment after that.
        """
        record = self._record(key, seen)
        if record.left is None:
            # Lasting, or being deleted: in the way for as long as it is there.
            return record
        # As client-go reads it: a Lease without a holder is free.
        return None if not seen.holder or self._is_over(seen, sent) else record

    def _record(self, key: Key, seen: Seen) -> Record:
        """What the object says of this key, whoever wrote it.

        What is being deleted has no end: it goes when its finalizers are through, and who
        had taken it over would lose it at that moment to whoever creates it.
        """
        self._newest = max(self._newest, seen.revision)
        ends = not seen.is_going
        tag = Tag(seen.uid, seen.lasts if ends else None, seen.key == key, seen.raw if is_election(key) else None)
        left = None
        if tag.lasts is not None:
            now = self._clock.now()
            left = max(self._sights.first(seen.uid, seen.revision, now) + tag.lasts - now, 0.0)
        return Record(key, seen.value, seen.revision, seen.born, seen.ttl if ends else None, left, tag)

    def _is_over(self, seen: Seen, sent: float) -> bool:
        if seen.lasts is None:
            return False
        if sent >= self._sights.first(seen.uid, seen.revision, self._clock.now()) + seen.lasts:
            return True
        if self._skew is None or seen.renewed is None:
            return False
        return self._wall() > seen.renewed + seen.lasts + self._skew

    def _ends_at(self, held: Record) -> float | None:
        """When a record that was shown ends on our clock; None if it does not, or was never seen here."""
        tag = _tag(held)
        first = self._sights.known(tag.uid, held.revision)
        return None if first is None or tag.lasts is None else first + tag.lasts

    def _has_ended(self, held: Record) -> bool:
        """Whether it has ended since it was shown, as far as we know without asking."""
        ends = self._ends_at(held)
        return ends is not None and self._clock.now() >= ends

    async def _look_again_and_again(self, key: Key, seen: Record | None, until: float) -> None:
        looks = 0
        while is_still(found := await self.load(key), seen):
            now = self._clock.now()
            left = next_look(found, until, now) - now
            if left <= 0:
                return
            await self._colour.sleep(min(POLL.delay(looks, chance()), left))
            looks += 1

    def _declare(self, wake_up: str) -> None:
        self.guarantees = _guarantees(self._skew, self._version, wake_up)


def _deletion(name: str, uid: str, revision: int) -> Ask:
    """Of this very revision and no other."""
    conditions = {"uid": uid, "resourceVersion": str(revision)}
    return Ask("DELETE", name, {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": conditions})


def _is_collected(seen: Seen) -> bool:
    """Ours, and not the object of an election, which stays."""
    return seen.key is not None and not is_election(seen.key) and not seen.is_going


def _is_conflict(answer: Said | StoreError) -> bool:
    return isinstance(answer, Said) and answer.status == CONFLICT


def _is_same(found: Record, held: Record) -> bool:
    """Whether it is the life of the record that was held, with what its owner wrote: the secret is in the value."""
    return (_tag(found).uid, found.born, found.value) == (_tag(held).uid, held.born, held.value)


def _with_born(changes: Object, held: Record) -> Object:
    """The first write after the creating one writes down what the revision was."""
    changes["metadata"]["annotations"][leases.BORN] = str(held.born)
    return changes


def _tag(record: Record) -> Tag:
    # From another process (a helper's) it comes as plain values.
    return record.tag if isinstance(record.tag, Tag) else msgspec.convert(record.tag, Tag)


def _whole(ttl: float) -> float:
    """Leases count in whole seconds."""
    return float(math.ceil(ttl))


def _guarantees(skew: float | None, version: str, wake_up: str) -> Guarantees:
    written = f"; the times written in a record count too, {skew:g} s after their end" if skew is not None else ""
    server = f" (this server is {version})" if version else ""
    return Guarantees(
        store="kubernetes",
        clock=f"each client's own boot clock: a record ends when it stood unchanged for its ttl in our sight{written}",
        persistence="etcd: what was granted survives; a restored backup brings back old leases and old revisions",
        failover="etcd's: a write counts once a majority has it",
        token_source=f"resourceVersion, ordered by contract from Kubernetes 1.35 on, before that in fact{server}",
        wake_up=wake_up,
        ttl_min=1.0,
        ttl_max=86_400.0,
        ttl_step=1.0,
        batch=64,
        value_max=VALUE_MAX,
        newcomers=_NEWCOMERS if skew is None else "",
        left_is_bound=True,
        ticket_ttl=15.0,
    )
