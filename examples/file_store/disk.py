"""Files, as the server keeps them: an index of paths, and inodes made of chunks in two data folders.

A chunk is written once and never changed: a write makes new ones, and then replaces the inode's own small file, which
names its chunks and holds its marks. So data and marks change in one atomic step, and what a crash or a newer write
leaves behind is garbage that no inode refers to. Chunk files know nothing of inodes: whoever removes one must know that
nobody needs it.
"""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import Any, NamedTuple

from fence import read_marks, write_marks

from leasehold.fence import PartMark

CHUNK = 4096
FOLDERS = ("a", "b")


class Inode(NamedTuple):
    """A file: `chunks` are folder/name each, None for one that was never written."""

    size: int = 0
    chunks: tuple[str | None, ...] = ()
    marks: tuple[PartMark, ...] = ()


class Index(NamedTuple):
    """Which path leads to which inode, and the number of the next one: none is ever used again."""

    paths: dict[str, int]
    next: int = 1
    marks: tuple[PartMark, ...] = ()


class Disk:
    """One directory. Every method may block; what it has written survives a crash."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for folder in ("inodes", *FOLDERS):
            (root / folder).mkdir(parents=True, exist_ok=True)

    # The index and the inodes.

    def load(self) -> tuple[Index, dict[int, Inode]]:
        """Everything there is; inodes that no path leads to were given up by a crash and are removed."""
        index = self._index()
        found = {int(file.stem): file for file in (self.root / "inodes").glob("*.json")}
        for number in found.keys() - set(index.paths.values()):
            found.pop(number).unlink()
        return index, {number: _inode(json.loads(file.read_text())) for number, file in found.items()}

    def _index(self) -> Index:
        try:
            stored = json.loads((self.root / "index.json").read_text())
        except FileNotFoundError:
            return Index({})
        return Index(stored["paths"], stored["next"], tuple(read_marks(stored["marks"])))

    def save_index(self, index: Index) -> None:
        """Replace the index."""
        self._replace(self.root / "index.json", {**index._asdict(), "marks": write_marks(index.marks)})

    def save_inode(self, number: int, inode: Inode) -> None:
        """Replace an inode: its chunks and its marks in one step."""
        self._replace(self._inode_file(number), {**inode._asdict(), "marks": write_marks(inode.marks)})

    def remove_inode(self, number: int) -> None:
        """Its chunks are garbage from now on."""
        self._inode_file(number).unlink()

    def _inode_file(self, number: int) -> Path:
        return self.root / "inodes" / f"{number}.json"

    # Chunks.

    def read(self, inode: Inode, start: int, end: int) -> bytes:
        """Bytes of a file; what was never written reads as zeros."""
        end = min(end, inode.size)
        first = start // CHUNK
        data = b"".join(self._chunk(name) for name in inode.chunks[first : -(-end // CHUNK)])
        return data[start - first * CHUNK : max(end - first * CHUNK, 0)]

    def spliced(self, number: int, inode: Inode, start: int, data: bytes, folder: str | None) -> Inode:
        """The inode with other bytes: its new chunks are there, and nobody refers to them yet.

        They lie where the old ones do, or in the folder that is given.
        """
        end = start + len(data)
        chunks = list(inode.chunks) + [None] * (-(-end // CHUNK) - len(inode.chunks))
        written = set()
        for at in range(start // CHUNK, -(-end // CHUNK)):
            begin, old = at * CHUNK, chunks[at]
            content = bytearray(self._chunk(old))
            content[max(start - begin, 0) : min(end - begin, CHUNK)] = data[
                max(begin - start, 0) : begin + CHUNK - start
            ]
            place = folder or (old.partition("/")[0] if old else FOLDERS[0])
            chunks[at] = f"{place}/{number}.{secrets.token_hex(8)}"
            self._write(self.root / str(chunks[at]), bytes(content))
            written.add(place)
        for place in written:
            _sync_folder(self.root / place)
        return inode._replace(size=max(inode.size, end), chunks=tuple(chunks))

    def chunks(self, number: int | None = None) -> list[str]:
        """The chunk files that are there, of one inode or of all."""
        pattern = "*.*" if number is None else f"{number}.*"
        return [f"{folder}/{file.name}" for folder in FOLDERS for file in (self.root / folder).glob(pattern)]

    def remove_chunk(self, name: str) -> None:
        """For ever; one that is gone already is no error."""
        (self.root / name).unlink(missing_ok=True)

    def _chunk(self, name: str | None) -> bytes:
        return bytes(CHUNK) if name is None else (self.root / name).read_bytes()

    # Writing.

    def _replace(self, file: Path, value: dict[str, Any]) -> None:
        made = file.with_suffix(".new")
        self._write(made, json.dumps(value).encode())
        os.replace(made, file)
        _sync_folder(file.parent)

    def _write(self, file: Path, data: bytes) -> None:
        with file.open("wb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())


def _inode(stored: dict[str, Any]) -> Inode:
    return Inode(stored["size"], tuple(stored["chunks"]), tuple(read_marks(stored["marks"])))


def _sync_folder(folder: Path) -> None:
    # The name of a file is on disk when its folder is.
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
