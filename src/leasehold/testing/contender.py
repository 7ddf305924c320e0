"""A process that does with leases what a test tells it, to be killed, stopped and forked.

    with Contender("sqlite:///tmp/leases.db") as one:
        one.ask("acquire", key="job", ttl=2)
        one.process.kill()

It reads one JSON order a line and answers each with one. Run as a program:
`python -m leasehold.testing.contender URL COLOUR`.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import IO, Any, Self, cast

import leasehold
from leasehold import aio
from leasehold.wires.clock import system_clock

PATIENCE = 60.0
# More than a client has by default: what these processes try is not how fast a crowded machine answers.
TIMEOUT = 20.0


class Contender:
    """The test's side of one such process."""

    def __init__(self, url: str, colour: str = "blocking") -> None:
        self.process: subprocess.Popen[str] = subprocess.Popen(
            [sys.executable, "-m", "leasehold.testing.contender", url, colour],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def tell(self, order: str, **words: Any) -> None:
        """Give an order without waiting for its answer."""
        out = cast("IO[str]", self.process.stdin)
        out.write(json.dumps({"order": order, **words}) + "\n")
        out.flush()

    def hear(self) -> Any:
        """The next answer."""
        line = cast("IO[str]", self.process.stdout).readline()
        if not line:
            raise AssertionError(f"the contender ended with {self.process.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            raise AssertionError(answer["error"])
        return answer["answer"]

    def ask(self, order: str, **words: Any) -> Any:
        """Give an order and wait for its answer."""
        self.tell(order, **words)
        return self.hear()

    def stop(self) -> None:
        """SIGSTOP: it exists, but does nothing."""
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """SIGCONT."""
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL: no chance to say goodbye."""
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        for end in (self.process.stdin, self.process.stdout):
            cast("IO[str]", end).close()


# In the process itself. Orders are written once, for the blocking client; the asyncio one is used through a loop.


class _Player:
    def __init__(self, url: str, colour: str) -> None:
        self.url = url
        self.loop = asyncio.new_event_loop() if colour == "asyncio" else None
        if self.loop is not None:
            threading.Thread(target=self.loop.run_forever, daemon=True).start()
        connect = aio.connect if self.loop else leasehold.connect
        self.locks: Any = self.wait(connect(url, timeout=TIMEOUT))
        self.leases: dict[str, Any] = {}
        self.lost: list[str] = []

    def wait(self, answer: Any) -> Any:
        if asyncio.iscoroutine(answer) and self.loop is not None:
            return asyncio.run_coroutine_threadsafe(answer, self.loop).result()
        return answer

    def acquire(self, key: str, **options: Any) -> dict[str, Any]:
        lease = self.wait(self.locks.acquire(key, on_lost=lambda lease: self.lost.append(lease.why_lost()), **options))
        self.leases[key] = lease
        return {"token": lease.token, "at": now()}

    def look(self, key: str) -> dict[str, Any]:
        lease = self.leases[key]
        # The clock first: what is left counts from an instant not after it.
        at = now()
        return {"at": at, "held": lease.held, "expires_in": lease.expires_in, "lost": self.lost}

    def check(self, key: str) -> str:
        try:
            self.leases[key].check()
        except leasehold.LeaseLost as error:
            return error.reason
        return "held"

    def release(self, key: str) -> bool:
        return bool(self.wait(self.leases[key].release()))

    def fork(self, key: str, ttl: float) -> dict[str, Any]:
        """What a forked child finds of its parent's lease, and whether it can get one of its own."""
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            lease = self.leases[key]
            found = {"held": lease.held, "lost": lease.lost.is_set(), "check": self.check(key), "own": None}
            if self.loop is None:
                found["release"] = lease.release()
                found["own"] = self.locks.acquire(f"{key}/child", ttl=ttl, wait=0).token
            else:
                found["closed"] = _closed(self.locks)
            os.write(write, json.dumps(found).encode())
            os._exit(0)
        os.close(write)
        with open(read, encoding="utf-8") as pipe:
            answer: dict[str, Any] = json.loads(pipe.read())
        os.waitpid(child, 0)
        return answer

    def contend(self, key: str, log: str, *, contenders: int, grants: int, ttl: float, locked: bool) -> int:
        """Many threads or tasks take turns; each writes down the token and when it believed to hold."""
        if self.loop is not None and locked:
            return int(self.wait(_contend_async(self.locks, key, log, contenders=contenders, grants=grants, ttl=ttl)))
        held: Callable[..., Any] = self.locks.hold if locked else _Unlocked

        def work() -> None:
            for _ in range(grants):
                with held(key, ttl=ttl) as lease:
                    begun = now()
                    time.sleep(0.001)
                    lease.check()
                    _note(log, lease.token, begun, now())

        threads = [threading.Thread(target=work) for _ in range(contenders)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return contenders * grants


async def _contend_async(locks: aio.Locks, key: str, log: str, *, contenders: int, grants: int, ttl: float) -> int:
    async def work() -> None:
        for _ in range(grants):
            async with locks.hold(key, ttl=ttl) as lease:
                begun = now()
                await asyncio.sleep(0.001)
                lease.check()
                _note(log, lease.token, begun, now())

    await asyncio.gather(*(work() for _ in range(contenders)))
    return contenders * grants


class _Unlocked:
    """What the critical section is without a lock: the control."""

    token = 0

    def __init__(self, _key: str, *, ttl: float) -> None:
        self.ttl = ttl

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def check(self) -> None:
        """Always content."""


def _note(log: str, token: int, begun: float, ended: float) -> None:
    # One write of a short line with O_APPEND is not torn.
    line = f"{token} {begun!r} {ended!r}\n".encode()
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, line)
    finally:
        os.close(file)


def _closed(locks: aio.Locks) -> str:
    coroutine = locks.try_acquire("anything")
    try:
        coroutine.send(None)
    except leasehold.ClientClosed as error:
        return str(error)
    finally:
        coroutine.close()
    return "usable"


def now() -> float:
    """The boot clock, which all processes of the machine share."""
    return system_clock().now()


def main() -> None:
    """Obey until the pipe is closed."""
    player = _Player(sys.argv[1], sys.argv[2])
    for line in sys.stdin:
        words = json.loads(line)
        try:
            answer = {"answer": getattr(player, words.pop("order"))(**words)}
        except Exception as error:  # noqa: BLE001  told to the test, which fails
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)  # noqa: T201  the answer is the program's output


if __name__ == "__main__":
    main()
