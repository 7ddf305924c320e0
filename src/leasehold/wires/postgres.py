"""One PostgreSQL database, reached through a few connections; every call is one request.

Not through psycopg_pool: its worker threads do not survive a fork, and it has two
sources for two colours. A connection that broke, whose answer did not come in time
or whose user was cancelled is closed and never used again.
"""

from __future__ import annotations

import secrets
import select
import time
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, TypeVar

import psycopg

from leasehold.errors import StoreUnavailable
from leasehold.wires.colour import Colour
from leasehold.wires.ears import HEARTBEAT
from leasehold.wires.pool import Pool, ThreadGate
from leasehold.wires.postgres_errors import lost, too_late
from leasehold.wires.postgres_link import TEXT, Answer, Ask, Exchange, Facts, Link, Row, Statement, dial
from leasehold.wires.postgres_url import PostgresConfig

if TYPE_CHECKING:
    from leasehold.wires.postgres_looped import PostgresLooped

# How long a message from one connection to another may take before we believe that none comes.
ARRIVAL = 0.5

T = TypeVar("T")

_NOTIFY = Statement(b"", b"SELECT pg_notify($1::text, '')", (TEXT,))
_SESSION = Statement(b"", b"SELECT pg_backend_pid()", ())


class PostgresWire:
    """The connections of one client."""

    def __init__(self, config: PostgresConfig, colour: Colour) -> None:
        self.config: PostgresConfig = config
        self._colour = colour
        self._looped = _looped() if colour.name == "asyncio" else None
        make_gate = ThreadGate if self._looped is None else self._looped.make_gate
        self._pool: Pool[Link] = Pool(config.pool, config.timeout, make_gate, "pool=")
        self._welcome: Callable[[Link, float], None] = lambda _link, _until: None
        self._statements: Sequence[Statement] = ()
        # Whether there is a pooler in front, known once it is open.
        self.pooled: bool = False

    async def open(self, welcome: Callable[[Link, float], None], statements: Sequence[Statement]) -> Facts:
        """Reach the server. `welcome` sees every new connection first; `statements` are what will be asked most."""
        self._welcome = welcome
        self._statements = statements
        self._pool.reopen()
        link = await self._take()
        self._pool.give(link)
        self.pooled = link.facts.pooled
        return link.facts

    async def ask(self, statement: Statement, params: Sequence[bytes | None]) -> list[Row]:
        """The rows of one statement: one request, one transaction, answered within the timeout or not at all."""
        return await self._request(lambda link: link.send(statement, params), lambda link, found: link.rows(found))

    async def ask_all(self, asks: Sequence[Ask]) -> list[list[Row]]:
        """The rows of several statements, in order: one request and one transaction all the same."""
        return await self._request(lambda link: link.send_all(asks), lambda link, found: link.all_rows(found))

    async def _request(self, send: Callable[[Link], Exchange], read: Callable[[Link, list[Answer]], T]) -> T:
        link = await self._take()
        answered = False
        try:
            until = time.monotonic() + self.config.timeout
            exchange = send(link)
            if self._looped is None:
                answers = link.drive(exchange, until)
            else:
                answers = await self._looped.drive(exchange, link.fileno, until)
            answered = True
            return read(link, answers)
        except TimeoutError as error:
            raise too_late(self.config.place, self.config.timeout) from error
        except psycopg.Error as error:
            raise lost(self.config.place, str(error)) from error
        finally:
            # Not after a timeout or a cancellation: the answer is still to come, and must not reach anybody else.
            keep = answered and link.is_usable()
            if not keep:
                link.close()
            self._pool.give(link if keep else None)

    async def can_hear(self) -> bool:
        """Whether a message sent on one connection arrives on another: not through a pooler of transactions."""
        if self.config.place in _DEAF:
            return False
        hears = await self._colour.call(self._try_to_hear)
        if not hears:
            _DEAF.add(self.config.place)
        return hears

    async def close(self) -> None:
        """Close what is idle; what is lent closes when it comes back."""
        self._pool.close()

    async def _take(self) -> Link:
        link = await self._pool.take()
        try:
            if link is not None:
                if link.is_quiet():
                    return link
                # The server hung up while nobody used it: that is no reason to fail.
                link.close()
            return await self._colour.call(self._connect)
        except BaseException:
            self._pool.give(None)
            raise

    def _connect(self) -> Link:
        until = time.monotonic() + self.config.timeout
        try:
            link = dial(self.config, until)
            try:
                self._welcome(link, until)
                link.prepare(self._statements, until)
            except BaseException:
                link.close()
                raise
        except StoreUnavailable as error:
            # Whatever broke, the request itself was not sent yet.
            raise StoreUnavailable(str(error), applied=False) from error
        return link

    def _try_to_hear(self) -> bool:
        line = PostgresLine(self.config)
        try:
            line.connect()
            until = time.monotonic() + self.config.timeout
            speaker = dial(self.config, until)
            try:
                # Two connections that are served by one session share it: nothing need be tried on it.
                shared = line.ask(_SESSION) == speaker.ask(_SESSION, [], until)
                return not shared and _hears(line, speaker, until)
            finally:
                speaker.close()
        except StoreUnavailable:
            # Not even a second connection: then there is none to listen on.
            return False
        finally:
            line.close()


# Places that could not be heard: finding that out takes half a second, and looking instead is always right.
_DEAF: set[str] = set()


class PostgresLine:
    """The connection of `wires/ears.py` that listens. Its session must be its own."""

    silence: float = HEARTBEAT

    def __init__(self, config: PostgresConfig) -> None:
        self._config = config
        self._link: Link | None = None

    def connect(self) -> None:
        self._link = dial(self._config, self._until())

    def fileno(self) -> int:
        return self._connected().fileno

    def listen(self, channel: str) -> None:
        # And a sign that somebody listens, for which it waits until writes under way are visible.
        self.say(f'LISTEN "{channel}"; SELECT {self._config.schema}.hear({_bucket(channel)})')

    def unlisten(self, channels: Collection[str]) -> None:
        # Together they are one transaction.
        ends = (f'UNLISTEN "{each}"; SELECT {self._config.schema}.unhear({_bucket(each)})' for each in channels)
        self.say("; ".join(ends))

    def drain(self) -> dict[str, bytes]:
        return dict.fromkeys(self._connected().heard(), b"")

    def ping(self) -> None:
        self.say("SELECT 1")

    def close(self) -> None:
        if self._link is not None:
            self._link.close()

    def say(self, script: str) -> None:
        """Have something done in this session."""
        self._connected().run(script, self._until())

    def ask(self, statement: Statement) -> list[Row]:
        """The rows of a statement without parameters."""
        return self._connected().ask(statement, [], self._until())

    def hears(self, channel: str, until: float) -> bool:
        """Whether something is said on a channel until then."""
        waiting = select.poll()
        waiting.register(self.fileno(), select.POLLIN)
        while channel not in self.drain():
            if not waiting.poll(max(until - time.monotonic(), 0.0) * 1000):
                return False
        return True

    def _until(self) -> float:
        return time.monotonic() + self._config.timeout

    def _connected(self) -> Link:
        if self._link is None:
            raise StoreUnavailable("this line is not connected", applied=False)
        return self._link


def _hears(line: PostgresLine, speaker: Link, until: float) -> bool:
    channel = f"leasehold_probe_{secrets.token_hex(8)}"
    line.say(f'LISTEN "{channel}"')
    speaker.ask(_NOTIFY, [channel.encode()], until)
    heard = line.hears(channel, time.monotonic() + ARRIVAL)
    line.say(f'UNLISTEN "{channel}"')
    return heard


def _bucket(channel: str) -> int:
    """Which sign stands for a channel, `leasehold_BUCKET_…`: see `hear` in the schema."""
    return int(channel.split("_")[1], 16)


def _looped() -> PostgresLooped:
    from leasehold.wires.postgres_looped import PostgresLooped  # noqa: PLC0415  a blocking program never pays for it

    return PostgresLooped()
