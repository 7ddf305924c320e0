"""Records in etcd: one key each, one transaction a call.

A revision is etcd's mod revision, `born` the create revision: numbers that only
grow, for the whole cluster. A created record hangs on an etcd lease that its
client's other records of that ttl share (`etcd_leases`); one that is rewritten with
a ttl gets a lease of its own that nobody keeps alive; a lasting one has none.
`touch` looks at every record before it keeps their lease alive: a keepalive alone
says fine after the key was deleted. Looking is a transaction that goes through
the members' log like a write: etcd below 3.4.42 answers plain reads from the past
after a pause.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from leasehold.errors import StoreDamaged, StoreError, StoreUnavailable, shown
from leasehold.model import KEEP, Conflict, Guarantees, Keep, Key, Record, Renewal, Scan, Swap, Unrenewed
from leasehold.rules import etcd_messages as messages
from leasehold.rules.etcd_messages import KeyValue, Txn
from leasehold.rules.values import MEBIBYTE, check_value
from leasehold.rules.windows import merged, scanned
from leasehold.stores.base import one_by_one
from leasehold.stores.etcd_leases import SharedLease, SharedLeases
from leasehold.stores.watching import watch_by_ear
from leasehold.wires.colour import Colour
from leasehold.wires.ears import Ears
from leasehold.wires.etcd import EtcdWire, LeaseGone
from leasehold.wires.etcd_errors import SpaceExceeded
from leasehold.wires.etcd_line import EtcdLine

ROOT = "leasehold/"
LASTING = b"-"
# A transaction may have 128 parts, those inside its parts included.
BATCH = 100
# So much of the shortest ttl one member may take to answer a renewal, where there are others.
PATIENCE = 1 / 6
TRIES = 3


class _Checked(NamedTuple):
    """A record that touch found as it was held."""

    place: int
    held: Record
    ttl: float


class EtcdStore:
    """The five verbs on the keys of one namespace."""

    def __init__(self, wire: EtcdWire, colour: Colour) -> None:
        self._wire = wire
        self._clock = colour.clock
        self._prefix = (wire.config.namespace + ROOT).encode()
        self._leases = SharedLeases(colour.clock)
        self._ears = Ears(lambda: EtcdLine(wire), colour)
        self.guarantees: Guarantees = _guarantees(len(wire.config.hosts))

    async def open(self) -> None:
        await self._wire.open(self._prefix)

    async def close(self) -> None:
        await self._ears.close()
        await self._wire.close()

    # The verbs.

    async def load(self, key: Key) -> Record | None:
        record = await self._look(key)
        return None if record is None else (await self._with_left([record]))[0]

    async def swap(
        self, key: Key, expect: Record | None, value: bytes | None, ttl: float | Keep | None
    ) -> Record | Conflict:
        check_value(value, self.guarantees.value_max)
        if value is None:
            return Conflict(await self._look(key)) if expect is None else await self._remove(key, expect)
        for _ in range(TRIES):
            try:
                if expect is None:
                    return await self._create(key, value, ttl)
                return await self._rewrite(key, expect, value, ttl)
            except LeaseGone:
                # Ended before its time, as far as we could know: somebody revoked it. The next is a new one.
                continue
        raise StoreDamaged("etcd lost every lease as soon as it had granted it; look into its log and its clocks")

    async def touch(self, holds: Sequence[tuple[Record, float]]) -> list[tuple[Renewal, Record | None]]:
        """Look at all, in one flight; then keep their leases alive, in another.

        The look proves that the leases lived at a moment after we began. From then on
        whoever leads extends them: the keepalive's leader, or one chosen meanwhile, who
        begins by giving every lease its whole length. A keepalive of another term than
        the look's proves nothing, as a leader that was paused and replaced answers too.
        """
        sent = self._clock.now()
        patience = PATIENCE * min(ttl for _, ttl in holds)
        found = await self._look_at([self._name(held.key) for held, _ in holds], patience)
        answers: list[tuple[Renewal, Record | None]] = [(Renewal.UNKNOWN, None)] * len(holds)
        good: list[_Checked] = []
        for place, ((held, ttl), kvs) in enumerate(zip(holds, found.ranges, strict=True)):
            if kvs and kvs[0].modified == held.revision:
                good.append(_Checked(place, held, ttl))
            else:
                answers[place] = Renewal.LOST, self._lost(held, kvs)
        staying, moving = self._parted(good, sent)
        if staying:
            lived = await self._wire.keep_alive(list(staying), patience=patience)
            for lease, records in staying.items():
                one = lived.get(lease)
                if one is not None and one.ttl > 0 and one.term == found.term:
                    for place, record in self._kept(records, lease, sent):
                        answers[place] = Renewal.RENEWED, record
                elif one is not None and one.ttl <= 0:
                    self._leases.taint(lease)
        for place, answer in (await self._move(moving)).items():
            answers[place] = answer
        return answers

    async def watch(self, key: Key, seen: Record | None, until: float) -> None:
        channel = self._name(key).decode()
        await watch_by_ear(self._ears, channel, lambda: self._look(key), seen=seen, until=until, clock=self._clock)

    async def scan(self, family: str, windows: Sequence[tuple[str, str]] = ()) -> list[Record]:
        """One transaction, with one part for each window."""
        ranges = [(f"{family}\0", f"{family}\1")]
        if windows:
            ranges = [(f"{family}\0{first}", f"{family}\0{end}") for first, end in merged(windows)]
        if not ranges:
            return []
        most = self.guarantees.scan_max
        names = [(self._prefix + first.encode(), self._prefix + end.encode()) for first, end in ranges]
        gets = [messages.get_all(first, end, most + 1) for first, end in names]
        # The branch that is never taken makes etcd put it through its log.
        found = await self._wire.look(messages.txn([], gets, [messages.delete(names[0][0])]))
        return scanned(family, [self._record(kv) for kvs in found.ranges for kv in kvs], most)

    async def together(self, asks: Sequence[Swap | Scan]) -> list[Record | Conflict | list[Record]]:
        return await one_by_one(self, asks)

    async def page(self, root: str, after: Key | None, limit: int) -> list[Record]:
        top = self._prefix + root.encode()
        first = top if after is None else self._name(after) + b"\0"
        answer = await self._wire.ask(messages.RANGE, messages.list_page(first, messages.after_all(top), limit))
        return await self._with_left([self._record(kv) for kv in messages.read_range(answer)])

    async def collect(self, limit: int) -> int:  # noqa: ARG002  nothing is left to be collected
        """None: etcd itself removes what has ended."""
        return 0

    # Writing.

    async def _create(self, key: Key, value: bytes, ttl: float | Keep | None) -> Record | Conflict:
        name = self._name(key)
        lease = None if ttl is None or ttl is KEEP else await self._leased(ttl)
        text = _framed(value, lease.ttl if lease else None)
        number = lease.id if lease else 0
        put = messages.put(name, text, number)
        message = messages.txn([messages.is_absent(name)], [put], [messages.get(name)])
        try:
            said = await self._write(message, lease)
        except SpaceExceeded as error:
            found = await self._look(key)
            if found is not None and found.value == value:
                return found
            raise StoreUnavailable(str(error), applied=False) from error
        if not said.succeeded:
            return self._conflict(said)
        if lease is not None:
            lease.touched[key] = self._clock.now()
        return self._record(KeyValue(name, text, said.revision, said.revision, number))

    async def _rewrite(self, key: Key, expect: Record, value: bytes, ttl: float | Keep | None) -> Record | Conflict:
        name = self._name(key)
        kept = _lease_of(expect)
        if ttl is KEEP:
            text, lease = _framed(value, expect.ttl), kept
            put = messages.put_value(name, text)
        else:
            # Of its own, and never kept alive: what is rewritten with a ttl is a result or a rest, and is to end.
            own = None if ttl is None else await self._leased(Unrenewed(ttl))
            text, lease = _framed(value, own.ttl if own else None), own.id if own else 0
            put = messages.put(name, text, lease)
        message = messages.txn([messages.is_at(name, expect.revision)], [put], [messages.get(name)])
        said = await self._write(message, self._leases.find(kept))
        if not said.succeeded:
            return self._conflict(said)
        if lease != kept:
            self._leases.forget(key, kept)
        record = self._record(KeyValue(name, text, expect.born, said.revision, lease))
        return msgspec.structs.replace(record, left=expect.left) if ttl is KEEP else record

    async def _remove(self, key: Key, expect: Record) -> Record | Conflict:
        name = self._name(key)
        message = messages.txn([messages.is_at(name, expect.revision)], [messages.delete(name)], [messages.get(name)])
        said = await self._write(message, self._leases.find(_lease_of(expect)))
        if not said.succeeded:
            return self._conflict(said)
        self._leases.forget(key, _lease_of(expect))
        return expect

    async def _write(self, message: bytes, lease: SharedLease | None) -> Txn:
        """A write; one of unknown outcome may leave something on that lease, which is then never kept alive again."""
        try:
            return await self._wire.change(message)
        except LeaseGone:
            if lease is not None:
                self._leases.drop(lease)
            raise
        except SpaceExceeded:
            # An answer: nothing of it is still under way.
            raise
        except BaseException as error:
            if lease is not None and getattr(error, "applied", None) is None:
                lease.clean = False
            raise

    async def _leased(self, ttl: float) -> SharedLease:
        """The lease for new records of this ttl, granted where there is none; for one that nobody renews, its own."""
        alone = isinstance(ttl, Unrenewed)
        found = None if alone else self._leases.fresh(ttl)
        if found is None:
            sent = self._clock.now()
            granted = await self._wire.grant(math.ceil(ttl))
            found = self._leases.add(granted.lease, ttl, float(granted.ttl), sent, alone=alone)
        return found

    # Renewing.

    def _parted(self, good: list[_Checked], now: float) -> tuple[dict[int, list[_Checked]], list[_Checked]]:
        """Those that stay where they are, by lease; and those that must move to another."""
        leases = {one.place: self._leases.find(_lease_of(one.held)) for one in good}
        for one in good:
            if (lease := leases[one.place]) is not None:
                lease.touched[one.held.key] = now
        may_stay = {lease.id for lease in set(leases.values()) if lease is not None and lease.may_be_kept(now)}
        staying: dict[int, list[_Checked]] = {}
        moving: list[_Checked] = []
        for one in good:
            lease = leases[one.place]
            if lease is not None and lease.id in may_stay and one.ttl in {lease.asked, lease.ttl}:
                staying.setdefault(lease.id, []).append(one)
            else:
                moving.append(one)
        return staying, moving

    def _kept(self, records: list[_Checked], lease: int, sent: float) -> list[tuple[int, Record]]:
        shared = self._leases.find(lease)
        if shared is None:
            return []
        shared.sent = max(shared.sent, sent)
        fresh = {"ttl": shared.ttl, "left": shared.ttl, "since": shared.sent}
        return [(one.place, msgspec.structs.replace(one.held, **fresh)) for one in records]

    async def _move(self, moving: list[_Checked]) -> dict[int, tuple[Renewal, Record | None]]:
        """Hang records on a lease that is kept alive, each only if it is still what was looked at."""
        answers: dict[int, tuple[Renewal, Record | None]] = {}
        for ttl in {one.ttl for one in moving}:
            some = [one for one in moving if one.ttl == ttl]
            lease = await self._leased(ttl)
            try:
                said = await self._write(messages.txn([], [self._moved_to(one, lease) for one in some], []), lease)
            except LeaseGone:
                continue
            for one, inner in zip(some, said.inner, strict=True):
                answers[one.place] = self._moved(one, inner, lease, said.revision)
        return answers

    def _moved_to(self, one: _Checked, lease: SharedLease) -> bytes:
        name = self._name(one.held.key)
        if one.held.ttl == lease.ttl:
            put = messages.put_lease(name, lease.id)
        else:
            put = messages.put(name, _framed(one.held.value, lease.ttl), lease.id)
        return messages.nested(messages.txn([messages.is_at(name, one.held.revision)], [put], [messages.get(name)]))

    def _moved(self, one: _Checked, inner: Txn, lease: SharedLease, revision: int) -> tuple[Renewal, Record | None]:
        if not inner.succeeded:
            return Renewal.LOST, self._lost(one.held, inner.ranges[0])
        self._leases.forget(one.held.key, _lease_of(one.held))
        lease.touched[one.held.key] = self._clock.now()
        fresh = {"revision": revision, "ttl": lease.ttl, "left": lease.ttl, "tag": lease.id, "since": lease.sent}
        return Renewal.RENEWED, msgspec.structs.replace(one.held, **fresh)

    def _lost(self, held: Record, kvs: list[KeyValue]) -> Record | None:
        """What is there instead. A record of ours that somebody rewrote in place is to end, and its lease with it."""
        self._leases.forget(held.key, _lease_of(held))
        if not kvs:
            return None
        self._leases.taint(kvs[0].lease)
        return self._record(kvs[0])

    # Reading.

    async def _look(self, key: Key) -> Record | None:
        (kvs,) = (await self._look_at([self._name(key)], None)).ranges
        return self._record(kvs[0]) if kvs else None

    async def _look_at(self, names: list[bytes], patience: float | None) -> Txn:
        # The branch that is never taken makes etcd put it through its log.
        message = messages.txn([], [messages.get(name) for name in names], [messages.delete(names[0])])
        return await self._wire.look(message, patience=patience)

    def _conflict(self, said: Txn) -> Conflict:
        (kvs,) = said.ranges
        return Conflict(self._record(kvs[0]) if kvs else None)

    def _record(self, kv: KeyValue) -> Record:
        """The record in a key. What is left is at most its ttl, and less where its lease is our own."""
        key = self._key(kv.key)
        mark, found, value = kv.value.partition(b"\n")
        if not found or not (mark == LASTING or mark.isdigit()) or (mark == LASTING) != (kv.lease == 0):
            raise StoreDamaged(
                f"the key {shown(kv.key)} holds what Leasehold did not write, and nothing is granted from it; "
                "use another namespace, or remove the key while no lease is held"
            )
        ttl = None if mark == LASTING else float(mark)
        lease = self._leases.find(kv.lease)
        left = ttl if lease is None else max(lease.ends - self._clock.now(), 0.0)
        since = None if lease is None else lease.sent
        return Record(key, value, kv.modified, kv.created, ttl, left, kv.lease, since)

    async def _with_left(self, records: list[Record]) -> list[Record]:
        """With what etcd says remains of leases that are not our own."""
        foreign = sorted({lease for record in records if (lease := _lease_of(record)) and not self._leases.find(lease)})
        if not foreign:
            return records
        try:
            left = await self._wire.time_to_live(foreign)
        except StoreError:
            left = {}  # for people only: at most the ttl, which the record says itself
        return [
            msgspec.structs.replace(record, left=left[lease]) if (lease := _lease_of(record)) in left else record
            for record in records
        ]

    # Names.

    def _name(self, key: Key) -> bytes:
        return self._prefix + _written(key)

    def _key(self, name: bytes) -> Key:
        try:
            text = name[len(self._prefix) :].decode()
        except UnicodeDecodeError:
            text = ""
        family, mark, member = text.partition("\0")
        if not mark:
            raise StoreDamaged(f"there is a key {shown(name)}, which Leasehold did not write; remove it")
        return Key(family, member)


@functools.lru_cache(maxsize=4096)
def _written(key: Key) -> bytes:
    # NUL is in no name and sorts before everything: names are in the order of keys.
    return f"{key.family}\0{key.member}".encode()


def _framed(value: bytes, ttl: float | None) -> bytes:
    """The value with the length of its lease before it: who reads it cannot see that otherwise without asking."""
    return (LASTING if ttl is None else b"%d" % ttl) + b"\n" + value


def _lease_of(record: Record) -> int:
    return record.tag if isinstance(record.tag, int) else 0


def _guarantees(members: int) -> Guarantees:
    several = "" if members > 1 else "; give several members in the URL to survive the loss of one"
    return Guarantees(
        store="etcd",
        clock="the etcd leader's monotonic clock; a new leader gives every lease its whole length again",
        persistence="etcd's log: what was granted survives; a restored backup brings back old leases and revisions",
        failover=f"etcd's: a write counts once a majority has it{several}",
        token_source="etcd's revision, one counter for the whole cluster",  # noqa: S106  no password
        wake_up="watch, one stream for all keys waited for",
        ttl_min=2.0,
        ttl_max=86_400.0,
        ttl_step=1.0,
        batch=BATCH,
        value_max=MEBIBYTE,
        left_is_bound=True,
    )
