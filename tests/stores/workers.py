"""The other processes of the SQLite tests: `python -m tests.stores.workers NAME WORDS…`.

Each prints one line of JSON at its end. Those that need many processes fork
them before they open anything, which is quicker than starting Python anew.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import apsw

import leasehold
from leasehold.engine.blocking import drive
from leasehold.wires import sqlite as wire_file
from leasehold.wires.clock import system_clock
from tests.stores.support import KEY, Driven, driven

TTL = 30.0


def contend(url: str, log: str, grants: str, keys: str, locked: str) -> object:
    """Eight processes take turns on a few keys and write down when each begins and ends."""

    def work(number: int) -> None:
        rng = random.Random(number)
        with leasehold.connect(url, timeout=60) as locks, Log(log) as notes:
            for _ in range(int(grants)):
                key = f"k{rng.randrange(int(keys))}"
                seen = notes.last()
                with locks.hold(key, ttl=TTL) if locked == "locked" else contextlib.nullcontext() as lease:
                    token = lease.token if lease else os.getpid()
                    notes.write(key, "begin", token, seen)
                    time.sleep(0.001)
                    notes.write(key, "end", token, seen)

    together([lambda number=number: work(number) for number in range(8)])
    return "done"


def race(url: str, processes: str, seconds: str) -> object:
    """How many grants each of several processes gets in the same time, each on a key of its own."""
    ready_in, ready_out = os.pipe()
    answers_in, answers_out = os.pipe()

    def work(number: int) -> None:
        with leasehold.connect(url, timeout=60) as locks:
            os.write(ready_out, b".")
            os.read(start_in, 1)
            end, grants = time.monotonic() + float(seconds), 0
            while time.monotonic() < end:
                locks.acquire(f"k{number}", ttl=TTL).release()
                grants += 1
        os.write(answers_out, f"{grants}\n".encode())

    start_in, start_out = os.pipe()
    children = fork_all([lambda number=number: work(number) for number in range(int(processes))])
    for _ in children:
        os.read(ready_in, 1)
    os.write(start_out, b"." * len(children))
    reap(children)
    return [int(line) for line in os.read(answers_in, 65536).split()]


def hunt(url: str, log: str, kills: str, processes: str) -> object:
    """Processes that take and leave leases and open the file anew, killed at random and replaced."""
    rng = random.Random(1)

    def work() -> None:
        mine = random.Random(os.getpid())
        with Log(log) as notes:
            while True:
                with leasehold.connect(url, timeout=60) as locks:
                    for _ in range(20):
                        key, seen = f"k{mine.randrange(200)}", notes.last()
                        lease = locks.try_acquire(key, ttl=TTL)
                        if lease is not None:
                            notes.write(key, "begin", lease.token, seen)
                            lease.release()

    children = fork_all([work] * int(processes))
    for _ in range(int(kills)):
        time.sleep(rng.uniform(0.02, 0.12))
        victim = children.pop(rng.randrange(len(children)))
        kill(victim)
        children += fork_all([work])
    for child in children:
        kill(child)
    return int(kills)


def version_one(path: str, log: str) -> object:
    """A process of the first version, as far as the file shows it, until the tables are no longer its own."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    db = apsw.Connection(path)
    db.set_busy_timeout(60_000)
    grants = 0
    with Log(log) as notes:
        while True:
            seen = notes.last()
            try:
                db.execute("BEGIN IMMEDIATE")
                row = db.execute("UPDATE state SET revision = revision + 1 WHERE schema = 1 RETURNING revision").get
                record = ("//name/old", "lock", b"{}", row, row, TTL, system_clock().now() + TTL, boot)
                db.execute("INSERT OR REPLACE INTO records VALUES (?, ?, ?, ?, ?, ?, ?, ?)", record)
                db.execute("COMMIT")
            except apsw.Error as error:
                return {"grants": grants, "error": str(error)}
            grants += 1
            notes.write("old", "begin", int(row) * 256, seen)
            if grants == 1:
                say("working")


def grant(path: str) -> object:
    """One grant by a process that lives no longer than that."""
    with driven(Path(path)) as store:
        answer = store.swap(KEY, None, b"short-lived", TTL)
    return getattr(answer, "revision", None)


def hold(url: str, key: str, ttl: str) -> object:
    """Hold a lease until told to let go."""
    with leasehold.connect(url) as locks, locks.hold(key, ttl=float(ttl)) as lease:
        say({"token": lease.token, "raw": time.clock_gettime(time.CLOCK_BOOTTIME), "now": system_clock().now()})
        sys.stdin.readline()
    return "released"


def inspect(url: str, key: str) -> object:
    """What another process sees of a lease."""
    with leasehold.connect(url) as locks:
        seen = locks.inspect(key)
        return {
            "left": seen.expires_in if seen else None,
            "token": seen.token if seen else None,
            "shifted": system_clock().domain.shifted,
            "raw": time.clock_gettime(time.CLOCK_BOOTTIME),
            "now": system_clock().now(),
        }


def as_nobody(path: str) -> object:
    """What a user without rights on the file is told."""
    warm_up()
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    return told(path)


def warm_up() -> None:
    """Import everything that is imported late, while it can still be read."""
    with tempfile.TemporaryDirectory() as folder, driven(Path(folder) / "warm-up.db") as store:
        store.grant()


def told(path: str) -> object:
    """The error that opening a file and granting in it meets."""
    try:
        with driven(Path(path)) as store:
            store.grant()
    except leasehold.LeaseholdError as error:
        return {"error": type(error).__name__, "message": str(error)}
    return {"error": None, "message": ""}


def without_descriptors(path: str) -> object:
    """What opening a file meets when this process may open no more."""
    warm_up()
    taken = [os.open("/dev/null", os.O_RDONLY)]
    limit = taken[0] + 10
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    while len(taken) < 10:
        taken.append(os.open("/dev/null", os.O_RDONLY))
    return told(path)


def fill(path: str, size: str) -> object:
    """Grants on more and more keys until files may not grow any further, and then one release and one grant."""
    tokens, errors = [], []
    with driven(Path(path)) as store:
        first = store.grant()
        tokens.append(first.revision)
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(size), resource.RLIM_INFINITY))
        for number in range(10_000):
            try:
                tokens.append(store.grant(KEY._replace(member=str(number)), value=b"x" * 1000).revision)
            except leasehold.StoreUnavailable as error:
                errors.append(str(error))
                break
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        after = store.grant(KEY._replace(member="after")).revision
    return {"tokens": tokens, "errors": errors, "after": after}


def fork_in_traffic(url: str, threads: str, forks: str) -> object:
    """Fork again and again while threads are in transactions; parent and children all go on."""
    path = url.removeprefix("sqlite://")
    problems: list[str] = []
    tokens_in, tokens_out = os.pipe()
    over = threading.Event()
    with leasehold.connect(url, timeout=30) as locks:

        def traffic(number: int) -> None:
            while not over.is_set():
                try:
                    locks.acquire(f"parent/{number}", ttl=TTL).release()
                except Exception as error:  # noqa: BLE001  told to the test
                    problems.append(f"parent: {error!r}")
                    return

        def child() -> None:
            inherited = [name for name in open_files() if name.startswith(path)]
            for _ in range(3):
                lease = locks.acquire("child", ttl=TTL)
                os.write(tokens_out, f"{lease.token}\n".encode())
                lease.release()
            if inherited:
                raise AssertionError(f"open after the fork: {inherited}")

        workers = [threading.Thread(target=traffic, args=(number,)) for number in range(int(threads))]
        for worker in workers:
            worker.start()
        for _ in range(int(forks)):
            children = fork_all([child, child])
            locks.acquire("parent", ttl=TTL).release()
            problems += [f"child ended with {code}" for code in reap(children) if code]
        over.set()
        for worker in workers:
            worker.join()
    tokens = [int(line) for line in os.read(tokens_in, 1 << 20).split()]
    with contextlib.closing(apsw.Connection(path)) as db:
        healthy = db.pragma("integrity_check")
    return {"problems": problems, "tokens": tokens, "integrity": healthy}


def fork_with_a_bare_connection(path: str) -> object:
    """What a child finds open of a connection that nobody closed before the fork."""
    db = apsw.Connection(path)
    names_in, names_out = os.pipe()
    reap(fork_all([lambda: os.write(names_out, json.dumps(open_files()).encode())]))
    db.close()
    return json.loads(os.read(names_in, 65536))


def fork_in_a_stuck_call(path: str) -> object:
    """Fork while a call hangs for longer than fork may wait: the child must not touch the file."""
    stuck, free = threading.Event(), threading.Event()
    with driven(Path(path), timeout=0.2) as store:

        def hang(_: Any) -> None:
            stuck.set()
            free.wait()

        caller = threading.Thread(target=lambda: drive(store.wire.write(hang)))
        caller.start()
        stuck.wait()
        answers_in, answers_out = os.pipe()

        def child() -> None:
            answers = []
            for attempt in (store.grant, lambda: Driven(Path(path))):
                try:
                    attempt()
                    answers.append("granted")
                except leasehold.StoreUnavailable as error:
                    answers.append(str(error))
            os.write(answers_out, json.dumps(answers).encode())

        reap(fork_all([child]))
        free.set()
        caller.join()
        return {"child": json.loads(os.read(answers_in, 65536)), "parent": store.grant().revision}


def fork_by_threads(path: str, threads: str, forks: str) -> object:
    """Several threads fork at the same time while others are in calls; every child can use the store."""
    problems: list[str] = []
    over = threading.Event()
    with driven(Path(path), timeout=30) as store:

        def forker(number: int) -> None:
            for turn in range(int(forks)):
                key = KEY._replace(member=f"{number}/{turn}")
                problems.extend(str(code) for code in reap(fork_all([lambda key=key: store.grant(key)])) if code)

        def traffic() -> None:
            while not over.is_set():
                store.load(KEY)

        busy = [threading.Thread(target=traffic) for _ in range(2)]
        forkers = [threading.Thread(target=forker, args=(number,)) for number in range(int(threads))]
        for thread in (*busy, *forkers):
            thread.start()
        for thread in forkers:
            thread.join()
        over.set()
        for thread in busy:
            thread.join()
        return {"problems": problems, "granted": len(store.scan(KEY.family)), "wires": len(wire_file._FORKING)}


class Log:
    """A shared file in which every process writes whole lines; O_APPEND keeps them in order."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)

    def write(self, key: str, what: str, token: int, seen: int) -> None:
        os.write(self._file, f"{key} {what} {token} {seen}\n".encode())

    def last(self) -> int:
        """The last token somebody wrote down: known to all before they ask."""
        size = os.fstat(self._file).st_size
        lines = os.pread(self._file, min(size, 200), max(size - 200, 0)).decode().splitlines()
        return int(lines[-1].split()[2]) if len(lines) > 1 else 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)


def fork_all(works: list[Callable[[], object]]) -> list[int]:
    """One forked child for each piece of work."""
    children = []
    for work in works:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                work()
                code = 0
            except BaseException as error:  # noqa: BLE001  the child's whole story ends here, on stderr
                print(f"child: {error!r}", file=sys.stderr, flush=True)  # noqa: T201
            os._exit(code)
        children.append(child)
    return children


def reap(children: list[int]) -> list[int]:
    """The exit codes, once all have ended."""
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def together(works: list[Callable[[], object]]) -> None:
    """Run all at once, each in a process; all must end well."""
    codes = reap(fork_all(works))
    if any(codes):
        raise SystemExit(f"children ended with {codes}")


def kill(child: int) -> None:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def open_files() -> list[str]:
    """What this process has open, by name."""
    names = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the descriptor of this very listing
            names.append(os.readlink(f"/proc/self/fd/{number}"))
    return names


def say(answer: object) -> None:
    print(json.dumps(answer), flush=True)  # noqa: T201  the answer is the program's output


if __name__ == "__main__":
    say(globals()[sys.argv[1]](*sys.argv[2:]))
