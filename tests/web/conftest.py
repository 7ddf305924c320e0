"""One server of each kind for all tests of this folder: uvicorn takes its time to stop."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.web.support import AsgiServer, Server, WsgiServer

_NUMBERS = itertools.count()


@pytest.fixture(scope="package", params=[AsgiServer, WsgiServer], ids=["asgi", "wsgi"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    found: Server = request.param()
    with found.running():
        yield found


@pytest.fixture
def url() -> str:
    """A store of its own."""
    return f"memory://web-{next(_NUMBERS)}"
