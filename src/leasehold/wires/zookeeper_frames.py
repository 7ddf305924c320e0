"""How requests and replies look on the wire: kazoo's protocol layer, and what it lacks.

kazoo writes every request and reads most replies. Of a `multi` it drops which
operation failed among others that would have done, so that one is read here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from kazoo.protocol.serialization import (
    Auth,
    CheckVersion,
    Close,
    Connect,
    Create,
    Delete,
    Exists,
    GetACL,
    GetChildren,
    GetData,
    MultiHeader,
    Ping,
    ReplyHeader,
    SetData,
    Sync,
    Transaction,
    int_int_struct,
    int_struct,
    read_string,
    stat_struct,
)
from kazoo.protocol.states import ZnodeStat
from kazoo.security import ACL, CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

__all__ = [
    "ACL", "CREATOR_ALL_ACL", "OPEN_ACL_UNSAFE", "CheckVersion", "Create", "Delete", "Exists", "GetACL",
    "GetChildren", "GetData", "SetData", "Sync",
]  # fmt: skip

# Numbers of requests that are none of the caller's.
EVENT = -1
PING = -2
AUTH = -4
FIRST = 1
# What ZooKeeper calls its answers.
NO_NODE = -101
NO_AUTH = -102
BAD_VERSION = -103
NODE_EXISTS = -110
SESSION_EXPIRED = -112
INVALID_ACL = -114
AUTH_FAILED = -115
SESSION_MOVED = -118
NOT_READ_ONLY = -119
CLOSED_FOR_AUTH = -124
ROLLED_BACK = -2
OK = 0

EPHEMERAL = 1
ANY = -1
# A reply is at most a list of all children of a bucket; ZooKeeper itself sends no more than it was told to.
FRAME_MAX = 64 * 1024 * 1024


class Request(Protocol):
    """A request, as kazoo makes it."""

    type: int

    def serialize(self) -> bytes: ...


class Refused(NamedTuple):
    """The answer to a request that was not done."""

    code: int


class Granted(NamedTuple):
    """What the server granted to a connection: a session and its timeout in seconds; session 0 if it has expired."""

    session: int
    password: bytes
    timeout: float
    read_only: bool


class Reply(NamedTuple):
    """One frame, read as far as its header."""

    xid: int
    zxid: int
    code: int
    body: bytes


class BadFrame(Exception):
    """This is not what ZooKeeper says."""


def multi(*operations: Request) -> Request:
    """All of them or none."""
    made: Request = Transaction(operations)
    return made


def pack(requests: Sequence[Request], first: int = FIRST) -> bytes:
    """Requests as they travel, numbered from `first` on."""
    return b"".join(_pack(xid, request) for xid, request in enumerate(requests, first))


def pack_connect(zxid: int, timeout: float, session: int, password: bytes) -> bytes:
    """The first thing said: a new session (0), or the one we had."""
    return _framed(bytes(Connect(0, zxid, round(timeout * 1000), session, password, False).serialize()))


def pack_login(user: str, password: str) -> bytes:
    return _pack(AUTH, Auth(0, "digest", f"{user}:{password}"))


def pack_ping() -> bytes:
    return _pack(PING, Ping())


def pack_close() -> bytes:
    return _pack(FIRST, Close())


def read_connect(frame: bytes) -> Granted:
    try:
        said, _ = Connect.deserialize(frame, 0)
    except Exception as error:
        raise BadFrame("this is no ZooKeeper server") from error
    return Granted(said.session_id, said.passwd or b"", said.time_out / 1000, said.read_only)


def read_reply(frame: bytes) -> Reply:
    try:
        header, offset = ReplyHeader.deserialize(frame, 0)
    except Exception as error:
        raise BadFrame("a reply without its header") from error
    return Reply(header.xid, header.zxid, header.err, frame[offset:])


def read_event(reply: Reply) -> str:
    """The path that an event is about."""
    path: str = read_string(reply.body, int_int_struct.size)[0] or ""
    return path


def answer(request: Request, reply: Reply) -> Any:
    """What a reply says to a request: a value, or Refused. A multi that failed is Refused with the first reason."""
    if reply.code:
        return Refused(reply.code)
    try:
        if isinstance(request, Transaction):
            return _read_multi(reply.body)
        reads: Any = getattr(request, "deserialize", None)
        return reads(reply.body, 0) if reads else None
    except Exception as error:
        raise BadFrame(f"an answer to {type(request).__name__} that cannot be read") from error


def _read_multi(body: bytes) -> Any:
    """The stat of each operation that has one, else None."""
    results: list[Any] = []
    codes: list[int] = []
    header, offset = MultiHeader.deserialize(body, 0)
    while not header.done:
        result: Any = None
        if header.type == -1:
            codes.append(int_struct.unpack_from(body, offset)[0])
            offset += int_struct.size
        elif header.type == Create.type:
            _, offset = read_string(body, offset)
        elif header.type == SetData.type:
            result = ZnodeStat._make(stat_struct.unpack_from(body, offset))
            offset += stat_struct.size
        results.append(result)
        header, offset = MultiHeader.deserialize(body, offset)
    # Those before the one that failed say 0, those after it that they were rolled back.
    why = [code for code in codes if code not in {OK, ROLLED_BACK}]
    return Refused(why[0]) if why else results


class Frames:
    """Bytes in, whole frames out."""

    trouble: type[Exception] = BadFrame

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The frames that are whole now."""
        self._buffer += data
        found = []
        while len(self._buffer) >= int_struct.size:
            (length,) = int_struct.unpack_from(self._buffer)
            if not 0 <= length <= FRAME_MAX:
                raise BadFrame("this is no ZooKeeper server")
            end = int_struct.size + length
            if len(self._buffer) < end:
                break
            found.append(bytes(self._buffer[int_struct.size : end]))
            del self._buffer[:end]
        return found


def _pack(xid: int, request: Request) -> bytes:
    return _framed(int_int_struct.pack(xid, request.type) + bytes(request.serialize()))


def _framed(body: bytes) -> bytes:
    framed: bytes = int_struct.pack(len(body)) + body
    return framed
