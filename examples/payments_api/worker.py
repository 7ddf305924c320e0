"""One of the processes behind the port: the API, and a relay that waits for its turn."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

import uvicorn
from api import Api
from charging import Payments
from gateway import Gateway
from ledger import Ledger
from metrics import Metrics
from points import Points

import leasehold
from leasehold import aio, sql

THREADS = 32
# Requests that are under way when a worker is to stop.
FAREWELL = 10

_log = logging.getLogger("payments")


class Options(NamedTuple):
    """What a worker is started with."""

    ledger: Path
    store: str
    prefix: str
    gateway: str
    tenants: dict[str, str]
    ttl: float
    wait: float
    timeout: float
    keyed: bool
    once: bool
    die_at: frozenset[str]
    stop_at: frozenset[str]


async def work(options: Options, listener: socket.socket) -> None:
    """Serve until told to stop, or until whoever started this process is gone."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(THREADS))
    name = f"payments-{os.getpid()}"
    ledger = Ledger(options.ledger, name)
    metrics = Metrics(ledger)
    to_store: dict[str, Any] = {"prefix": options.prefix, "holder": name, "timeout": options.timeout}
    async with AsyncExitStack() as stack:
        # One for the loop, and one for the threads that work with the ledger.
        locks = await stack.enter_async_context(await aio.connect(options.store, observers=[metrics], **to_store))
        threads = stack.enter_context(leasehold.connect(options.store, observers=[metrics], **to_store))
        once = aio.Once(locks, "charges", ttl=options.ttl)
        refunds = sql.Once(threads, "refunds", ttl=options.ttl, wait=options.wait)
        gateway = Gateway(options.gateway, keyed=options.keyed, timeout=options.timeout)
        points = Points(options.ledger.parent, options.die_at, options.stop_at)
        payments = Payments(ledger, gateway, refunds, points)
        relay = sql.Relay(threads, ledger.connect, payments.tell_gateway, ttl=options.ttl, poll=0.25)
        stack.callback(_started(relay))
        api = Api(payments, options.tenants, metrics, (lambda: once) if options.once else None, options.wait)
        config = uvicorn.Config(
            api.app(), log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=FAREWELL
        )
        server = uvicorn.Server(config)
        _stop_with_parent(server)
        # uvicorn sends itself the signal that stopped it once more, at its end; there is more to be done then.
        signal.signal(signal.SIGTERM, lambda *_: None)
        signal.signal(signal.SIGINT, lambda *_: None)
        _log.info("%s serves", name)
        await server.serve([listener])


def _started(relay: sql.Relay) -> Callable[[], None]:
    """Relay in a thread; what ends it."""
    thread = threading.Thread(target=relay.run, name="relay")
    thread.start()

    def end() -> None:
        relay.stop()
        thread.join()

    return end


def _stop_with_parent(server: uvicorn.Server) -> None:
    """Its end of this pipe closes with it, however it dies."""

    def gone() -> None:
        asyncio.get_running_loop().remove_reader(sys.stdin)
        server.should_exit = True

    asyncio.get_running_loop().add_reader(sys.stdin, gone)
