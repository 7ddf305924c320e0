"""One SQLite file, reached through a few connections; every call is one transaction.

The traps this file closes: the default busy handler starves writers, so ours
sleeps a random 0.1 to 1 ms; a connection must not live through a fork, so all
are closed before one; a file deleted or replaced under us must not go on being
written; and WAL needs shared memory, which network file systems do not give.
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import apsw

from leasehold.errors import InvalidInput, PermissionDenied, StoreDamaged, StoreError, StoreUnavailable
from leasehold.wires.colour import Colour

T = TypeVar("T")

CONNECTIONS = 16
# Below this, two processes that write and checkpoint at once can corrupt a WAL file.
SAFE_SQLITE = 3_051_003
NETWORK_FILE_SYSTEMS = frozenset(
    (
        *("9p", "afs", "beegfs", "ceph", "cifs", "coda", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4"),
        *("ocfs2", "smb3", "smbfs", "virtiofs", "vboxsf"),
        *("fuse.cephfs", "fuse.glusterfs", "fuse.s3fs", "fuse.sshfs"),
    )
)


class SqliteWire:
    """Connections to one file, handed out one call at a time."""

    def __init__(self, path: str, *, synchronous: str, timeout: float, colour: Colour) -> None:
        self.path = path
        self._synchronous = synchronous
        self._timeout = timeout
        self._colour = colour
        self._idle: list[_Link] = []
        self._busy = 0
        self._turn = threading.Condition(threading.Lock())

    async def open(self, prepare: Callable[[apsw.Connection], None]) -> None:
        """Check the place, then let `prepare` bring the schema up to date in one transaction."""
        await self._colour.call(self._check_place)
        _ALIVE.add(self)
        await self.write(prepare)

    async def read(self, work: Callable[[apsw.Connection], T]) -> T:
        """What `work` reads in a single statement."""
        return await self._colour.call(lambda: self._run(work))

    async def write(self, work: Callable[[apsw.Connection], T]) -> T:
        """What `work` returns, once all it did is committed; an exception leaves nothing behind."""
        return await self._colour.call(lambda: self._run(_transaction, work))

    def stamp(self) -> tuple[int, int, int]:
        """Changes, sooner or later, after any commit. Costs one system call."""
        try:
            wal = os.stat(self.path + "-wal")
        except OSError:
            return (0, 0, 0)
        return (wal.st_mtime_ns, wal.st_size, wal.st_ino)

    def close(self) -> None:
        """Close what is idle; what is in use closes when it comes back."""
        _ALIVE.discard(self)
        with self._turn:
            self._drop_idle()

    def _run(self, work: Callable[..., T], *args: object) -> T:
        link = self._take()
        try:
            with _translated(self.path):
                link.until = time.monotonic() + self._timeout
                result = work(link.connection, *args)
        except BaseException:
            # Whatever went wrong, a connection in an unknown state helps nobody.
            self._give(link, keep=False)
            raise
        self._give(link, keep=True)
        return result

    def _take(self) -> _Link:
        with self._turn:
            if not self._turn.wait_for(lambda: self._busy < CONNECTIONS, self._timeout):
                raise StoreUnavailable(
                    f"all {CONNECTIONS} connections to {self.path} were in use for {self._timeout:g} s; "
                    "use fewer threads at once, or a longer timeout",
                    applied=False,
                )
            self._busy += 1
            link = self._idle.pop() if self._idle else None
        try:
            if link is None:
                return self._connect()
            self._check_same_file(link)
        except BaseException:
            with self._turn:
                self._busy -= 1
                self._turn.notify()
            raise
        return link

    def _give(self, link: _Link, *, keep: bool) -> None:
        with self._turn:
            self._busy -= 1
            if keep and self in _ALIVE:
                self._idle.append(link)
            else:
                link.connection.close(True)
            self._turn.notify()

    def _connect(self) -> _Link:
        with _translated(self.path):
            link = _Link(self.path, time.monotonic() + self._timeout)
            link.set_up(self._synchronous)
        return link

    def _check_same_file(self, link: _Link) -> None:
        if _inode(self.path) == link.inode:
            return
        with self._turn:
            self._drop_idle()
        link.connection.close(True)
        raise StoreUnavailable(
            f"{self.path} was deleted or replaced while in use; leases in the old file are lost and the next call "
            "opens the new one; never move a lease file that is in use",
            applied=False,
        )

    def _drop_idle(self) -> None:
        while self._idle:
            self._idle.pop().connection.close(True)

    def _check_place(self) -> None:
        if apsw.SQLITE_VERSION_NUMBER < SAFE_SQLITE:
            raise StoreUnavailable(
                f"SQLite {apsw.sqlitelibversion()} can corrupt a file that several processes write; "
                "install an apsw that bundles 3.51.3 or newer",
                applied=False,
            )
        folder = Path(self.path).parent
        if not folder.is_dir():
            raise InvalidInput("url", self.path, f"the folder {folder} does not exist; create it first")
        kind = file_system_of(str(folder.resolve()), _mounts())
        if kind in NETWORK_FILE_SYSTEMS:
            raise StoreUnavailable(
                f"{self.path} lies on {kind}, a network file system, where SQLite cannot share a lease file safely; "
                "put it on a local disk, or use a server store such as redis:// or postgresql://",
                applied=False,
            )

    def before_fork(self) -> None:
        """Close every connection: SQLite's own state must not be copied into a child."""
        self._turn.acquire()
        self._turn.wait_for(lambda: self._busy == 0, self._timeout)
        self._drop_idle()

    def after_fork_in_parent(self) -> None:
        """Go on; connections open again when needed."""
        self._turn.release()

    def after_fork_in_child(self) -> None:
        """Start with nothing: no connection, and nobody in the middle of a call."""
        self._busy = 0
        self._idle = []
        self._turn = threading.Condition(threading.Lock())


class _Link:
    """One connection, the file it opened, and until when its current call may wait for a lock."""

    __slots__ = ("connection", "inode", "until")

    def __init__(self, path: str, until: float) -> None:
        self.until = until
        self.connection = apsw.Connection(path)
        self.connection.set_busy_handler(self._wait_a_little)
        self.inode = _inode(path)

    def set_up(self, synchronous: str) -> None:
        mode = self._turn_on_wal()
        if mode != "wal":
            raise apsw.CantOpenError(f"journal mode {mode}: the file system gives no shared memory")
        self.connection.pragma("synchronous", synchronous)

    def _turn_on_wal(self) -> object:
        while True:
            try:
                return self.connection.pragma("journal_mode", "wal")
            except apsw.BusyError:
                # Turning WAL on, and recovering after a crash, answer busy without asking the handler.
                if not self._wait_a_little(0):
                    raise

    def _wait_a_little(self, _: int) -> bool:
        if time.monotonic() >= self.until:
            return False
        time.sleep(random.uniform(0.0001, 0.001))  # noqa: S311  spreads contenders, keeps no secret
        return True


def _transaction(connection: apsw.Connection, work: Callable[[apsw.Connection], T]) -> T:
    connection.execute("BEGIN IMMEDIATE")
    try:
        result = work(connection)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            with contextlib.suppress(apsw.Error):  # the first error is the one to tell; the connection closes anyway
                connection.execute("ROLLBACK")
        raise
    return result


@contextlib.contextmanager
def _translated(path: str) -> Iterator[None]:
    try:
        yield
    except apsw.Error as error:
        raise _our_error(path, error) from error


def _our_error(path: str, error: apsw.Error) -> StoreError:
    said = f"{path}: {type(error).__name__}: {error}"
    match error:
        case apsw.BusyError() | apsw.LockedError():
            return StoreUnavailable(f"{said}; another process kept the file locked all the time", applied=False)
        case apsw.FullError():
            return StoreUnavailable(f"{said}; free disk space, nothing was granted", applied=False)
        case apsw.ReadOnlyError() | apsw.PermissionsError() | apsw.CantOpenError():
            return PermissionDenied(f"{said}; this user must be able to write the file and its folder")
        case apsw.CorruptError() | apsw.NotADBError() | apsw.FormatError():
            return StoreDamaged(
                f"{said}; not a healthy SQLite file. Stop its users, move it away, and start a new one: "
                "a new file's tokens are above the old one's as long as the wall clock was not set back"
            )
        case apsw.SQLError() | apsw.ConstraintError() | apsw.MismatchError():
            return StoreDamaged(f"{said}; the tables are not those of this version of Leasehold")
    return StoreUnavailable(f"{said}; check the disk")


def _inode(path: str) -> tuple[int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return (0, 0)
    return (found.st_dev, found.st_ino)


def file_system_of(folder: str, mounts: str) -> str:
    """The type of the file system a folder lies on, from the kernel's mount table."""
    found, longest = "", -1
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        point = left.split()[4].encode().decode("unicode_escape")
        inside = folder == point or folder.startswith(point.rstrip("/") + "/")
        # Of two mounts on one point the later hides the earlier.
        if inside and len(point) >= longest:
            found, longest = right.split()[0], len(point)
    return found


def _mounts() -> str:
    try:
        return Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


_ALIVE: weakref.WeakSet[SqliteWire] = weakref.WeakSet()
_FORKING: list[SqliteWire] = []


def _before_fork() -> None:
    _FORKING.extend(sorted(_ALIVE, key=id))
    for wire in _FORKING:
        wire.before_fork()


def _after_fork_in_parent() -> None:
    while _FORKING:
        _FORKING.pop().after_fork_in_parent()


def _after_fork_in_child() -> None:
    while _FORKING:
        _FORKING.pop().after_fork_in_child()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
