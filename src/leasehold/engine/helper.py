"""Renewal from a second process, for programs that hold the GIL longer than a ttl.

The helper opens the store by itself and runs the same heartbeat. How far it has
extended trust it writes into shared memory, so the program reads the truth the
moment it runs again, before any thread of its own had a turn. It ends with the
program. Limit: it also renews for a program that hangs; `max_hold` bounds that.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import subprocess
import sys
import tempfile
import threading
import time
from typing import IO, TYPE_CHECKING, BinaryIO, cast

import msgspec

from leasehold.engine.blocking import BlockingRuntime, drive
from leasehold.engine.doubt import Doubts
from leasehold.engine.events import Event, HelperEnded, Lagged, Unanswered
from leasehold.engine.grant import Grant, Hold, read_hold
from leasehold.errors import InvalidInput, LeaseholdError, StoreUnavailable
from leasehold.model import Key, Record

if TYPE_CHECKING:
    from leasehold.engine.engine import Engine
    from leasehold.engine.runtime import Runtime
    from leasehold.wires.colour import Signal

SLOTS = 8192
PARENT_CHECK = 0.2


class Start(msgspec.Struct, frozen=True, tag=True):
    """First word to the helper."""

    url: str
    timeout: float
    memory: int
    parent: int


class Add(msgspec.Struct, frozen=True, tag=True):
    """Keep this record alive."""

    slot: int
    record: Record
    ttl: float
    deadline: float
    latest: float | None


class Drop(msgspec.Struct, frozen=True, tag=True):
    """Leave it alone, and say so."""

    slot: int


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The helper reached the store, or why not."""

    problem: str | None


class Dropped(msgspec.Struct, frozen=True, tag=True):
    """No renewal of it is under way any more; the record as last renewed."""

    slot: int
    record: Record | None


class Gone(msgspec.Struct, frozen=True, tag=True):
    """The store answered LOST."""

    slot: int
    reason: str


class Troubled(msgspec.Struct, frozen=True, tag=True):
    """A renewal got no answer; the helper tries again."""

    event: Unanswered


class Late(msgspec.Struct, frozen=True, tag=True):
    """The helper itself ran late."""

    event: Lagged


Answer = Ready | Dropped | Gone | Troubled | Late

_orders = msgspec.json.Decoder(Start | Add | Drop)
_answers: msgspec.json.Decoder[Answer] = msgspec.json.Decoder(Answer)
_write = msgspec.json.Encoder().encode
_speaking = threading.Lock()


# In the program.


async def start_helper(url: str, patience: float, runtime: Runtime, engine: Engine) -> Helper:
    """Start the helper and wait until it has reached the store."""
    if url.startswith("memory:"):
        raise InvalidInput("helper", True, "a helper process cannot reach memory://, which lives in this process")
    if url.startswith("zookeeper"):
        raise InvalidInput("helper", True, "a helper process cannot keep a ZooKeeper session, which is this process's")
    helper = Helper(runtime, engine)
    problem = await runtime.call(lambda: helper.start(url, patience))
    if problem is not None:
        raise StoreUnavailable(f"the helper process could not start: {problem}", applied=False)
    return helper


class Helper:
    """The program's side: which slot belongs to which grant, and the pipe."""

    process: subprocess.Popen[bytes]
    _out: IO[bytes]
    _in: IO[bytes]
    _shared: memoryview[float]

    def __init__(self, runtime: Runtime, engine: Engine) -> None:
        self._runtime = runtime
        self._engine = engine
        self._mutex = threading.Lock()
        self._free = list(range(SLOTS - 1, -1, -1))
        self._slots: dict[int, Grant] = {}
        self._dropping: dict[int, Signal] = {}
        self._ended = False

    def start(self, url: str, timeout: float) -> str | None:
        """Start the process: None once it has reached the store, else its problem. Blocks."""
        with _memory() as file:
            file.truncate(SLOTS * 8)
            self._shared = memoryview(mmap.mmap(file.fileno(), SLOTS * 8)).cast("d")
            self.process = subprocess.Popen(
                [sys.executable, "-m", "leasehold.engine.helper"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=(file.fileno(),),
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                # A group of its own: Ctrl-C is not meant for it. Not a session of its own: Linux shares the processor
                # out among sessions, and this one was then left waiting for seconds on a busy machine.
                process_group=0,
            )
            self._out, self._in = cast("IO[bytes]", self.process.stdin), cast("IO[bytes]", self.process.stdout)
            # The URL may hold a password: never on a command line.
            self._say(Start(url, timeout, file.fileno(), os.getpid()))
            line = self._in.readline()
        answer = _answers.decode(line) if line else Ready("it ended at once")
        problem = answer.problem if isinstance(answer, Ready) else "it spoke out of turn"
        # A thread in either colour: an event loop may be what holds the GIL.
        threading.Thread(target=self._listen, name="leasehold-helper", daemon=True).start()
        if problem is not None:
            self.close()
        return problem

    def add(self, grant: Grant) -> None:
        """Hand a grant to the helper. One it cannot take has no slot, and this process renews it."""
        with self._mutex:
            if self._ended or not self._free or grant.slot is not None:
                return
            slot = self._free.pop()
            self._slots[slot] = grant
        self._shared[slot] = grant.deadline
        grant.slot = lambda: self._shared[slot]
        self._say(Add(slot, grant.record, grant.ttl, grant.deadline, grant.latest))

    async def drop(self, grant: Grant, until: float) -> None:
        """Take a grant back; returns once the helper renews it no more."""
        slot = next((slot for slot, held in self._slots.items() if held is grant), None)
        if slot is None:
            return
        signal = self._dropping[slot] = self._runtime.signal()
        self._say(Drop(slot))
        if not await signal.wait(until):
            raise StoreUnavailable("the helper process is still renewing this lease and did not answer", applied=False)

    def close(self) -> None:
        """End the helper. It renews nothing after this."""
        self.process.kill()
        with self._mutex, contextlib.suppress(OSError):
            self._out.close()

    def _say(self, order: Start | Add | Drop) -> None:
        # A helper that is gone is noticed by the listener, which takes its grants back.
        with self._mutex, contextlib.suppress(OSError, ValueError):
            self._out.write(_write(order) + b"\n")
            self._out.flush()

    def _listen(self) -> None:
        for line in self._in:
            answer = _answers.decode(line)
            if isinstance(answer, Dropped):
                self._take_back(answer.slot, answer.record)
            elif isinstance(answer, Gone) and (grant := self._slots.get(answer.slot)):
                self._engine.lose(grant, answer.reason)
            elif isinstance(answer, Troubled | Late):
                self._engine.emit(answer.event)
        with self._mutex:
            self._ended = True
        self.process.wait()
        self._in.close()
        taken = [grant for slot, grant in list(self._slots.items()) if self._take_back(slot, None)]
        if taken and self._engine.closed is None:
            self._engine.emit(HelperEnded(taken[0].scope, self._engine.holder, len(taken)))
            self._engine.heartbeat.ring()

    def _take_back(self, slot: int, record: Record | None) -> bool:
        with self._mutex:
            grant = self._slots.pop(slot, None)
            if grant is None:
                return False
            grant.deadline = grant.trusted_until()
            grant.slot = None
            self._free.append(slot)
            signal = self._dropping.pop(slot, None)
        if record is not None:
            grant.record = record
        if signal is not None:
            signal.set()
        return True


def _memory() -> BinaryIO:
    # Never a file on a disk where that can be helped: writing to a mapped page waits for the disk to take it,
    # and the helper would stand still whenever the disk is busy.
    if sys.platform == "linux":
        return open(os.memfd_create("leasehold"), "w+b")
    return cast("BinaryIO", tempfile.TemporaryFile())


# In the helper process.


class _SharedGrant(Grant):
    """A grant whose trust others read from shared memory."""

    __slots__ = ("number", "shared")
    number: int
    shared: memoryview[float]

    def trust(self, sent: float, chance: float) -> None:
        super().trust(sent, chance)
        self.shared[self.number] = self.deadline


def main() -> None:
    """Renew until told otherwise, until the program is gone, or until its pipe is."""
    from leasehold.engine.heartbeat import Heartbeat  # noqa: PLC0415  the program's side needs no heartbeat
    from leasehold.stores.open import open_store  # noqa: PLC0415
    from leasehold.wires.clock import system_clock  # noqa: PLC0415

    start = _orders.decode(sys.stdin.buffer.readline())
    if not isinstance(start, Start):
        raise SystemExit("the helper is started by leasehold itself")
    _end_with(start.parent)
    runtime = BlockingRuntime(system_clock())
    try:
        store = open_store(start.url, timeout=start.timeout, colour=runtime)
        drive(store.open())
    except LeaseholdError as error:
        return _answer(Ready(str(error)))
    _answer(Ready(None))
    shared = memoryview(mmap.mmap(start.memory, SLOTS * 8)).cast("d")
    kept: dict[int, _SharedGrant] = {}

    def lose(grant: Grant, reason: str) -> None:
        heartbeat.forget(grant)
        _answer(Gone(cast("_SharedGrant", grant).number, reason))

    def tell(event: Event) -> None:
        if isinstance(event, Unanswered):
            _answer(Troubled(event))
        elif isinstance(event, Lagged):
            _answer(Late(event))

    doubts = Doubts(store, runtime.clock, lambda doubt, *, cleared: None)  # noqa: ARG005  the program tells its own
    heartbeat = Heartbeat(store, runtime, doubts, timeout=start.timeout, lose=lose, emit=tell)
    for line in sys.stdin.buffer:
        order = _orders.decode(line)
        if isinstance(order, Add):
            grant = kept[order.slot] = _taken_over(order, runtime, shared)
            heartbeat.add(grant)
        elif isinstance(order, Drop):
            dropped = kept.pop(order.slot)
            heartbeat.forget(dropped)
            with contextlib.suppress(StoreUnavailable):
                drive(heartbeat.claim(dropped))
            _answer(Dropped(order.slot, dropped.record))
    # The program closed the pipe; threads may hang in the store, so no clean shutdown.
    os._exit(0)


def _taken_over(order: Add, runtime: BlockingRuntime, shared: memoryview[float]) -> _SharedGrant:
    record = msgspec.structs.replace(order.record, key=Key(*order.record.key))
    hold = read_hold(record) or Hold("", "", "", 0.0)
    grant = _SharedGrant(runtime.clock, record, hold, order.ttl, None)
    grant.number, grant.shared, grant.latest = order.slot, shared, order.latest
    grant.trust(order.deadline - 0.9 * (record.ttl or order.ttl), 0.0)
    return grant


def _end_with(parent: int) -> None:
    def watch() -> None:
        # A forked sibling of the program may keep our pipe open after the program has died.
        while os.getppid() == parent:
            time.sleep(PARENT_CHECK)
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


def _answer(answer: Answer) -> None:
    # Heartbeat, watch and reader all speak; a line must stay whole.
    with _speaking:
        sys.stdout.buffer.write(_write(answer) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
