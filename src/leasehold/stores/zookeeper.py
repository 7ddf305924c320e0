"""Records as nodes in ZooKeeper, each with a witness beside it.

A grant is one `multi[create witness, create record, set it]`, a release one `multi[delete
witness, delete record]`: versions of nodes begin at 0 in every life, so that only a
witness, whose name never comes again, proves that it is still the same record. The
revision is the zxid of the write, which grows for the whole ensemble. A lease lives
in a session of its ttl (`zookeeper_tenure`); what is to last is a persistent node,
and what is to end after more than a session can last is a persistent node judged by
the leader's wall clock.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from typing import Any, cast

import msgspec

from leasehold.errors import StoreDamaged, StoreError, StoreUnavailable, shown
from leasehold.model import KEEP, Conflict, Guarantees, Keep, Key, Record, Renewal, Scan, Swap
from leasehold.rules import zookeeper_nodes as nodes
from leasehold.rules.values import check_value
from leasehold.rules.windows import lies_in, scanned
from leasehold.rules.zookeeper_nodes import Header, Kind
from leasehold.stores.base import one_by_one
from leasehold.stores.watching import watch_by_ear
from leasehold.stores.zookeeper_limits import ANY_LIMITS, guarantees_of
from leasehold.stores.zookeeper_tenure import Tenure
from leasehold.wires import zookeeper_frames as frames
from leasehold.wires.colour import Colour
from leasehold.wires.ears import Ears
from leasehold.wires.zookeeper import Session, ZooKeeperWire
from leasehold.wires.zookeeper_errors import reply_error
from leasehold.wires.zookeeper_frames import Refused, Request, multi
from leasehold.wires.zookeeper_line import ZooKeeperLine
from leasehold.wires.zookeeper_url import ZooKeeperConfig

# How often one write is tried that somebody else's came between.
TRIES = 5
# How many nodes are read in one flight.
FLIGHT = 200
# What looks, lists and writes what lasts; nothing lives in it.
LOOKING = 30.0
SOON = 0.1


class Tag(msgspec.Struct, frozen=True):
    """What a record remembers of its node: what ends it, its witness, its version in this life, whose session."""

    kind: Kind
    witness: str
    version: int
    owner: int


class ZooKeeperStore:
    """The five verbs on the nodes under one chroot."""

    def __init__(self, config: ZooKeeperConfig, *, timeout: float, colour: Colour) -> None:
        self._wire = ZooKeeperWire(config, timeout=timeout, colour=colour)
        self._ears = Ears(lambda: ZooKeeperLine(self._wire), colour)
        self._clock = colour.clock
        self._chroot = config.chroot
        self._acl = frames.CREATOR_ALL_ACL if config.user else frames.OPEN_ACL_UNSAFE
        self._looks = Session(self._wire, LOOKING)
        self._tenures: dict[float, Tenure] = {}
        self.guarantees: Guarantees = guarantees_of(*ANY_LIMITS)

    async def open(self) -> None:
        await self._wire.open()
        try:
            self.guarantees = guarantees_of(*await self._wire.limits())
            await self._settle()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Hang up. A session in which something may live ends after its timeout, and not before."""
        await self._ears.close()
        self._wire.close()
        for tenure in list(self._tenures.values()):
            await tenure.close()
        await self._looks.end()

    def sessions(self) -> list[Session]:
        """Those that leases live in."""
        return [tenure.session for tenure in list(self._tenures.values())]

    # The verbs.

    async def load(self, key: Key) -> Record | None:
        return await self._live(key, await self._read(key))

    async def swap(
        self, key: Key, expect: Record | None, value: bytes | None, ttl: float | Keep | None
    ) -> Record | Conflict:
        check_value(value, self.guarantees.value_max)
        if expect is None:
            return Conflict(await self.load(key)) if value is None else await self._create(key, value, ttl)
        if _tag(expect).kind is Kind.END and await self.load(key) is None:
            return Conflict(None)
        if value is None:
            return await self._remove(key, expect)
        if ttl is KEEP or self._ends_alike(expect, ttl):
            return await self._rewrite(key, expect, value, ttl)
        return await self._replace(key, expect, value, ttl)

    async def touch(self, holds: Sequence[tuple[Record, float]]) -> list[tuple[Renewal, Record | None]]:
        """One flight to see that each is still there, and one for each session that anything of it lives in.

        A session is asked only for what was found: what was revoked is not kept alive by being looked at.
        """
        stats = await self._look([frames.Exists(self._at(nodes.record_path(held.key)), False) for held, _ in holds])
        answers: dict[int, tuple[Renewal, Record | None]] = {}
        sessions: dict[Tenure, list[int]] = {}
        lost: list[int] = []
        for place, ((held, ttl), stat) in enumerate(zip(holds, stats, strict=True)):
            if stat is None or stat.mzxid != held.revision:
                lost.append(place)
            elif (tenure := self._tenure_of(held, ttl)) is not None:
                sessions.setdefault(tenure, []).append(place)
            else:
                answers[place] = await self._touch_elsewhere(held, ttl)
        trouble: StoreError | None = None
        for tenure, places in sessions.items():
            try:
                await tenure.keep([_tag(holds[place][0]).witness for place in places], self._at(nodes.ROOT))
            except StoreError as error:
                trouble = error
                continue
            for place in places:
                if _tag(holds[place][0]).owner == tenure.session.id:
                    answers[place] = Renewal.RENEWED, _whole(*holds[place])
                else:
                    # The session had expired, and this is the next one.
                    lost.append(place)
        found = await self._shown([holds[place][0].key for place in lost])
        answers |= {place: (Renewal.LOST, record) for place, record in zip(lost, found, strict=True)}
        if trouble is not None and not answers:
            raise trouble
        return [answers.get(place, (Renewal.UNKNOWN, None)) for place in range(len(holds))]

    async def watch(self, key: Key, seen: Record | None, until: float) -> None:
        channel = self._at(nodes.record_path(key))
        await watch_by_ear(self._ears, channel, lambda: self.load(key), seen=seen, until=until, clock=self._clock)

    async def scan(self, family: str, windows: Sequence[tuple[str, str]] = ()) -> list[Record]:
        """All names are read, and the nodes of those that count."""
        (names,) = await self._look([frames.GetChildren(self._at(nodes.bucket_path(family)), False)])
        return await self._among(names or (), family, windows)

    async def _among(self, names: Iterable[str], family: str, windows: Sequence[tuple[str, str]]) -> list[Record]:
        keys = (nodes.key_of(name) for name in names if name.startswith(nodes.prefix(family)))
        mine = [key for key in keys if key is not None and lies_in(key.member, windows)]
        return scanned(family, await self._loaded(mine), self.guarantees.scan_max)

    async def together(self, asks: Sequence[Swap | Scan]) -> list[Record | Conflict | list[Record]]:
        """One after the other, but for what everybody does who comes: make a record, and see who else is there."""
        match asks:
            case [Swap(expect=None, value=bytes(), ttl=float()) as ask, Scan() as scan] if (
                scan.family == ask.key.family
            ):
                found = await self._come_and_look(ask, scan)
                return found or await one_by_one(self, asks)
        return await one_by_one(self, asks)

    async def _come_and_look(self, ask: Swap, scan: Scan) -> list[Record | Conflict | list[Record]] | None:
        """Two flights: names are listed in the one that makes the record, in its session. None if it was not made."""
        check_value(ask.value, self.guarantees.value_max)
        names = frames.GetChildren(self._at(nodes.bucket_path(scan.family)), False)
        made, *listed = await self._make(ask.key, cast("bytes", ask.value), cast("float", ask.ttl), None, 0, names)
        if isinstance(made, Record) and listed and not isinstance(listed[0], Refused):
            return [made, await self._among(listed[0], scan.family, scan.windows)]
        return None

    async def page(self, root: str, after: Key | None, limit: int) -> list[Record]:
        """All names are read, and as many nodes as the page has."""
        keys = sorted(key for key in await self._keys() if key.family.startswith(root) and (not after or key > after))
        found: list[Record] = []
        while keys and len(found) < limit:
            some, keys = keys[: min(limit - len(found), FLIGHT)], keys[min(limit - len(found), FLIGHT) :]
            found += await self._loaded(some)
        return found

    async def collect(self, limit: int) -> int:
        """Delete what ended by the leader's clock. Whatever lived in a session went with it."""
        keys, gone = await self._keys(), 0
        for start in range(0, len(keys), FLIGHT):
            some = keys[start : start + FLIGHT]
            found = await self._look([self._get(key) for key in some])
            records = [self._record(key, *pair) for key, pair in zip(some, found, strict=True) if pair is not None]
            for record in records:
                if gone < limit and await self._is_over(record):
                    gone += not isinstance(await self._remove(record.key, record), Conflict)
        return gone

    # Writing.

    async def _create(self, key: Key, value: bytes, ttl: float | Keep | None) -> Record | Conflict:
        """One flight. Where something stands in the way: what is it, and has it ended?"""
        way: Record | None = None
        for _ in range(TRIES):
            (made,) = await self._make(key, value, None if ttl is KEEP else ttl, way)
            if isinstance(made, Record):
                return made
            found = await self._read(key)
            live = await self._live(key, found)
            if live is not None:
                return Conflict(live)
            way = found
            if made.code == frames.NO_NODE and found is None:
                # Somebody removed the nodes that ours lie under.
                await self._settle()
        return Conflict(None)

    async def _replace(self, key: Key, expect: Record, value: bytes, ttl: float | Keep | None) -> Record | Conflict:
        """Another node in its place, which may live in another session; it was born when the first one was."""
        (made,) = await self._make(key, value, None if ttl is KEEP else ttl, expect, expect.born)
        return made if isinstance(made, Record) else await self._refused(key, made)

    async def _make(
        self, key: Key, value: bytes, ttl: float | None, instead: Record | None, born: int = 0, *also: Request
    ) -> list[Any]:
        """A new node with a new witness, where there is none, or exactly in the place of another.

        The record or the refusal, and the answers to what goes along in its session, if it has one.
        """
        witness = secrets.token_hex(12)
        tenure = self._tenure(ttl)
        length = await tenure.timeout() if tenure else ttl
        kind = Kind.SESSION if tenure else Kind.LASTING if ttl is None else Kind.END
        data = nodes.write(Header(kind, length, born, witness), value)
        flags = frames.EPHEMERAL if tenure else 0
        path = self._at(nodes.record_path(key))
        beside = self._at(nodes.witness_path(key, witness))
        request = multi(
            *(self._deletions(key, instead) if instead else ()),
            frames.Create(beside, b"", self._acl, flags),
            frames.Create(path, b"", self._acl, flags),
            # Which answers with the zxid; before 3.8.2 create2 does not, inside a multi.
            frames.SetData(path, data, frames.ANY),
        )
        if tenure:
            answer, *others = await tenure.make(request, witness, self._removal(path, beside), *also)
        else:
            answer, *others = await self._looks.ask([request])
        if isinstance(answer, Refused):
            self._check(answer, path, frames.NO_NODE, frames.BAD_VERSION, frames.NODE_EXISTS)
            return [answer]
        self._let_go(instead)
        stat = answer[-1]
        tag = Tag(kind, witness, stat.version, stat.ephemeralOwner)
        return [Record(key, value, stat.mzxid, born or stat.czxid, length, length, tag), *others]

    async def _rewrite(self, key: Key, expect: Record, value: bytes, ttl: float | Keep | None) -> Record | Conflict:
        """The same node says something else. Whose session it lives in stays as it is."""
        tag, path = _tag(expect), self._at(nodes.record_path(key))
        data = nodes.write(Header(tag.kind, expect.ttl, expect.born, tag.witness), value)
        beside = self._at(nodes.witness_path(key, tag.witness))
        request = multi(frames.CheckVersion(beside, frames.ANY), frames.SetData(path, data, tag.version))
        tenure = None if ttl is KEEP else self._tenure_of(expect, expect.ttl)
        if tenure:
            answer = await tenure.rewrite(request, tag.witness)
        else:
            (answer,) = await self._looks.ask([request])
        if isinstance(answer, Refused):
            return await self._refused(key, answer)
        stat = answer[-1]
        fresh = msgspec.structs.replace(tag, version=stat.version)
        left = self._left(tag, expect.ttl) if tag.kind is Kind.SESSION else expect.left
        return Record(key, value, stat.mzxid, expect.born, expect.ttl, left, fresh)

    async def _remove(self, key: Key, expect: Record) -> Record | Conflict:
        request = multi(*self._deletions(key, expect))
        tenure = self._tenure_of(expect, expect.ttl)
        (answer,) = await (tenure.session if tenure else self._looks).ask([request])
        if isinstance(answer, Refused):
            return await self._refused(key, answer)
        self._let_go(expect)
        return expect

    def _deletions(self, key: Key, record: Record) -> tuple[Request, Request]:
        """Of exactly this state of it, in this life of the key."""
        tag = _tag(record)
        return (
            frames.Delete(self._at(nodes.witness_path(key, tag.witness)), frames.ANY),
            frames.Delete(self._at(nodes.record_path(key)), tag.version),
        )

    def _removal(self, path: str, beside: str) -> Request:
        """Of whatever state this life of the key is in."""
        return multi(frames.Delete(beside, frames.ANY), frames.Delete(path, frames.ANY))

    async def _refused(self, key: Key, answer: Refused) -> Conflict:
        self._check(answer, nodes.record_path(key), frames.NO_NODE, frames.BAD_VERSION, frames.NODE_EXISTS)
        return Conflict(await self.load(key))

    # Sessions.

    def _tenure(self, ttl: float | None) -> Tenure | None:
        """The session for leases of this length, or None where no session lasts so long."""
        if ttl is None or ttl > self.guarantees.ttl_max:
            return None
        if ttl not in self._tenures:
            self._tenures.setdefault(ttl, Tenure(self._wire, ttl))
        return self._tenures[ttl]

    def _tenure_of(self, record: Record, ttl: float | None) -> Tenure | None:
        """The session of ours that the record lives in, if that is the one for this length."""
        owner = _tag(record).owner
        found = self._tenures.get(ttl) if ttl is not None else None
        return found if found is not None and owner and found.session.id == owner else None

    def _ends_alike(self, record: Record, ttl: float | Keep | None) -> bool:
        if ttl is None or ttl is KEEP:
            return _tag(record).kind is Kind.LASTING
        return self._tenure_of(record, ttl) is not None

    async def _touch_elsewhere(self, held: Record, ttl: float) -> tuple[Renewal, Record | None]:
        """What lives in somebody else's session is there, and not ours to keep; anything else is made anew."""
        tag = _tag(held)
        if tag.kind is Kind.SESSION and not any(tenure.session.id == tag.owner for tenure in self._tenures.values()):
            return Renewal.HELD, held
        answer = await self._replace(held.key, held, held.value, ttl)
        return (Renewal.LOST, answer.record) if isinstance(answer, Conflict) else (Renewal.RENEWED, answer)

    def _let_go(self, record: Record | None) -> None:
        if record is not None:
            for tenure in list(self._tenures.values()):
                tenure.forget(_tag(record).witness)

    # Reading.

    async def _look(self, requests: Sequence[Request]) -> list[Any]:
        """What is there, in one flight for every few hundred; None where there is nothing.

        `sync` first: the server we ask then knows whatever had been answered to anybody before.
        """
        found: list[Any] = []
        for start in range(0, len(requests), FLIGHT):
            some = requests[start : start + FLIGHT]
            synced, *answers = await self._looks.ask([frames.Sync(self._at(nodes.ROOT)), *some])
            self._check(synced, nodes.ROOT)
            for request, answer in zip(some, answers, strict=True):
                self._check(answer, getattr(request, "path", ""), frames.NO_NODE)
            found += [None if isinstance(answer, Refused) else answer for answer in answers]
        return found

    async def _read(self, key: Key) -> Record | None:
        """What the node of a key says, be it over or not."""
        (found,) = await self._look([self._get(key)])
        return None if found is None else self._record(key, *found)

    async def _loaded(self, keys: Sequence[Key]) -> list[Record]:
        """Those that are live."""
        return [record for record in await self._shown(keys) if record is not None]

    async def _shown(self, keys: Sequence[Key]) -> list[Record | None]:
        """The live record under each key."""
        pairs = zip(keys, await self._look([self._get(key) for key in keys]), strict=True)
        records = [(key, found and self._record(key, *found)) for key, found in pairs]
        return [await self._live(key, record) for key, record in records]

    async def _keys(self) -> list[Key]:
        lists = await self._look([frames.GetChildren(self._at(path), False) for path in nodes.bucket_paths()])
        found = (nodes.key_of(name) for names in lists if names for name in names)
        return [key for key in found if key is not None]

    async def _live(self, key: Key, record: Record | None) -> Record | None:
        if record is None or _tag(record).kind is not Kind.END:
            return record
        now = await self._leader_time()
        left = record.left if record.left is None else record.left - now
        return None if left is None or left <= 0 else msgspec.structs.replace(record, key=key, left=left)

    async def _is_over(self, record: Record) -> bool:
        return await self._live(record.key, record) is None

    async def _leader_time(self) -> float:
        """The leader's wall clock, as it stamps what is written."""
        path = self._at(nodes.CLOCK)
        (stat,) = await self._looks.ask([frames.SetData(path, b"", frames.ANY)])
        self._check(stat, path)
        seconds: float = stat.mtime / 1000
        return seconds

    def _get(self, key: Key) -> Request:
        request: Request = frames.GetData(self._at(nodes.record_path(key)), False)
        return request

    def _record(self, key: Key, data: bytes | None, stat: Any) -> Record:
        """The record in a node. `left` of one that ends by the leader's clock is still its end on that clock."""
        read = nodes.read(data)
        if read is None:
            raise StoreDamaged(
                f"the node {shown(nodes.record_path(key))} was not written by Leasehold, and nothing is granted from "
                "it; remove it, or use another chroot"
            )
        header, value = read
        tag = Tag(header.kind, header.witness, stat.version, stat.ephemeralOwner)
        left = stat.ctime / 1000 + (header.ttl or 0.0) if header.kind is Kind.END else self._left(tag, header.ttl)
        return Record(key, value, stat.mzxid, header.born or stat.czxid, header.ttl, left, tag)

    def _left(self, tag: Tag, ttl: float | None) -> float | None:
        """Known of our own; of others, that it is no more than the whole. Never nothing: it is still there."""
        tenure = self._tenures.get(ttl) if ttl is not None else None
        ends = tenure.ends(tag.witness) if tenure else None
        return ttl if ends is None else max(ends - self._clock.now(), SOON)

    def _check(self, answer: Any, path: str, *known: int) -> None:
        """Raise what is no answer the caller knows what to do with."""
        if isinstance(answer, Refused) and answer.code not in known:
            raise reply_error(self._looks.where, answer.code, f"{self._chroot}{path.removeprefix(self._chroot)}")

    def _at(self, path: str) -> str:
        return f"{self._chroot}{path}"

    async def _settle(self) -> None:
        """See that the nodes are there that ours lie under, and may be read; make them where they are missing."""
        paths = [self._at(path) for path in nodes.layout()]
        found = await self._looks.ask([frames.GetData(path, False) for path in paths])
        if not any(isinstance(answer, Refused) for answer in found):
            return
        if self._chroot:
            (chroot,) = await self._look([frames.Exists(self._chroot, False)])
            if chroot is None:
                raise StoreUnavailable(
                    f"ZooKeeper at {self._looks.where}: the chroot {shown(self._chroot)} does not exist; create it, or "
                    "leave it out of the URL",
                    applied=False,
                )
        for path, answer in zip(paths, found, strict=True):
            self._check(answer, path, frames.NO_NODE)
        made = await self._looks.ask([frames.Create(path, b"", self._acl, 0) for path in paths])
        for path, answer in zip(paths, made, strict=True):
            self._check(answer, path, frames.NODE_EXISTS)


def _tag(record: Record) -> Tag:
    tag = record.tag
    if not isinstance(tag, Tag):
        raise StoreDamaged(f"{record!r} is not a record of this store")
    return tag


def _whole(held: Record, ttl: float) -> Record:
    return msgspec.structs.replace(held, ttl=ttl, left=ttl)
