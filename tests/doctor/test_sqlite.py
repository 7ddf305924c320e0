"""Every finding about a SQLite file, provoked on a real one, and absent from a healthy one."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest

from leasehold.doctor.examine import Report, examine
from leasehold.doctor.facts import SqliteFacts
from leasehold.doctor.judge_common import EXPIRED_MANY
from leasehold.doctor.judge_sqlite import FREE_LARGE, LOG_LARGE
from leasehold.rules.values import MEBIBYTE
from tests.doctor.support import Trouble, check_trouble
from tests.stores.support import driven, key, virtual


@pytest.fixture
def healthy(file: Path) -> Report:
    return examine(f"sqlite://{file}")


@contextmanager
def in_memory(_: Path) -> Iterator[dict[str, Any]]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield {"url": f"sqlite://{folder}/leases.db"}


@contextmanager
def synchronous_normal(file: Path) -> Iterator[dict[str, Any]]:
    yield {"url": f"sqlite://{file}?synchronous=normal"}


@contextmanager
def damaged(file: Path) -> Iterator[dict[str, Any]]:
    with file.open("r+b") as raw:
        # The number of unused pages, in the header; there are none.
        raw.seek(36)
        raw.write((7).to_bytes(4, "big"))
    yield {"url": f"sqlite://{file}"}


@contextmanager
def log_large(file: Path) -> Iterator[dict[str, Any]]:
    with closing(apsw.Connection(str(file))) as reader, driven(file, options="?synchronous=normal") as store:
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM records_2").get == 1
        for _ in range(LOG_LARGE // MEBIBYTE + 1):
            store.swap(key(1), store.load(key(1)), bytes(MEBIBYTE), 30.0)
        yield {"url": f"sqlite://{file}"}


@contextmanager
def free_space(file: Path) -> Iterator[dict[str, Any]]:
    with driven(file, options="?synchronous=normal") as store:
        kept = [store.grant(key(number), value=bytes(MEBIBYTE)) for number in range(FREE_LARGE // MEBIBYTE + 1)]
        for record in kept:
            store.swap(record.key, record, None, None)
    yield {"url": f"sqlite://{file}"}


@contextmanager
def world_writable(file: Path) -> Iterator[dict[str, Any]]:
    file.chmod(0o666)
    yield {"url": f"sqlite://{file}"}


@contextmanager
def expired(file: Path) -> Iterator[dict[str, Any]]:
    clock = virtual()
    with driven(file, clock, "?synchronous=normal") as store:
        for number in range(EXPIRED_MANY + 100):
            store.grant(key(number), ttl=10.0)
    clock.advance(10.0)
    yield {"url": f"sqlite://{file}", "clock": clock}


TROUBLES: dict[str, Trouble] = {
    "sqlite-memory-file-system": in_memory,
    "sqlite-synchronous-normal": synchronous_normal,
    "sqlite-damaged": damaged,
    "sqlite-log-large": log_large,
    "sqlite-free-space": free_space,
    "sqlite-world-writable": world_writable,
    "expired-records": expired,
}


@pytest.mark.parametrize("code", TROUBLES)
def test_each_trouble_is_found_and_no_other(code: str, file: Path, healthy: Report) -> None:
    check_trouble(code, TROUBLES[code](file), healthy)


def test_many_live_records_are_no_trouble(file: Path) -> None:
    clock = virtual()
    with driven(file, clock, "?synchronous=normal") as store:
        for number in range(EXPIRED_MANY + 100):
            store.grant(key(number), ttl=10.0)
    clock.advance(9.0)
    report = examine(f"sqlite://{file}", clock=clock)
    assert report.findings == []
    assert isinstance(report.facts, SqliteFacts)
    assert report.facts.contents.expired == 0
    assert report.facts.contents.records > EXPIRED_MANY


def test_a_doctor_leaves_the_records_as_they_were(file: Path) -> None:
    with closing(apsw.Connection(str(file))) as look:
        before = list(look.execute("SELECT * FROM records_2"))
        examine(f"sqlite://{file}")
        assert list(look.execute("SELECT * FROM records_2")) == before != []


def test_memory_has_nothing_to_examine() -> None:
    report = examine("memory://doctor")
    assert report.facts is None
    assert report.severity is None
    assert "nothing to examine" in report.checks[0].value
