"""Just enough of protobuf's wire format for the few messages of etcd: numbers, bytes and messages in messages."""

from __future__ import annotations

from collections.abc import Iterator

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
SIGN = 1 << 63
WRAP = 1 << 64
# Seven bits a byte; the eighth says that more follow.
MORE = 0x80
_SHORT = [bytes((value,)) for value in range(MORE)]


def number(field: int, value: int) -> bytes:
    """A field that is a whole number or a truth; nothing at all for 0, which is what absence means."""
    return _varint(field << 3 | VARINT) + _varint(value % WRAP) if value else b""


def data(field: int, value: bytes) -> bytes:
    """A field that is bytes, text or a message; one that is empty is written too, as a message must be."""
    return _varint(field << 3 | LENGTH) + _varint(len(value)) + value


def read(message: bytes) -> Message:
    """The fields of a message; ValueError if it is none."""
    found: dict[int, list[int | bytes]] = {}
    for field, value in _fields(message):
        found.setdefault(field, []).append(value)
    return Message(found)


class Message:
    """Fields by their numbers. What is absent is 0, empty, or an empty message, as protobuf has it."""

    __slots__ = ("_found",)

    def __init__(self, found: dict[int, list[int | bytes]]) -> None:
        self._found = found

    def number(self, field: int) -> int:
        """A whole number, negative ones included."""
        value = self._found.get(field, (0,))[-1]
        if not isinstance(value, int):
            raise ValueError(f"field {field} is no number")  # noqa: TRY004  it is the message that is wrong
        return value - WRAP if value >= SIGN else value

    def data(self, field: int) -> bytes:
        """Bytes or text."""
        return self.all_data(field)[-1] if field in self._found else b""

    def all_data(self, field: int) -> list[bytes]:
        """A repeated field of bytes."""
        found = self._found.get(field, [])
        values = [value for value in found if isinstance(value, bytes)]
        if len(values) != len(found):
            raise ValueError(f"field {field} is no bytes")
        return values

    def text(self, field: int) -> str:
        """Text."""
        return self.data(field).decode()

    def message(self, field: int) -> Message:
        """A message inside."""
        return read(self.data(field))

    def messages(self, field: int) -> list[Message]:
        """A repeated message."""
        return [read(value) for value in self.all_data(field)]


def _varint(value: int) -> bytes:
    if value < MORE:
        return _SHORT[value]
    out = bytearray()
    while value >= MORE:
        out.append(value & MORE - 1 | MORE)
        value >>= 7
    out.append(value)
    return bytes(out)


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    at, end = 0, len(message)
    while at < end:
        key, at = _read_varint(message, at)
        kind = key & 7
        if kind == VARINT:
            value, at = _read_varint(message, at)
            yield key >> 3, value
            continue
        if kind == LENGTH:
            size, at = _read_varint(message, at)
        elif kind in {FIXED64, FIXED32}:
            size = 8 if kind == FIXED64 else 4
        else:
            raise ValueError(f"wire type {kind} is unknown")
        if at + size > end:
            raise ValueError("the message is cut off")
        yield key >> 3, message[at : at + size]
        at += size


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    try:
        value = message[at]
        # Nearly all of them are one byte long.
        if value < MORE:
            return value, at + 1
        value &= MORE - 1
        for shift in range(7, 70, 7):
            at += 1
            byte = message[at]
            value |= (byte & MORE - 1) << shift
            if byte < MORE:
                return value, at + 1
    except IndexError:
        raise ValueError("a number is cut off") from None
    raise ValueError("a number is too long")
