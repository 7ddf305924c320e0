"""The client: hold inodes, ranges and paths, and show the lease with everything that is asked of the server.

A loss cancels the block in which something is held. A request that has begun goes on to its end all the same: only its
answer tells whether it was done, and if it came too late the fence has refused it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Literal

import aiohttp
import msgspec
from fence import END, write_leases

from leasehold import ByteRange, Inode, Path, aio
from leasehold.fence import Part, ShownParts

Scope = Inode | ByteRange | Path
Mode = Literal["exclusive", "shared"]

log = logging.getLogger("files")


class Refused(Exception):
    """The server did not do it: `error` is the word for programs, such as StaleToken or ScopeMismatch."""

    def __init__(self, body: Mapping[str, str]) -> None:
        super().__init__(f"{body['error']}: {body['message']}")
        self.error = body["error"]


class Files:
    """Files of one server. Without `locks` nothing is held, and no lease is shown: to see what happens."""

    def __init__(
        self, session: aiohttp.ClientSession, url: str, locks: aio.Locks | None, *, ttl: float, stop_at: int = 0
    ) -> None:
        self._session = session
        self._url = url
        self._locks = locks
        self._ttl = ttl
        # Which change is preceded by a long pause: see `Held.change`.
        self.stop_at = stop_at

    @asynccontextmanager
    async def hold(self, *scopes: Scope, mode: Mode = "exclusive", wait: float | None = None) -> AsyncIterator[Held]:
        """Hold all of them for the length of a block. The tokens are registered before the block begins."""
        if self._locks is None:
            yield Held(self, {}, ())
            return
        asked = [(scope, mode) for scope in scopes]
        async with self._locks.hold_all(asked, ttl=self._ttl, wait=wait) as leases:
            held = Held(self, leases, scopes)
            for scope in scopes:
                if not isinstance(scope, Path):
                    await held.ask("POST", f"/inodes/{scope.inode}/register")
            yield held

    async def paths(self) -> dict[str, dict[str, int]]:
        """Every path, with its inode and size."""
        return dict(await self.ask("GET", "/files"))

    async def find(self, path: str) -> int:
        """The inode that a path leads to."""
        found = (await self.paths()).get(clean(path))
        if found is None:
            raise Refused({"error": "NotThere", "message": f"there is no file at {path}"})
        return found["inode"]

    async def stat(self, inode: int) -> dict[str, Any]:
        """Size and chunks of a file."""
        return dict(await self.ask("GET", f"/inodes/{inode}"))

    async def garbage(self, inode: int | None = None) -> dict[str, list[str]]:
        """By inode, the chunks that it does not refer to."""
        query = {} if inode is None else {"inode": inode}
        return dict(await self.ask("GET", "/chunks", query))

    async def create(self, path: str) -> int:
        """A new, empty file, by its number."""
        path = clean(path)
        async with self.hold(Path(path)) as held:
            return int((await held.change("POST", "/files", {"path": path}))["inode"])

    async def rename(self, path: str, to: str) -> None:
        """Both paths are held, with one lease."""
        path, to = clean(path), clean(to)
        async with self.hold(Path(path), Path(to)) as held:
            await held.change("POST", "/files/rename", {"path": path, "to": to})

    async def unlink(self, path: str) -> None:
        """The path and the whole file are held: nobody reads or writes it."""
        path, inode = clean(path), await self.find(path)
        async with self.hold(Path(path), Inode(inode)) as held:
            await held.change("DELETE", "/files", {"path": path})

    async def ask(
        self,
        verb: str,
        path: str,
        query: Mapping[str, str | int] | None = None,
        data: bytes | None = None,
        lease: str = "",
    ) -> Any:
        """One request; what the server refuses is raised."""
        headers = {"Lease": lease} if lease else {}
        async with self._session.request(verb, self._url + path, params=query, data=data, headers=headers) as answer:
            if not answer.ok:
                raise Refused(await answer.json())
            return await answer.json() if answer.content_type == "application/json" else await answer.read()


class Held:
    """What can be done with what is held, one block long."""

    def __init__(self, files: Files, leases: Mapping[str, aio.Lease], scopes: Iterable[Scope]) -> None:
        self._files = files
        self._leases = leases
        self._scopes = tuple(scopes)

    @property
    def token(self) -> int:
        """The largest token; 0 where nothing is held."""
        return max((lease.token for lease in self._leases.values()), default=0)

    async def read(self, inode: int, start: int, end: int) -> bytes:
        """Bytes that fit together: nobody writes them meanwhile."""
        return bytes(await self.ask("GET", f"/inodes/{inode}/bytes", {"start": start, "end": end}))

    async def write(self, inode: int, start: int, data: bytes, to: str | None = None) -> None:
        """All of it or nothing; with `to`, its chunks go to that folder."""
        query: dict[str, str | int] = {"start": start} if to is None else {"start": start, "to": to}
        await self.change("PUT", f"/inodes/{inode}/bytes", query, data)

    async def ask(self, verb: str, path: str, query: Mapping[str, str | int] | None = None) -> Any:
        """A request that may be repeated."""
        self.check()
        return await self._files.ask(verb, path, query, lease=self._shown())

    async def change(self, verb: str, path: str, query: Mapping[str, str | int], data: bytes | None = None) -> Any:
        """A request that is not cut off in the middle."""
        self.check()
        self._files.stop_at -= 1
        if self._files.stop_at == 0:
            # Between the check and the request: the one place where only the fence can help.
            os.kill(os.getpid(), signal.SIGSTOP)
        request = asyncio.ensure_future(self._files.ask(verb, path, query, data, self._shown()))
        try:
            return await asyncio.shield(request)
        except asyncio.CancelledError:
            await asyncio.wait([request])
            log.warning("given up during a request, which came to: %s", request.exception() or "done")
            raise

    def check(self) -> None:
        """Raise LeaseLost unless everything is held."""
        for lease in self._leases.values():
            lease.check()

    def _shown(self) -> str:
        """The leases, as the server's fence wants to see them: one for each resource, with all its parts."""
        found: dict[str, ShownParts] = {}
        for scope in self._scopes:
            resource, part, name = _meant(scope)
            lease = self._leases[name]
            part = msgspec.structs.replace(part, shared=lease.mode == "shared")
            parts = (*found[resource].parts, part) if resource in found else (part,)
            found[resource] = ShownParts(resource, lease.token, parts)
        return write_leases(found.values()) if found else ""


def clean(path: str) -> str:
    """A path in the one way in which the index has it."""
    return "/" * path.startswith("/") + "/".join(step for step in path.split("/") if step not in {"", "."})


def _meant(scope: Scope) -> tuple[str, Part, str]:
    """The resource of a scope, which part of it, and what Leasehold calls that."""
    if isinstance(scope, Path):
        return f"path:{scope.root}", Part(path=scope.path), f"path:{scope.path}"
    resource = f"inode:{scope.inode}"
    if isinstance(scope, Inode):
        return resource, Part(), resource
    end = END if scope.end is None else scope.end
    return resource, Part(scope.start, end), f"{resource}[{scope.start},{'' if scope.end is None else end})"
