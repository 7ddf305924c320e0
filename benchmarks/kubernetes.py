"""Kubernetes: acquire and release, against a bare POST and DELETE, and against the official Python client.

The floor sends the same Lease and the same conditions over one warm connection and
reads the answers as JSON. The official client creates and deletes a Lease that says
less; the usual recipe looks first whether it is there.
"""

from __future__ import annotations

import asyncio
import functools
import http.client
import json
import ssl
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import leasehold
from benchmarks.harness import Figure, medians, micro, seconds_each
from benchmarks.peers import OFFICIAL_KUBERNETES, Peer
from leasehold.testing.servers import KubeServer

ROUNDS = 31
TIMES = 10
TARGET_FLOOR = 1.15
TARGET_PEER = 1.0
LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
BARE = "bare POST + DELETE"
CREATE_DELETE = "the official client's create + delete"
RECIPE = "the official client's get + create + delete"


def figures() -> list[Figure]:
    """Against the floor and the official client, on one API server with its etcd."""
    with KubeServer(users={"app": ["system:masters"]}) as server, TemporaryDirectory() as folder:
        file = server.kubeconfig("app", path=Path(folder) / "kubeconfig")
        url = f"kubernetes://default?kubeconfig={file}"
        loop = asyncio.new_event_loop()
        looped = loop.run_until_complete(leasehold.aio.connect(url))

        async def turns() -> None:
            for _ in range(TIMES):
                await (await looped.acquire("invoice-42")).release()

        def awaited() -> float:
            return seconds_each(lambda: loop.run_until_complete(turns()), 1) / TIMES

        with (
            leasehold.connect(url) as locks,
            Peer(OFFICIAL_KUBERNETES, str(file), "") as official,
            Peer(OFFICIAL_KUBERNETES, str(file), "look first") as recipe,
        ):
            cases: dict[str, Callable[[], float]] = {
                "ours": functools.partial(seconds_each, lambda: locks.acquire("invoice-42").release(), TIMES),
                "ours, asyncio": awaited,
                BARE: functools.partial(seconds_each, _floor(server, locks), TIMES),
                CREATE_DELETE: functools.partial(official.seconds_each, TIMES),
                RECIPE: functools.partial(recipe.seconds_each, TIMES),
            }
            found = medians(cases, ROUNDS)
        loop.run_until_complete(looped.close())
        loop.close()
    return [
        Figure(
            f"Kubernetes{who.removeprefix('ours')}: acquire + release ÷ {against}",
            micro(found[who]),
            micro(found[against]),
            found[who] / found[against],
            target,
        )
        for who, against, target in (
            ("ours", BARE, TARGET_FLOOR),
            ("ours, asyncio", BARE, TARGET_FLOOR),
            ("ours", CREATE_DELETE, TARGET_PEER),
            ("ours", RECIPE, TARGET_PEER),
        )
    ]


def _floor(server: KubeServer, locks: leasehold.Locks) -> Callable[[], None]:
    """One POST and one DELETE of what a client of ours writes."""
    with locks.hold("invoice-42"):
        lease: dict[str, Any] = server.request("GET", f"{LEASES}/invoice-42")
    lease["metadata"] = {name: lease["metadata"][name] for name in ("annotations", "labels")} | {"name": "bare"}
    tls = ssl.create_default_context(cafile=str(server.ca))
    connection = http.client.HTTPSConnection(server.host, server.port, context=tls)
    headers = {"Authorization": f"Bearer {server.token('app')}", "Content-Type": "application/json"}

    def ask(method: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
        connection.request(method, path, json.dumps(body), headers)
        answer: dict[str, Any] = json.loads(connection.getresponse().read())
        return answer

    def floor() -> None:
        made = ask("POST", LEASES, lease)["metadata"]
        conditions = {"uid": made["uid"], "resourceVersion": made["resourceVersion"]}
        ask("DELETE", f"{LEASES}/bare", {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": conditions})

    return floor
