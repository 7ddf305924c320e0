"""The chunk store, its clients and its background work: `python examples/file_store serve --root /var/lib/files`."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import aiohttp
import tidy
import work
from files import Files, Refused, clean

from leasehold import Inode, LeaseholdError, aio

LOOPS = {"change": work.change, "append": work.append, "check": work.check}
STEP = 1024 * 1024


def main() -> None:
    given = _arguments().parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    if given.command == "serve":
        _serve(given)
        return
    try:
        asyncio.run(_client(given))
    except (LeaseholdError, Refused, aiohttp.ClientError, TimeoutError, OSError) as error:
        sys.exit(f"file_store: {type(error).__name__}: {error}")


def _serve(given: argparse.Namespace) -> None:
    # Slow to import, and clients do without.
    from aiohttp import web  # noqa: PLC0415
    from server import FileServer  # noqa: PLC0415

    server = FileServer(given.root, fencing=not given.no_fence)
    web.run_app(server.app(), host=given.host, port=given.port, access_log=None, print=None)


async def _client(given: argparse.Namespace) -> None:
    task = asyncio.current_task()
    # Politely: what is held is let go.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: task and task.cancel())
    async with AsyncExitStack() as stack:
        timeout = aiohttp.ClientTimeout(total=given.timeout)
        session = aiohttp.ClientSession(timeout=timeout, headers={"Client": given.name})
        await stack.enter_async_context(session)
        locks = None
        if not given.no_lock:
            opened = await aio.connect(given.store, prefix=given.prefix, holder=given.name, timeout=given.timeout)
            locks = await stack.enter_async_context(opened)
        files = Files(session, given.server, locks, ttl=given.ttl, stop_at=given.stop_at)
        try:
            await _command(given, files)
        except asyncio.CancelledError:
            work.say(ends=given.name)


async def _command(given: argparse.Namespace, files: Files) -> None:
    match given.command:
        case "put":
            await _put(files, given.path, given.file)
        case "get":
            sys.stdout.buffer.write(await _get(files, given.path))
        case "ls":
            for path, file in sorted((await files.paths()).items()):
                print(f"{file['size']:>12} {file['inode']:>6} {path}")  # noqa: T201
        case "mv":
            await files.rename(given.path, given.to)
        case "rm":
            await files.unlink(given.path)
        case "prepare":
            await work.prepare(files, given.places, given.name)
        case "collect":
            await work.again_and_again(partial(tidy.collect, files, wait=given.wait), given.count, given.every)
        case "rebalance":
            task = partial(tidy.rebalance, files, wait=given.wait, churn=given.churn)
            await work.again_and_again(task, given.count, given.every)
        case _:
            task = partial(LOOPS[given.command], files, given.name, given.wait)
            await work.again_and_again(task, given.count, given.every)


async def _put(files: Files, path: str, file: Path) -> None:
    data = await asyncio.to_thread(file.read_bytes)
    inode = (await files.paths()).get(clean(path), {}).get("inode") or await files.create(path)
    async with files.hold(Inode(inode)) as held:
        for start in range(0, len(data), STEP):
            await held.write(inode, start, data[start : start + STEP])


async def _get(files: Files, path: str) -> bytes:
    inode = await files.find(path)
    async with files.hold(Inode(inode), mode="shared") as held:
        return await held.read(inode, 0, (await files.stat(inode))["size"])


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="file_store", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    serve = commands.add_parser("serve", help="the chunk store")
    serve.add_argument("--root", type=Path, required=True, help="the directory of its files")
    serve.add_argument("--host", default="127.0.0.1")
    serve.add_argument("--port", type=int, default=8080)
    serve.add_argument("--no-fence", action="store_true", help="check no lease, to see what happens")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--server", default="http://127.0.0.1:8080")
    common.add_argument("--store", default="sqlite:///tmp/leases.db", help="where leases are kept")
    common.add_argument("--prefix", default="files", help="each server's own: its inodes are not another's")
    common.add_argument("--ttl", type=float, default=10, help="how long a lease outlives a client that has died")
    common.add_argument("--timeout", type=float, default=5, help="for one request to the server or the store")
    common.add_argument("--name", default=f"client-{os.getpid()}", help="shown to others, and in the journal")
    common.add_argument("--no-lock", action="store_true", help="hold nothing, to see what happens")
    common.add_argument("--stop-at", type=int, default=0, help="stop (SIGSTOP) before the n-th change is sent")
    for name, arguments in {
        "put": ("path", "file"),
        "get": ("path",),
        "ls": (),
        "mv": ("path", "to"),
        "rm": ("path",),
    }.items():
        command = commands.add_parser(name, parents=[common])
        for argument in arguments:
            command.add_argument(argument, type=Path if argument == "file" else str)
    prepare = commands.add_parser("prepare", parents=[common], help="a table of records, and a log")
    prepare.add_argument("--places", type=int, default=12)
    for name in (*LOOPS, "collect", "rebalance"):
        loop = commands.add_parser(name, parents=[common])
        loop.add_argument("--count", type=int, default=0, help="how often; 0 for ever")
        loop.add_argument("--every", type=float, default=0.0, help="seconds between two")
        loop.add_argument("--wait", type=float, default=5.0, help="for others, before it gives up for now")
        if name == "rebalance":
            loop.add_argument("--churn", action="store_true", help="move something even if there is no need")
    return parser


if __name__ == "__main__":
    main()
