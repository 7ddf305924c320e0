"""What a request asks for, read and checked; and what can be wrong with that, beside the fence."""

from __future__ import annotations

import re

from aiohttp import web
from disk import FOLDERS
from fence import Malformed, Refused

FILE_MAX = 64 * 1024 * 1024
NUMBER = re.compile(r"[0-9]{1,19}")
CHUNK_NAME = re.compile(rf"(?:{'|'.join(FOLDERS)})/([0-9]+)\.[0-9a-f]{{16}}")
# A path is absolute: an empty step, and at least one more.
STEPS_MIN = 2


class NotThere(Refused):
    """No such file."""

    status = 404


class Exists(Refused):
    """There is one already."""

    status = 409


class ChunkGone(Refused):
    """A chunk that an inode refers to is not there: damage."""

    status = 500


def number(request: web.Request) -> int:
    """The inode in the address, or after it."""
    text = request.match_info.get("inode") or request.query.get("inode", "")
    if not NUMBER.fullmatch(text):
        raise Malformed(f"an inode is a number, not {text!r}")
    return int(text)


def offset(request: web.Request, name: str) -> int:
    """An offset in a file."""
    text = request.query.get(name, "")
    if not NUMBER.fullmatch(text) or int(text) > FILE_MAX:
        raise Malformed(f"{name} must be a number up to {FILE_MAX}, not {text!r}")
    return int(text)


def path(request: web.Request, name: str) -> str:
    """A path in the one way in which it is written."""
    text = request.query.get(name, "")
    steps = text.split("/")
    if steps[0] or len(steps) < STEPS_MIN or any(step in {"", ".", ".."} for step in steps[1:]):
        raise Malformed(f"{name} must be absolute, without dots and empty steps, not {text!r}")
    return text


def folder(request: web.Request) -> str | None:
    """The data folder that is asked for, if any."""
    folder = request.query.get("to")
    if folder not in {None, *FOLDERS}:
        raise Malformed(f"to must be one of {', '.join(FOLDERS)}, not {folder!r}")
    return folder


def chunk(request: web.Request, inode: int) -> str:
    """A chunk of that inode, by its name."""
    name = request.query.get("name", "")
    found = CHUNK_NAME.fullmatch(name)
    if found is None or int(found[1]) != inode:
        raise Malformed(f"name must be that of a chunk of inode {inode}, not {name!r}")
    return name


def inode_of(name: str) -> int:
    """The inode for which a chunk was written."""
    return int(name.partition("/")[2].partition(".")[0])
