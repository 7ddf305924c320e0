"""Your own transaction: work that is done once in it, and messages that are published because of it.

PostgreSQL with psycopg, and SQLite. `leasehold.sql.aio` has the same for asyncio, on PostgreSQL.
"""

from leasehold.sql.blocking import Once, Relay, Work, add_tables, collect, publish
from leasehold.sql.outbox import Message

__all__ = ["Message", "Once", "Relay", "Work", "add_tables", "collect", "publish"]
