"""How requests reach an etcd cluster: one member at a time, the next where that may help. In both colours.

A question that changes nothing is asked again elsewhere when a member does not
answer; a write only where it certainly did not arrive. A member that sees no
leader refuses at once, and while none sees one the request waits. In a forked
child everything begins anew, and the parent's connections are not touched.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from leasehold.errors import StoreError, StoreUnavailable
from leasehold.rules import etcd_messages as messages
from leasehold.rules.etcd_messages import Lived, Txn
from leasehold.wires.chance import chance
from leasehold.wires.colour import Colour, drive
from leasehold.wires.etcd_errors import DEADLINE, Said, call_error
from leasehold.wires.etcd_link import BlockingSide, Call, CallFailed, Endpoint, Side, credentials_of
from leasehold.wires.etcd_url import EtcdConfig

T = TypeVar("T")

# How long to rest between two rounds of all members.
REST = 0.1
# So many rounds a question makes whose connections are all lost.
ROUNDS = 5
# A member without a leader refuses instead of waiting for one.
REQUIRE_LEADER = ("hasleader", "true")
# A parent's channels: kept, so that nothing in a forked child closes them.
_LEFT_BEHIND: list[object] = []


class LeaseGone(Exception):
    """The etcd lease a write was meant to hang on is no more. Nothing was written."""


class EtcdWire:
    """Everything the store asks of etcd."""

    def __init__(self, config: EtcdConfig, *, timeout: float, colour: Colour) -> None:
        self.config = config
        self.timeout = timeout
        self._colour = colour
        self._at = int(chance() * len(config.hosts))
        self._credentials: Any = None
        self._start()

    def _start(self) -> None:
        self._pid = os.getpid()
        self._endpoints: dict[int, Endpoint] = {}
        self._token = ""
        self.side: Side = self._make_side()

    def _make_side(self) -> Side:
        if self._colour.name == "blocking":
            return BlockingSide()
        from leasehold.wires.etcd_looped import LoopedSide  # noqa: PLC0415  it imports asyncio

        return LoopedSide()

    async def open(self, prefix: bytes) -> None:
        """Reach a member, and see that we may look at the keys that start so."""
        self._credentials = await self._colour.call(lambda: credentials_of(self.config))
        await self.ask(messages.RANGE, messages.list_page(prefix, messages.after_all(prefix), 1))

    async def close(self) -> None:
        endpoints, self._endpoints = self._endpoints, {}
        for endpoint in endpoints.values():
            await self.side.close(endpoint)

    # What is asked.

    async def look(self, message: bytes, *, patience: float | None = None) -> Txn:
        """A transaction that changes nothing."""
        return self._read(messages.read_txn, await self.ask(messages.TXN, message, patience=patience))

    async def change(self, message: bytes) -> Txn:
        """A transaction that changes something, or LeaseGone."""
        return self._read(messages.read_txn, await self.ask(messages.TXN, message, changes=True))

    async def grant(self, ttl: int) -> Lived:
        """A new lease. One whose answer was lost ends by itself."""
        return self._read(messages.read_grant, await self.ask(messages.GRANT, messages.grant(ttl)))

    async def keep_alive(self, leases: Sequence[int], *, patience: float | None = None) -> dict[int, Lived]:
        """Extend leases to their length from now, all in one flight. Those are missing of which nothing was heard."""
        if len(leases) == 1:
            answers: list[bytes | StoreError] = [
                await self.ask(messages.KEEP_ALIVE, messages.lease_id(leases[0]), patience=patience)
            ]
        else:
            answers = await self.ask_all(messages.KEEP_ALIVE, [messages.lease_id(lease) for lease in leases])
        lived = (self._read(messages.read_lived, answer) for answer in answers if isinstance(answer, bytes))
        return {one.lease: one for one in lived}

    async def time_to_live(self, leases: Sequence[int]) -> dict[int, float]:
        """What remains of leases, in seconds, as far as it could be learnt."""
        answers = await self.ask_all(messages.TIME_TO_LIVE, [messages.lease_id(lease) for lease in leases])
        lived = (self._read(messages.read_lived, answer) for answer in answers if isinstance(answer, bytes))
        return {one.lease: max(float(one.ttl), 0.0) for one in lived}

    # How it is asked.

    async def ask(self, method: str, message: bytes, *, changes: bool = False, patience: float | None = None) -> bytes:
        """The answer, from whichever member gives one within the timeout."""
        end = time.monotonic() + self.timeout
        tried = 0
        while True:
            at, endpoint = self._endpoint()
            limit = self._limit(end, changes=changes, patience=patience)
            try:
                return await self._try(endpoint, method, message, limit)
            except CallFailed as failed:
                said = failed.said
                error = call_error(str(endpoint.address), said, limit, changes=changes)
                tried += 1
                if said.is_lease_gone:
                    raise LeaseGone from failed
                if said.is_local:
                    self._move_on(at)
                if not await self._may_go_on(said, end, tried, changes=changes):
                    raise error from failed

    async def ask_all(self, method: str, all_messages: Sequence[bytes]) -> list[bytes | StoreError]:
        """The answers of one member to many questions that change nothing; StoreError where there is none."""
        _, endpoint = self._endpoint()
        try:
            metadata = await self._metadata(endpoint)
        except CallFailed as failed:
            raise call_error(str(endpoint.address), failed.said, self.timeout, changes=False) from failed
        calls = [Call(method, message, self.timeout, metadata) for message in all_messages]
        return [
            call_error(str(endpoint.address), answer.said, self.timeout, changes=False)
            if isinstance(answer, CallFailed)
            else answer
            for answer in await self.side.ask_all(endpoint, calls)
        ]

    async def ask_member(self, at: int, method: str, message: bytes) -> bytes:
        """The answer of one member and no other."""
        endpoint = self._dialled(at)
        try:
            return await self._try(endpoint, method, message, self.timeout, of_the_cluster=False)
        except CallFailed as failed:
            raise call_error(str(endpoint.address), failed.said, self.timeout, changes=False) from failed

    def begin_stream(self, method: str, requests: Iterator[bytes]) -> tuple[str, Any]:
        """A stream of messages to and from the member of the moment, and its address. Blocking: for a thread."""
        _, endpoint = self._endpoint()
        try:
            metadata = drive(self._metadata(endpoint, side=BlockingSide()))
        except CallFailed as failed:
            raise call_error(str(endpoint.address), failed.said, self.timeout, changes=False) from failed
        return str(endpoint.address), endpoint.channel.stream_stream(method)(requests, metadata=metadata)

    def leave(self, where: str) -> None:
        """The member there failed: ask another one from now on."""
        at = self._at
        if str(self.config.hosts[at]) == where:
            self._move_on(at)

    async def _try(
        self, endpoint: Endpoint, method: str, message: bytes, limit: float, *, of_the_cluster: bool = True
    ) -> bytes:
        for first in (True, False):
            metadata = await self._metadata(endpoint, of_the_cluster=of_the_cluster)
            try:
                return await self.side.ask(endpoint, Call(method, message, limit, metadata))
            except CallFailed as failed:
                if not (first and failed.said.is_stale_token and self.config.user):
                    raise
                # Refused before anything was done: tokens end when they are not used, and with the server.
                self._token = ""
        raise AssertionError("the second try returns or raises")

    async def _metadata(
        self, endpoint: Endpoint, *, of_the_cluster: bool = True, side: Side | None = None
    ) -> tuple[tuple[str, str], ...]:
        if self.config.user and not self._token:
            await self._log_in(endpoint, side or self.side)
        leader = (REQUIRE_LEADER,) if of_the_cluster else ()
        return (*leader, ("token", self._token)) if self._token else leader

    async def _log_in(self, endpoint: Endpoint, side: Side) -> None:
        message = messages.authenticate(self.config.user, self.config.password)
        try:
            answer = await side.ask(endpoint, Call(messages.AUTHENTICATE, message, self.timeout, ()))
        except CallFailed as failed:
            # As etcd's own client has it: without users everybody may do everything. The doctor tells.
            if not failed.said.is_auth_off:
                raise
        else:
            self._token = messages.read_token(answer)

    def _read(self, reader: Callable[[bytes], T], answer: bytes) -> T:
        try:
            return reader(answer)
        except ValueError as error:
            where = ", ".join(map(str, self.config.hosts))
            raise StoreUnavailable(f"{where} answered what etcd does not say: {error}; check host and port") from error

    def _endpoint(self) -> tuple[int, Endpoint]:
        at = self._at
        return at, self._dialled(at)

    def _dialled(self, at: int) -> Endpoint:
        if self._pid != os.getpid():
            _LEFT_BEHIND.append(self._endpoints)
            self._start()
        found = self._endpoints.get(at)
        if found is None:
            found = self._endpoints[at] = Endpoint(self.config.hosts[at], self._credentials)
        return found

    def _move_on(self, at: int) -> None:
        # Somebody else may have moved on already.
        if self._at == at:
            self._at = (at + 1) % len(self.config.hosts)

    def _limit(self, end: float, *, changes: bool, patience: float | None) -> float:
        """How long one member may take: a share of the time where another may be asked as well."""
        left = max(end - time.monotonic(), 0.01)
        limit = left if changes else min(left, self.timeout / len(self.config.hosts))
        return limit if patience is None else min(limit, patience)

    async def _may_go_on(self, said: Said, end: float, tried: int, *, changes: bool) -> bool:
        """Whether to ask the next member, after a rest where all have been asked and see no leader."""
        if time.monotonic() >= end or not said.is_local:
            return False
        if changes and not (said.is_unsent or said.is_leaderless):
            return False
        if tried % len(self.config.hosts):
            return True
        # All have been asked. A connection that was lost since its last use is only noticed now, and gRPC may need a
        # moment to see it: that counts for nothing.
        was_lost = not said.is_unsent and said.code != DEADLINE and tried < ROUNDS * len(self.config.hosts)
        if not (said.is_leaderless or was_lost):
            return False
        await self.side.pause(REST)
        return True
