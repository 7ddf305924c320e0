"""One connection to PostgreSQL: dialled, greeted, asked, and heard.

On libpq itself (`psycopg.pq`), for three reasons: a request is then one flight
and returns when its time is over, which psycopg's blocking calls do not; both
colours share the exchange and differ only in how they wait for the socket; and
nothing is spent on cursors and adaptation that five fixed statements do not need.
"""

from __future__ import annotations

import select
import struct
import time
from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple

import msgspec
import psycopg
from psycopg import pq
from psycopg.conninfo import make_conninfo

from leasehold.errors import StoreError, StoreUnavailable, one_line
from leasehold.wires.postgres_errors import connection_error, lost, server_error, too_late
from leasehold.wires.postgres_url import PostgresConfig

READ = select.POLLIN
READ_WRITE = select.POLLIN | select.POLLOUT
TEXT, BINARY = 0, 1
OLDEST = 13

Column = bytes | None
Row = tuple[Column, ...]
# Yields what it waits for on the socket, is sent what became ready, returns the answers.
Answer = pq.abc.PGresult
Exchange = Generator[int, int, list[Answer]]

_GOOD = {pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK, pq.ExecStatus.PIPELINE_SYNC}


class Statement(NamedTuple):
    """A statement and how its parameters travel. Answers always come in binary."""

    name: bytes
    sql: bytes
    formats: tuple[int, ...]


Ask = tuple[Statement, Sequence[bytes | None]]


class Facts(msgspec.Struct, frozen=True):
    """What a server said of itself when it was greeted."""

    pooled: bool
    version: int
    standby: bool
    encoding: str
    synchronous_commit: str
    fsync: str
    isolation: str


# Set on a session of our own only: behind a pooler, whose process is not the one we were told, it would become
# somebody else's. A time limit; the isolation our functions need; and no plan made for an empty table, which would
# still be used when it is full.
_GREETING = Statement(
    b"",
    b"""SELECT pg_backend_pid() = $1::integer, current_setting('server_version_num'), pg_is_in_recovery(),
        current_setting('server_encoding'), current_setting('synchronous_commit'), current_setting('fsync'),
        current_setting('default_transaction_isolation'),
        CASE WHEN pg_backend_pid() = $1::integer THEN set_config('statement_timeout', $2::text, false) END,
        CASE WHEN pg_backend_pid() = $1::integer
            THEN set_config('default_transaction_isolation', 'read committed', false) END,
        CASE WHEN pg_backend_pid() = $1::integer THEN set_config('enable_seqscan', 'off', false) END""",
    (TEXT, TEXT),
)


class Link:
    """A connection of one user at a time. After any error but the server's own it must be closed."""

    __slots__ = ("_config", "_pgconn", "_prepared", "_socket", "facts", "fileno")

    def __init__(self, config: PostgresConfig, pgconn: pq.abc.PGconn) -> None:
        self._config = config
        self._pgconn = pgconn
        self._prepared: frozenset[bytes] = frozenset()
        self.fileno: int = pgconn.socket
        self._socket = select.poll()
        self._socket.register(self.fileno, READ)
        self.facts: Facts = self._greet()

    # One request.

    def send(self, statement: Statement, params: Sequence[bytes | None]) -> Exchange:
        """Begin a request; whoever drives the exchange to its end gets the answer for `rows`."""
        self._say(statement, params)
        return _exchange(self._pgconn)

    def send_all(self, asks: Sequence[Ask]) -> Exchange:
        """Begin several at once: one flight and one transaction. The answers are for `all_rows`."""
        self._pgconn.enter_pipeline_mode()
        for statement, params in asks:
            self._say(statement, params)
        self._pgconn.pipeline_sync()
        return _until_synced(self._pgconn)

    def _say(self, statement: Statement, params: Sequence[bytes | None]) -> None:
        if statement.name in self._prepared:
            self._pgconn.send_query_prepared(statement.name, params, statement.formats, BINARY)
        else:
            self._pgconn.send_query_params(statement.sql, params, None, statement.formats, BINARY)

    def rows(self, answers: Sequence[pq.abc.PGresult]) -> list[Row]:
        """The rows of the last answer, or the error that came instead."""
        for answer in answers:
            if answer.status not in _GOOD:
                raise self._error(answer)
        return _rows(answers[-1])

    def all_rows(self, answers: Sequence[pq.abc.PGresult]) -> list[list[Row]]:
        """The rows of each, or the first error that came instead."""
        if self._pgconn.status == pq.ConnStatus.OK:
            self._pgconn.exit_pipeline_mode()
        # The last one only says that these were all.
        self.rows(answers)
        return [_rows(answer) for answer in answers[:-1]]

    def drive(self, exchange: Exchange, until: float) -> list[pq.abc.PGresult]:
        """The answers, blocking this thread until `until` at most: then a TimeoutError."""
        try:
            wanted = next(exchange)
            while True:
                self._socket.modify(self.fileno, wanted)
                wanted = exchange.send(_wait(self._socket, until))
        except StopIteration as done:
            answers: list[pq.abc.PGresult] = done.value
            return answers

    def ask(self, statement: Statement, params: Sequence[bytes | None], until: float) -> list[Row]:
        """A whole request, blocking."""
        return self._whole(lambda: self.send(statement, params), until)

    def run(self, script: str, until: float) -> list[Row]:
        """Several statements as one transaction and one request, blocking."""

        def send() -> Exchange:
            self._pgconn.send_query(script.encode())
            return _exchange(self._pgconn)

        return self._whole(send, until)

    def prepare(self, statements: Sequence[Statement], until: float) -> None:
        """Have the server parse these once for all, where the session is ours."""
        if self.facts.pooled:
            return

        def send() -> Exchange:
            self._pgconn.enter_pipeline_mode()
            for statement in statements:
                self._pgconn.send_prepare(statement.name, statement.sql)
            self._pgconn.pipeline_sync()
            return _until_synced(self._pgconn)

        self._whole(send, until)
        self._pgconn.exit_pipeline_mode()
        self._prepared = frozenset(statement.name for statement in statements)

    def _whole(self, send: Callable[[], Exchange], until: float) -> list[Row]:
        try:
            return self.rows(self.drive(send(), until))
        except TimeoutError as error:
            raise too_late(self._config.place, self._config.timeout) from error
        except psycopg.Error as error:
            raise lost(self._config.place, str(error)) from error

    # Whether it can be used.

    def is_usable(self) -> bool:
        """Whether the next request may use it: alive, and in no transaction."""
        return self._pgconn.transaction_status == pq.TransactionStatus.IDLE

    def is_quiet(self) -> bool:
        """Whether the server has said nothing while it was idle: mostly that would be goodbye."""
        self._socket.modify(self.fileno, READ)
        return not self._socket.poll(0)

    def heard(self) -> set[str]:
        """The channels on which something was said. Does not wait."""
        try:
            self._pgconn.consume_input()
        except psycopg.Error as error:
            raise lost(self._config.place, str(error)) from error
        channels = set()
        while said := self._pgconn.notifies():
            channels.add(said.relname.decode())
        return channels

    def close(self) -> None:
        self._pgconn.finish()

    # Beginning.

    def _greet(self) -> Facts:
        until = time.monotonic() + self._config.timeout
        limit = str(max(int(self._config.timeout * 1000), 1))
        ((own, version, standby, encoding, commit, fsync, isolation, *_),) = self.ask(
            _GREETING, [str(self._pgconn.backend_pid).encode(), limit.encode()], until
        )
        facts = Facts(
            pooled=own != b"\1",
            version=int(version or 0) // 10000,
            standby=standby == b"\1",
            encoding=text(encoding),
            synchronous_commit=text(commit),
            fsync=text(fsync),
            isolation=text(isolation),
        )
        check_facts(self._config.place, facts)
        return facts

    def _error(self, answer: pq.abc.PGresult) -> StoreError:
        code = text(answer.error_field(pq.DiagnosticField.SQLSTATE))
        said = text(answer.error_field(pq.DiagnosticField.MESSAGE_PRIMARY))
        if not code:
            return lost(self._config.place, answer.get_error_message("utf-8"))
        severity = text(answer.error_field(pq.DiagnosticField.SEVERITY_NONLOCALIZED))
        return server_error(self._config.place, self._config.schema, code, said, ended=severity != "ERROR")


def dial(config: PostgresConfig, until: float) -> Link:
    """A new connection to the first host that gives one. Blocking; each host gets its share of the time."""
    for left, words in zip(range(len(config.hosts), 0, -1), config.hosts, strict=True):
        share = time.monotonic() + (until - time.monotonic()) / left
        try:
            return _dial_one(config, words, share)
        except StoreError:
            if left == 1:
                raise
    raise AssertionError("a URL names at least one host")


def _dial_one(config: PostgresConfig, words: dict[str, str], until: float) -> Link:
    pgconn = pq.PGconn.connect_start(make_conninfo("", **words).encode())
    try:
        said = _connect(pgconn, until)
        if said is None:
            return Link(config, pgconn)
    except TimeoutError:
        said = f"no answer within {config.timeout:g} s"
    except BaseException:
        pgconn.finish()
        raise
    pgconn.finish()
    raise connection_error(config.place, said)


def _connect(pgconn: pq.abc.PGconn, until: float) -> str | None:
    """What went wrong, or None."""
    while pgconn.status != pq.ConnStatus.BAD and (step := pgconn.connect_poll()) != pq.PollingStatus.OK:
        if step == pq.PollingStatus.FAILED:
            break
        # Looked up each time: libpq may go on to another address.
        socket = select.poll()
        socket.register(pgconn.socket, READ if step == pq.PollingStatus.READING else select.POLLOUT)
        _wait(socket, until)
    if pgconn.status != pq.ConnStatus.OK:
        return pgconn.get_error_message("utf-8")
    pgconn.nonblocking = 1
    return None


def check_facts(place: str, facts: Facts) -> None:
    """Refuse a server that cannot keep leases."""
    if facts.version < OLDEST:
        said = f"PostgreSQL {facts.version} is too old; Leasehold needs {OLDEST} or newer"
    elif facts.standby:
        said = "this server is a read-only standby; give the URL of the primary, or of all hosts: postgresql://a,b/db"
    elif facts.encoding != "UTF8":
        said = f"the database's encoding is {one_line(facts.encoding)}; give Leasehold one with ENCODING 'UTF8'"
    else:
        return
    raise StoreUnavailable(f"{one_line(place)}: {said}", applied=False)


# The exchange.


def _rows(answer: pq.abc.PGresult) -> list[Row]:
    columns = range(answer.nfields)
    return [tuple(answer.get_value(row, column) for column in columns) for row in range(answer.ntuples)]


def _wait(socket: select.poll, until: float) -> int:
    ready = socket.poll(max(until - time.monotonic(), 0.0) * 1000)
    if not ready:
        raise TimeoutError
    return ready[0][1]


def _exchange(pgconn: pq.abc.PGconn) -> Exchange:
    yield from _flush(pgconn)
    answers = []
    while (answer := (yield from _next(pgconn))) is not None:
        answers.append(answer)
    return answers


def _until_synced(pgconn: pq.abc.PGconn) -> Exchange:
    yield from _flush(pgconn)
    answers: list[pq.abc.PGresult] = []
    while not answers or answers[-1].status != pq.ExecStatus.PIPELINE_SYNC:
        answer = yield from _next(pgconn)
        if answer is not None:
            answers.append(answer)
        elif pgconn.status == pq.ConnStatus.BAD:
            # No more will come. What it said last, if anything, is the reason.
            if not answers:
                raise psycopg.OperationalError("the connection was closed before the first answer")
            break
    return answers


def _flush(pgconn: pq.abc.PGconn) -> Generator[int, int, None]:
    while pgconn.flush():
        # A server that cannot get rid of its answers stops reading ours.
        if (yield READ_WRITE) & READ:
            pgconn.consume_input()


def _next(pgconn: pq.abc.PGconn) -> Generator[int, int, pq.abc.PGresult | None]:
    while pgconn.is_busy():
        yield READ
        try:
            pgconn.consume_input()
        except psycopg.OperationalError:
            # What the server said before it hung up tells more than that it did.
            if pgconn.is_busy():
                raise
    return pgconn.get_result()


# Values as they travel.


def text(column: Column) -> str:
    """Text, or nothing."""
    return (column or b"").decode("utf-8", "replace")


def whole(column: Column) -> int:
    """A bigint or integer, or 0."""
    return int.from_bytes(column or b"", "big", signed=True)


def real(column: Column) -> float | None:
    """A double precision."""
    if column is None:
        return None
    number: float = struct.unpack("!d", column)[0]
    return number


def fields(column: Column) -> list[Column]:
    """The fields of a composite value: how many, then of each its type, its size (-1: NULL) and itself."""
    found: list[Column] = []
    at = 4
    while column and at < len(column):
        size = int.from_bytes(column[at + 4 : at + 8], "big", signed=True)
        at += 8
        found.append(None if size < 0 else column[at : at + size])
        at += max(size, 0)
    return found
