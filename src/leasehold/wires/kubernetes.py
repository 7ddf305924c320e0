"""Requests to a Kubernetes API server: one flight each, over a few connections that stay open.

Nothing is retried, but for a request refused with 401: the server did not run it,
and the credentials may have been renewed. After a 429 nothing is sent until the
time the server asked for is over.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import urlencode

import h11
import msgspec

from leasehold.errors import PermissionDenied, StoreError, StoreUnavailable
from leasehold.rules.kubernetes_kinds import LEASES, Kind
from leasehold.wires.colour import Colour
from leasehold.wires.kubernetes_access import Access, find_access
from leasehold.wires.kubernetes_errors import (
    CONFLICT,
    FORBIDDEN,
    GONE,
    NOT_FOUND,
    TOO_MANY,
    UNAUTHORIZED,
    lacks_kind,
    refusal,
    status_of,
    wire_error,
)
from leasehold.wires.kubernetes_http import Answer, BlockingSide, Link, Place, Side
from leasehold.wires.kubernetes_url import KubernetesConfig
from leasehold.wires.pool import Pool

OK = 200
CREATED = 201
ACCEPTED = 202
# What a store decides about; all else is raised.
_ANSWERS = frozenset({OK, CREATED, ACCEPTED, NOT_FOUND, CONFLICT, GONE})
# Never so long that a lease ends of it.
QUIET_MAX = 3.0
# How long a server that starts may forbid what it allowed before.
STARTING = 15.0
AGENT = b"leasehold"
MERGE_PATCH = b"application/merge-patch+json"
JSON = b"application/json"


class Ask(NamedTuple):
    """One request. `name` None is the collection; `body` is sent as JSON."""

    method: str
    name: str | None = None
    body: Any = None
    query: dict[str, str] | None = None

    @property
    def verb(self) -> str:
        """What roles call it: reading the collection is a right of its own."""
        return "LIST" if self.method == "GET" and self.name is None else self.method


class Said(NamedTuple):
    """One answer: what was found, or None where there is nothing (404),
    something else (409) or no longer what a list began with (410). `date` is the server's clock, as it wrote it.
    """

    status: int
    body: Any
    date: bytes = b""


class KubernetesWire:
    """The way to the objects of one kind in one namespace."""

    def __init__(self, config: KubernetesConfig, *, timeout: float, colour: Colour, kind: Kind = LEASES) -> None:
        self.config: KubernetesConfig = config
        self.kind: Kind = kind
        self.timeout: float = timeout
        self.side: Side = side_of(colour)
        self._colour = colour
        self._access: Access | None = None
        self._quiet = 0.0
        self._allowed: set[str] = set()
        self._refused_at: float | None = None
        self._pool: Pool[Link] = Pool(config.pool, timeout, self.side.gate, "pool=")

    async def open(self) -> str:
        """Find server and credentials, and see that the server answers us; its version, if we may know."""
        self._access = await self._colour.call(partial(find_access, self.config))
        self._pool.reopen()
        answer = await self._send("GET", f"{self.access.path}/version", b"")
        if answer.status == FORBIDDEN:
            # Nobody must be allowed to ask that.
            return ""
        if answer.status != OK:
            raise refusal(self.where, "GET version", answer, reads=True)
        try:
            return str(msgspec.json.decode(answer.body)["gitVersion"])
        except (msgspec.MsgspecError, KeyError, TypeError) as error:
            raise self._stranger() from error

    async def close(self) -> None:
        """Close what is idle; what is in use closes when it comes back."""
        self._pool.close()

    @property
    def access(self) -> Access:
        """Where and as whom. Known once opened."""
        if self._access is None:
            raise StoreUnavailable("the store was not opened", applied=False)
        return self._access

    @property
    def where(self) -> str:
        return str(self.access.place)

    async def ask(self, ask: Ask) -> Said:
        """The answer to one request."""
        body = b"" if ask.body is None else msgspec.json.encode(ask.body)
        answer = await self._send(ask.method, target(self.access, self.kind, ask.name, ask.query), body)
        status = answer.status
        # 404 must mean the object: a missing namespace, a missing kind or a wrong server is no free lock.
        missing = status == NOT_FOUND and (status_of(answer).details or {}).get("kind") != self.kind.plural
        if status not in _ANSWERS or missing:
            raise self.refused(ask.verb, ask.name or self.kind.plural, answer)
        self.allowed(ask.verb)
        if status in {NOT_FOUND, CONFLICT, GONE}:
            return Said(status, None)
        try:
            return Said(status, msgspec.json.decode(answer.body), answer.headers.get(b"date", b""))
        except msgspec.MsgspecError as error:
            raise self._stranger() from error

    def allowed(self, verb: str) -> None:
        """The server did what was asked."""
        self._allowed.add(verb)
        self._refused_at = None

    def refused(self, verb: str, what: str, answer: Answer) -> StoreError:
        """The error for a refusal.

        A server that has just started knows no roles, accounts and custom kinds yet, and forbids
        everything: what was allowed before is believed to be forbidden only after a while.
        """
        reads = verb in {"GET", "LIST", "WATCH"}
        error = refusal(self.where, f"{verb} {what}", answer, reads=reads, kind=self.kind)
        may_pass = isinstance(error, PermissionDenied) or lacks_kind(answer.status, status_of(answer), self.kind)
        if not may_pass or verb not in self._allowed:
            return error
        now = time.monotonic()
        self._refused_at = now if self._refused_at is None else self._refused_at
        if now - self._refused_at > STARTING:
            return error
        return StoreUnavailable(f"{error}; it was allowed before, so the server may be starting", applied=False)

    def _stranger(self) -> StoreUnavailable:
        return StoreUnavailable(f"what answers at {self.where} is no API server of Kubernetes; check the server's URL")

    async def ask_all(self, asks: Sequence[Ask]) -> list[Said | StoreError]:
        """The answers, in order, several requests at once. What failed has a StoreError in its place.

        All of it ends within about twice the timeout, however many do not answer.
        """
        until = time.monotonic() + self.timeout

        async def one(ask: Ask) -> Said | StoreError:
            if time.monotonic() > until:
                return StoreUnavailable(f"no time was left to ask {self.where}", applied=False)
            try:
                return await self.ask(ask)
            except StoreError as error:
                return error

        if len(asks) <= 1:
            return [await one(ask) for ask in asks]
        return await self.side.abreast([partial(one, ask) for ask in asks])

    # One flight.

    async def _send(self, method: str, path: str, body: bytes) -> Answer:
        left = self._quiet - time.monotonic()
        if left > 0:
            raise StoreUnavailable(
                f"Kubernetes at {self.where} has too much to do (429) and asked to be left alone for {left:.1f} s",
                applied=False,
            )
        credentials = self.access.credentials
        answer = await self._flight(method, path, body)
        if answer.status == UNAUTHORIZED and await self._colour.call(credentials.forget):
            # What is open may carry the old certificate.
            self._pool.clear()
            answer = await self._flight(method, path, body)
        if answer.status == TOO_MANY:
            asked = answer.headers.get(b"retry-after", b"1")
            self._quiet = time.monotonic() + min(float(asked) if asked.isdigit() else 1.0, QUIET_MAX)
        return answer

    async def _flight(self, method: str, path: str, body: bytes) -> Answer:
        """A connection is given back only after the whole answer was read."""
        credentials, reads = self.access.credentials, method == "GET"
        header = credentials.ready()
        if header is None:
            header = await self._colour.call(credentials.fetch)
        request = request_of(method, path, self.access, header, body)
        link = await self._pool.take()
        fit: Link | None = None
        try:
            if link is None or link.is_stale():
                link = await self._fresh(link)
            try:
                answer = await link.exchange(request, body)
            except (OSError, EOFError, h11.ProtocolError) as error:
                self._pool.clear()
                raise wire_error(self.where, error, self.timeout, sent=True, reads=reads) from error
            fit = link
        finally:
            if fit is None and link is not None:
                link.close()
            self._pool.give(fit)
        return answer

    async def _fresh(self, stale: Link | None) -> Link:
        if stale is not None:
            # The server has hung up on this one, so on its neighbours too.
            stale.close()
            self._pool.clear()
        link = self.side.link(place_of(self.access), self.timeout)
        dialled = False
        try:
            await link.dial()
            dialled = True
        except (OSError, EOFError, h11.ProtocolError) as error:
            raise wire_error(self.where, error, self.timeout, sent=False, reads=False) from error
        finally:
            if not dialled:
                link.close()
        return link


def side_of(colour: Colour) -> Side:
    """The coloured parts of the wire."""
    if colour.name == "blocking":
        return BlockingSide()
    from leasehold.wires.kubernetes_looped import LoopedSide  # noqa: PLC0415  brings asyncio along

    return LoopedSide()


def place_of(access: Access) -> Place:
    """Where the server is, with the certificate that counts now."""
    given = access.credentials.tls
    return access.place if given is None else access.place._replace(tls=given)


def target(access: Access, kind: Kind, name: str | None, query: dict[str, str] | None) -> str:
    """The path of an object, or of all of them."""
    path = f"{access.path}{kind.path(access.namespace)}"
    return f"{path}{f'/{name}' if name else ''}{f'?{urlencode(query)}' if query else ''}"


def request_of(method: str, path: str, access: Access, authorization: str, body: bytes = b"") -> h11.Request:
    """A request with the headers that each has."""
    headers = [(b"host", str(access.place).encode()), (b"user-agent", AGENT), (b"accept", JSON)]
    if authorization:
        headers.append((b"authorization", authorization.encode()))
    if body:
        kind = MERGE_PATCH if method == "PATCH" else JSON
        headers += [(b"content-type", kind), (b"content-length", str(len(body)).encode())]
    return h11.Request(method=method, target=path, headers=headers)
