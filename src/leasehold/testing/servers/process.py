"""What every private server has in common: a folder, a port, a process and the verbs that make it suffer.

A server listens on loopback only, keeps its data in a temporary folder, and is gone
with it when the `with` block ends, also when the test process is killed in between.
"""

from __future__ import annotations

import abc
import contextlib
import itertools
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, ClassVar, Self, cast

from leasehold.errors import LeaseholdError
from leasehold.testing.servers import trees
from leasehold.testing.servers.clock import Clock

HOST = "127.0.0.1"
PATIENCE = 60.0
LOOK = 0.005
LOG_LINES = 15
TRIES = 10
# Below the ports that systems give to outgoing connections (32768 and up), so that nobody takes the port of a
# stopped server by accident; a Redis Cluster node also uses the port 10000 above its own.
PORTS = range(10240, 22000)


class ServerFailed(LeaseholdError):
    """A server did not do what was asked: it did not come up, or not down. The end of its log is in the message."""


class PortTaken(ServerFailed):
    """Somebody else took the port between our look and the server's start."""


class Home:
    """A temporary folder with the processes that live in it. Both go when it is closed, or when we are killed.

    What lives there runs as `user`; None is ourselves.
    """

    def __init__(self, user: str | None = None) -> None:
        owner = None if user is None else pwd.getpwnam(user)
        self._owner = os.getpid()
        self._uid: int | None = owner and owner.pw_uid
        self._gid: int | None = owner and owner.pw_gid
        self.folder: Path = Path(tempfile.mkdtemp(prefix="leasehold-", dir=_reachable_folder()))
        self.give(self.folder)
        self._watcher: subprocess.Popen[bytes] = subprocess.Popen(
            [sys.executable, "-I", "-S", trees.__file__, str(self.folder), str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )

    def give(self, path: Path) -> None:
        """Make the user of this home the owner of a file or folder in it."""
        if self._uid is not None and self._gid is not None:
            os.chown(path, self._uid, self._gid)

    def spawn(self, command: list[str], env: Mapping[str, str], log: Path, farewell: int) -> subprocess.Popen[bytes]:
        """Start a program that cannot outlive us. `farewell` is the signal that ends it without traces."""
        settings = [f"{name}={value}" for name, value in env.items()]
        with log.open("ab") as out:
            # The gate: the program starts when the watcher knows of it, and never if we die before.
            process = subprocess.Popen(
                ["/bin/sh", "-c", 'read -r _ && exec env "$@" </dev/null', "sh", *settings, *command],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=out,
                cwd=self.folder,
                env=_plain_environment(),
                start_new_session=True,
                user=self._uid,
                group=self._gid,
                extra_groups=self._no_groups(),
            )
        # What an earlier process of the same number left there could be locked for ever.
        trees.sweep(process.pid)
        self._tell(f"lives {process.pid} {trees.born(process.pid)} {farewell:d}")
        gate = cast("IO[bytes]", process.stdin)
        with contextlib.suppress(BrokenPipeError):
            gate.write(b"\n")
            gate.flush()
        gate.close()
        return process

    def forget(self, pid: int) -> None:
        """The process has ended and was fetched: its number may soon be somebody else's."""
        self._tell(f"ended {pid}")

    def run(self, command: list[str]) -> None:
        """Run a program to its end, as the user of this home; a failure is ServerFailed with its output."""
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=_plain_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
            user=self._uid,
            group=self._gid,
            extra_groups=self._no_groups(),
        )
        if done.returncode:
            raise ServerFailed(f"{command[0]} ended with {done.returncode}:\n{done.stdout.decode(errors='replace')}")

    @property
    def is_ours(self) -> bool:
        """False in a forked child: what its parent started is not the child's to end."""
        return os.getpid() == self._owner

    def close(self) -> None:
        """End what still runs and remove the folder."""
        if self.is_ours:
            self._watcher.communicate(trees.GOODBYE)

    def room(self, name: str) -> Home:
        """A folder inside, as the home of one of several servers; it goes with this one."""
        return _Room(self, name)

    def _no_groups(self) -> list[int] | None:
        return None if self._uid is None else []

    def _tell(self, line: str) -> None:
        pipe = cast("IO[bytes]", self._watcher.stdin)
        pipe.write(f"{line}\n".encode())
        pipe.flush()


class _Room(Home):
    def __init__(self, home: Home, name: str) -> None:
        vars(self).update(vars(home))
        self.folder = home.folder / name
        self.folder.mkdir(mode=0o700)
        self.give(self.folder)

    def close(self) -> None:
        """Remove the folder; the watcher is the whole home's."""
        if self.is_ours:
            shutil.rmtree(self.folder, ignore_errors=True)


class Started(abc.ABC):
    """What runs for the length of a `with` block. A start that fails leaves nothing behind."""

    @abc.abstractmethod
    def start(self) -> None:
        """Start it, and return when it serves."""

    @abc.abstractmethod
    def close(self) -> None:
        """End it in whatever state it is, and remove everything it had."""

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Server(Started):
    """The verbs of one server process. What it runs, and how one sees that it is ready, is the subclass's."""

    # What a graceful stop sends, and what ends the server quickly without leaving anything on the machine.
    polite: ClassVar[int] = signal.SIGTERM
    farewell: ClassVar[int] = signal.SIGKILL
    # Seconds between two looks whether it is ready.
    look: ClassVar[float] = LOOK

    def __init__(self, *, clock: Clock | None = None) -> None:
        self.host: str = HOST
        self.port: int = 0
        self.clock: Clock | None = clock
        self._home: Home | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._is_configured = False

    @property
    def pid(self) -> int:
        """The number of its process, or of its first one."""
        return self._running().pid

    @property
    def is_running(self) -> bool:
        """Whether its process exists, be it paused."""
        # Not by poll(), which fetches an ended process: its number must stay its own until we have cleared up.
        return self._process is not None and trees.is_alive(self._process.pid)

    @property
    def folder(self) -> Path:
        """Where its data, configuration and log are."""
        return self.home.folder

    @property
    def home(self) -> Home:
        """The folder with its watcher; both exist from the first start to the end."""
        if self._home is None:
            raise ServerFailed(f"this {self._name()} was not started; use it in a with block, or call start()")
        return self._home

    @property
    def log(self) -> Path:
        """Everything the server has written to its log."""
        return self.folder / "log"

    def start(self) -> None:
        """Start it: the first time on a free port with nothing in it, later on the same port with the same data."""
        if self.is_running:
            raise ServerFailed(f"this {self._name()} runs already (process {self.pid})")
        self._fetch()
        if self._home is None:
            self._home = self._make_home()
            self._prepare()
        if self._is_configured:
            self._launch()
        else:
            self._launch_on_free_port()
            self._is_configured = True

    def stop(self) -> None:
        """End it gracefully, paused or not, and return when it has ended."""
        process = self._running()
        members = trees.tree(process.pid)
        process.send_signal(self.polite)
        trees.thaw(process.pid)
        with self._patience("stop"):
            trees.wait_until_gone(members)
        self._fetch()

    def kill(self) -> None:
        """SIGKILL to every process of it, paused or not, and return when all are dead."""
        process = self._running()
        with self._patience("die"):
            trees.wait_until_gone(trees.kill(process.pid))
        self._fetch()

    def pause(self) -> None:
        """SIGSTOP to every process of it: connections stay, nothing is answered."""
        with self._patience("pause"):
            trees.freeze(self._running().pid)

    def go_on(self) -> None:
        """SIGCONT, after pause."""
        trees.thaw(self._running().pid)

    def restart(self) -> None:
        """Stop gracefully, then start: same port, same data."""
        self.stop()
        self.start()

    def close(self) -> None:
        """End it in whatever state it is, and remove everything it had."""
        if self._home is None or not self._home.is_ours:
            return
        if self.is_running:
            with self._patience("end"):
                trees.end(self.pid, self.farewell)
        self._fetch()
        self._leave(self._home)
        self._home = None
        self._is_configured = False

    # What a subclass says.

    @abc.abstractmethod
    def _command(self) -> list[str]:
        """The program and its arguments."""

    @abc.abstractmethod
    def _is_ready(self) -> bool:
        """Whether this very process serves; another server may have taken the port."""

    def _make_home(self) -> Home:
        return Home()

    def _prepare(self) -> None:
        """Once, before the first start."""

    def _configure(self) -> None:
        """Once self.port is chosen. Not again at a restart: some servers write what they learn into their file."""

    def _leave(self, home: Home) -> None:
        """At the very end, when the process has ended."""
        if self.clock is not None:
            self.clock.detach(home.folder)
        home.close()

    # The start, step by step.

    def _launch_on_free_port(self) -> None:
        for tries_left in reversed(range(TRIES)):
            self.port = free_port()
            self._configure()
            try:
                self._launch()
            except PortTaken:
                if not tries_left:
                    raise
                self.log.unlink()
            else:
                return

    def _launch(self) -> None:
        env = {} if self.clock is None else self.clock.attach(self.folder)
        self._process = self.home.spawn(self._command(), env, self.log, self.farewell)
        try:
            self._await_ready()
        except BaseException:
            trees.end(self._process.pid, self.farewell)
            self._fetch()
            raise

    def _await_ready(self) -> None:
        def ready() -> bool:
            if not self.is_running:
                kind = PortTaken if "ddress already in use" in self._tail() else ServerFailed
                raise kind(f"{self._name()} ended at its start{self._tail()}")
            return self._is_ready()

        wait_until(ready, lambda: f"{self._name()} is not ready{self._tail()}", self.look)

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or not self.is_running:
            raise ServerFailed(f"this {self._name()} does not run; call start()")
        return self._process

    def _fetch(self) -> None:
        """Fetch the ended process, so that nothing remembers its number."""
        if self._process is not None:
            self._process.wait()
            trees.sweep(self._process.pid)
            self.home.forget(self._process.pid)
            self._process = None

    @contextlib.contextmanager
    def _patience(self, verb: str) -> Iterator[None]:
        try:
            yield
        except TimeoutError as error:
            raise ServerFailed(f"{self._name()} did not {verb} in {trees.PATIENCE:g} s{self._tail()}") from error

    def _tail(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return "; the end of its log:" + "".join(f"\n    {line}" for line in lines[-LOG_LINES:])

    def _name(self) -> str:
        return type(self).__name__


def free_port() -> int:
    """A port that nobody listens on now, nor on the one 10000 above."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """Several such ports, each another."""
    # From a random one on: several test processes may be looking at the same time.
    first = secrets.randbelow(len(PORTS))
    candidates = itertools.chain(PORTS[first:], PORTS[:first])
    found = (port for port in candidates if _is_free(port) and _is_free(port + 10000))
    ports = list(itertools.islice(found, count))
    if len(ports) < count:
        raise ServerFailed(f"fewer than {count} free ports from {PORTS[0]} to {PORTS[-1]}")
    return ports


def wait_until(true: Callable[[], bool], complaint: Callable[[], str], look: float = LOOK) -> None:
    """Wait for a condition, however slow the machine; ServerFailed with the complaint when it never comes."""
    end = time.monotonic() + PATIENCE
    while not true():
        if time.monotonic() > end:
            raise ServerFailed(f"{complaint()} (waited {PATIENCE:g} s)")
        time.sleep(look)


def unprivileged_user() -> str | None:
    """Whom to run a server as that refuses root: None is ourselves."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in known else "nobody"


def _reachable_folder() -> str | None:
    """Where an unprivileged user can reach what we give him: every folder above must let him through."""
    if os.geteuid() != 0:
        return None
    for folder in (tempfile.gettempdir(), "/tmp", "/var/tmp"):  # noqa: S108  mkdtemp makes a private one inside
        place = Path(folder).resolve()
        if place.is_dir() and all(step.stat().st_mode & 0o001 for step in (place, *place.parents)):
            return str(place)
    raise ServerFailed("no temporary folder that other users can reach; set TMPDIR to one")


def _plain_environment() -> dict[str, str]:
    """Nothing of ours: PGHOST, LD_PRELOAD or a language would change what the server does."""
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"}


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True
