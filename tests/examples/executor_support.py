"""Replicas of the workflow executor as processes, the two namespaces they work in, and what an administrator sees."""

from __future__ import annotations

import importlib
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

from leasehold import kube
from leasehold.testing.servers import KubeServer
from leasehold.testing.servers.kube import KubeRefused
from tests.examples.programs import PATIENCE, Program, running
from tests.kube import support
from tests.support import ROOT, eventually

EXECUTOR = ROOT / "examples" / "workflow_executor"
EXECUTION = kube.Kind("remediation.example.com/v1", "WorkflowExecution", "workflowexecutions")
RUN = kube.Kind("tekton.dev/v1", "PipelineRun", "pipelineruns")
FINALIZER = "remediation.example.com/workflow-execution"
CONFIG = "workflowexecution-config"
# Warnings are errors, except that aiohttp, in kopf, closes TLS behind one's back, and a process may end before it has.
STRICT = ("-W", "error", "-W", "ignore::ResourceWarning")
Object = dict[str, Any]


def module(name: str) -> ModuleType:
    """One of the example's own modules. They are imported by plain names, which other examples have, too."""
    before = dict(sys.modules)
    sys.path.insert(0, str(EXECUTOR))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(EXECUTOR))
        for new in sys.modules.keys() - before.keys():
            if str(EXECUTOR) in str(getattr(sys.modules[new], "__file__", "")):
                del sys.modules[new]


def documents(name: str) -> list[Object]:
    """The objects of a manifest of the example."""
    return list(yaml.safe_load_all((EXECUTOR / "manifests" / name).read_text()))


def role(name: str) -> list[Object]:
    """What a role of the example allows."""
    (found,) = (one for one in documents(name) if one["kind"] == "Role")
    rules: list[Object] = found["rules"]
    return rules


def without(rules: list[Object], resource: str, *verbs: str) -> list[Object]:
    """The same role, less these verbs on a resource."""
    less = [
        rule | {"verbs": [verb for verb in rule["verbs"] if resource not in rule["resources"] or verb not in verbs]}
        for rule in rules
    ]
    assert less != rules
    return [rule for rule in less if rule["verbs"]]


def install(server: KubeServer) -> None:
    """Serve both kinds as the example defines them."""
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    for file in ("crd.yaml", "pipelinerun.yaml"):
        (definition,) = documents(file)
        spec = definition["spec"]
        if support.is_served(server, f"/apis/{spec['group']}/v1/{spec['names']['plural']}"):
            server.request("PATCH", f"{path}/{definition['metadata']['name']}", definition)
        else:
            support.install(server, definition)


def forget(server: KubeServer, file: str) -> None:
    """Serve a kind no longer; its objects go with it."""
    (definition,) = documents(file)
    spec, path = definition["spec"], "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    server.request("DELETE", f"{path}/{definition['metadata']['name']}")
    eventually(lambda: not support.is_served(server, f"/apis/{spec['group']}/v1/{spec['names']['plural']}"))


class Space(support.Place):
    """A namespace with one role, whose rights can be taken away again."""

    def allow(self, rules: list[Object]) -> None:
        place = f"/apis/{support.RBAC}/v1/namespaces/{self.name}"
        role = {"metadata": {"name": "executor"}, "rules": rules}
        if not hasattr(self, "rules"):
            reference = {"apiGroup": support.RBAC, "kind": "Role", "name": "executor"}
            subject = {"apiGroup": support.RBAC, "kind": "User", "name": self.user}
            binding = {"metadata": {"name": "executor"}, "roleRef": reference, "subjects": [subject]}
            self.server.request("POST", f"{place}/roles", role)
            self.server.request("POST", f"{place}/rolebindings", binding)
            self.rules: list[Object] = []
        else:
            self.server.request("PUT", f"{place}/roles/executor", role)
        before, self.rules = _rights(self.rules), rules
        for right in before ^ _rights(rules):
            eventually(lambda right=right: self._may(right) == (right in _rights(rules)))

    def _may(self, right: tuple[str, str, str, str]) -> bool:
        asked = dict(zip(("group", "resource", "name", "verb"), right, strict=True)) | {"namespace": self.name}
        resource, _, part = asked["resource"].partition("/")
        asked |= {"resource": resource, "subresource": part}
        review = {"spec": {"user": self.user, "resourceAttributes": asked}}
        path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        answer: bool = self.server.request("POST", path, review)["status"]["allowed"]
        return answer


def _rights(rules: list[Object]) -> set[tuple[str, str, str, str]]:
    return {
        (group, resource, name, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for name in rule.get("resourceNames", [""])
        for verb in rule["verbs"]
    }


class Cluster:
    """Where executions are, where runs are, and a user with the example's roles in both."""

    def __init__(self, server: KubeServer, cooldown: object = "5m") -> None:
        self.server = server
        self.home = Space(EXECUTION, found=server, rules=role("rbac.yaml"))
        self.away = Space(RUN, found=server, rules=role("rbac-runs.yaml"), user=self.home.user)
        self.configure(cooldown)

    # Executions.

    def execute(self, target: str, *, workflow: str = "restart", name: str | None = None, **parameters: str) -> str:
        """A new WorkflowExecution; its name."""
        meta = {"name": name or f"exec-{secrets.token_hex(4)}"}
        spec = {"targetResource": target, "workflow": workflow, "parameters": parameters}
        body = {"apiVersion": EXECUTION.api_version, "kind": EXECUTION.kind, "metadata": meta, "spec": spec}
        self.server.request("POST", self.home.path, body)
        return meta["name"]

    def status(self, name: str) -> Object:
        return self.home.get(name).get("status") or {}

    def phase(self, name: str) -> str:
        return str(self.status(name).get("phase", "Pending"))

    def locked(self, name: str, kind: str = "TargetLocked") -> Object:
        """What its condition says."""
        found = [one for one in self.status(name).get("conditions", ()) if one["type"] == kind]
        return found[0] if found else {}

    def hindered(self, name: str, status: str) -> str:
        """What the cluster refuses it, or no longer does, once its status says so."""
        eventually(lambda: self.locked(name, "Hindered").get("status") == status, PATIENCE)
        return str(self.locked(name, "Hindered")["message"])

    def reach(self, name: str, *phases: str) -> Object:
        """Its status, once it is in one of these phases."""

        def is_there() -> bool:
            phase = self.phase(name)
            assert phase in {*phases, "Pending", "Running"}, self.status(name)
            return phase in phases

        eventually(is_there, PATIENCE)
        return self.status(name)

    def released(self, name: str, reason: str = "CooldownOver") -> Object:
        """Its condition, once the target is free for that reason."""
        eventually(lambda: self.locked(name).get("reason") == reason, PATIENCE)
        return self.locked(name)

    def patch_status(self, space: Space, name: str, changes: Object) -> None:
        self.server.request("PATCH", f"{space.path}/{name}/status", {"status": changes})

    def is_there(self, space: Space, name: str) -> bool:
        try:
            space.get(name)
        except KubeRefused as error:
            if error.status != 404:
                raise
            return False
        return True

    # Runs.

    def runs(self) -> list[Object]:
        found: list[Object] = self.server.request("GET", self.away.path)["items"]
        return found

    def finish(self, run: str, *, succeeded: bool = True, at: datetime | None = None) -> None:
        """End a run as Tekton does."""
        said = {"type": "Succeeded", "status": str(succeeded), "reason": "Succeeded" if succeeded else "Failed"}
        self.patch_status(self.away, run, {"conditions": [said], "completionTime": stamp(at or datetime.now(UTC))})

    def created(self) -> list[str]:
        """Every run that the API server has ever made here, by the audit log."""
        return [
            event["responseStatus"]["code"]
            for event in self.server.audit()
            if event["verb"] == "create"
            and event.get("objectRef", {}).get("resource") == RUN.plural
            and event["objectRef"].get("namespace") == self.away.name
            and event.get("responseStatus", {}).get("code") == 201
        ]

    def forbidden(self) -> list[str]:
        """What the executor asked for that its roles do not allow."""
        return [
            f"{event['verb']} {event['requestURI']}"
            for event in self.server.audit()
            if event["user"].get("username") == self.home.user
            and event.get("annotations", {}).get("authorization.k8s.io/decision") == "forbid"
        ]

    # What else is there.

    def configure(self, cooldown: object) -> None:
        text = yaml.safe_dump({"resource_locking": {"cooldown_period": cooldown}})
        self.write_config({"config.yaml": text})

    def write_config(self, data: dict[str, str]) -> None:
        path = f"/api/v1/namespaces/{self.home.name}/configmaps"
        if not hasattr(self, "configured"):
            self.configured = True
            self.server.request("POST", path, {"metadata": {"name": CONFIG}, "data": data})
        else:
            self.server.request("PATCH", f"{path}/{CONFIG}", {"data": data})

    def events(self, name: str) -> list[tuple[str, str]]:
        """(reason, message) of what people are told of an object."""
        found = self.server.request("GET", f"/api/v1/namespaces/{self.home.name}/events")["items"]
        return [(one["reason"], one["message"]) for one in found if one["involvedObject"]["name"] == name]


def stamp(at: datetime) -> str:
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


class Process(Program):
    """A program of the example, and what it says."""

    def says(self, words: str, times: int = 1) -> None:
        """Wait for these words; it must live meanwhile."""
        eventually(lambda: self.has_said(words, times), PATIENCE)

    def has_said(self, words: str, times: int = 1) -> bool:
        assert self.process.poll() is None, self.said()
        return self.said().count(words) >= times


@contextmanager
def fleet(
    cluster: Cluster, size: int, folder: Path, *options: str, until: str = "ready: ", quiet: bool = True
) -> Iterator[list[Process]]:
    """So many executors, started together and ended with the block. If they are `quiet` there was no traceback."""
    spaces = ["--namespace", cluster.home.name, "--runs", cluster.away.name]
    command = [*STRICT, str(EXECUTOR), *spaces, *options]
    made = [Process(folder, command, KUBECONFIG=str(cluster.home.kubeconfig)) for _ in range(size)]
    with running(made, lambda one: one.has_said(until), quiet=quiet):
        yield made


@contextmanager
def replica(
    cluster: Cluster, folder: Path, *options: str, until: str = "ready: ", quiet: bool = True
) -> Iterator[Process]:
    """One of them."""
    with fleet(cluster, 1, folder, *options, until=until, quiet=quiet) as (made,):
        yield made


@contextmanager
def actor(cluster: Cluster, folder: Path) -> Iterator[Process]:
    """What ends runs, in Tekton's place; as the administrator, because the executor may not write their status."""
    command = [*STRICT, str(EXECUTOR / "actor.py"), "--runs", cluster.away.name]
    made = Process(folder, command, KUBECONFIG=str(cluster.server.kubeconfig()))
    try:
        yield made
    finally:
        made.kill()
