"""Replicas of the alert gateway as processes, the cluster they work in, and storms of signals."""

from __future__ import annotations

import asyncio
import http.client
import json
import math
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import yaml

from leasehold import kube
from leasehold.testing.servers import KubeServer
from leasehold.testing.servers.kube import KubeRefused
from leasehold.testing.servers.process import free_ports
from tests.examples.programs import Served, running
from tests.kube import support
from tests.support import ROOT, eventually

GATEWAY = ROOT / "examples" / "alert_gateway"
KIND = kube.Kind("remediation.example.com/v1", "RemediationRequest", "remediationrequests")
PATH = "/api/v1/signals/prometheus"
Answer = tuple[int, dict[str, Any]]


def documents(name: str) -> list[dict[str, Any]]:
    """The objects of a manifest of the example."""
    return list(yaml.safe_load_all((GATEWAY / "manifests" / name).read_text()))


def definition() -> dict[str, Any]:
    (found,) = documents("crd.yaml")
    return found


def role() -> list[dict[str, Any]]:
    """What the example's role allows."""
    (found,) = (one for one in documents("rbac.yaml") if one["kind"] == "Role")
    rules: list[dict[str, Any]] = found["rules"]
    return rules


def install(server: KubeServer) -> None:
    """Serve RemediationRequests, if the server does not yet."""
    if not support.is_served(server, f"/apis/{KIND.api_version}/{KIND.plural}"):
        support.install(server, definition())


class Cluster(support.Place):
    """A namespace for a gateway: its role is the example's, its kind is the example's."""

    def __init__(self, server: KubeServer, rules: list[dict[str, Any]] | None = None) -> None:
        super().__init__(KIND, found=server, rules=rules or role())

    def requests(self, fingerprint: str | None = None) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.server.request("GET", self.path)["items"]
        return [one for one in found if fingerprint in {None, one["spec"]["signalFingerprint"]}]

    def leases(self) -> list[str]:
        path = f"/apis/coordination.k8s.io/v1/namespaces/{self.name}/leases"
        return [one["metadata"]["name"] for one in self.server.request("GET", path)["items"]]


def duplicates(request: dict[str, Any]) -> int:
    """How many signals an object has counted beside the one that made it."""
    counted: int = request.get("status", {}).get("deduplication", {}).get("duplicates", 0)
    return counted


class Replica(Served):
    """One process of the gateway."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}{PATH}"

    def post(self, body: bytes) -> Answer:
        status, text = self.ask("POST", PATH, body)
        return status, json.loads(text)


@contextmanager
def fleet(cluster: Cluster, size: int, folder: Path, *options: str, until: str = "/readyz") -> Iterator[list[Replica]]:
    """So many replicas, ended with the block. None may have complained: `-W error`, and no traceback in a log."""
    command = [str(GATEWAY), "--store", cluster.url, *options]
    ports = enumerate(free_ports(size))
    made = [Replica(folder, port, command, POD_NAME=f"gateway-{number}") for number, port in ports]
    with running(made, lambda replica: replica.is_up(until)):
        yield made


# Signals.


def webhook(*fingerprints: str, **changes: Any) -> bytes:
    """What Alertmanager 0.27 sends for firing alerts."""
    labels = {
        "alertname": "KubePodCrashLooping",
        "namespace": "production",
        "pod": "payment-api-7d9c",
        "severity": "critical",
    }
    alert = {
        "status": "firing",
        "labels": labels,
        "annotations": {"summary": "Pod is crash looping.", "runbook_url": "https://runbooks.example.com/crash"},
        "startsAt": "2026-01-01T12:00:00.000Z",
        "endsAt": "0001-01-01T00:00:00Z",
        "generatorURL": "http://prometheus.example.com/graph?g0.expr=up",
    }
    alerts = [alert | {"fingerprint": one, "labels": labels | {"id": one}} for one in fingerprints]
    whole = {
        "receiver": "gateway",
        "status": "firing",
        "alerts": alerts,
        "groupLabels": {"alertname": "KubePodCrashLooping"},
        "commonLabels": labels,
        "commonAnnotations": {},
        "externalURL": "http://alertmanager.example.com",
        "version": "4",
        "groupKey": '{}:{alertname="KubePodCrashLooping"}',
        "truncatedAlerts": 0,
    }
    return json.dumps(whole | changes).encode()


def fresh() -> str:
    """A fingerprint that nobody has seen."""
    return secrets.token_hex(8)


class Storm(NamedTuple):
    """What was answered, in any order; less than was asked where nobody waited for it."""

    fingerprint: str
    boundary: int
    answers: list[Answer]

    @property
    def statuses(self) -> set[int]:
        return {status for status, _ in self.answers}


def storm(replicas: Sequence[Replica], size: int, lead: float, patience: float = 110.0) -> Storm:
    """So many identical signals over all replicas: most of them `lead` seconds before a second begins, the rest then.

    After `patience` the sender hangs up.
    """
    return asyncio.run(_storm([replica.url for replica in replicas], size, lead, patience))


async def _storm(urls: list[str], size: int, lead: float, patience: float) -> Storm:
    fingerprint = fresh()
    body = webhook(fingerprint)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=120)) as session:
        # Connected beforehand, so that they arrive together.
        await asyncio.gather(*(_ask(session, urls[number % len(urls)], b"{}") for number in range(size)))
        boundary = math.ceil(time.time() + lead)

        async def send(number: int) -> Answer:
            late = number % 4 == 0
            await asyncio.sleep(max(boundary - time.time() - (0 if late else lead), 0))
            return await _ask(session, urls[number // 4 % len(urls)], body)

        asked = [asyncio.create_task(send(number)) for number in range(size)]
        done, left = await asyncio.wait(asked, timeout=boundary - time.time() + patience)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        return Storm(fingerprint, boundary, [task.result() for task in done])


async def _ask(session: aiohttp.ClientSession, url: str, body: bytes) -> Answer:
    async with session.post(url, data=body, headers={"Content-Type": "application/json"}) as answer:
        return answer.status, await answer.json()


def forget(server: KubeServer, name: str, kind: kube.Kind = KIND) -> None:
    """Delete a definition, and wait until its objects are no longer served."""
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    try:
        server.request("DELETE", f"{path}/{name}")
    except KubeRefused as error:
        if error.status != http.client.NOT_FOUND:
            raise
    eventually(lambda: not support.is_served(server, f"/apis/{kind.api_version}/{kind.plural}"))
