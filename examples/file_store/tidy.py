"""Work in the background, in processes of its own: collecting garbage, and moving chunks between the data folders.

Both take the locks that everybody takes, so they never meet what is read or written; and both show their tokens, so
one that slept beyond its lease is refused.
"""

from __future__ import annotations

import random
from collections import Counter

from disk import CHUNK, FOLDERS
from files import Files
from work import say

from leasehold import AcquireTimeout, ByteRange, Inode


async def collect(files: Files, *, wait: float) -> None:
    """Remove the chunks to which no inode refers, one inode after the other.

    A chunk of a write that is under way looks like garbage, too. So nobody may be at the inode: it is held as a whole,
    and only then is looked what is garbage.
    """
    for inode in map(int, await files.garbage()):
        try:
            async with files.hold(Inode(inode), wait=wait) as held:
                for name in (await files.garbage(inode)).get(str(inode), []):
                    await held.change("DELETE", f"/inodes/{inode}/chunks", {"name": name})
                    say(removed=name)
        except AcquireTimeout:
            say(busy=inode)


async def rebalance(files: Files, *, wait: float, churn: bool) -> None:
    """Move chunks to the emptier folder until both have the same; with `churn` one more, though there is no need."""
    for file in (await files.paths()).values():
        inode = file["inode"]
        chunks = enumerate((await files.stat(inode))["chunks"])
        found = {at: name.partition("/")[0] for at, name in chunks if name is not None}
        counts = Counter(dict.fromkeys(FOLDERS, 0) | Counter(found.values()))
        (full, most), (other, fewest) = counts.most_common()
        places = [at for at, folder in found.items() if folder == full]
        needless = random.sample(places, min(len(places), churn))
        for at in places[: (most - fewest) // 2] or needless:
            await _move(files, inode, at, other, wait)


async def _move(files: Files, inode: int, at: int, to: str, wait: float) -> None:
    """Read a chunk and write it elsewhere, with its range held: others go on with the rest of the file."""
    start, end = at * CHUNK, (at + 1) * CHUNK
    try:
        async with files.hold(ByteRange(inode, start, end), wait=wait) as held:
            await held.write(inode, start, await held.read(inode, start, end), to)
            say(moved=at, inode=inode, to=to)
    except AcquireTimeout:
        say(busy=inode, at=at)
