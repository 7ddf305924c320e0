"""What kopf tells the controller, and what it does about it: run tools, take tasks on, come back later where it must.

Handlers of events alone: kopf keeps notes on its other handlers in the objects themselves, where several replicas
would write over each other's. Nothing is remembered here either, but when to come back: after a restart
kopf shows everything again, and each step goes on from what is there.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import aiohttp
import cluster
import kopf
import tools
from aiohttp import web
from cluster import TASK, TOOL_CALL, Cluster
from metrics import LEASE, Metrics
from model import Model, ModelFailed
from turns import Overtaken, Turns

from leasehold import InvalidInput, LeaseLost, NotAcquired, StoreError, aio

Step = Callable[[], Awaitable[None]]

log = logging.getLogger("agent_tasks")


class Options(NamedTuple):
    """How one replica is to work."""

    namespace: str
    model: str
    host: str
    port: int
    ttl: float
    requeue: float
    locking: bool
    tools: bool


class Worker:
    """Steps, each as a task of its own beside the others; and one appointment to come back for each name."""

    def __init__(self, requeue: float, metrics: Metrics) -> None:
        self._requeue = requeue
        self._metrics = metrics
        self._running: set[asyncio.Task[None]] = set()
        self._again: dict[str, asyncio.TimerHandle] = {}

    def start(self, name: str, step: Step) -> None:
        """Begin a step now, whatever else of this name is under way."""
        running = asyncio.create_task(self._take(name, step))
        self._running.add(running)
        running.add_done_callback(self._running.discard)

    async def close(self) -> None:
        """Stop everything; leases are released on the way."""
        for appointment in self._again.values():
            appointment.cancel()
        for running in self._running:
            running.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def _take(self, name: str, step: Step) -> None:
        try:
            await step()
        except NotAcquired:
            # Politely: it is no error that somebody else is at it, and the observer has said who.
            self._come_back(name, step, "held")
        except (LeaseLost, Overtaken) as error:
            log.warning("%s is left to others: %s", name, error)
            self._come_back(name, step, "lost")
        except ModelFailed as error:
            log.warning("%s: %s", name, error)
            self._come_back(name, step, "model")
        except StoreError as error:
            log.warning("%s: %s", name, error)
            self._come_back(name, step, "cluster")
        except Exception:
            # One task that cannot be read must not keep the others from being served.
            log.exception("%s", name)
            self._come_back(name, step, "fault")

    def _come_back(self, name: str, step: Step, reason: str) -> None:
        """Requeue, once for all steps of this name that had to stop."""
        if name in self._again:
            return
        self._metrics.requeued(reason)
        self._again[name] = asyncio.get_running_loop().call_later(self._requeue, self._back, name, step)

    def _back(self, name: str, step: Step) -> None:
        del self._again[name]
        self.start(name, step)


# What kopf calls.


@kopf.on.startup()
async def startup(memo: kopf.Memo, settings: kopf.OperatorSettings, **_: Any) -> None:
    """Connect to everything, and serve metrics."""
    settings.scanning.disabled = True
    settings.posting.enabled = False
    try:
        await connect(memo, memo.options)
    except StoreError as error:
        raise kopf.TemporaryError(str(error), delay=memo.options.requeue) from error
    except InvalidInput as error:
        raise kopf.PermanentError(str(error)) from error


async def connect(memo: kopf.Memo, options: Options) -> None:
    """All or nothing of what the handlers need."""
    url, metrics = f"kubernetes://{options.namespace}", Metrics()
    async with contextlib.AsyncExitStack() as stack:
        locks = await stack.enter_async_context(await aio.connect(url, prefix=LEASE, observers=[metrics]))
        memo.cluster = await Cluster.connect(stack, url, locks.holder)
        model = Model(await stack.enter_async_context(aiohttp.ClientSession()), options.model, locks.holder)
        memo.turns = Turns(memo.cluster, model, locks if options.locking else None, locks.holder, options.ttl)
        memo.worker = Worker(options.requeue, metrics)
        stack.push_async_callback(memo.worker.close)
        await serve(stack, metrics, options)
        memo.stack = stack.pop_all()


@kopf.on.cleanup()
async def cleanup(memo: kopf.Memo, **_: Any) -> None:
    """Let go of everything, in the opposite order."""
    await memo.stack.aclose()


@kopf.on.event(TASK.group, "v1", TASK.plural)
async def task_seen(memo: kopf.Memo, name: str, body: kopf.Body, **_: Any) -> None:
    """A task was made, changed, or found at the start."""
    if cluster.phase(dict(body)) != "FinalAnswer":
        memo.worker.start(name, lambda: memo.turns.reconcile(name))


@kopf.on.event(TOOL_CALL.group, "v1", TOOL_CALL.plural)
async def call_seen(memo: kopf.Memo, name: str, body: kopf.Body, spec: kopf.Spec, **_: Any) -> None:
    """A tool call was made, or is finished: each that is leads to its task, however many others do."""
    call = dict(body)
    if cluster.phase(call):
        task = spec["task"]
        memo.worker.start(task, lambda: memo.turns.reconcile(task))
    elif memo.options.tools:
        result = tools.run(spec["tool"], spec["arguments"])
        memo.worker.start(f"tool call {name}", lambda: memo.cluster.finish_call(call, *result))


# Looking at it.


async def serve(stack: contextlib.AsyncExitStack, metrics: Metrics, options: Options) -> None:
    """Metrics, and whether the process lives, until the stack is left."""

    async def show(_request: web.Request) -> web.Response:
        return web.Response(text=metrics.text())

    async def alive(_request: web.Request) -> web.Response:
        return web.json_response({"alive": True})

    app = web.Application()
    app.add_routes([web.get("/metrics", show), web.get("/healthz", alive)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    await web.TCPSite(runner, options.host, options.port).start()
