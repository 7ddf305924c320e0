"""A fenced file: the mark lies beside it, and is raised before the data changes.

`data.json` is only ever replaced as a whole. `data.json.mark` holds the largest token, and a lock of the operating
system that lasts for one read or write. The mark reaches the disk first: a crash between the two leaves
a raised mark and the old data, which is what a write that was not acknowledged may leave.

For processes of one machine, on a file system with working `flock`. A process that is stopped in the middle of a
write holds up the others: they wait for `timeout` seconds and raise StoreUnavailable.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import time
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from leasehold.errors import InvalidInput, NoSuchResource, StoreDamaged, StoreUnavailable
from leasehold.rules.fencing import DIGITS, admit
from leasehold.rules.timing import TIMEOUT_MAX, seconds

# A slot holds a token and its checksum. There are two, written in turn: one is always whole.
SLOT = DIGITS + 10
LOOK_AGAIN = 0.002


class Mark(NamedTuple):
    """The largest token, and the slot to write the next one to."""

    token: int
    spare: int


class FileResource:
    """What `File` means."""

    def __init__(self, path: str | os.PathLike[str], timeout: float) -> None:
        if not isinstance(path, str | os.PathLike):
            raise InvalidInput("path", path, f"must be a path, not {type(path).__name__}")
        self.path: str = os.path.abspath(path)
        self.timeout: float = seconds("timeout", timeout, 0.001, TIMEOUT_MAX)

    @property
    def name(self) -> str:
        return self.path

    async def open(self, token: int) -> None:
        with self._locked() as marks:
            self._raise(marks, token)

    async def read(self, token: int) -> bytes:
        with self._locked() as marks:
            admit(self.path, _mark(marks, self.path).token, token)
            return _content(self.path)

    async def write(self, token: int, value: bytes) -> None:
        _check(value)
        with self._locked() as marks:
            self._raise(marks, token)
            _replace(self.path, value)

    async def load(self) -> tuple[bytes, bytes]:
        # The content is its own version: inodes and times come back within a tick of the file system's clock.
        with self._locked():
            found = _content(self.path)
            return found, found

    async def replace(self, value: bytes, version: bytes) -> bool:
        _check(value)
        with self._locked():
            if _content(self.path) != version:
                return False
            _replace(self.path, value)
            return True

    def _raise(self, marks: int, token: int) -> None:
        mark = _mark(marks, self.path)
        if admit(self.path, mark.token, token) > mark.token:
            os.pwrite(marks, _slot(token), mark.spare * SLOT)
            os.fsync(marks)
            if not mark.token:
                _sync_folder(self.path)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[int]:
        beside = f"{self.path}.mark"
        try:
            marks = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StoreUnavailable(f"{beside} cannot be opened: {error.strerror}", applied=False) from error
        try:
            self._lock(marks)
            yield marks
        finally:
            os.close(marks)

    def _lock(self, marks: int) -> None:
        until = time.monotonic() + self.timeout
        while True:
            try:
                fcntl.flock(marks, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= until:
                    told = f"another process has been using {self.path} for {self.timeout:g} s"
                    raise StoreUnavailable(told, applied=False) from None
                time.sleep(LOOK_AGAIN)
            else:
                return


def _check(value: object) -> None:
    if not isinstance(value, bytes):
        raise InvalidInput("value", value, f"must be bytes, not {type(value).__name__}")


def _slot(token: int) -> bytes:
    digits = b"%0*d" % (DIGITS, token)
    return b"%b %08x\n" % (digits, zlib.crc32(digits))


def _mark(marks: int, path: str) -> Mark:
    text = os.pread(marks, 2 * SLOT, 0)
    if not text:
        return Mark(0, 0)
    slots = [text[:SLOT], text[SLOT:]]
    whole = [int(slot[:DIGITS]) for slot in slots if slot[:DIGITS].isdigit() and slot == _slot(int(slot[:DIGITS]))]
    if not whole:
        raise StoreDamaged(
            f"{path}.mark holds no token; restore it, or find the largest one granted and write it there"
        )
    token = max(whole)
    return Mark(token, 1 if slots[0] == _slot(token) else 0)


def _content(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        raise NoSuchResource(path, "write it first") from None


def _replace(path: str, value: bytes) -> None:
    handle, fresh = tempfile.mkstemp(prefix=f".{os.path.basename(path)}.", dir=os.path.dirname(path))
    try:
        with open(handle, "wb") as file:
            file.write(value)
            file.flush()
            os.fsync(file.fileno())
            _keep_rights(path, file.fileno())
        os.replace(fresh, path)
    except BaseException:
        os.unlink(fresh)
        raise
    _sync_folder(path)


def _sync_folder(path: str) -> None:
    folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _keep_rights(path: str, fresh: int) -> None:
    try:
        old = os.stat(path)
    except FileNotFoundError:
        os.fchmod(fresh, 0o644)
        return
    os.fchmod(fresh, old.st_mode & 0o7777)
