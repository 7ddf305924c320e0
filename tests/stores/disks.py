"""Disks that remember and disks that fail, as a SQLite VFS under the real store.

While one is in use every new connection of this process goes through it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import apsw

DATABASE, LOG = "leases.db", "leases.db-wal"


class Event(NamedTuple):
    """One thing that happened to a file, or ("told") that a caller was given a revision."""

    what: str
    file: str
    at: int = 0
    data: bytes = b""


class Disk(apsw.VFS):
    """Passes everything on, writes it down, and asks `fault` first."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.fault: Callable[[str, str], None] = lambda _what, _file: None
        super().__init__("remembering", "unix", makedefault=True)

    def xOpen(self, name: apsw.URIFilename | str | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802  SQLite's own name
        return _File(self, name, flags)

    def told(self, revision: int) -> None:
        """A caller has been given this revision."""
        self.events.append(Event("told", "", revision))


class _File(apsw.VFSFile):
    def __init__(self, disk: Disk, name: apsw.URIFilename | str | None, flags: list[int]) -> None:
        self.disk = disk
        self.file = Path(name.filename() if isinstance(name, apsw.URIFilename) else name or "temporary").name
        super().__init__("unix", name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802  SQLite's own name
        self.disk.fault("write", self.file)
        self.disk.events.append(Event("write", self.file, offset, bytes(data)))
        super().xWrite(data, offset)

    def xTruncate(self, size: int) -> None:  # noqa: N802  SQLite's own name
        self.disk.events.append(Event("truncate", self.file, size))
        super().xTruncate(size)

    def xSync(self, flags: int) -> None:  # noqa: N802  SQLite's own name
        self.disk.fault("sync", self.file)
        self.disk.events.append(Event("sync", self.file))
        super().xSync(flags)


@contextmanager
def disk(checkpoint_every: int | None = None) -> Iterator[Disk]:
    """Put a disk under every connection opened inside the block; let logs flow back early if asked."""
    under = Disk()

    def flow_back_early(connection: apsw.Connection) -> None:
        connection.wal_autocheckpoint(checkpoint_every or 1000)

    apsw.connection_hooks.append(flow_back_early)
    try:
        yield under
    finally:
        apsw.connection_hooks.remove(flow_back_early)
        under.unregister()


class Surface:
    """What lies on the platter and what only lies in the cache, file by file."""

    def __init__(self, database: bytes) -> None:
        self.safe = {DATABASE: bytearray(database), LOG: bytearray()}
        self.cached: dict[str, list[Event]] = {DATABASE: [], LOG: []}

    def apply(self, event: Event) -> None:
        """Let one event happen: only a sync makes things safe."""
        if event.what in {"write", "truncate"}:
            self.cached[event.file].append(event)
        elif event.what == "sync":
            for cached in self.cached[event.file]:
                _put(self.safe[event.file], cached)
            self.cached[event.file] = []

    def cut_the_power(self, folder: Path, chance: random.Random | None) -> Path:
        """The files as they are found afterwards; with `chance`, some of the cache made it in time, in any order."""
        for name, safe in self.safe.items():
            found = bytearray(safe)
            for cached in self.cached[name]:
                if chance is not None and chance.random() < 0.5:
                    _put(found, cached)
            (folder / name).write_bytes(found)
        (folder / "leases.db-shm").unlink(missing_ok=True)
        return folder / DATABASE


def _put(content: bytearray, event: Event) -> None:
    if event.what == "truncate":
        del content[event.at :]
        return
    content.extend(b"\0" * (event.at - len(content)))
    content[event.at : event.at + len(event.data)] = event.data
