"""A proxy before the API server that can let a request wait, so that a program is met at a moment of our choice."""

from __future__ import annotations

import asyncio
import json
import secrets
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp
from aiohttp import web

from leasehold.testing.servers import KubeServer

DROPPED = {"host", "authorization", "content-length", "transfer-encoding", "connection", "content-encoding"}
AUTOMATIC = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")


class Gate:
    """Requests of one verb and path wait here: before the server hears of them, or before its answer is told."""

    def __init__(self, verb: str, ends: str, *, answered: bool) -> None:
        self.verb, self.ends, self.answered = verb, ends, answered
        self._bodies: list[bytes] = []
        self.most = 0
        self._opened = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    @property
    def waiting(self) -> int:
        """How many different ones wait now; `most` is how many ever waited together."""
        return len(set(self._bodies))

    def open(self) -> None:
        self._loop.call_soon_threadsafe(self._opened.set)

    async def pass_through(self, request: web.Request, *, answered: bool) -> None:
        if request.method == self.verb and request.path.endswith(self.ends) and answered == self.answered:
            body = await request.read()
            self._bodies.append(body)
            self.most = max(self.most, self.waiting)
            try:
                await self._opened.wait()
            finally:
                self._bodies.remove(body)


class Proxy:
    """Asks the API server in a user's name. Runs on a loop of its own."""

    def __init__(self, server: KubeServer, user: str) -> None:
        self._server, self._user = server, user
        self._loop = asyncio.new_event_loop()
        self._gates: list[Gate] = []
        self.port = 0

    def gate(self, verb: str, ends: str, *, answered: bool = False) -> Gate:
        """From now on such requests wait until the gate is opened."""

        async def make() -> Gate:
            made = Gate(verb, ends, answered=answered)
            self._gates.append(made)
            return made

        return asyncio.run_coroutine_threadsafe(make(), self._loop).result(20)

    def kubeconfig(self, namespace: str) -> Path:
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "here", "cluster": {"server": f"http://127.0.0.1:{self.port}"}}],
            "users": [{"name": "u", "user": {"token": "unused"}}],
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": "u", "namespace": namespace}}],
            "current-context": "here",
        }
        place = self._server.folder / f"kubeconfig-{secrets.token_hex(4)}"
        place.write_text(json.dumps(config))
        return place

    def run(self, ready: threading.Event) -> None:
        """Until `stop`."""
        self._loop.run_until_complete(self._serve(ready))
        self._loop.close()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stopped.set)

    async def _serve(self, ready: threading.Event) -> None:
        self._stopped = asyncio.Event()
        tls = ssl.create_default_context(cafile=str(self._server.ca))
        connector = aiohttp.TCPConnector(ssl=tls, limit=0)
        async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as self._session:
            app = web.Application()
            app.router.add_route("*", "/{path:.*}", self._forward)
            # A request whose sender was killed is never forwarded.
            runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            self.port = runner.addresses[0][1]
            ready.set()
            await self._stopped.wait()
            await runner.cleanup()

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        for gate in self._gates:
            await gate.pass_through(request, answered=False)
        headers = {name: value for name, value in request.headers.items() if name.lower() not in DROPPED}
        headers |= {"Authorization": f"Bearer {self._server.admin_token}", "Impersonate-User": self._user}
        # The server would otherwise forget that every user it knows is one.
        headers |= {"Impersonate-Group": "system:authenticated"}
        url = f"{self._server.url}{request.path_qs}"
        timeout = aiohttp.ClientTimeout(total=None)
        asked = {"data": body or None, "headers": headers, "timeout": timeout, "skip_auto_headers": AUTOMATIC}
        async with self._session.request(request.method, url, **asked) as answer:
            for gate in self._gates:
                await gate.pass_through(request, answered=True)
            kept = {name: value for name, value in answer.headers.items() if name.lower() not in DROPPED}
            told = web.StreamResponse(status=answer.status, headers=kept)
            await told.prepare(request)
            async for chunk in answer.content.iter_any():
                await told.write(chunk)
            await told.write_eof()
            return told


@contextmanager
def proxy(server: KubeServer, user: str) -> Iterator[Proxy]:
    """A proxy that runs as long as the block."""
    made, ready = Proxy(server, user), threading.Event()
    thread = threading.Thread(target=made.run, args=(ready,))
    thread.start()
    try:
        assert ready.wait(20)
        yield made
    finally:
        made.stop()
        thread.join()
