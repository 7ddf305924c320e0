"""The chunk store's HTTP side: what is asked, checked by the fence, done, and noted in the journal.

One process serves one directory. It knows nothing of the lock store: requests show their leases, and the marks that
earlier ones left decide. Requests that change an inode come one after the other; reads and looks come in between.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import asked
from aiohttp import web
from asked import FILE_MAX, ChunkGone, Exists, NotThere
from disk import CHUNK, Disk, Index, Inode
from fence import LeaseRequired, Malformed, Refused, TokenRefused, read_leases

from leasehold import ScopeMismatch, StaleToken
from leasehold.fence import Part, PartMark, admit_parts

TREE = "path:/"
WHOLE = Part()
TURNS = 64
BODY_MAX = 4 * 1024 * 1024
P = ParamSpec("P")
R = TypeVar("R")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class FileServer:
    """One chunk store. Without `fencing` it shows what the fence is for."""

    def __init__(self, root: Path, *, fencing: bool) -> None:
        self._disk = Disk(root)
        self._index, self._inodes = self._disk.load()
        self._fencing = fencing
        # One for the tree of paths, and some for the inodes, whatever numbers are asked for.
        self._tree = asyncio.Lock()
        self._turns = [asyncio.Lock() for _ in range(TURNS)]
        self._journal = (root / "journal.jsonl").open("a", buffering=1)
        self._counts: Counter[str] = Counter()

    def app(self) -> web.Application:
        """What aiohttp serves."""
        app = web.Application(client_max_size=BODY_MAX, middlewares=[self._answering])
        app.add_routes(
            [
                web.get("/files", self.list_files),
                web.post("/files", self.create),
                web.post("/files/rename", self.rename),
                web.delete("/files", self.unlink),
                web.get("/inodes/{inode}", self.stat),
                web.post("/inodes/{inode}/register", self.register),
                web.get("/inodes/{inode}/bytes", self.read),
                web.put("/inodes/{inode}/bytes", self.write),
                web.get("/chunks", self.list_chunks),
                web.delete("/inodes/{inode}/chunks", self.remove_chunk),
                web.get("/healthz", self.alive),
                web.get("/metrics", self.metrics),
            ]
        )
        app.on_cleanup.append(self._close)
        return app

    # Paths.

    async def list_files(self, _request: web.Request) -> web.Response:
        """Every path, with its inode and size."""
        files = self._index.paths.items()
        return web.json_response({path: {"inode": n, "size": self._inodes[n].size} for path, n in files})

    async def create(self, request: web.Request) -> web.Response:
        """An empty file at a path that is free."""
        path = asked.path(request, "path")
        async with self._tree:
            marks = self._admitted(request, TREE, self._index.marks, [Part(path=path)])
            if path in self._index.paths:
                raise Exists(f"{path} is there already")
            number = self._index.next
            await asyncio.to_thread(self._disk.save_inode, number, Inode())
            self._inodes[number] = Inode()
            await self._save(Index({**self._index.paths, path: number}, number + 1, marks))
        self._note(request, "create", inode=number, path=path)
        return web.json_response({"inode": number}, status=201)

    async def rename(self, request: web.Request) -> web.Response:
        """A file gets another path, which must be free."""
        old, new = asked.path(request, "path"), asked.path(request, "to")
        async with self._tree:
            marks = self._admitted(request, TREE, self._index.marks, [Part(path=old), Part(path=new)])
            if new in self._index.paths:
                raise Exists(f"{new} is there already")
            paths = dict(self._index.paths)
            number = paths[new] = self._number_at(old)
            del paths[old]
            await self._save(self._index._replace(paths=paths, marks=marks))
        self._note(request, "rename", inode=number, path=old, to=new)
        return web.json_response({"inode": number})

    async def unlink(self, request: web.Request) -> web.Response:
        """Remove a path and its file: shows a lease on the path and one on the inode."""
        path = asked.path(request, "path")
        async with self._tree:
            number = self._number_at(path)
            async with self._turns[number % TURNS]:
                self._admitted(request, f"inode:{number}", self._inodes[number].marks, [WHOLE])
                marks = self._admitted(request, TREE, self._index.marks, [Part(path=path)])
                paths = {each: inode for each, inode in self._index.paths.items() if each != path}
                await self._save(self._index._replace(paths=paths, marks=marks))
                del self._inodes[number]
                await asyncio.to_thread(self._disk.remove_inode, number)
        self._note(request, "unlink", inode=number, path=path)
        return web.json_response({"inode": number})

    async def _save(self, index: Index) -> None:
        await asyncio.to_thread(self._disk.save_index, index)
        self._index = index

    def _number_at(self, path: str) -> int:
        if path not in self._index.paths:
            raise NotThere(f"there is no file at {path}")
        return self._index.paths[path]

    # Bytes.

    async def stat(self, request: web.Request) -> web.Response:
        """Size and chunks of a file."""
        inode = self._inode(asked.number(request))
        return web.json_response({"size": inode.size, "chunk": CHUNK, "chunks": inode.chunks})

    async def register(self, request: web.Request) -> web.Response:
        """A new holder's first request: from now on earlier ones are refused."""
        number = asked.number(request)
        async with self._turns[number % TURNS]:
            # A file that was removed has no marks, and only its garbage is still of interest.
            if number in self._inodes or number >= self._index.next:
                await self._mark(request, number)
        return web.json_response({})

    async def read(self, request: web.Request) -> web.Response:
        """Bytes of a file. Under a lease they fit together; without one it is just a look."""
        number, start, end = asked.number(request), asked.offset(request, "start"), asked.offset(request, "end")
        async with self._turns[number % TURNS]:
            if request.headers.get("Lease") is not None:
                await self._mark(request, number, [Part(start, end, shared=True)])
            data = await self._with_chunks(self._disk.read, self._inode(number), start, end)
        self._counts["read"] += 1
        return web.Response(body=data)

    async def write(self, request: web.Request) -> web.Response:
        """Bytes of a file, with the marks, in one step; `to` moves their chunks to a folder."""
        number, start, folder, data = (
            asked.number(request),
            asked.offset(request, "start"),
            asked.folder(request),
            await request.read(),
        )
        end = start + len(data)
        if not data or end > FILE_MAX:
            raise Malformed(f"a write has bytes, and ends before {FILE_MAX}")
        async with self._turns[number % TURNS]:
            inode = self._inode(number)
            marks = self._admitted(request, f"inode:{number}", inode.marks, [Part(start, end)])
            made = await self._with_chunks(self._disk.spliced, number, inode, start, data, folder)
            made = made._replace(marks=marks)
            await asyncio.to_thread(self._disk.save_inode, number, made)
            self._inodes[number] = made
            did, digest = ("move" if folder else "write"), sha256(data).hexdigest()[:16]
            self._note(request, did, inode=number, start=start, end=end, digest=digest)
        return web.json_response({"size": made.size, "digest": digest})

    async def _with_chunks(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return await asyncio.to_thread(work, *args, **kwargs)
        except FileNotFoundError as error:
            raise ChunkGone(f"{Path(str(error.filename)).name} is not there, and a file refers to it") from None

    async def _mark(self, request: web.Request, number: int, wanted: Sequence[Part] = ()) -> None:
        """Let a holder in, and keep its marks if they are new."""
        inode = self._inode(number)
        marks = self._admitted(request, f"inode:{number}", inode.marks, wanted)
        if marks != inode.marks:
            await asyncio.to_thread(self._disk.save_inode, number, inode._replace(marks=marks))
            self._inodes[number] = inode._replace(marks=marks)

    def _inode(self, number: int) -> Inode:
        if number not in self._inodes:
            raise NotThere(f"there is no inode {number}")
        return self._inodes[number]

    # Chunks, for those who tidy up.

    async def list_chunks(self, request: web.Request) -> web.Response:
        """By inode, the chunk files that it does not refer to. Some may belong to a write that is under way."""
        number = asked.number(request) if "inode" in request.query else None
        found: dict[str, list[str]] = {}
        for name in await asyncio.to_thread(self._disk.chunks, number):
            inode = asked.inode_of(name)
            if not self._is_referred_to(inode, name):
                found.setdefault(str(inode), []).append(name)
        return web.json_response(found)

    async def remove_chunk(self, request: web.Request) -> web.Response:
        """Remove a chunk file of an inode that is held as a whole: its holder has looked, and the fence trusts it."""
        number = asked.number(request)
        name = asked.chunk(request, number)
        async with self._turns[number % TURNS]:
            if number in self._inodes:
                await self._mark(request, number, [WHOLE])
            else:
                # Of a file that was removed everything is garbage: no number is used again.
                self._admitted(request, f"inode:{number}", (), [WHOLE])
            referred = self._is_referred_to(number, name)
            await asyncio.to_thread(self._disk.remove_chunk, name)
            self._note(request, "remove", inode=number, name=name, referred=referred)
        return web.json_response({})

    def _is_referred_to(self, number: int, name: str) -> bool:
        return number in self._inodes and name in self._inodes[number].chunks

    # What everything has in common.

    def _admitted(
        self, request: web.Request, resource: str, marks: Sequence[PartMark], wanted: Sequence[Part]
    ) -> tuple[PartMark, ...]:
        if not self._fencing:
            return tuple(marks)
        leases = read_leases(request.headers.get("Lease"))
        if not leases:
            raise LeaseRequired("show a lease: nothing changes without one")
        fitting = next((lease for lease in leases if lease.resource == resource), leases[0])
        return admit_parts(marks, fitting, resource, wanted)

    @web.middleware
    async def _answering(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await self._judged(request, handler)
        except Refused as error:
            self._note(request, error.body["error"], path=request.path, **error.body)
            return web.json_response(error.body, status=error.status)

    async def _judged(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except (StaleToken, ScopeMismatch) as error:
            raise TokenRefused(error) from error

    def _note(self, request: web.Request, did: str, **details: Any) -> None:
        self._counts[did] += 1
        line = {"did": did, "by": request.headers.get("Client", ""), "lease": request.headers.get("Lease"), **details}
        self._journal.write(json.dumps(line) + "\n")

    async def alive(self, _request: web.Request) -> web.Response:
        """Whether it serves."""
        return web.json_response({"alive": True})

    async def metrics(self, _request: web.Request) -> web.Response:
        """What it has done and refused, for Prometheus."""
        name = "file_store_requests_total"
        lines = [f'{name}{{outcome="{did}"}} {count}' for did, count in sorted(self._counts.items())]
        return web.Response(text="\n".join([f"# TYPE {name} counter", *lines]) + "\n")

    async def _close(self, _app: web.Application) -> None:
        self._journal.close()
