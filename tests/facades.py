"""Both facades behind one way of writing a test: `await answer(locks.acquire(…))` in either colour.

A test is one coroutine. The blocking facade has done its work before `answer`
looks at the result, so driving the test never suspends; asyncio's is awaited.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any, NamedTuple

import apsw

import leasehold
from leasehold import aio
from leasehold.engine.blocking import drive
from leasehold.stores import open as opening
from leasehold.wires.clock import system_clock


class Colour(NamedTuple):
    """One facade: what it is called, how to connect, how to run a test written for it."""

    name: str
    connect: Callable[..., Any]
    run: Callable[[Coroutine[Any, Any, Any]], Any]


COLOURS = [Colour("blocking", leasehold.connect, drive), Colour("asyncio", aio.connect, asyncio.run)]


async def answer(given: Any) -> Any:
    """What a verb of either facade comes to."""
    return await given if inspect.isawaitable(given) else given


@contextlib.asynccontextmanager
async def within(block: Any) -> AsyncIterator[Any]:
    """Enter a client or a hold of either facade."""
    if hasattr(block, "__aenter__"):
        async with block as entered:
            yield entered
    else:
        with block as entered:
            yield entered


class Place(NamedTuple):
    """A store to use, and how to see all that is in it without asking Leasehold."""

    url: str
    content: Callable[[], object]


def memory_place(name: str) -> Place:
    def content() -> object:
        memory = opening._MEMORIES.get((name, system_clock()))
        return memory and (memory.revision, repr(memory.families))

    return Place(f"memory://{name}", content)


def sqlite_place(file: Path) -> Place:
    def content() -> object:
        if not file.exists():
            return None
        with contextlib.closing(apsw.Connection(str(file), flags=apsw.SQLITE_OPEN_READONLY)) as db:
            tables = [name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
            return {table: db.execute(f'SELECT * FROM "{table}"').fetchall() for table in tables}  # noqa: S608  our own names

    return Place(f"sqlite://{file}", content)
