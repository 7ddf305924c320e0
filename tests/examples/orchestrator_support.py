"""Replicas of the orchestrator as processes, the cluster they work in, and the requests they are given."""

from __future__ import annotations

import itertools
import secrets
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from leasehold import kube
from leasehold.testing.servers import KubeServer
from leasehold.testing.servers.process import free_ports
from tests.examples import gateway_support
from tests.examples.programs import Served, running
from tests.kube import support
from tests.support import ROOT

ORCHESTRATOR = ROOT / "examples" / "remediation_orchestrator"
EXECUTOR = ROOT / "examples" / "workflow_executor"
REQUEST = gateway_support.KIND
EXECUTION = kube.Kind("remediation.example.com/v1", "WorkflowExecution", "workflowexecutions")
FINISHED = {"Completed", "Failed", "Skipped"}


def role() -> list[dict[str, Any]]:
    """What the example's role allows."""
    found = yaml.safe_load_all((ORCHESTRATOR / "manifests" / "rbac.yaml").read_text())
    rules: list[dict[str, Any]] = next(one for one in found if one["kind"] == "Role")["rules"]
    return rules


def definition() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((EXECUTOR / "manifests" / "crd.yaml").read_text())
    return found


def install(server: KubeServer) -> None:
    """Serve both kinds, if the server does not yet."""
    gateway_support.install(server)
    if not support.is_served(server, f"/apis/{EXECUTION.api_version}/{EXECUTION.plural}"):
        support.install(server, definition())


class Cluster(support.Place):
    """A namespace for an orchestrator, what people ask of it there, and what an executor would do."""

    def __init__(self, server: KubeServer, rules: list[dict[str, Any]] | None = None) -> None:
        super().__init__(REQUEST, found=server, rules=rules or role())
        self.executions_path = EXECUTION.path(self.name)

    def ask(self, target: Mapping[str, str] | None, name: str = "") -> str:
        """A request as the gateway makes it; its name."""
        called = name or f"rr-{secrets.token_hex(6)}"
        spec = {"signalFingerprint": secrets.token_hex(8), "signalName": "KubePodCrashLooping", "severity": "critical"}
        spec |= {} if target is None else {"targetResource": target}
        body = {"apiVersion": REQUEST.api_version, "kind": REQUEST.kind, "metadata": {"name": called}, "spec": spec}
        self.server.request("POST", self.path, body)
        return called

    def status(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.get(name).get("status") or {}
        return found

    def phase(self, name: str) -> str:
        return str(self.status(name).get("overallPhase", ""))

    def phases(self) -> dict[str, str]:
        """Where each request stands, at one moment."""
        found = self.server.request("GET", self.path)["items"]
        return {one["metadata"]["name"]: (one.get("status") or {}).get("overallPhase", "") for one in found}

    def is_let_go(self, name: str) -> bool:
        """Whether a request is over, and kopf has taken its finalizer away: nothing more will be asked about it."""
        return self.phase(name) in {"Completed", "Failed"} and not self.get(name)["metadata"].get("finalizers")

    def touched(self, name: str) -> list[str]:
        """What the orchestrator has asked for about one request."""
        return [
            event["verb"]
            for event in self.server.audit()
            if event["user"].get("username") == self.user and event.get("objectRef", {}).get("name") == name
        ]

    def routed(self, name: str) -> dict[str, Any]:
        """The condition that says whether a request was routed, and why not."""
        found = self.status(name).get("conditions") or []
        return next((one for one in found if one["type"] == "Routed"), {})

    def executions(self, target: str | None = None) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.server.request("GET", self.executions_path)["items"]
        return [one for one in found if target in {None, one["spec"]["targetResource"]}]

    def execution(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.server.request("GET", f"{self.executions_path}/{name}")
        return found

    def make_execution(self, target: str, labels: Mapping[str, str] | None = None) -> str:
        """One that the orchestrator did not make."""
        name = f"by-hand-{secrets.token_hex(4)}"
        body = {"apiVersion": EXECUTION.api_version, "kind": EXECUTION.kind}
        body |= {
            "metadata": {"name": name, "labels": labels or {}},
            "spec": {"targetResource": target, "workflow": "w"},
        }
        self.server.request("POST", self.executions_path, body)
        return name

    def active(self) -> Counter[str]:
        """How many active executions each target has."""
        return Counter(one["spec"]["targetResource"] for one in self.executions() if is_active(one))

    def end(self, execution: str, phase: str = "Completed", **status: Any) -> dict[str, Any]:
        """What an executor writes when a workflow is over."""
        body = {"status": {"phase": phase, "completionTime": timestamp(), **status}}
        path = f"{self.executions_path}/{execution}/status"
        ended: dict[str, Any] = self.server.request("PATCH", path, body)
        return ended

    def leases(self) -> list[dict[str, Any]]:
        path = f"/apis/coordination.k8s.io/v1/namespaces/{self.name}/leases"
        found: list[dict[str, Any]] = self.server.request("GET", path)["items"]
        return found

    def events(self, name: str) -> list[dict[str, Any]]:
        """What the orchestrator has told people about a request."""
        found = self.server.request("GET", f"/api/v1/namespaces/{self.name}/events")["items"]
        return [one for one in found if one["involvedObject"]["name"] == name]

    def forbidden(self) -> list[str]:
        """What was asked for that the role does not allow."""
        return [
            f"{event['verb']} {event['requestURI']}"
            for event in self.server.audit()
            if event["user"].get("username") == self.user
            and event.get("annotations", {}).get("authorization.k8s.io/decision") == "forbid"
        ]


def is_active(execution: Mapping[str, Any]) -> bool:
    return (execution.get("status") or {}).get("phase") not in FINISHED


def deployment(name: str) -> dict[str, str]:
    return {"namespace": "production", "kind": "deployment", "name": name}


def timestamp(ahead: float = 0) -> str:
    """Now, or a while from now, as Kubernetes writes it."""
    return datetime.fromtimestamp(datetime.now(UTC).timestamp() + ahead, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Life(NamedTuple):
    """An execution from its create to its end, in the API server's own order."""

    target: str
    request: str
    made: int
    ended: int


class Executor:
    """Ends executions as an executor would. Nobody else changes them: their revision is that of their create."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.lives: list[Life] = []

    def work(self) -> None:
        """End those that are active now."""
        for one in filter(is_active, self._cluster.executions()):
            ended = self._cluster.end(one["metadata"]["name"])
            spec = one["spec"]
            made = int(one["metadata"]["resourceVersion"])
            revision = int(ended["metadata"]["resourceVersion"])
            self.lives.append(Life(spec["targetResource"], spec["remediationRequest"], made, revision))


def overlaps(lives: Iterable[Life]) -> list[tuple[Life, Life]]:
    """Pairs that were active at the same time, for one target."""
    return [
        (one, other)
        for one, other in itertools.combinations(lives, 2)
        if one.target == other.target and one.made < other.ended and other.made < one.ended
    ]


class Replica(Served):
    """One process of the orchestrator."""

    def metric(self, name: str) -> float:
        _, text = self.get("/metrics")
        found = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        return float(found[f"ro_lock_{name}"])


@contextmanager
def fleet(
    cluster: Cluster,
    size: int,
    folder: Path,
    *options: str,
    until: str = "/readyz",
    calm: bool = True,
    **environment: str,
) -> Iterator[list[Replica]]:
    """So many replicas, ended with the block. None may have complained: `-W error`, and no traceback in a log.

    Unless they are not `calm`: kopf shows the trace of what ended it.
    """
    command = [str(ORCHESTRATOR), "--namespace", cluster.name, *options]
    around = {"KUBECONFIG": str(cluster.kubeconfig), **environment}
    ports = enumerate(free_ports(size))
    made = [Replica(folder, port, command, **{"POD_NAME": f"ro-{number}", **around}) for number, port in ports]
    with running(made, lambda replica: replica.is_up(until), quiet=calm):
        yield made
