"""Every store that other processes can reach × both colours, in real time."""

from __future__ import annotations

from pathlib import Path

import pytest

from leasehold.testing.conformance.process_laws import ProcessLaws
from tests.test_conformance import WORLDS


@pytest.fixture(params=["blocking", "asyncio"])
def colour(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[name for name, world in WORLDS.items() if world(Path("/nowhere")).url])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(WORLDS[request.param](tmp_path).url)


class TestProcesses(ProcessLaws):
    pass
