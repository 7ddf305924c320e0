"""Items that the sweep of `optimistic.py` updates: a row of PostgreSQL, a hash of Redis, fenced and versioned.

As little as such a resource can do: one statement or script for each verb. A total is a number.
"""

from __future__ import annotations

from typing import Any

import psycopg
import redis

from leasehold.rules.fencing import DIGITS

SCHEMA = """
CREATE TABLE item (id int PRIMARY KEY, total bigint NOT NULL, version bigint NOT NULL, mark bigint NOT NULL)
"""
OPEN = "UPDATE item SET mark = %s WHERE id = %s AND mark <= %s"
READ = "SELECT total FROM item WHERE id = %s AND mark <= %s"
WRITE = "UPDATE item SET total = %s, mark = %s WHERE id = %s AND mark <= %s"
LOAD = "SELECT total, version FROM item WHERE id = %s"
REPLACE = "UPDATE item SET total = %s, version = version + 1 WHERE id = %s AND version = %s"

# Tokens have 63 bits, numbers of Lua 53: they are compared as text of one length.
CHECKED = "if redis.call('HGET', KEYS[1], 'mark') > ARGV[1] then return false end\n"
REDIS_OPEN = CHECKED + "redis.call('HSET', KEYS[1], 'mark', ARGV[1]) return 1"
REDIS_READ = CHECKED + "return redis.call('HGET', KEYS[1], 'total')"
REDIS_WRITE = CHECKED + "redis.call('HSET', KEYS[1], 'mark', ARGV[1], 'total', ARGV[2]) return 1"
REDIS_REPLACE = """
if redis.call('HGET', KEYS[1], 'version') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'total', ARGV[2])
redis.call('HINCRBY', KEYS[1], 'version', 1)
return 1
"""


class Row:
    """One row; every verb is one statement, committed."""

    def __init__(self, db: psycopg.Connection[Any], number: int) -> None:
        self.db, self.number = db, number
        self.name = f"item/{number}"

    async def open(self, token: int) -> None:
        self._admitted(self.db.execute(OPEN, (token, self.number, token)).rowcount, token)

    async def read(self, token: int) -> int:
        found = self.db.execute(READ, (self.number, token)).fetchone()
        self._admitted(found, token)
        return int(found[0]) if found else 0

    async def write(self, token: int, value: int) -> None:
        self._admitted(self.db.execute(WRITE, (value, token, self.number, token)).rowcount, token)

    async def load(self) -> tuple[int, int]:
        found = self.db.execute(LOAD, (self.number,)).fetchone()
        if found is None:
            raise LookupError(self.name)
        return int(found[0]), int(found[1])

    async def replace(self, value: int, version: int) -> bool:
        return self.db.execute(REPLACE, (value, self.number, version)).rowcount == 1

    def _admitted(self, answer: object, token: int) -> None:
        if not answer:
            raise AssertionError(f"{self.name} refused {token}: nobody is paused here")


class Hash:
    """One hash; every verb is one script."""

    def __init__(self, client: redis.Redis, number: int) -> None:
        self.client = client
        self.name = f"item/{number}"
        names = {"open": REDIS_OPEN, "read": REDIS_READ, "write": REDIS_WRITE, "replace": REDIS_REPLACE}
        self.scripts = {verb: client.register_script(text) for verb, text in names.items()}

    async def open(self, token: int) -> None:
        self._fenced("open", token)

    async def read(self, token: int) -> int:
        return int(self._fenced("read", token))

    async def write(self, token: int, value: int) -> None:
        self._fenced("write", token, value)

    async def load(self) -> tuple[int, bytes]:
        total, version = self.client.hmget(self.name, "total", "version")
        return int(total), version

    async def replace(self, value: int, version: bytes) -> bool:
        return bool(self.scripts["replace"](keys=[self.name], args=[version, value]))

    def _fenced(self, verb: str, token: int, *given: int) -> Any:
        answer = self.scripts[verb](keys=[self.name], args=[f"{token:0{DIGITS}d}", *given])
        if answer is None:
            raise AssertionError(f"{self.name} refused {token}: nobody is paused here")
        return answer
