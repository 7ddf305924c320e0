"""Clients that read, change and append records, and say so: a line of JSON before each write, and one after it."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import records
from files import Files, Held, Refused
from records import SIZE, Record

from leasehold import ByteRange, Inode, LeaseholdError

LOG, TABLE = "/log", "/table"
RUN = 3
PAUSE = 0.05


def say(**what: Any) -> None:
    """For whoever reads along: it must be out before the next step."""
    print(json.dumps(what), flush=True)  # noqa: T201


async def prepare(files: Files, places: int, name: str) -> None:
    """A table of records, and an empty log."""
    await files.create(LOG)
    inode = await files.create(TABLE)
    async with files.hold(Inode(inode)) as held:
        for place in range(places):
            await _write(held, inode, Record(place, 0, name), after="")


async def change(files: Files, name: str, wait: float) -> None:
    """Read some neighbouring records, and write the next of each: nothing of it may be lost."""
    inode, places = await _file(files, TABLE)
    first = random.randrange(places)  # noqa: S311
    last = min(first + random.randrange(RUN), places - 1)  # noqa: S311
    async with files.hold(ByteRange(inode, first * SIZE, (last + 1) * SIZE), wait=wait) as held:
        for place in range(first, last + 1):
            data = await held.read(inode, place * SIZE, (place + 1) * SIZE)
            found = records.read(place, data)
            await _write(held, inode, Record(place, found.number + 1, name), after=records.digest(data))


async def append(files: Files, name: str, wait: float) -> None:
    """Write a record at the end of the log, wherever that is by then."""
    inode, places = await _file(files, LOG)
    async with files.hold(ByteRange(inode, places * SIZE, None), wait=wait) as held:
        _, places = await _file(files, LOG)
        await _write(held, inode, Record(places, 0, name), after="")


async def check(files: Files, _name: str, wait: float) -> None:
    """Read some records, in pieces, while others may do so, too: each must be whole."""
    inode, places = await _file(files, random.choice((TABLE, LOG)))  # noqa: S311
    if not places:
        return
    place = random.randrange(places)  # noqa: S311
    start, middle, end = place * SIZE, place * SIZE + SIZE // 2, (place + 1) * SIZE
    async with files.hold(ByteRange(inode, start, end), mode="shared", wait=wait) as held:
        data = await held.read(inode, start, middle) + await held.read(inode, middle, end)
    records.read(place, data)
    say(whole=place)


async def _write(held: Held, inode: int, record: Record, after: str) -> None:
    data = record.bytes()
    digest = records.digest(data)
    say(sends=digest, after=after, inode=inode, place=record.place, token=str(held.token))
    await held.write(inode, record.place * SIZE, data)
    say(done=digest)


async def _file(files: Files, path: str) -> tuple[int, int]:
    found = (await files.paths())[path]
    return found["inode"], found["size"] // SIZE


async def again_and_again(work: Callable[[], Awaitable[None]], count: int, pause: float = 0.0) -> None:
    """Do it so often, or for ever if that is 0. What goes wrong is said, and the next try begins afresh."""
    done = 0
    while not count or done < count:
        try:
            await work()
        except (LeaseholdError, Refused, records.Torn, aiohttp.ClientError, TimeoutError) as error:
            say(failed=error.error if isinstance(error, Refused) else type(error).__name__, why=str(error))
            await asyncio.sleep(PAUSE)
        done += 1
        await asyncio.sleep(pause)
