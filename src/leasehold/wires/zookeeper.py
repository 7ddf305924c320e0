"""Sessions with ZooKeeper: one connection each, one flight at a time, kept alive by nothing but what is asked on it.

kazoo's own client pings for as long as its threads run, and sends what was left in
its queue when it has found a server again: a program that hangs would hold its
leases for ever, and nobody could say whether a request was applied. So only its
protocol layer is used. A connection that is lost leaves the session as it is: the
next flight takes it up again at whichever server answers, if it has not expired.
"""

from __future__ import annotations

import os
import ssl
import weakref
from collections.abc import Sequence
from typing import Any

from leasehold.errors import StoreError, StoreUnavailable
from leasehold.wires.chance import chance
from leasehold.wires.colour import Colour
from leasehold.wires.link import Link, SocketLink
from leasehold.wires.pool import Gate
from leasehold.wires.zookeeper_errors import reply_error, wire_error
from leasehold.wires.zookeeper_frames import (
    SESSION_EXPIRED,
    SESSION_MOVED,
    BadFrame,
    Frames,
    Granted,
    Refused,
    Reply,
    Request,
    answer,
    pack,
    pack_close,
    pack_connect,
    pack_login,
    read_connect,
    read_reply,
)
from leasehold.wires.zookeeper_link import BlockingSide, Side, tls_context
from leasehold.wires.zookeeper_url import ZooKeeperConfig

# What may go wrong between two programs.
TROUBLE = (OSError, EOFError, BadFrame)
# Asked for to learn what a server grants at least and at most. The most is what its milliseconds can say.
LEAST = 0.001
MOST = 2_147_483.0
# A server that is not the leader tells it of its sessions every half tick, and a timeout has two ticks at least. So a
# session asked something within half of its timeout has time enough left for that; an older one is taken up anew,
# which the leader itself confirms.
FRESH = 0.5
_NOT_HERE = (Refused(SESSION_EXPIRED), Refused(SESSION_MOVED))


class ZooKeeperWire:
    """The way to one ensemble: who is asked next, and the newest change that was seen."""

    def __init__(self, config: ZooKeeperConfig, *, timeout: float, colour: Colour) -> None:
        self.config: ZooKeeperConfig = config
        self.timeout: float = timeout
        self.colour: Colour = colour
        self.side: Side = side_of(colour)
        # A server that lags behind what we have seen refuses us: reading never goes back in time.
        self.zxid: int = 0
        # Nothing is connected before `open` and after `close`: nobody would hang up again.
        self.is_open: bool = False
        self._tls: ssl.SSLContext | None = None
        self._turn = int(chance() * len(config.hosts))

    async def open(self) -> None:
        """Read what TLS needs. Connections are made when something is asked."""
        self._tls = await self.colour.call(lambda: tls_context(self.config))
        self.is_open = True

    def close(self) -> None:
        """Connect no more. Every session hangs up by itself."""
        self.is_open = False

    async def limits(self) -> tuple[float, float]:
        """The shortest and the longest session the server grants, found by asking for both."""
        found = []
        for asked in (LEAST, MOST):
            probe = Session(self, asked)
            await probe.attach()
            found.append(probe.timeout)
            await probe.end()
        return found[0], found[1]

    async def connect(
        self,
        timeout: float,  # noqa: ASYNC109  of the session, not of this call
        session: int,
        password: bytes,
    ) -> tuple[Link, Granted]:
        """A connection to the first server that answers, and what it grants; logged in. Nothing of ours is applied."""
        hosts = self.config.hosts
        failed: StoreError | None = None
        for _ in hosts:
            link = self.link()
            try:
                granted = await self._begin(link, timeout, session, password)
            except StoreUnavailable as error:
                failed = error
                self.turn_away()
                continue
            link.timeout = self.timeout
            return link, granted
        raise failed or StoreUnavailable("no server is named", applied=False)

    def link(self) -> Link:
        """A connection to the server whose turn it is. Several share the time that one call may take."""
        hosts = self.config.hosts
        return self.side.link(hosts[self._turn % len(hosts)], self._tls, self.timeout / len(hosts))

    def line(self) -> SocketLink:
        """The same for a thread, whatever our colour: for the ears."""
        hosts = self.config.hosts
        return SocketLink(hosts[self._turn % len(hosts)], self._tls, self.timeout, Frames())

    def turn_away(self) -> None:
        """The server whose turn it is did not do: ask another next."""
        self._turn += 1

    def see(self, frame: bytes) -> Reply:
        """A reply, its number noted."""
        reply = read_reply(frame)
        self.zxid = max(self.zxid, reply.zxid)
        return reply

    async def _begin(
        self,
        link: Link,
        timeout: float,  # noqa: ASYNC109  of the session, not of this call
        session: int,
        password: bytes,
    ) -> Granted:
        keep = False
        try:
            await link.dial()
            (frame, *_) = await link.exchange(pack_connect(self.zxid, timeout, session, password), 1)
            granted = read_connect(frame)
            keep = granted.session != 0 and granted.timeout > 0
            if keep and self.config.user:
                keep = False
                (frame, *_) = await link.exchange(pack_login(self.config.user, self.config.password), 1)
                code = self.see(frame).code
                if code:
                    raise reply_error(str(link.address), code, self.config.chroot or "/")
                keep = True
        except TROUBLE as error:
            raise wire_error(str(link.address), error, link.timeout, sent=False) from error
        finally:
            if not keep:
                link.close()
        return granted if keep else Granted(0, b"", 0.0, granted.read_only)


class Session:
    """A session of ours. `id` 0 and `timeout` 0.0 before the first flight; another `life` once another replaced it."""

    def __init__(self, wire: ZooKeeperWire, asked: float) -> None:
        self.asked: float = asked
        self.id: int = 0
        self.timeout: float = 0.0
        self.life: int = 0
        # On our own clock, when the last flight was sent that was answered.
        self.fresh: float = 0.0
        self.where: str = str(wire.config.hosts[0])
        self.password: bytes = b""
        self._wire = wire
        self._link: Link | None = None
        self._turn = _Turn(wire.side.gate())
        _ALIVE.add(self)

    async def ask(self, requests: Sequence[Request]) -> list[Any]:
        """The answers to all, in one flight; a refusal is among them. Only what was refused for the session's sake,
        from the first request on, is asked again, on the session that is now ours.
        """
        answers = await self._flight(requests)
        return await self._flight(requests) if answers[0] in _NOT_HERE else answers

    async def attach(self) -> None:
        """Be connected, with a session that is fresh."""
        await self._turn.take(self._wire.timeout)
        try:
            await self._ready()
        finally:
            self._turn.give()

    async def end(self, *, politely: bool = True) -> None:
        """Hang up. Politely: the server ends the session now, with all that lives in it; else after its timeout."""
        try:
            await self._turn.take(self._wire.timeout)
        except StoreUnavailable:
            return  # whoever is using it hangs up
        try:
            if politely and self._link is not None:
                await self._link.exchange(pack_close(), 1)
                self.id, self.password = 0, b""
        except TROUBLE:
            return  # then it ends after its timeout
        finally:
            self._hang_up()
            self._turn.give()

    async def _flight(self, requests: Sequence[Request]) -> list[Any]:
        await self._turn.take(self._wire.timeout)
        fit = False
        try:
            link = await self._ready()
            sent = self._wire.colour.clock.now()
            try:
                found = await link.exchange(pack(requests), len(requests))
                replies = [self._wire.see(frame) for frame in found]
                answers = [answer(request, reply) for request, reply in zip(requests, replies, strict=True)]
            except TROUBLE as error:
                self._wire.turn_away()
                raise wire_error(self.where, error, self._wire.timeout, sent=True) from error
            # One that is no longer ours is taken up anew by the next flight.
            fit = answers[0] not in _NOT_HERE
            if fit:
                self.fresh = sent
        finally:
            if not fit or not self._wire.is_open:
                self._hang_up()
            self._turn.give()
        return answers

    async def _ready(self) -> Link:
        if not self._wire.is_open:
            raise StoreUnavailable("the client was closed; connect again", applied=False)
        if self._link is not None and (self._link.is_stale() or not self._is_fresh()):
            self._hang_up()
        if self._link is None:
            await self._take_up()
        if self._link is None:
            raise StoreUnavailable(f"ZooKeeper at {self.where} ends every session at once; try again", applied=False)
        return self._link

    def _is_fresh(self) -> bool:
        return self._wire.colour.clock.now() - self.fresh <= FRESH * self.timeout

    async def _take_up(self) -> None:
        """Go on with the session we had, or begin one if there is none or it has expired."""
        for session, password in ((self.id, self.password), (0, b"")):
            sent = self._wire.colour.clock.now()
            link, granted = await self._wire.connect(self.timeout or self.asked, session, password)
            self.where = str(link.address)
            if not granted.session:
                continue
            if granted.timeout < self.timeout:
                link.close()
                self._wire.turn_away()
                raise StoreUnavailable(
                    f"ZooKeeper at {self.where} grants sessions of {granted.timeout:g} s where {self.timeout:g} s were "
                    "granted before; give all servers the same maxSessionTimeout",
                    applied=False,
                )
            if granted.session != self.id:
                self.life += 1
            self._link, self.fresh = link, sent
            self.id, self.password, self.timeout = granted.session, granted.password, granted.timeout
            return

    def _hang_up(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()

    def after_fork_in_child(self) -> None:
        """The session is the parent's. Its connection is kept where nobody uses it, so that nothing here closes it."""
        if self._link is not None:
            _LEFT_BEHIND.append(self._link)
            self._link = None
        self.id, self.password, self.timeout = 0, b"", 0.0
        self.life += 1
        self._turn = _Turn(self._wire.side.gate())


class _Turn:
    """One at a time, the others wait."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        # Popping and appending need no lock.
        self._free = [True]

    async def take(self, timeout: float) -> None:  # noqa: ASYNC109  in real time, whatever the client's clock says
        if not self._taken() and not await self._gate.until(self._taken, timeout):
            raise StoreUnavailable(
                f"other calls were using this client's connection to ZooKeeper for {timeout:g} s; make fewer calls at "
                "once, or use another client",
                applied=False,
            )

    def give(self) -> None:
        self._free.append(True)
        if self._gate.waiting:
            self._gate.knock()

    def _taken(self) -> bool:
        try:
            return self._free.pop()
        except IndexError:
            return False


def side_of(colour: Colour) -> Side:
    """The coloured parts of the wire."""
    if colour.name == "blocking":
        return BlockingSide()
    from leasehold.wires.zookeeper_looped import LoopedSide  # noqa: PLC0415  brings asyncio along

    return LoopedSide()


_ALIVE: weakref.WeakSet[Session] = weakref.WeakSet()
_LEFT_BEHIND: list[Link] = []


def _after_fork_in_child() -> None:
    for session in list(_ALIVE):
        session.after_fork_in_child()


os.register_at_fork(after_in_child=_after_fork_in_child)
