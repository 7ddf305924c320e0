"""The plot in the docs is drawn from the table in the docs, and the items that were measured obey the laws."""

from __future__ import annotations

import uuid

import psycopg
import pytest
import redis

from benchmarks import plot
from benchmarks.optimistic import MANY, SPREAD, WAYS, WORKS, WRITERS
from benchmarks.versioned import SCHEMA, Hash, Row
from leasehold.testing.versions import VersionLaws
from tests import servers


class Numbers(VersionLaws):
    def value(self, number: int) -> int:
        return number


class TestRows(Numbers):
    @pytest.fixture
    def reach(self):
        server, schema = servers.postgres(), f"page_{uuid.uuid4().hex}"
        opened = []

        def client() -> Row:
            opened.append(psycopg.connect(server.url, autocommit=True, options=f"-c search_path={schema}"))
            return Row(opened[-1], 7)

        server.execute(f"CREATE SCHEMA {schema}")
        first = client().db
        first.execute(SCHEMA)
        first.execute("INSERT INTO item VALUES (7, 0, 0, 0)")
        yield client
        for db in opened:
            db.close()
        server.execute(f"DROP SCHEMA {schema} CASCADE")


class TestHashes(Numbers):
    @pytest.fixture
    def reach(self):
        clients = []
        number = uuid.uuid4().int

        def client() -> Hash:
            clients.append(redis.Redis.from_url(servers.redis().url))
            return Hash(clients[-1], number)

        first = client()
        first.client.hset(first.name, mapping={"total": 0, "version": 0, "mark": "0" * 19})
        yield client
        first.client.delete(first.name)
        for each in clients:
            each.close()


def test_the_plot_is_drawn_from_the_table_beside_it() -> None:
    rows = plot.published()
    assert plot.PICTURE.read_text(encoding="utf-8") == plot.draw(rows)
    # The control: another table would give another plot.
    assert plot.draw([rows[0]._replace(optimistic="11"), *rows[1:]]) != plot.draw(rows)


def test_the_table_has_a_line_for_every_load_of_the_sweep() -> None:
    loads = [
        (store, str(items), f"{work * 1e3:.0f} ms", str(writers))
        for store in WAYS
        for items, counts in ((1, WRITERS), (MANY, SPREAD))
        for work in WORKS
        for writers in counts
    ]
    assert [row[:4] for row in plot.published()] == loads
