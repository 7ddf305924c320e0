"""The tools that break things do break them, and only when told to."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from leasehold import StoreUnavailable
from leasehold.engine.blocking import BlockingRuntime, drive
from leasehold.model import Conflict, Key, Record
from leasehold.stores.memory import Memory, MemoryStore
from leasehold.testing.clock import VirtualClock
from leasehold.testing.faults import FaultyStore, cut, delay, delay_reply, drop, duplicate, hold_back, refuse
from leasehold.testing.proxy import Proxy
from tests.support import eventually

KEY = Key("a/b/name/c", "lock")


@pytest.fixture
def store() -> FaultyStore:
    clock = VirtualClock()
    runtime = BlockingRuntime(clock)
    return FaultyStore(MemoryStore(Memory(clock), runtime), runtime)


def create(store: FaultyStore) -> Record | Conflict:
    return drive(store.swap(KEY, None, b"x", 10.0))


def there(store: FaultyStore) -> bool:
    return drive(store.inner.load(KEY)) is not None


@pytest.mark.parametrize(
    ("fault", "applied", "known"), [(drop, False, None), (cut, True, None), (refuse, False, False)]
)
def test_a_fault_happens_once_and_says_what_the_client_can_know(store: FaultyStore, fault, applied, known) -> None:
    store.plan("swap", fault)
    with pytest.raises(StoreUnavailable) as told:
        create(store)
    assert told.value.applied is known
    assert there(store) is applied
    assert isinstance(create(store), Conflict if applied else Record)
    assert store.calls["swap"] == 2


def test_a_duplicate_shows_the_second_reply(store: FaultyStore) -> None:
    store.plan("swap", duplicate)
    assert isinstance(create(store), Conflict)


def test_what_is_held_back_arrives_at_delivery(store: FaultyStore) -> None:
    store.plan("swap", hold_back)
    with pytest.raises(StoreUnavailable):
        create(store)
    assert not there(store)
    drive(store.deliver())
    assert there(store)


@pytest.mark.parametrize(("fault", "meanwhile"), [(delay(5), False), (delay_reply(5), True)])
def test_a_delay_is_before_or_after_the_store(store: FaultyStore, fault, meanwhile) -> None:
    store.plan("swap", fault)
    thread = threading.Thread(target=create, args=(store,))
    thread.start()
    eventually(lambda: store.calls["swap"] == 1 and there(store) is meanwhile)
    eventually(lambda: not thread.is_alive(), nudge=lambda: store.colour.clock.advance(0.1))
    assert there(store)


def test_down_is_down_until_up(store: FaultyStore) -> None:
    store.down()
    for _ in range(3):
        with pytest.raises(StoreUnavailable):
            create(store)
    store.up()
    assert isinstance(create(store), Record)


class Echo:
    """A server that answers each line with the same line."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.heard: list[bytes] = []
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.talk, args=(client,), daemon=True).start()

    def talk(self, client: socket.socket) -> None:
        with client, client.makefile("rwb", buffering=0) as file:
            try:
                for line in file:
                    self.heard.append(line)
                    file.write(line)
            except OSError:
                return


@pytest.fixture
def echo() -> Iterator[Echo]:
    server = Echo()
    yield server
    server.listener.close()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[Proxy]:
    with Proxy("127.0.0.1", echo.port) as between:
        yield between


def say(talk: socket.socket, word: bytes) -> bytes:
    talk.sendall(word + b"\n")
    return talk.recv(1000)


def test_the_proxy_forwards_and_counts_round_trips(proxy: Proxy) -> None:
    with socket.create_connection(("127.0.0.1", proxy.port)) as talk:
        for turn in range(5):
            assert say(talk, b"word %d" % turn) == b"word %d\n" % turn
    assert (proxy.connections, proxy.flights, proxy.requests.bytes, proxy.replies.bytes) == (1, 5, 35, 35)
    proxy.reset_counters()
    assert proxy.flights == 0


def test_a_blackhole_in_one_direction_leaves_the_other(proxy: Proxy, echo: Echo) -> None:
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=20) as talk:
        assert say(talk, b"one") == b"one\n"
        proxy.replies.blackhole = True
        talk.sendall(b"two\n")
        eventually(lambda: proxy.replies.bytes == 8)
        assert echo.heard == [b"one\n", b"two\n"]
        proxy.replies.blackhole = False
        proxy.requests.blackhole = True
        talk.sendall(b"three\n")
        eventually(lambda: proxy.requests.bytes == 14)
        assert len(echo.heard) == 2


def test_a_cut_resets_every_connection_and_new_ones_work(proxy: Proxy) -> None:
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=20) as talk:
        assert say(talk, b"one") == b"one\n"
        proxy.cut()
        with pytest.raises(ConnectionResetError):
            talk.recv(10)
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=20) as talk:
        assert say(talk, b"two") == b"two\n"


def test_a_refusing_proxy_lets_nobody_in(proxy: Proxy, echo: Echo) -> None:
    proxy.refusing = True
    with (
        pytest.raises(OSError, match="reset"),
        socket.create_connection(("127.0.0.1", proxy.port), timeout=20) as talk,
    ):
        talk.recv(10)
    assert echo.heard == []


def test_slices_and_latency_lose_nothing(proxy: Proxy) -> None:
    proxy.requests.slice = proxy.replies.slice = 3
    proxy.requests.latency = 0.001
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=20) as talk:
        talk.sendall(b"a long word in pieces\n")
        heard = b""
        while not heard.endswith(b"\n"):
            heard += talk.recv(100)
    assert heard == b"a long word in pieces\n"
