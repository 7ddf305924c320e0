"""One SQLite file, reached through a few connections; every call is one transaction.

The traps this file closes: the default busy handler starves writers, so ours
sleeps a random 0.1 to 1 ms; a connection must not live through a fork, so all
are closed before one; a file deleted or replaced under us must not go on being
written; another program's file stays as it is; and WAL needs shared memory, which
network file systems do not give.

One limit stays with the user: a program must not open the same file by other
means. Closing any other handle of it drops SQLite's locks in that process.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import apsw

from leasehold.errors import InvalidInput, PermissionDenied, StoreDamaged, StoreError, StoreUnavailable, one_line, shown
from leasehold.wires.chance import chance
from leasehold.wires.colour import Colour

T = TypeVar("T")

CONNECTIONS = 16
# Before this version two processes that write and checkpoint at once could corrupt a WAL file.
SAFE_SQLITE = (3, 51, 3)
DAMAGED = (
    "stop its users, move it away with its -wal and -shm, and start a new one: "
    "its tokens are above the old one's as long as the wall clock was not set back"
)
NETWORK_FILE_SYSTEMS = frozenset(
    (
        *("9p", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs"),
        *("nfs", "nfs4", "ocfs2", "orangefs", "prl_fs", "smb3", "smbfs", "vboxsf", "virtiofs", "vmhgfs"),
        *("fuse.cephfs", "fuse.gcsfuse", "fuse.glusterfs", "fuse.goofys", "fuse.juicefs", "fuse.mfs", "fuse.rclone"),
        *("fuse.s3fs", "fuse.seaweedfs", "fuse.sshfs", "fuse.vmhgfs-fuse"),
    )
)


class SqliteWire:
    """Connections to one file, handed out one call at a time."""

    def __init__(self, path: str, *, synchronous: str, timeout: float, colour: Colour) -> None:
        self.path: str = path
        self._synchronous = synchronous
        self._timeout = timeout
        self._colour = colour
        self._turn = threading.Condition(threading.Lock())
        self._writing = threading.Lock()
        self._idle: list[_Link] = []
        self._busy = 0
        self._closed = self._forking = False
        self._prepared = False

    async def open(
        self, recognise: Callable[[apsw.Connection], bool], prepare: Callable[[apsw.Connection], None]
    ) -> None:
        """Check the place and reach the file.

        `recognise` says whether the file's tables are ready and raises if it is not ours,
        before anything in it is changed; `prepare` makes it ready, in one transaction.
        """
        self._recognise = recognise
        self._prepare = prepare
        await self._colour.call(self._open)

    async def read(self, work: Callable[[apsw.Connection], T]) -> T:
        """What `work` reads. While a statement of it is open, it sees one state of the file."""
        return await self._colour.call(lambda: self._run(_Link.read, work))

    async def write(self, work: Callable[[apsw.Connection], T]) -> T:
        """What `work` returns, once all it did is committed; an exception leaves nothing behind."""
        return await self._colour.call(lambda: self._write(work))

    def read_now(self, work: Callable[[apsw.Connection], T]) -> T:
        """The same, for a thread that may block."""
        return self._run(_Link.read, work)

    def stamp_now(self) -> tuple[int, int, int]:
        """Changes, sooner or later, after any commit. Costs one system call."""
        try:
            log = os.stat(self.path + "-wal")
        except OSError:
            return (0, 0, 0)
        return (log.st_mtime_ns, log.st_size, log.st_ino)

    async def close(self) -> None:
        """Close what is idle; what is in use closes when it comes back."""
        await self._colour.call(self._close)

    # One call.

    def _write(self, work: Callable[[apsw.Connection], T]) -> T:
        """One at a time: who waits for the file must look for it again and again, and one of a process is enough."""
        until = time.monotonic() + self._timeout
        if not self._writing.acquire(timeout=self._timeout):
            raise StoreUnavailable(
                f"other threads of this process wrote to {one_line(self.path)} for {self._timeout:g} s; "
                "use fewer at once, or a longer timeout",
                applied=False,
            )
        try:
            return self._run(_Link.write, work, until)
        finally:
            self._writing.release()

    def _run(
        self,
        verb: Callable[[_Link, Callable[[apsw.Connection], T]], T],
        work: Callable[[apsw.Connection], T],
        until: float | None = None,
    ) -> T:
        link = self._take(until or time.monotonic() + self._timeout)
        # After any error the connection closes: one in an unknown state helps nobody.
        keep = False
        try:
            result = verb(link, work)
            keep = True
        except apsw.Error as error:
            raise _our_error(self.path, error, applied=None if link.committing else False) from error
        except ValueError as error:
            raise StoreDamaged(
                f"{one_line(self.path)} holds values that Leasehold did not write ({error}); {DAMAGED}"
            ) from error
        finally:
            self._give(link, keep=keep)
        return result

    def _take(self, until: float) -> _Link:
        with self._turn:
            while self._forking or self._busy == CONNECTIONS:
                self._wait_for_turn(until)
            self._busy += 1
            link = self._idle.pop() if self._idle else None
        try:
            if link is None:
                return self._connect(until)
            link.until = until
            self._check_same_file(link)
        except BaseException:
            self._give(link, keep=False)
            raise
        return link

    def _wait_for_turn(self, until: float) -> None:
        if not self._turn.wait(until - time.monotonic()):
            raise StoreUnavailable(
                f"no connection to {one_line(self.path)} became free in {self._timeout:g} s "
                f"(there are {CONNECTIONS} at most, and none during a fork); "
                "use fewer threads at once, or a longer timeout",
                applied=False,
            )

    def _give(self, link: _Link | None, *, keep: bool) -> None:
        if link is not None and not keep:
            link.close()
        with self._turn:
            self._busy -= 1
            if link is not None and keep:
                self._idle.append(link)
            if self._closed:
                self._drop_idle()
            self._turn.notify_all()

    def _connect(self, until: float) -> _Link:
        if self.path in _INHERITED:
            raise StoreUnavailable(
                f"this process was forked while a call on {one_line(self.path)} was under way and did not end in time; "
                "SQLite cannot use that file here. Start processes with subprocess or spawn instead of fork",
                applied=False,
            )
        try:
            link = _Link(self.path, until)
            try:
                ready = link.set_up(self._recognise, self._synchronous)
                # Not by its inode: a new file may well get that of a deleted one.
                if not (ready and self._prepared):
                    link.write(self._prepare)
                    self._prepared = True
            except BaseException:
                link.close()
                raise
        except apsw.Error as error:
            raise _our_error(self.path, error, applied=False) from error
        return link

    def _check_same_file(self, link: _Link) -> None:
        if _inode(self.path) == link.inode:
            return
        with self._turn:
            self._prepared = False
            self._drop_idle()
        raise StoreUnavailable(
            f"{one_line(self.path)} was deleted or replaced while in use; leases in the old file are lost "
            "and the next call opens the new one. Never move a lease file that is in use",
            applied=False,
        )

    def _drop_idle(self) -> None:
        while self._idle:
            self._idle.pop().close()

    # Beginning and end.

    def _open(self) -> None:
        check_version(apsw.sqlitelibversion())
        # SQLite keeps its log beside the file that links lead to.
        self.path = os.path.realpath(self.path)
        check_place(self.path, _mounts())
        with _FORK:
            _WIRES.add(self)
        self._run(_Link.read, lambda _: None)

    def _close(self) -> None:
        with self._turn:
            self._closed = True
            self._drop_idle()

    def before_fork(self) -> None:
        """Close every connection: SQLite's own state must not be copied into a child."""
        self._turn.acquire()
        self._forking = True
        # Longer than a call may wait for its lock.
        if not self._turn.wait_for(lambda: self._busy == 0, 2 * self._timeout):
            _INHERITED.add(self.path)
        self._drop_idle()

    def after_fork_in_parent(self) -> None:
        """Go on; connections open again when needed."""
        _INHERITED.discard(self.path)
        self._forking = False
        self._turn.notify_all()
        self._turn.release()

    def after_fork_in_child(self) -> None:
        """Start with nothing: no connection, and nobody in the middle of a call."""
        self._turn = threading.Condition(threading.Lock())
        self._writing = threading.Lock()
        self._idle = []
        self._busy = 0
        self._forking = False


class _Link:
    """One connection, the file it opened, and until when its current call may wait for a lock."""

    __slots__ = ("committing", "connection", "inode", "path", "until")

    def __init__(self, path: str, until: float) -> None:
        self.path = path
        self.until = until
        self.committing = False
        # Looked at before: if the file is replaced in between, the next call notices.
        before = _inode(path)
        self.connection = apsw.Connection(path)
        self.connection.set_busy_handler(self._wait_a_little)
        self.inode = before or _inode(path)

    def set_up(self, recognise: Callable[[apsw.Connection], bool], synchronous: str) -> bool:
        mode: object = None
        ready = False
        while mode is None:
            try:
                ready = recognise(self.connection)
                mode = self.connection.pragma("journal_mode", "wal")
            except apsw.BusyError:
                # Turning WAL on, and recovering after a crash, answer busy without asking the handler.
                if not self._wait_a_little(0):
                    raise
        if mode != "wal":
            raise apsw.CantOpenError(f"journal mode {mode}: the file system gives no shared memory")
        self.connection.pragma("synchronous", synchronous)
        return ready

    def read(self, work: Callable[[apsw.Connection], T]) -> T:
        return work(self.connection)

    def write(self, work: Callable[[apsw.Connection], T]) -> T:
        connection = self.connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            result = work(connection)
            # Nothing is changed before this; if it fails, nobody can tell.
            self.committing = True
            connection.execute("COMMIT")
            self.committing = False
        except BaseException:
            if connection.in_transaction:
                with contextlib.suppress(apsw.Error):  # the first error is the one to tell
                    connection.execute("ROLLBACK")
            raise
        return result

    def close(self) -> None:
        # What was told lies in the log and stays there: an error on the way out loses nothing.
        with contextlib.suppress(apsw.Error):
            self.connection.close(True)

    def _wait_a_little(self, _: int) -> bool:
        if time.monotonic() >= self.until:
            return False
        time.sleep(0.0001 + 0.0009 * chance())
        return True


def _our_error(path: str, error: apsw.Error, *, applied: bool | None) -> StoreError:
    said = f"{one_line(path)}: {type(error).__name__}: {error}"
    match error:
        case apsw.CorruptError() | apsw.NotADBError() | apsw.FormatError():
            return StoreDamaged(f"{said}; this is not a healthy SQLite file; {DAMAGED}")
        case apsw.SQLError() | apsw.ConstraintError() | apsw.MismatchError():
            return StoreDamaged(
                f"{said}; the tables are not those of this version of Leasehold. If a newer version has migrated the "
                "file, restart this process with it"
            )
        case apsw.CantOpenError() if not os.path.isdir(os.path.dirname(path)):
            remedy = "its folder is gone; create it again"
        case apsw.ReadOnlyError() | apsw.PermissionsError() | apsw.CantOpenError() if not _writable(path):
            return PermissionDenied(f"{said}; this user must be able to write the file and its folder")
        case apsw.CantOpenError():
            remedy = "check the limit of open files, and that the file lies on an ordinary local file system"
        case apsw.BusyError() | apsw.LockedError():
            remedy = "another process kept the file locked all the time"
        case apsw.FullError():
            remedy = "free disk space: nothing is granted until then"
        case _:
            remedy = "check the disk"
    return StoreUnavailable(f"{said}; {remedy}", applied=applied)


def _writable(path: str) -> bool:
    folder = os.access(os.path.dirname(path), os.W_OK | os.X_OK, effective_ids=True)
    return folder and (_inode(path) is None or os.access(path, os.R_OK | os.W_OK, effective_ids=True))


def _inode(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return (found.st_dev, found.st_ino)


# Where the file may lie.


def check_version(version: str) -> None:
    """Refuse a SQLite that can corrupt a file several processes write."""
    if tuple(map(int, version.split("."))) < SAFE_SQLITE:
        raise StoreUnavailable(
            f"SQLite {version} can corrupt a file that several processes write; "
            "install an apsw that brings 3.51.3 or newer",
            applied=False,
        )


def check_place(path: str, mounts: str) -> None:
    """Refuse a place where SQLite cannot share a file safely, before anything is created there."""
    folder = os.path.dirname(path)
    around, found = _stat(folder), _stat(path)
    if around is None or not stat.S_ISDIR(around.st_mode):
        raise InvalidInput("url", path, f"the folder {shown(folder)} does not exist; create it first")
    if found is not None and not stat.S_ISREG(found.st_mode):
        raise InvalidInput("url", path, "must name a plain file, not a folder or a device")
    if found is not None and found.st_nlink > 1:
        raise InvalidInput("url", path, "must be a file with one name: SQLite keeps a log for each hard link")
    kind = file_system_of(folder, mounts)
    if kind in NETWORK_FILE_SYSTEMS:
        raise StoreUnavailable(
            f"{one_line(path)} lies on {kind}, a network file system, where SQLite cannot share a lease file safely; "
            "put it on a local disk, or use a server store such as redis:// or postgresql://",
            applied=False,
        )


def _stat(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError as error:
        raise PermissionDenied(
            f"{one_line(path)}: {error.strerror}; this user must be able to reach the folder"
        ) from error
    except OSError as error:
        raise InvalidInput("url", path, f"cannot be a file: {error.strerror}") from error


def file_system_of(folder: str, mounts: str) -> str:
    """The type of the file system a folder lies on, from the kernel's mount table."""
    found, longest = "", -1
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        # Blanks and backslashes in a name are written in octal.
        point = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), left.split(" ")[4])
        inside = folder == point or folder.startswith(point.rstrip("/") + "/")
        # Of two mounts on one point the later hides the earlier.
        if inside and len(point) >= longest:
            found, longest = right.split(" ")[0], len(point)
    return found


def _mounts() -> str:
    try:
        return Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""


# Fork.

_WIRES: weakref.WeakSet[SqliteWire] = weakref.WeakSet()
# One fork at a time; no wire begins during one.
_FORK = threading.Lock()
_FORKING: list[SqliteWire] = []
# Files with a connection that could not be closed before this process was forked.
_INHERITED: set[str] = set()


def _before_fork() -> None:
    _FORK.acquire()
    _FORKING.extend(_WIRES)
    for wire in _FORKING:
        wire.before_fork()


def _after_fork_in_parent() -> None:
    while _FORKING:
        _FORKING.pop().after_fork_in_parent()
    _FORK.release()


def _after_fork_in_child() -> None:
    while _FORKING:
        _FORKING.pop().after_fork_in_child()
    _FORK.release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
