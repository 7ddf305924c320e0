"""No finding escapes: each one is provoked by a test and documented, and nothing else is."""

from __future__ import annotations

import ast
import re

import pytest

from leasehold.doctor.findings import CATALOGUE, Severity, finding
from leasehold.doctor.versions import POSTGRES, REDIS, VALKEY, Bug
from tests.doctor import test_etcd, test_kubernetes, test_postgres, test_redis, test_sqlite, test_zookeeper
from tests.support import ROOT

PAGE = (ROOT / "docs" / "howto" / "doctor.md").read_text()
ROWS = dict(re.findall(r"^\| `([a-z-]+)` \| (\w+) \|", PAGE, re.MULTILINE))


def test_every_code_is_provoked_by_a_test() -> None:
    stores = (test_sqlite, test_redis, test_postgres, test_kubernetes, test_etcd, test_zookeeper)
    assert set().union(*(store.TROUBLES for store in stores)) == set(CATALOGUE)


def test_every_code_is_documented_with_its_severity_and_no_other() -> None:
    assert {code: severity.name.lower() for code, severity in CATALOGUE.items()} == ROWS


def test_every_code_is_used_by_a_rule() -> None:
    used = {
        node.value
        for file in (ROOT / "src" / "leasehold" / "doctor").glob("*.py")
        if file.name != "findings.py"
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert set(CATALOGUE) <= used


def test_a_code_that_is_not_in_the_catalogue_cannot_be_found() -> None:
    """The control: no rule can speak of something undeclared."""
    with pytest.raises(KeyError):
        finding("no-such-code", "what", "value", "remedy")


def test_severities_have_an_order() -> None:
    assert Severity.NOTE < Severity.WARNING < Severity.ERROR


# Versions.

NOTIFY = next(bug for bug in POSTGRES if bug.code == "postgres-notify-bug")
LUA = next(bug for bug in REDIS if bug.code == "redis-lua-bug")


@pytest.mark.parametrize(
    ("bug", "version", "affected"),
    [
        (NOTIFY, (15, 15), True),
        (NOTIFY, (15, 16), False),
        (NOTIFY, (13, 23), True),  # never mended
        (NOTIFY, (19, 0), False),  # made after it
        (NOTIFY, (8, 4), False),  # made before it
        (LUA, (7, 0, 15), True),  # a branch between two mended ones
        (LUA, (7, 4, 6), False),
        (LUA, (7, 4, 5), True),
        (LUA, (9, 0, 0), False),
        (REDIS[0], (6, 0, 3), True),
        (REDIS[0], (6, 0, 4), False),
        (REDIS[0], (6, 2, 0), False),
        (VALKEY[0], (8, 0, 5), True),
        (VALKEY[0], (9, 0, 0), False),
    ],
)
def test_a_fault_affects_a_branch_until_it_is_mended(bug: Bug, version: tuple[int, ...], *, affected: bool) -> None:
    assert bug.affects(version) is affected


def test_the_cure_is_the_nearest_version_without_the_fault() -> None:
    assert NOTIFY.cure((15, 3)) == "update to PostgreSQL 15.16 or newer"
    assert NOTIFY.cure((13, 23)) == "update to PostgreSQL 14.21 or newer"
    assert LUA.cure((7, 0, 15)) == "update to Redis 7.2.11 or newer"
