"""PostgreSQL: acquire and release, against the two bare statements of the same durability, and against tooz.

The floor inserts the same bytes unless they are there and deletes them again, each
statement committed to disk, prepared, through the same psycopg. tooz takes an
advisory lock, which survives nothing and needs no disk; it is what people would use
instead.
"""

from __future__ import annotations

import functools

import psycopg

import leasehold
from benchmarks.harness import Figure, medians, micro, seconds_each
from benchmarks.peers import TOOZ, Peer
from leasehold.testing.servers import PostgresServer

ROUNDS = 31
TIMES = 20
TARGET_FLOOR = 1.3
TARGET_PEER = 1.0

SCHEMA = """
CREATE TABLE bare (
    family text, member text, value bytea, revision bigint, ends timestamptz, PRIMARY KEY (family, member)
)
"""
TAKE = """
INSERT INTO bare VALUES (%s, %s, %s, 1, clock_timestamp() + interval '30 s') ON CONFLICT DO NOTHING RETURNING revision
"""
GIVE = "DELETE FROM bare WHERE family = %s AND member = %s AND revision = 1"
VALUE = b'{"scope":"invoice/42","holder":"host:12345:abcdef","secret":"0123456789abcdef0123456789abcdef","since":1.7e9}'
KEY = ("//name/invoice/42", "lock")


def figures() -> list[Figure]:
    """Against the floor and the peer, on one server that syncs every commit, as PostgreSQL does by default."""
    with PostgresServer() as server:
        server.execute(SCHEMA)
        with (
            psycopg.connect(server.url, autocommit=True, prepare_threshold=0) as bare,
            leasehold.connect(server.url) as locks,
            Peer(TOOZ, server.url) as tooz,
        ):

            def floor() -> None:
                bare.execute(TAKE, (*KEY, VALUE)).fetchone()
                bare.execute(GIVE, KEY)

            cases = {
                "ours": functools.partial(seconds_each, lambda: locks.acquire("invoice/42").release(), TIMES),
                "two bare statements": functools.partial(seconds_each, floor, TIMES),
                "tooz": functools.partial(tooz.seconds_each, TIMES),
            }
            found = medians(cases, ROUNDS)
    return [
        Figure(
            f"PostgreSQL: acquire + release ÷ {against}",
            micro(found["ours"]),
            micro(found[against]),
            found["ours"] / found[against],
            target,
        )
        for against, target in (("two bare statements", TARGET_FLOOR), ("tooz", TARGET_PEER))
    ]
