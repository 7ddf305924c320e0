"""Both colours behind one face: what a test asks for is done by a thread, or on a loop of its own."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from typing import Any

import pytest

from leasehold import kube
from leasehold.kube import aio
from tests.kube.support import Place


class Face:
    """Something of either colour, called as if it were blocking."""

    def __init__(self, real: Any, loop: asyncio.AbstractEventLoop | None) -> None:
        self.real = real
        self._loop = loop

    def __getattr__(self, verb: str) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            answer = getattr(self.real, verb)(*args, **options)
            if self._loop is None or not inspect.isawaitable(answer):
                return answer
            return self._loop.run_until_complete(answer)

        return call


class Clients:
    """Clients of one colour, closed at the end."""

    def __init__(self, colour: str) -> None:
        self.colour = colour
        self._loop = asyncio.new_event_loop() if colour == "asyncio" else None
        self._opened: list[Face] = []

    def objects(self, place: Place, kind: kube.Kind | None = None, url: str = "") -> Face:
        wanted = (url or place.url, kind or place.kind)
        if self._loop is None:
            made = Face(kube.connect(*wanted), None)
        else:
            made = Face(self._loop.run_until_complete(aio.connect(*wanted)), self._loop)
        self._opened.append(made)
        return made

    def locks(self, place: Place, kind: kube.Kind | None = None, url: str = "", **options: Any) -> Face:
        objects = self.objects(place, kind, url)
        kind_of_locks: Any = kube.ObjectLocks if self._loop is None else aio.ObjectLocks
        return Face(kind_of_locks(objects.real, **({"prefix": "wfe-"} | options)), self._loop)

    def close(self) -> None:
        for one in self._opened:
            one.close()
        if self._loop is not None:
            self._loop.close()


@pytest.fixture(params=["blocking", "asyncio"])
def clients(request: pytest.FixtureRequest) -> Iterator[Clients]:
    made = Clients(request.param)
    yield made
    made.close()
