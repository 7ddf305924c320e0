"""Messages that are written in the caller's transaction: published at least once, in order for each key."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

import leasehold
from leasehold import sql
from tests.sql.support import Ledger
from tests.support import eventually

QUICK = leasehold.Backoff(base=0.01, cap=0.02)


@pytest.fixture
def locks(request: pytest.FixtureRequest) -> Iterator[leasehold.Locks]:
    with leasehold.connect(f"memory://{request.node.name}") as client:
        yield client


def write(ledger: Ledger, *messages: tuple[str | None, bytes]) -> list[int]:
    connection = ledger.connect()
    numbers = [sql.publish(connection, "topic", payload, key=key) for key, payload in messages]
    connection.commit()
    return numbers


def waiting(ledger: Ledger) -> list[Any]:
    return ledger.seen("SELECT id FROM leasehold_outbox ORDER BY id")


def test_a_message_is_published_once_its_transaction_has_committed(ledger: Ledger, locks: leasehold.Locks) -> None:
    got: list[sql.Message] = []
    relay, connection = sql.Relay(locks, ledger.connect, publish=got.append), ledger.connect()
    sql.publish(connection, "charged", b"lost", key="a")
    connection.rollback()
    assert relay.drain() == 0
    number = sql.publish(connection, "charged", b"\x00kept", key="a")
    if ledger.postgres:
        # On SQLite it would wait for the one who writes.
        assert relay.drain() == 0
    connection.commit()
    assert relay.drain() == 1
    assert [(one.id, one.topic, one.key, one.payload, one.attempt) for one in got] == [
        (number, "charged", "a", b"\x00kept", 1)
    ]
    assert (waiting(ledger), relay.drain()) == ([], 0)


def test_work_and_its_message_last_together(ledger: Ledger, locks: leasehold.Locks) -> None:
    once, connection = sql.Once(locks), ledger.connect()

    def charge(work: sql.Work) -> int:
        sql.publish(connection, "charged", b"5", key="account/7")
        if work.key == "fails":
            raise OSError
        return 1

    with pytest.raises(OSError):
        once.run(connection, "fails", charge)
    assert waiting(ledger) == []
    assert [once.run(connection, "works", charge) for _ in range(2)] == [1, 1]
    assert len(waiting(ledger)) == 1


def test_messages_go_in_order_in_batches(ledger: Ledger, locks: leasehold.Locks) -> None:
    got: list[int] = []
    numbers = write(ledger, *[(f"k{n % 3}", b"%d" % n) for n in range(25)])
    relay = sql.Relay(locks, ledger.connect, publish=lambda message: got.append(message.id), batch=4)
    assert relay.drain() == 25
    assert got == numbers == sorted(numbers)


def test_a_key_whose_message_cannot_be_published_waits_alone_and_keeps_its_order(
    ledger: Ledger, locks: leasehold.Locks
) -> None:
    got: list[tuple[str | None, bytes, int]] = []
    broken = threading.Event()
    broken.set()

    def publish(message: sql.Message) -> None:
        if message.payload == b"a1" and broken.is_set():
            raise OSError("no answer")
        got.append((message.key, message.payload, message.attempt))

    write(ledger, ("a", b"a1"), ("b", b"b1"), (None, b"n1"), ("a", b"a2"), ("b", b"b2"), (None, b"n2"))
    relay = sql.Relay(locks, ledger.connect, publish=publish, backoff=QUICK, batch=3)
    with running(relay):
        eventually(lambda: [payload for _, payload, _ in got] == [b"b1", b"n1", b"b2", b"n2"])
        eventually(lambda: ledger.seen("SELECT attempts FROM leasehold_outbox WHERE attempts > 2"))
        write(ledger, ("a", b"a3"), ("b", b"b3"))
        eventually(lambda: got[-1][1] == b"b3")
        broken.clear()
        eventually(lambda: got[-1][1] == b"a3")
    of_a = [(payload, attempt) for key, payload, attempt in got if key == "a"]
    assert [payload for payload, _ in of_a] == [b"a1", b"a2", b"a3"]
    assert of_a[0][1] > 3
    assert waiting(ledger) == []


def test_draining_ends_though_a_message_fails_again_and_again(
    ledger: Ledger, locks: leasehold.Locks, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(message: sql.Message) -> None:
        if message.key == "a":
            raise OSError("100 % full")

    write(ledger, ("a", b"1"), ("b", b"1"))
    hasty = leasehold.Backoff(base=0.001, cap=0.001)
    assert sql.Relay(locks, ledger.connect, publish=refuse, backoff=hasty).drain() == 1
    assert "of 'topic' could not be published: 100 % full" in caplog.text
    assert len(waiting(ledger)) == 1


def test_a_relay_that_loses_its_lease_while_it_drains_says_so(ledger: Ledger, locks: leasehold.Locks) -> None:
    numbers = write(ledger, ("a", b"1"), ("a", b"2"), ("a", b"3"))

    def lose(message: sql.Message) -> None:
        engine = locks._engine
        (grant,) = engine.heartbeat.held()
        engine.lose(grant, "as if it had been stopped")

    with pytest.raises(leasehold.LeaseLost, match="as if it had been stopped"):
        sql.Relay(locks, ledger.connect, publish=lose).drain()
    # Nobody came after it: the one that it published need not be published again.
    assert waiting(ledger) == numbers[1:]


def test_a_relay_that_waits_is_woken_by_a_commit(ledger: Ledger, locks: leasehold.Locks) -> None:
    got: list[bytes] = []
    # Long before it would look again by itself.
    relay = sql.Relay(locks, ledger.connect, publish=lambda message: got.append(message.payload), poll=300)
    with running(relay):
        for n in range(3):
            write(ledger, (None, b"%d" % n))
            eventually(lambda n=n: len(got) == n + 1)
    assert got == [b"0", b"1", b"2"]


def test_one_relay_works_at_a_time_and_the_next_takes_over(ledger: Ledger, locks: leasehold.Locks) -> None:
    got: list[tuple[int, int]] = []
    relays = [
        sql.Relay(locks, ledger.connect, publish=lambda message, me=me: got.append((me, message.id)), poll=0.05)
        for me in range(2)
    ]
    with running(relays[0]):
        write(ledger, ("a", b"1"))
        eventually(lambda: len(got) == 1)
        with pytest.raises(leasehold.AcquireTimeout):
            relays[1].drain(wait=0)
    assert write(ledger, ("a", b"2"))
    assert relays[1].drain() == 1
    assert [me for me, _ in got] == [0, 1]


@pytest.mark.parametrize("leased", [True, False], ids=["under the lease", "without it"])
def test_what_was_published_last_is_the_latest_only_under_the_lease(
    ledger: Ledger, locks: leasehold.Locks, *, leased: bool
) -> None:
    """The control: two relays that do not know of each other end with a message of yesterday."""
    got: list[bytes] = []
    write(ledger, ("a", b"1"), ("a", b"2"))

    def second(message: sql.Message) -> None:
        got.append(message.payload)

    def first(message: sql.Message) -> None:
        if message.payload == b"1":
            name = "outbox" if leased else "another"
            with contextlib.suppress(leasehold.AcquireTimeout), ThreadPoolExecutor(1) as threads:
                other = sql.Relay(locks, ledger.connect, publish=second, name=name)
                threads.submit(other.drain, wait=0).result(20)
        got.append(message.payload)

    with contextlib.nullcontext() if leased else pytest.raises(leasehold.StaleToken):
        sql.Relay(locks, ledger.connect, publish=first).drain()
    assert got == ([b"1", b"2"] if leased else [b"1", b"2", b"1", b"2"])


def test_a_relay_that_was_overtaken_deletes_nothing(ledger: Ledger, locks: leasehold.Locks) -> None:
    write(ledger, ("a", b"1"), ("a", b"2"))

    def overtaken(message: sql.Message) -> None:
        connection = ledger.connect()
        # A later relay begins, as after a pause that was longer than the lease.
        at = "%s" if ledger.postgres else "?"
        connection.execute(f"UPDATE leasehold_marks SET mark = {at}", (message.token + 256,))  # noqa: S608  bound
        connection.commit()

    relay = sql.Relay(locks, ledger.connect, publish=overtaken)
    with pytest.raises(leasehold.StaleToken):
        relay.drain()
    assert len(waiting(ledger)) == 2


def test_an_interrupted_publisher_leaves_what_it_had_published_as_published(
    ledger: Ledger, locks: leasehold.Locks
) -> None:
    numbers = write(ledger, ("a", b"1"), ("a", b"2"), ("a", b"3"))

    def publish(message: sql.Message) -> None:
        if message.id == numbers[1]:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sql.Relay(locks, ledger.connect, publish=publish).drain()
    assert waiting(ledger) == numbers[1:]


@pytest.mark.parametrize("ledger", ["postgres"], indirect=True)
def test_a_relay_goes_on_when_its_connection_is_broken(ledger: Ledger, locks: leasehold.Locks) -> None:
    got: list[bytes] = []
    opened: list[psycopg.Connection[Any]] = []

    def connect() -> Any:
        opened.append(ledger.connect())
        return opened[-1]

    relay = sql.Relay(locks, connect, publish=lambda message: got.append(message.payload), poll=0.05)
    with running(relay):
        write(ledger, ("a", b"1"))
        eventually(lambda: got == [b"1"])
        killer = ledger.place.connect(autocommit=True)
        killer.execute("SELECT pg_terminate_backend(%s)", (opened[0].info.backend_pid,))
        write(ledger, ("a", b"2"))
        eventually(lambda: got[-1] == b"2")
    assert len(opened) == 2


@pytest.mark.parametrize("ledger", ["postgres"], indirect=True)
def test_numbers_of_a_key_become_visible_in_their_order(ledger: Ledger) -> None:
    """Otherwise a relay could publish the second before it sees the first, as without a key."""
    connection, other = ledger.connect(), ledger.connect()
    sql.publish(connection, "topic", b"", key=None)
    late = sql.publish(other, "topic", b"", key=None)
    other.commit()
    assert waiting(ledger) == [late]
    first = sql.publish(connection, "topic", b"1", key="a")
    with ThreadPoolExecutor(1) as threads:
        later = threads.submit(sql.publish, other, "topic", b"2", key="a")
        waits = "SELECT 1 FROM pg_locks WHERE NOT granted AND locktype = 'advisory' AND pid = "
        eventually(lambda: ledger.seen(waits + str(other.info.backend_pid)))
        connection.commit()
        assert later.result(20) > first
    other.rollback()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"topic": "", "payload": b""}, "topic"),
        ({"topic": "t", "payload": "text"}, "payload: must be bytes, not str"),
        ({"topic": "t", "payload": b"", "key": "nul\0"}, "key"),
    ],
)
def test_a_message_that_cannot_work_is_refused(ledger: Ledger, given: dict[str, Any], told: str) -> None:
    with pytest.raises(leasehold.InvalidInput, match=told):
        sql.publish(ledger.connect(), **given)
    assert waiting(ledger) == []


class running:  # noqa: N801  reads as a verb
    """A relay in a thread, for a block. What it raises is raised here."""

    def __init__(self, relay: sql.Relay) -> None:
        self._relay = relay
        self._threads = ThreadPoolExecutor(1)

    def __enter__(self) -> None:
        self._run = self._threads.submit(self._relay.run)

    def __exit__(self, *_: object) -> None:
        self._relay.stop()
        self._run.result(20)
        self._threads.shutdown()
