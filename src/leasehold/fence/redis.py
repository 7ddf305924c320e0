"""A fenced key of Redis or Valkey: one script checks the mark, raises it and runs the command, in one call.

The mark is a key beside it, in the same slot of a Cluster, without a ttl. It is as durable as Redis is: after
a restart without persistence, a failover that lost the last writes, or FLUSHALL, marks and data are older or gone
together, and an overtaken holder is refused only once a later one has opened again. Where maxmemory evicts keys, use
`noeviction` or a `volatile-` policy, or marks go one by one.

The client is your own redis-py. Unless told otherwise it sends again what was not answered: a command of `call` that
must not run twice wants a client without retries, and a refused write may have been done by its first sending.
"""

from __future__ import annotations

import hashlib
import inspect
import re
from pathlib import Path
from typing import Any, Protocol

from leasehold.errors import (
    InvalidInput,
    LeaseholdError,
    NoSuchResource,
    PermissionDenied,
    StaleToken,
    StoreDamaged,
    StoreError,
    StoreUnavailable,
)
from leasehold.extras import require
from leasehold.fence.base import Shown
from leasehold.rules.fencing import check_writes, checked_token
from leasehold.rules.names import check_text

# Lua can pass no more at once.
WORDS_MAX = 7000
_WRITES = object()
_COMMAND = re.compile(r"[A-Za-z][A-Za-z0-9._-]*")
_LUA = Path(__file__).with_name("lua")


class RedisClient(Protocol):
    """What is used of redis-py's clients, of either colour."""

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """The answer to a command, or something to await that gives it."""
        ...


class _Script:
    def __init__(self, name: str) -> None:
        self.text: str = (_LUA / f"{name}.lua").read_text(encoding="utf-8")
        # Redis' name for it, no protection.
        self.digest: str = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()


UNDER_TOKEN = _Script("under_token")
REPLACE = _Script("replace")


class RedisResource:
    """What `RedisKey` means."""

    def __init__(self, client: RedisClient, key: str, *, awaited: bool) -> None:
        self._client: RedisClient = _checked(client, awaited)
        self.name: str = check_text("key", key)
        self._key = self.name.encode()
        self.mark: bytes = mark_of(self._key)

    async def open(self, token: int) -> None:
        await self._under(token, "open")

    async def read(self, token: int) -> bytes:
        found: bytes | None = await self._under(token, "read", "GET")
        return self._there(found)

    async def write(self, token: int, value: bytes) -> None:
        await self._under(token, "write", "SET", _bytes(value))

    async def call(self, shown: Shown, command: object, words: tuple[object, ...]) -> Any:
        """What Redis says to a command on this key; a sharer's must only read."""
        if not isinstance(command, str) or not _COMMAND.fullmatch(command):
            raise InvalidInput("command", command, 'must be the name of a command with one key, such as "HSET"')
        for word in words:
            if isinstance(word, bool) or not isinstance(word, str | bytes | int | float):
                raise InvalidInput("words", word, "must be text, bytes or numbers, as Redis takes them")
        if len(words) > WORDS_MAX:
            raise InvalidInput("words", len(words), f"must be at most {WORDS_MAX}; call more than once")
        answer = await self._under(shown.token, "share" if shown.shared else "call", command, *words)
        if answer is _WRITES:
            check_writes(self.name, shown.scope, shared=True)
        return answer

    async def load(self) -> tuple[bytes, object]:
        value = self._there(await self._said("GET", self._key))
        return value, value

    async def replace(self, value: bytes, version: object) -> bool:
        return bool(await self._run(REPLACE, (self._key,), version, _bytes(value)))

    async def _under(self, token: int, verb: str, *command: object) -> Any:
        """What the command says, run under the token."""
        answer = await self._run(UNDER_TOKEN, (self._key, self.mark), str(checked_token(token)), verb, *command)
        match answer:
            case [b"done", said]:
                return said
            case [b"stale", mark]:
                raise StaleToken(self.name, token, int(mark))
            case [b"writes", _]:
                return _WRITES
            case [b"unfit", why]:
                raise InvalidInput("command", command[0], why.decode())
        raise StoreDamaged(f"the key {self.mark!r} holds no token; set it to the largest one granted")

    async def _run(self, script: _Script, keys: tuple[bytes, ...], *words: object) -> Any:
        """One call; two where the server does not know the script yet."""
        redis = require("redis", feature="fence.RedisKey", extra="testing")
        given = (len(keys), *keys, *words)
        try:
            return await self._said("EVALSHA", script.digest, *given)
        except StoreError as error:
            if not isinstance(error.__cause__, redis.exceptions.NoScriptError):
                raise
            return await self._said("EVAL", script.text, *given)

    async def _said(self, *words: object) -> Any:
        redis = require("redis", feature="fence.RedisKey", extra="testing")
        try:
            # Bytes, whatever the client decodes for others.
            answer = self._client.execute_command(*words, NEVER_DECODE=True)
            return await answer if inspect.isawaitable(answer) else answer
        except (redis.exceptions.RedisError, redis.exceptions.RedisClusterException) as error:
            raise _translated(error, redis.exceptions) from error

    def _there(self, found: bytes | None) -> bytes:
        if found is None:
            raise NoSuchResource(self.name, "write it first")
        return found


def mark_of(key: bytes) -> bytes:
    """The key of its mark: in the same slot of a Cluster, and no other key's."""
    start = key.find(b"{")
    end = key.find(b"}", start + 1)
    if start >= 0 and end > start + 1:
        return key + b":leasehold-tagged-mark"
    if b"}" in key:
        raise InvalidInput(
            "key", key, "must have no } but that of a hash tag, or its mark has no name in the same slot"
        )
    return b"{" + key + b"}:leasehold-mark"


def _bytes(value: object) -> bytes:
    if not isinstance(value, bytes):
        raise InvalidInput("value", value, f"must be bytes, not {type(value).__name__}")
    return value


def _checked(client: Any, awaited: bool) -> RedisClient:  # noqa: FBT001
    call = getattr(client, "execute_command", None)
    if not callable(call) or hasattr(client, "immediate_execute_command"):
        raise InvalidInput("client", client, "must be a client of redis-py, such as redis.Redis(), and no pipeline")
    if inspect.iscoroutinefunction(call) is not awaited:
        remedy = "redis.asyncio.Redis() with leasehold.fence.aio, redis.Redis() with leasehold.fence"
        raise InvalidInput("client", client, f"must be of the same colour: {remedy}")
    checked: RedisClient = client
    return checked


def _translated(error: Exception, kinds: Any) -> LeaseholdError:
    refused = (kinds.NoPermissionError, kinds.AuthenticationError, kinds.AuthorizationError)
    undone = (kinds.ReadOnlyError, kinds.BusyLoadingError, kinds.ClusterDownError, kinds.OutOfMemoryError)
    unknown = (kinds.ConnectionError, kinds.TimeoutError, kinds.RedisClusterException)
    # What a script may not do is told by words alone, which differ between versions.
    if isinstance(error, refused) or re.search("ACL failure|user executing the script can't", str(error)):
        return PermissionDenied(f"Redis refuses this user: {error}")
    if isinstance(error, (*undone, *unknown)):
        return StoreUnavailable(f"Redis did not do it: {error}", applied=False if isinstance(error, undone) else None)
    return StoreError(f"Redis says: {error}")
