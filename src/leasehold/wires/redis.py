"""Requests to Redis: one flight each, to the server that has the bucket, answered one by one.

One server, a master that Sentinel names, or the masters of a Cluster: which one
is found out when a connection is opened, so that a failover is followed by
whoever connects next. A request is sent again only where the server said that it
did not run it: an unknown script, a bucket that moved.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import hiredis

from leasehold.errors import StoreError, StoreUnavailable
from leasehold.rules.addresses import Address
from leasehold.wires.colour import Colour
from leasehold.wires.link import Link
from leasehold.wires.pool import Pool
from leasehold.wires.redis_errors import reply_error, wire_error
from leasehold.wires.redis_finder import BUCKETS, Finder, bucket_keys
from leasehold.wires.redis_link import BlockingSide, Command, Server, Side, pack, pack_one, tls_context
from leasehold.wires.redis_url import RedisConfig

# How often one request may be sent on before we give up on it.
HOPS = 5
TRY_AGAIN = 0.05
# The replicas' share of a request's time, so that their silence is an answer before ours runs out.
CONFIRM = 0.5


class Script:
    """A script, known to servers by its digest."""

    def __init__(self, source: str, *, writes: bool) -> None:
        self.source: bytes = source.encode()
        self.digest: bytes = hashlib.sha1(self.source, usedforsecurity=False).hexdigest().encode()
        self.writes: bool = writes


class Call(NamedTuple):
    """A script to run on the keys of a bucket. One that writes answers with a 1 in front if it did.

    `tells`: somebody waits to be told of it, who is in a greater hurry than we are.
    """

    script: Script
    bucket: int
    arguments: tuple[bytes | str | int, ...]
    tells: bool = False


class _Errand(NamedTuple):
    """A call on its way: its place among the answers, and what the last server made of it."""

    place: int
    call: Call
    unknown: bool = False
    asking: Address | None = None


class RedisWire:
    """The way to one Redis, whatever it is made of."""

    def __init__(self, config: RedisConfig, scripts: Sequence[Script], *, timeout: float, colour: Colour) -> None:
        self.config: RedisConfig = config
        self._scripts = scripts
        self._timeout = timeout
        self._colour = colour
        self._side = side_of(colour)
        self._keys = [bucket_keys(bucket) for bucket in range(BUCKETS)]
        self._nodes: dict[Address | None, _Node] = {}
        # Where each bucket is, in a Cluster.
        self._places: list[Address] = []
        self._only = self._node(None) if config.mode != "cluster" and not config.wait else None

    async def open(self) -> Server:
        """Reach the server, or every master, see that we can work with it, and bring it our scripts."""
        tls = await self._colour.call(lambda: tls_context(self.config))
        self._finder = Finder(self.config, self._side, tls, self._timeout)
        for node in list(self._nodes.values()):
            node.pool.reopen()
        if self.config.mode == "cluster":
            await self._find_places()
        load: list[Command] = [("SCRIPT", "LOAD", script.source) for script in self._scripts]
        for address in self.addresses():
            for reply in await self.command(address, load):
                if isinstance(reply, hiredis.ReplyError):
                    raise reply_error(self._node(address).where, reply)
        return self._node(self.addresses()[0]).server

    def addresses(self) -> list[Address | None]:
        """The masters of a Cluster; else None alone, which stands for whoever is master."""
        return [*dict.fromkeys(self._places)] or [None]

    async def command(self, address: Address | None, commands: Sequence[Command]) -> list[Any]:
        """The replies of one of `addresses` to plain commands, in one flight; errors are among them."""
        return await self._flight(self._node(address), pack(commands), len(commands))

    async def ask(self, call: Call) -> Any:
        """The answer to one call."""
        errand = _Errand(0, call)
        if self._only is not None:
            # What nearly every request is: known script, one server, no replicas to wait for.
            (answer,) = await self._flight(self._only, pack_one(self._run(call)), 1)
            if not isinstance(answer, hiredis.ReplyError):
                return answer
            onward = self._onward(self._only, errand, answer)
            if onward is None:
                raise reply_error(self._only.where, answer, call.script.source)
            errand = onward
        (answer,) = await self._run_errands([errand])
        if isinstance(answer, StoreError):
            raise answer
        return answer

    async def ask_all(self, calls: Iterable[Call]) -> list[Any]:
        """The answers, in order; one flight a server. What failed has a StoreError in its place."""
        return await self._run_errands([_Errand(place, call) for place, call in enumerate(calls)])

    async def _run_errands(self, errands: Sequence[_Errand]) -> list[Any]:
        answers: list[Any] = [None] * len(errands)
        for _ in range(HOPS):
            if not errands:
                break
            again: list[_Errand] = []
            busy = False
            for node, group in await self._by_node(errands):
                for errand, reply in zip(group, await self._carry(node, group), strict=True):
                    answers[errand.place] = reply
                    if isinstance(reply, hiredis.ReplyError):
                        answers[errand.place] = reply_error(node.where, reply, errand.call.script.source)
                        onward = self._onward(node, errand, reply)
                        again += [onward] if onward else []
                        busy |= str(reply).startswith("TRYAGAIN")
            if busy:
                await self._side.pause(TRY_AGAIN)
            errands = again
        return answers

    async def close(self) -> None:
        """Close what is idle; what is in use closes when it comes back."""
        for node in list(self._nodes.values()):
            node.pool.close()

    # One flight.

    async def _carry(self, node: _Node, errands: Sequence[_Errand]) -> list[Any]:
        """What became of some errands to one server: replies, or one StoreError for all."""
        commands = [command for errand in errands for command in self._commands(errand)]
        wait = self.config.wait and any(errand.call.script.writes for errand in errands)
        if wait:
            commands.append(("WAIT", self.config.wait, round(self._timeout * CONFIRM * 1000)))
        # Redis writes last to whom it owed an answer first: that we are, if it owes us one for this.
        first: list[Command] = [("PING",)] if any(errand.call.tells for errand in errands) else []
        try:
            replies = await self._flight(node, pack([*first, *commands]), len(first) + len(commands))
        except StoreError as error:
            return [error] * len(errands)
        replies = replies[len(first) :]
        confirmed = replies.pop() if wait else 0
        if len(replies) > len(errands):
            # The +OK of each ASKING stands before its answer.
            replies = _without_asking(errands, replies)
        if wait and (isinstance(confirmed, hiredis.ReplyError) or confirmed < self.config.wait):
            return [self._unconfirmed(node, reply, confirmed) for reply in replies]
        return replies

    def _commands(self, errand: _Errand) -> Iterable[Command]:
        if errand.asking is not None:
            yield ("ASKING",)
        yield self._run(errand.call, unknown=errand.unknown)

    def _run(self, call: Call, *, unknown: bool = False) -> Command:
        script, bucket, arguments, _ = call
        if unknown:
            return (b"EVAL", script.source, b"2", *self._keys[bucket], *arguments)
        return (b"EVALSHA", script.digest, b"2", *self._keys[bucket], *arguments)

    def _unconfirmed(self, node: _Node, reply: Any, confirmed: Any) -> Any:
        if not isinstance(reply, list) or reply[:1] != [1]:
            return reply
        if isinstance(confirmed, hiredis.ReplyError):
            return reply_error(node.where, confirmed)
        return StoreUnavailable(
            f"{confirmed} of {self.config.wait} replicas of Redis at {node.where} confirmed the change in time; "
            "it may be lost in a failover, so it does not count. Bring the replicas back, or lower wait= in the URL"
        )

    async def _flight(self, node: _Node, packed: bytes, count: int) -> list[Any]:
        """The replies to packed commands. A connection is given back only after all its replies were read."""
        link = await node.pool.take()
        fit: Link | None = None
        try:
            if link is None or link.is_stale():
                link = await self._fresh(node, link)
            try:
                replies = await link.exchange(packed, count)
            except (OSError, EOFError, hiredis.HiredisError) as error:
                self._lost(node)
                raise wire_error(node.where, error, self._timeout, sent=True) from error
            fit = link
        finally:
            if fit is None and link is not None:
                link.close()
            node.pool.give(fit)
        return replies

    async def _fresh(self, node: _Node, stale: Link | None) -> Link:
        if stale is not None:
            # The server has hung up on this one, so on its neighbours too.
            stale.close()
            node.pool.clear()
        try:
            link, node.server = await self._finder.dial(node.address)
        except StoreError:
            self._lost(node)
            raise
        node.where, node.down = str(link.address), False
        return link

    def _lost(self, node: _Node) -> None:
        node.pool.clear()
        if node.address is not None:
            # Look again where each bucket is, and ask this one last.
            node.down = True
            self._places = []

    # Which server.

    async def _by_node(self, errands: Iterable[_Errand]) -> Iterable[tuple[_Node, list[_Errand]]]:
        if self.config.mode != "cluster":
            return ((self._node(None), list(errands)),)
        groups: dict[Address | None, list[_Errand]] = {}
        # Another thread may find a server gone, and forget the places, at any time.
        places = self._places or await self._find_places()
        for errand in errands:
            groups.setdefault(errand.asking or places[errand.call.bucket], []).append(errand)
        return [(self._node(address), group) for address, group in groups.items()]

    def _onward(self, node: _Node, errand: _Errand, reply: hiredis.ReplyError) -> _Errand | None:
        """Where to go after an error that says the call was not run and might be elsewhere; None if it is final."""
        code, _, rest = str(reply).partition(" ")
        if code == "NOSCRIPT":
            # Restarted, failed over or flushed: the source goes along, and stays there.
            return errand._replace(unknown=True)
        if code == "READONLY":
            # A master that has become a replica: whoever asks next must find the new one.
            node.pool.clear()
        if self.config.mode != "cluster":
            return None
        if code == "TRYAGAIN":
            return errand._replace(asking=None)
        if code in {"MOVED", "ASK"}:
            host, _, port = rest.rpartition(" ")[2].rpartition(":")
            # A node may leave its host out: then it is the one that was asked.
            place = Address(host or (node.address or self.config.hosts[0]).host, int(port))
            if code == "ASK":
                return errand._replace(asking=place)
            places = [*self._places]
            if places:
                places[errand.call.bucket] = place
            self._places = places
            return errand._replace(asking=None)
        return None

    async def _find_places(self) -> list[Address]:
        known = {address: node.down for address, node in list(self._nodes.items()) if address is not None}
        hosts = dict.fromkeys(self.config.hosts, False) | known
        self._places = places = await self._finder.places(sorted(hosts, key=hosts.__getitem__))
        return places

    def _node(self, address: Address | None) -> _Node:
        node = self._nodes.get(address)
        if node is None:
            node = self._nodes.setdefault(address, _Node(address, self.config, self._timeout, self._side))
        return node


class _Node:
    """One server and our connections to it. Without an address it is whoever is master now."""

    def __init__(self, address: Address | None, config: RedisConfig, timeout: float, side: Side) -> None:
        self.address = address
        self.where = str(address or config.hosts[0])
        self.down = False
        self.pool: Pool[Link] = Pool(config.pool, timeout, side.gate, "pool=")
        self.server = Server()


def side_of(colour: Colour) -> Side:
    """The coloured parts of the wire."""
    if colour.name == "blocking":
        return BlockingSide()
    from leasehold.wires.redis_looped import LoopedSide  # noqa: PLC0415  brings asyncio along

    return LoopedSide()


def _without_asking(errands: Sequence[_Errand], replies: Sequence[Any]) -> list[Any]:
    left = iter(replies)
    kept = []
    for errand in errands:
        if errand.asking is not None:
            next(left)
        kept.append(next(left))
    return kept
