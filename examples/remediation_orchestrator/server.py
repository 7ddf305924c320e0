"""The orchestrator's HTTP side, for whoever runs it: is it alive, is it ready, what does the lock do."""

from __future__ import annotations

from aiohttp import web
from handlers import Replica

from leasehold import LeaseholdError


def app(replica: Replica) -> web.Application:
    """What aiohttp serves, also while the cluster is away."""

    async def ready(_request: web.Request) -> web.Response:
        """Whether requests are routed, and if not, what to do: the definitions, the role, the server."""
        try:
            await replica.ready()
        except LeaseholdError as error:
            return web.json_response({"error": str(error)}, status=503)
        return web.json_response({"ready": True})

    async def alive(_request: web.Request) -> web.Response:
        """Whether the process serves at all; restarting it would mend nothing else."""
        return web.json_response({"alive": True})

    async def metrics(_request: web.Request) -> web.Response:
        """For Prometheus."""
        return web.Response(text=replica.metrics.text())

    made = web.Application()
    made.add_routes([web.get("/readyz", ready), web.get("/healthz", alive), web.get("/metrics", metrics)])
    return made
