"""The messages of etcd's v3 API that Leasehold speaks: how a request is written, how an answer is read.

Only what is needed, by the field numbers that etcd's API has fixed. Nothing here
knows what a record means.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from leasehold.rules.protobuf import Message, data, number, read

TXN = "/etcdserverpb.KV/Txn"
RANGE = "/etcdserverpb.KV/Range"
GRANT = "/etcdserverpb.Lease/LeaseGrant"
# A stream by its nature; one question and one answer is a stream, too.
KEEP_ALIVE = "/etcdserverpb.Lease/LeaseKeepAlive"
TIME_TO_LIVE = "/etcdserverpb.Lease/LeaseTimeToLive"
AUTHENTICATE = "/etcdserverpb.Auth/Authenticate"
WATCH = "/etcdserverpb.Watch/Watch"
STATUS = "/etcdserverpb.Maintenance/Status"
ALARM = "/etcdserverpb.Maintenance/Alarm"
MEMBERS = "/etcdserverpb.Cluster/MemberList"

_CREATE, _MOD = 1, 2
# Sorts after every key that starts so.
_AFTER = b"\xff"


class KeyValue(NamedTuple):
    """A key as etcd shows it. `lease` 0: it has none."""

    key: bytes
    value: bytes
    created: int
    modified: int
    lease: int


class Txn(NamedTuple):
    """The answer to a transaction: which branch ran, what each of its ranges found, at which revision and term."""

    succeeded: bool
    ranges: list[list[KeyValue]]
    inner: list[Txn]
    revision: int
    term: int


class Lived(NamedTuple):
    """What etcd says of a lease: its length and what remains, in seconds; `ttl` 0 or less: it is gone."""

    lease: int
    ttl: int
    granted: int
    term: int


# Requests.


def txn(compares: Sequence[bytes], then: Sequence[bytes], otherwise: Sequence[bytes]) -> bytes:
    """A transaction: `then` if all `compares` hold, else `otherwise`."""
    parts = [data(1, one) for one in compares]
    parts += [data(2, one) for one in then]
    parts += [data(3, one) for one in otherwise]
    return b"".join(parts)


def is_absent(key: bytes) -> bytes:
    """True where there is no such key."""
    return number(2, _CREATE) + data(3, key) + b"\x28\x00"


def is_at(key: bytes, revision: int) -> bytes:
    """True where the key was last written at this revision."""
    return number(2, _MOD) + data(3, key) + number(6, revision)


def get(key: bytes) -> bytes:
    """As part of a transaction: look at one key."""
    return data(1, data(1, key))


def get_all(first: bytes, end: bytes, limit: int) -> bytes:
    """As part of a transaction: look at a range of keys, so many of them at most."""
    return data(1, list_page(first, end, limit))


def put(key: bytes, value: bytes, lease: int) -> bytes:
    """As part of a transaction: write, on this lease or on none (0)."""
    return data(2, data(1, key) + data(2, value) + number(3, lease))


def put_value(key: bytes, value: bytes) -> bytes:
    """As part of a transaction: write, and leave the lease as it is."""
    return data(2, data(1, key) + data(2, value) + number(6, 1))


def put_lease(key: bytes, lease: int) -> bytes:
    """As part of a transaction: hang the key on another lease, and leave its value as it is."""
    return data(2, data(1, key) + number(3, lease) + number(5, 1))


def delete(key: bytes) -> bytes:
    """As part of a transaction: remove one key."""
    return data(3, data(1, key))


def nested(inner: bytes) -> bytes:
    """A transaction as part of another."""
    return data(4, inner)


def list_page(first: bytes, end: bytes, limit: int) -> bytes:
    """A request by itself: so many keys of a range, in their order."""
    return _range(first, end) + number(3, limit)


def count_all(first: bytes, end: bytes) -> bytes:
    """A request by itself: how many keys a range has."""
    return _range(first, end) + number(9, 1)


def after_all(prefix: bytes) -> bytes:
    """The end of the range of all keys that start so."""
    return prefix + _AFTER


def grant(ttl: int) -> bytes:
    """A lease of this length."""
    return number(1, ttl)


def lease_id(lease: int) -> bytes:
    """The request about one lease: to keep it alive, or to ask what remains."""
    return number(1, lease)


def authenticate(user: str, password: str) -> bytes:
    """Who asks."""
    return data(1, user.encode()) + data(2, password.encode())


def watch(key: bytes, watch_id: int) -> bytes:
    """Tell of every change of one key from now on, under this number."""
    return data(1, data(1, key) + number(7, watch_id))


def unwatch(watch_id: int) -> bytes:
    """Tell no more."""
    return data(2, number(1, watch_id))


# Answers.


def read_txn(answer: bytes) -> Txn:
    """The answer to a transaction; ValueError if it is none."""
    return _txn(read(answer))


def read_range(answer: bytes) -> list[KeyValue]:
    """The answer to `list_page`."""
    return [_key_value(one) for one in read(answer).messages(2)]


def read_grant(answer: bytes) -> Lived:
    """The answer to `grant`, with the length that was really granted."""
    found = read(answer)
    return Lived(found.number(2), found.number(3), found.number(3), _term(found))


def read_lived(answer: bytes) -> Lived:
    """The answer to a request about one lease."""
    found = read(answer)
    return Lived(found.number(2), found.number(3), found.number(4), _term(found))


def read_token(answer: bytes) -> str:
    """The answer to `authenticate`."""
    return read(answer).text(2)


def read_count(answer: bytes) -> int:
    """The answer to `count_all`."""
    return read(answer).number(4)


def read_members(answer: bytes) -> int:
    """How many members vote, of the answer to the question for them."""
    return sum(not member.number(5) for member in read(answer).messages(2))


class Status(NamedTuple):
    """What a member says of itself. `troubles` are alarms, or that it sees no leader."""

    version: str
    bytes: int
    leads: bool
    troubles: tuple[str, ...]


def read_status(answer: bytes) -> Status:
    """The answer of one member to the question how it is."""
    found = read(answer)
    troubles = tuple(each.decode() for each in found.all_data(8))
    return Status(found.text(2), found.number(3), found.number(4) == found.message(1).number(2), troubles)


class Told(NamedTuple):
    """What came on a watch: its number, whether it has begun or ended, why it ended, and whether anything changed."""

    watch_id: int
    begun: bool
    ended: bool
    why: str
    changed: bool


def read_told(answer: bytes) -> Told:
    """One message of the watch stream."""
    found = read(answer)
    return Told(found.number(2), bool(found.number(3)), bool(found.number(4)), found.text(6), bool(found.all_data(11)))


def _range(first: bytes, end: bytes) -> bytes:
    return data(1, first) + data(2, end)


def _txn(found: Message) -> Txn:
    ranges: list[list[KeyValue]] = []
    inner: list[Txn] = []
    for response in found.messages(3):
        if one := response.all_data(1):
            ranges.append([_key_value(kv) for kv in read(one[-1]).messages(2)])
        if one := response.all_data(4):
            inner.append(_txn(read(one[-1])))
    header = found.message(1)
    return Txn(bool(found.number(2)), ranges, inner, header.number(3), header.number(4))


def _key_value(found: Message) -> KeyValue:
    return KeyValue(found.data(1), found.data(5), found.number(2), found.number(3), found.number(6))


def _term(found: Message) -> int:
    return found.message(1).number(4)
