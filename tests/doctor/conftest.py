"""A healthy SQLite file, shared by the tests of the doctor."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.stores.support import driven

pytest.register_assert_rewrite("tests.doctor.support")


@pytest.fixture
def file() -> Iterator[Path]:
    # Not pytest's folder: where /tmp is in memory that is a finding of its own.
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        path = Path(folder) / "leases.db"
        with driven(path) as store:
            store.grant()
        yield path
