"""One connection hears for everybody who waits through a client: by a thread for many, by the only one itself."""

from __future__ import annotations

import asyncio
import os
import select
import socket
import threading
from collections.abc import Collection
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from leasehold.engine.blocking import BlockingRuntime, drive
from leasehold.engine.looped import LoopedRuntime
from leasehold.errors import PermissionDenied, StoreUnavailable
from leasehold.testing.clock import VirtualClock
from leasehold.wires import ears as room
from leasehold.wires.ears import Ear, Ears
from tests.support import eventually

FAR = 1e9


class Exchange:
    """The far side of every line: it knows who listens to what, and says what the test wants said."""

    def __init__(self) -> None:
        self.lines: list[Wire] = []
        self.refusing: BaseException | None = None

    def line(self) -> Wire:
        self.lines.append(Wire(self))
        return self.lines[-1]

    @property
    def open(self) -> list[Wire]:
        return [line for line in self.lines if line.is_open]

    def say(self, channel: str) -> None:
        for line in self.open:
            if channel in line.listening:
                line.theirs.sendall(f"{channel}\n".encode())


class Wire:
    """A line over a real pair of sockets."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.ours, self.theirs = socket.socketpair()
        self.ours.setblocking(False)
        self.listening: set[str] = set()
        self.asked: list[str] = []
        self.is_open = False
        self.threads: set[int] = set()
        self.using = threading.Lock()
        self.crowded = False
        self.pings = 0
        self.dead = False

    def _use(self) -> None:
        self.crowded |= not self.using.acquire(blocking=False)
        self.threads.add(threading.get_ident())
        # Whoever might come in between does so now.
        os.sched_yield()
        self.using.release()
        if self.exchange.refusing:
            raise self.exchange.refusing

    def connect(self) -> None:
        self._use()
        self.is_open = True

    def fileno(self) -> int:
        return self.ours.fileno()

    def listen(self, channel: str) -> None:
        self._use()
        self.asked.append(channel)
        self.listening.add(channel)

    def unlisten(self, channels: Collection[str]) -> None:
        self._use()
        self.listening.difference_update(channels)

    def drain(self) -> dict[str, bytes]:
        self._use()
        heard = b""
        while True:
            try:
                said = self.ours.recv(4096)
            except BlockingIOError:
                return dict.fromkeys(heard.decode().split(), b"")
            if not said:
                raise StoreUnavailable("the connection was closed")
            heard += said

    @property
    def silence(self) -> float:
        return room.HEARTBEAT

    def ping(self) -> None:
        self._use()
        self.pings += 1
        if self.dead:
            raise StoreUnavailable("no answer")

    def close(self) -> None:
        self.is_open = False
        self.ours.close()


@pytest.fixture
def exchange():
    made = Exchange()
    yield made
    for line in made.lines:
        line.theirs.close()


@pytest.fixture
def ears(exchange: Exchange):
    made = Ears(exchange.line, BlockingRuntime(VirtualClock()))
    yield made
    drive(made.close())
    eventually(lambda: not exchange.open)


def listen(ears: Ears, channel: str) -> Ear:
    return drive(ears.listen(channel))


def connected(ears: Ears, exchange: Exchange) -> None:
    """The line is there, and its thread does not use it: that was called for the last one who relied on it."""
    ear = listen(ears, "first")
    exchange.say("first")
    assert drive(ear.wait(FAR)) is True
    assert ears._listener is not None
    eventually(lambda: not ears._listener._reading.locked())


def waiting(ear: Ear) -> Future[bool]:
    return ThreadPoolExecutor(1).submit(lambda: drive(ear.wait(FAR)))


def test_only_those_who_wait_for_a_channel_are_woken(ears: Ears, exchange: Exchange) -> None:
    mine, other = listen(ears, "mine"), listen(ears, "other")
    woken, asleep = waiting(mine), waiting(other)
    exchange.say("mine")
    assert woken.result(20) is True
    assert not asleep.done()
    exchange.say("other")
    assert asleep.result(20) is True
    assert len(exchange.lines) == 1


def test_what_is_said_between_listening_and_waiting_is_not_missed(ears: Ears, exchange: Exchange) -> None:
    ear = listen(ears, "mine")
    exchange.say("mine")
    assert waiting(ear).result(20) is True


def test_a_line_is_used_by_one_thread_at_a_time(ears: Ears, exchange: Exchange) -> None:
    def turn(number: int) -> bool:
        ear = listen(ears, f"channel-{number}")
        exchange.say(f"channel-{number}")
        return drive(ear.wait(FAR))

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(turn, range(400)))
    (line,) = exchange.lines
    assert not line.crowded


def test_who_waits_alone_hears_for_itself(ears: Ears, exchange: Exchange) -> None:
    connected(ears, exchange)
    (line,) = exchange.lines
    line.threads.clear()
    for number in range(50):
        ear = listen(ears, f"channel-{number}")
        exchange.say(f"channel-{number}")
        assert drive(ear.wait(FAR)) is True
    assert line.threads == {threading.get_ident()}


def test_who_hears_for_itself_lets_the_thread_when_others_come_and_does_so_again_after_them(
    ears: Ears, exchange: Exchange
) -> None:
    for _ in range(50):
        first = waiting(listen(ears, "mine"))
        second = waiting(listen(ears, "other"))
        exchange.say("other")
        assert second.result(20) is True
        assert not first.done()
        exchange.say("mine")
        assert first.result(20) is True
    connected(ears, exchange)
    (line,) = exchange.lines
    line.threads.clear()
    ear = listen(ears, "mine")
    exchange.say("mine")
    assert drive(ear.wait(FAR)) is True
    assert line.threads == {threading.get_ident()}


def test_whoever_is_interrupted_leaves_no_half_read_line_to_others(ears: Ears, exchange: Exchange) -> None:
    connected(ears, exchange)
    exchange.refusing = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        listen(ears, "another")
    exchange.refusing = None
    eventually(lambda: not exchange.open)
    woken = waiting(listen(ears, "mine"))
    exchange.say("mine")
    assert woken.result(20) is True
    assert len(exchange.lines) == 2


def test_what_nobody_waits_for_does_not_pile_up(
    ears: Ears, exchange: Exchange, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "REST", 0.02)
    listen(ears, "mine").leave()
    (line,) = exchange.lines
    exchange.say("mine")
    eventually(lambda: not select.select([line.ours], [], [], 0)[0])


def test_a_channel_waited_for_again_is_not_subscribed_again(ears: Ears, exchange: Exchange) -> None:
    for _ in range(5):
        ear = listen(ears, "mine")
        ear.leave()
    assert exchange.lines[0].asked == ["mine"]
    ear = listen(ears, "mine")
    exchange.say("mine")
    assert waiting(ear).result(20) is True


def test_channels_nobody_waits_for_do_not_accumulate(ears: Ears, exchange: Exchange) -> None:
    for number in range(200):
        listen(ears, f"channel-{number}").leave()
    assert len(exchange.lines[0].listening) <= 2 * room.SPARE + 1


def test_a_dead_line_wakes_everybody_and_the_next_to_listen_gets_a_new_one(ears: Ears, exchange: Exchange) -> None:
    woken = waiting(listen(ears, "mine"))
    exchange.lines[0].theirs.close()
    assert woken.result(20) is True
    again = waiting(listen(ears, "mine"))
    exchange.say("mine")
    assert again.result(20) is True
    assert len(exchange.lines) == 2


def test_a_line_that_says_nothing_is_asked_whether_it_is_there(
    ears: Ears, exchange: Exchange, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "HEARTBEAT", 0.02)
    woken = waiting(listen(ears, "mine"))
    eventually(lambda: exchange.lines[0].pings >= 2)
    assert not woken.done()
    exchange.lines[0].dead = True
    assert woken.result(20) is True


def test_a_refusal_reaches_whoever_asked_as_it_is(ears: Ears, exchange: Exchange) -> None:
    exchange.refusing = PermissionDenied("no right to listen; grant it")
    for _ in range(3):
        with pytest.raises(PermissionDenied, match="grant it"):
            listen(ears, "mine")
    exchange.refusing = None
    assert listen(ears, "mine")


def test_an_error_nobody_expected_does_not_leave_waiters_asleep(ears: Ears, exchange: Exchange) -> None:
    woken = waiting(listen(ears, "mine"))
    exchange.refusing = ZeroDivisionError("a bug")
    exchange.say("mine")
    assert woken.result(20) is True
    # What was said may still have been heard; then the line goes a moment later.
    eventually(lambda: not exchange.open)
    with pytest.raises(StoreUnavailable, match="a bug"):
        listen(ears, "mine")


def test_an_idle_line_is_closed_and_opened_again_when_needed(
    ears: Ears, exchange: Exchange, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "REST", 0.01)
    monkeypatch.setattr(room, "IDLE", 0.02)
    listen(ears, "mine").leave()
    eventually(lambda: not exchange.open)
    woken = waiting(listen(ears, "mine"))
    exchange.say("mine")
    assert woken.result(20) is True


def test_closing_wakes_everybody_and_hangs_up(ears: Ears, exchange: Exchange) -> None:
    woken = waiting(listen(ears, "mine"))
    drive(ears.close())
    assert woken.result(20) is True
    assert exchange.open == []


def test_a_forked_child_hears_on_a_line_of_its_own_and_leaves_the_parents_alone(ears: Ears, exchange: Exchange) -> None:
    listen(ears, "mine")
    child = os.fork()
    if not child:
        # The child says by its exit code how it went; an exception would run the parent's tests twice.
        code = 1
        try:
            ear = listen(ears, "mine")
            exchange.lines[-1].theirs.sendall(b"mine\n")
            code = 0 if drive(ear.wait(FAR)) and len(exchange.lines) == 2 and exchange.lines[0].is_open else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    woken = waiting(listen(ears, "mine"))
    exchange.say("mine")
    assert woken.result(20) is True
    assert len(exchange.lines) == 1


def test_a_cancelled_listener_leaves_nothing_behind(exchange: Exchange) -> None:
    async def main() -> None:
        runtime = LoopedRuntime(VirtualClock())
        ears = Ears(exchange.line, runtime)
        ear = await ears.listen("mine")
        task = asyncio.ensure_future(ear.wait(FAR))
        exchange.say("mine")
        assert await task is True
        ear.leave()
        cancelled = asyncio.ensure_future(ears.listen("other"))
        await asyncio.sleep(0)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        assert ears._listener is not None
        assert ears._listener._ears == {}
        await ears.close()
        await runtime.close()

    asyncio.run(main())
