"""Replicas of the task controller as processes, the fake model they ask, and the cluster they work in."""

from __future__ import annotations

import json
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from leasehold import kube
from leasehold.testing.servers import KubeServer
from leasehold.testing.servers.process import free_ports
from tests.examples.programs import Served, running
from tests.kube import support
from tests.support import ROOT, eventually

AGENTS = ROOT / "examples" / "agent_tasks"
TASK = kube.Kind("agents.example.com/v1", "Task", "tasks")
TOOL_CALL = kube.Kind("agents.example.com/v1", "ToolCall", "toolcalls")
# The sockets of kopf's own watches: at the end it does not wait until they are closed.
WARNINGS = ["-W", "ignore::ResourceWarning"]
PATIENCE = 90.0
# What the fake model asks for: turns with tool calls, and how many in each.
TURNS, CALLS = 2, 6


def until(true: Callable[[], object]) -> None:
    """Wait for a condition that an API server is asked about: less often, for it shares this machine."""
    eventually(true, PATIENCE, nudge=lambda: time.sleep(0.05))


def documents(name: str) -> list[dict[str, Any]]:
    """The objects of a manifest of the example."""
    return list(yaml.safe_load_all((AGENTS / "manifests" / name).read_text()))


def role() -> list[dict[str, Any]]:
    """What the example's role allows."""
    (found,) = (one for one in documents("rbac.yaml") if one["kind"] == "Role")
    rules: list[dict[str, Any]] = found["rules"]
    return rules


def install(server: KubeServer) -> None:
    """Serve Tasks and ToolCalls, if the server does not yet."""
    for definition in documents("crd.yaml"):
        plural = definition["spec"]["names"]["plural"]
        if not support.is_served(server, f"/apis/{TASK.api_version}/{plural}"):
            support.install(server, definition)


class Cluster(support.Place):
    """A namespace for the controller, with the example's role and kinds."""

    def __init__(self, server: KubeServer) -> None:
        super().__init__(TASK, found=server, rules=role())

    def create(self, name: str) -> None:
        """A task as people make them."""
        (task,) = documents("task.yaml")
        self.server.request("POST", self.path, task | {"metadata": {"name": name}})

    def status(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.get(name).get("status", {})
        return found

    def is_over(self, name: str) -> bool:
        return self.status(name).get("phase") == "FinalAnswer"

    def calls(self, turn: int, *tasks: str) -> list[dict[str, Any]]:
        path = f"{TOOL_CALL.path(self.name)}?labelSelector={TASK.group}/turn={turn}"
        return [one for one in self.server.request("GET", path)["items"] if one["spec"]["task"] in tasks]

    def finish_at_once(self, turn: int, *tasks: str) -> None:
        """Be the tools: all calls of a turn get their results at the same time."""
        until(lambda: len(self.calls(turn, *tasks)) == CALLS * len(tasks))
        names = [one["metadata"]["name"] for one in self.calls(turn, *tasks)]
        result = {"status": {"phase": "Succeeded", "result": "7"}}
        with ThreadPoolExecutor(len(names)) as pool:
            paths = [f"{TOOL_CALL.path(self.name)}/{name}/status" for name in names]
            list(pool.map(lambda path: self.server.request("PATCH", path, result), paths))

    def events(self, name: str) -> Counter[tuple[str, str]]:
        """(reason, text up to the colon) of what was told about a task, and how often it was written."""
        found = self.server.request("GET", f"/api/v1/namespaces/{self.name}/events")["items"]
        ours = [one for one in found if one["involvedObject"]["name"] == name]
        told: Counter[tuple[str, str]] = Counter()
        for one in ours:
            told[one["reason"], one["message"].partition(":")[0]] += one["count"]
        return told

    def leases(self) -> list[dict[str, Any]]:
        path = f"/apis/coordination.k8s.io/v1/namespaces/{self.name}/leases"
        found: list[dict[str, Any]] = self.server.request("GET", path)["items"]
        return found

    def written_events(self) -> list[str]:
        """Every Event that was sent to the API server, also those that were there already."""
        return [one["objectRef"]["name"] for one in self.requests() if _is(one, "create", "events")]

    def forbidden(self) -> list[str]:
        """What the controller asked for that its role does not allow."""
        return [
            one["requestURI"]
            for one in self.requests()
            if one.get("annotations", {}).get("authorization.k8s.io/decision") == "forbid"
        ]

    def requests(self) -> list[dict[str, Any]]:
        return [one for one in self.server.audit() if one["user"].get("username") == self.user]


def _is(event: dict[str, Any], verb: str, resource: str) -> bool:
    return event["verb"] == verb and event.get("objectRef", {}).get("resource") == resource


EVENTS = Counter(
    {("SendingContextWindowToLLM", f"turn {turn}"): 1 for turn in range(1, TURNS + 2)}
    | {("LLMFinalAnswer", f"turn {TURNS + 1}"): 1}
)


class Replica(Served):
    """One process of the controller."""

    def __init__(self, cluster: Cluster, model: int, number: int, folder: Path, options: Sequence[str]) -> None:
        (port,) = free_ports(1)
        self.name = f"agent-{number}"
        command = [*WARNINGS, str(AGENTS), "--namespace", cluster.name, "--model", f"http://127.0.0.1:{model}/v1/chat"]
        environment = {"POD_NAME": self.name, "KUBECONFIG": str(cluster.kubeconfig)}
        super().__init__(folder, port, [*command, *options], **environment)

    def metrics(self) -> dict[str, float]:
        _, text = self.get("/metrics")
        lines = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
        return {name: float(value) for name, value in lines}

    def turned_away(self, task: str) -> int:
        """How often it found the task in other hands."""
        return self.said().count(f"lease held by another pod: task-llm-{task}\n")

    def pause(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)


class FakeModel(Served):
    """The model, and what it has noted."""

    def __init__(self, folder: Path) -> None:
        (port,) = free_ports(1)
        options = ["--turns", str(TURNS), "--calls", str(CALLS), "--delay", "0.02"]
        super().__init__(folder, port, [str(AGENTS / "fake_model.py"), *options])
        until(lambda: self.is_up("/notes"))

    @contextmanager
    def holding(self, task: str) -> Iterator[None]:
        """It thinks about this task until the block is left."""
        self.ask("PUT", f"/held/{task}")
        try:
            yield
        finally:
            self.ask("DELETE", f"/held/{task}")

    def notes(self) -> dict[str, list[dict[str, Any]]]:
        found: dict[str, list[dict[str, Any]]] = json.loads(self.get("/notes")[1])
        return found

    def requests(self, task: str) -> list[dict[str, Any]]:
        return [one for one in self.notes()["requests"] if one["task"] == task]

    def outcomes(self, task: str) -> list[tuple[int, str | None]]:
        """(turn, outcome) of each request of a task, in order; None as long as it is under way."""
        return [(one["turn"], one["outcome"]) for one in self.requests(task)]

    def violations(self, task: str) -> list[dict[str, Any]]:
        return [one for one in self.notes()["violations"] if one["task"] == task]


@contextmanager
def fleet(cluster: Cluster, model: int, size: int, folder: Path, *options: str) -> Iterator[list[Replica]]:
    """So many replicas that ask the model at a port, ended with the block.

    None may have complained: warnings are errors, and there is no traceback in a log.
    """
    replicas = [Replica(cluster, model, number, folder, options) for number in range(size)]
    with running(replicas, lambda replica: replica.is_up("/healthz")) as ready:
        yield ready
