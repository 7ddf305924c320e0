"""A request with an Idempotency-Key, through the middleware on the memory store, against the same without it.

uvicorn and Starlette in a process of their own, on loopback, with a body of 1 KB that the handler reads. The client
writes bytes that are ready to a connection that stays: hardly anything of what is measured is the client's.
"""

from __future__ import annotations

import functools
import itertools
import json
import multiprocessing
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.harness import Figure, medians, micro, seconds_each

ROUNDS = 41
TIMES = 50
TARGET = 2.0
BODY = json.dumps({"note": "x" * 1000, "amount": 5}).encode()
BARE, FRESH, REPLAY = "no middleware", "handled", "replayed"


def figures() -> list[Figure]:
    """A request that is handled, and one that is replayed."""
    with _served() as port, closing(socket.create_connection(("127.0.0.1", port))) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        keys = itertools.count()
        works = {
            BARE: lambda: _ask(connection, "/bare", "x", replayed=False),
            FRESH: lambda: _ask(connection, "/once", f"key-{next(keys)}", replayed=False),
            REPLAY: lambda: _ask(connection, "/once", "key-0", replayed=True),
        }
        works[FRESH]()
        cases = {name: functools.partial(seconds_each, work, TIMES) for name, work in works.items()}
        taken = medians(cases, ROUNDS)
    return [
        Figure(
            f"a request with a key, 1 KB, memory, {name} ÷ {BARE}",
            micro(taken[name]),
            micro(taken[BARE]),
            taken[name] / taken[BARE],
            TARGET,
        )
        for name in (FRESH, REPLAY)
    ]


def _ask(connection: socket.socket, path: str, key: str, *, replayed: bool) -> None:
    head = f'POST {path}/ HTTP/1.1\r\nHost: bench\r\nIdempotency-Key: "{key}"\r\nContent-Type: application/json\r\n'
    connection.sendall(f"{head}Content-Length: {len(BODY)}\r\n\r\n".encode() + BODY)
    data = b""
    # The answer is empty: it ends with its headers.
    while not data.endswith(b"\r\n\r\n"):
        data += connection.recv(4096)
    if not data.startswith(b"HTTP/1.1 200") or (b"idempotent-replayed" in data) is not replayed:
        raise AssertionError(data)


@contextmanager
def _served() -> Iterator[int]:
    fresh = multiprocessing.get_context("spawn")
    ours, theirs = fresh.Pipe()
    process = fresh.Process(target=serve, args=(theirs,), daemon=True)
    process.start()
    # If it dies, nobody is left who could say the port.
    theirs.close()
    try:
        yield ours.recv()
    finally:
        ours.send(None)
        process.join(20)


def serve(pipe: Connection) -> None:
    """The server: tells its port, and ends when it is told to."""
    import asyncio  # noqa: PLC0415  only this process has a loop
    import threading  # noqa: PLC0415

    import uvicorn  # noqa: PLC0415  only this process serves
    from starlette.applications import Starlette  # noqa: PLC0415
    from starlette.requests import Request  # noqa: PLC0415
    from starlette.responses import Response  # noqa: PLC0415
    from starlette.routing import Mount, Route  # noqa: PLC0415

    from leasehold import aio  # noqa: PLC0415
    from leasehold.web.asgi import IdempotencyMiddleware  # noqa: PLC0415

    async def empty(request: Request) -> Response:
        await request.body()
        return Response()

    plain = Starlette(routes=[Route("/", empty, methods=["POST"])])

    async def main() -> None:
        async with await aio.connect("memory://bench") as locks:
            kept: Any = IdempotencyMiddleware(plain, aio.Once(locks))
            app = Starlette(routes=[Mount("/bare", plain), Mount("/once", kept)])
            with closing(socket.create_server(("127.0.0.1", 0))) as listening:
                server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off", ws="none"))

                def stop() -> None:
                    pipe.recv()
                    server.should_exit = True

                threading.Thread(target=stop, daemon=True).start()
                pipe.send(listening.getsockname()[1])
                await server.serve([listening])

    asyncio.run(main())


if __name__ == "__main__":
    from benchmarks.harness import print_table

    print_table(figures())
