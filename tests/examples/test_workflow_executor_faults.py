"""The workflow executor killed, frozen or refused: it goes on from what is there, and makes nothing twice."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from leasehold.kube import aio
from leasehold.testing.servers import KubeServer
from tests.examples.executor_support import (
    EXECUTION,
    FINALIZER,
    RUN,
    Cluster,
    Process,
    forget,
    install,
    module,
    replica,
    role,
    without,
)
from tests.kube import support
from tests.stores.kubernetes_support import fragile
from tests.support import eventually

TARGET = "production/deployment/payment-api"
NAME = "wfe-fbb8266ac354e9c2"
STATUS = f"{EXECUTION.plural}/status"


@pytest.fixture(scope="module")
def server() -> KubeServer:
    found = support.server()
    install(found)
    return found


@pytest.fixture
def cluster(server: KubeServer) -> Cluster:
    return Cluster(server)


def refuse_notes(cluster: Cluster) -> None:
    """From now on nothing can be written into a status: what is done is done, and its note is missing."""
    cluster.home.allow(without(role("rbac.yaml"), STATUS, "patch"))


def started(cluster: Cluster) -> bool:
    return cluster.is_there(cluster.away, NAME) and "status" not in cluster.away.get(NAME)["spec"]


def begin(cluster: Cluster) -> str:
    """An execution that runs."""
    name = cluster.execute(TARGET)
    cluster.reach(name, "Running")
    eventually(lambda: started(cluster))
    return name


# Killed with -9, in each phase. A new process goes on.


def test_killed_while_pending_it_begins_when_it_is_back(cluster: Cluster, tmp_path: Path) -> None:
    cluster.away.allow(without(role("rbac-runs.yaml"), RUN.plural, "create"))
    with replica(cluster, tmp_path) as process:
        name = cluster.execute(TARGET)
        said = cluster.hindered(name, "True")
        assert 'cannot create resource "pipelineruns"' in said
        assert "grant it with a Role" in said
        process.kill()
    assert (cluster.phase(name), cluster.created()) == ("Pending", [])
    cluster.away.allow(role("rbac-runs.yaml"))
    with replica(cluster, tmp_path):
        cluster.reach(name, "Running")
        cluster.hindered(name, "False")
    assert len(cluster.created()) == 1


def test_killed_between_create_and_note_it_meets_its_own_run(cluster: Cluster, tmp_path: Path) -> None:
    """The run is there, and nobody has noted it: it has not begun, is adopted, and there is no second one."""
    refuse_notes(cluster)
    with replica(cluster, tmp_path) as process:
        name = cluster.execute(TARGET)
        process.says(f"answered 403 to PATCH {name}/status")
        process.says("grant it with a Role")
        process.kill()
    before = cluster.away.get(NAME)
    assert (cluster.phase(name), before["spec"]["status"]) == ("Pending", "PipelineRunPending")
    cluster.home.allow(role("rbac.yaml"))
    with replica(cluster, tmp_path):
        status = cluster.reach(name, "Running")
        eventually(lambda: started(cluster))
        other = cluster.execute(TARGET)
        assert cluster.reach(other, "Skipped")["reason"] == f"ResourceBusy (active: {name})"
    after = cluster.away.get(NAME)
    assert status["pipelineRunUID"] == after["metadata"]["uid"] == before["metadata"]["uid"]
    # Adopted: the hold is a new one, so whoever made it before can no longer release it.
    assert after["metadata"]["annotations"]["leasehold/hold"] != before["metadata"]["annotations"]["leasehold/hold"]
    assert len(cluster.created()) == 1


def test_killed_while_running_it_goes_on_watching(cluster: Cluster, tmp_path: Path) -> None:
    """Edge case: restart during Running. Testing table: controller restart. M2."""
    with replica(cluster, tmp_path) as process:
        name = begin(cluster)
        process.kill()
    uid = cluster.away.get(NAME)["metadata"]["uid"]
    with replica(cluster, tmp_path):
        other = cluster.execute(TARGET)
        assert cluster.reach(other, "Skipped")["reason"] == f"ResourceBusy (active: {name})"
        assert cluster.away.get(NAME)["metadata"]["uid"] == uid
        cluster.finish(NAME)
        cluster.reach(name, "Completed")
    assert len(cluster.created()) == 1


def test_killed_between_completion_and_its_note_the_rest_counts_from_completion(
    cluster: Cluster, tmp_path: Path
) -> None:
    with replica(cluster, tmp_path) as process:
        name = begin(cluster)
        refuse_notes(cluster)
        cluster.finish(NAME, at=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))
        process.says(f"answered 403 to PATCH {name}/status")
        process.kill()
    assert cluster.phase(name) == "Running"
    cluster.home.allow(role("rbac.yaml"))
    with replica(cluster, tmp_path):
        assert cluster.reach(name, "Completed")["completionTime"] == "2026-01-02T03:04:05.000000Z"
        # Long ago: the rest is over.
        cluster.released(name)
    assert (len(cluster.created()), cluster.runs()) == (1, [])


def test_killed_while_it_rests_the_rest_goes_on(cluster: Cluster, tmp_path: Path) -> None:
    """Edge case: restart during Cooldown. M2: the cooldown is computed from the completion time."""
    with replica(cluster, tmp_path) as process:
        name = begin(cluster)
        cluster.finish(NAME)
        before = cluster.reach(name, "Completed")
        process.kill()
    with replica(cluster, tmp_path, "--look", "100ms"):
        other = cluster.execute(TARGET)
        assert cluster.reach(other, "Skipped")["reason"].startswith(f"RecentlyRemediated (by {name}, ")
        assert cluster.status(name)["completionTime"] == before["completionTime"]
        assert cluster.is_there(cluster.away, NAME)
        cluster.configure("1s")
        cluster.released(name)
    assert cluster.runs() == []


def test_killed_between_release_and_its_note_the_target_is_free(cluster: Cluster, tmp_path: Path) -> None:
    with replica(cluster, tmp_path, "--look", "100ms") as process:
        name = begin(cluster)
        cluster.finish(NAME)
        cluster.reach(name, "Completed")
        refuse_notes(cluster)
        cluster.configure("1s")
        process.says(f"answered 403 to PATCH {name}/status")
        eventually(lambda: not cluster.is_there(cluster.away, NAME))
        process.kill()
    assert cluster.locked(name)["status"] == "True"
    cluster.home.allow(role("rbac.yaml"))
    with replica(cluster, tmp_path):
        cluster.released(name)
        begin(cluster)


def test_a_finalizer_that_cannot_delete_the_run_is_tried_again_also_after_a_kill(
    cluster: Cluster, tmp_path: Path
) -> None:
    """M6: the execution stays until its run is gone, and the log says why."""
    with replica(cluster, tmp_path) as process:
        name = begin(cluster)
        cluster.away.allow(without(role("rbac-runs.yaml"), RUN.plural, "delete"))
        cluster.home.delete(name)
        process.says(f"{name} cannot go before its PipelineRun does, which is tried again")
        process.says('cannot delete resource "pipelineruns"')
        process.kill()
    assert cluster.home.get(name)["metadata"]["finalizers"] == [FINALIZER]
    assert cluster.is_there(cluster.away, NAME)
    with replica(cluster, tmp_path) as process:
        process.says(f"{name} cannot go before its PipelineRun does")
        cluster.away.allow(role("rbac-runs.yaml"))
        eventually(lambda: not cluster.is_there(cluster.home, name), 60)
    assert cluster.runs() == []


# Frozen: a replica that wakes up when all is over.


class Life:
    """Steps of two replicas in this process, so that one can stand still at the worst moment."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.executor: Any = module("executor")

    async def replica(self, stack: AsyncExitStack, kind: type | None = None) -> Any:
        home, away = (
            self.cluster.home.url,
            self.cluster.away.url.replace(self.cluster.home.name, self.cluster.away.name),
        )
        here = await stack.enter_async_context(await aio.connect(home, EXECUTION))
        there = await stack.enter_async_context(await aio.connect(away, RUN))
        maps = await stack.enter_async_context(await aio.connect(home, module("settings").KIND))
        options = self.executor.Options(timeout=60.0, look=1.0, locking=True)
        return (kind or self.executor.Executor)(here, there, self.executor.Settings(maps), options)


def test_a_replica_that_creates_after_all_is_over_starts_nothing(cluster: Cluster) -> None:
    """It saw Pending, and slept through the whole life of the execution. What it then makes never runs, and goes."""
    life = Life(cluster)
    cluster.configure(0)
    name = cluster.execute(TARGET)
    uid = cluster.home.patch(name, {"metadata": {"finalizers": [FINALIZER]}})["metadata"]["uid"]
    made: list[Any] = []

    async def main() -> None:
        async with AsyncExitStack() as stack:
            healthy = await life.replica(stack)

            class Frozen(life.executor.Executor):
                """Between layer 1 and layer 2 another replica does everything."""

                async def _layer_two(self, seen: Any, cooldown: float) -> float:
                    while cluster.phase(name) == "Pending" or not (cluster.runs() and started(cluster)):
                        await healthy.step(name, uid)
                    cluster.finish(NAME)
                    while await healthy.step(name, uid) is not None:
                        pass
                    assert cluster.runs() == []
                    answer: float = await super()._layer_two(seen, cooldown)
                    made.extend(cluster.runs())
                    return answer

            frozen = await life.replica(stack, Frozen)
            while await frozen.step(name, uid) is not None:
                pass

    asyncio.run(main())
    assert [one["spec"]["status"] for one in made] == ["PipelineRunPending"]
    assert cluster.runs() == []
    assert (cluster.phase(name), cluster.locked(name)["reason"]) == ("Completed", "CooldownOver")
    # Both created: this was the case that a name alone does not exclude.
    assert len(cluster.created()) == 2


# When the cluster is not as it should be.


def test_a_missing_right_to_look_is_told_and_works_once_it_is_granted(cluster: Cluster, tmp_path: Path) -> None:
    cluster.home.allow(without(role("rbac.yaml"), EXECUTION.plural, "list", "watch"))
    name = cluster.execute(TARGET)
    with replica(cluster, tmp_path, until="not ready: ") as process:
        process.says('cannot list resource "workflowexecutions"')
        process.says("grant it with a Role")
        cluster.home.allow(role("rbac.yaml"))
        cluster.reach(name, "Running")


def test_definitions_may_come_later_and_go_again(tmp_path: Path) -> None:
    """Missing before the start, and taken away while it runs: told, waited for, and nothing is made twice."""
    server = fragile()
    install(server)
    cluster = Cluster(server)
    forget(server, "pipelinerun.yaml")
    name = cluster.execute(TARGET)
    # kopf writes a traceback of its own when a watch is refused.
    with replica(cluster, tmp_path, until="not ready: ", quiet=False) as process:
        process.says("serves no pipelineruns in tekton.dev/v1")
        process.says("install the CustomResourceDefinition")
        install(server)
        cluster.reach(name, "Running")
        before = process.said().count("not ready: ")
        forget(server, "pipelinerun.yaml")
        process.says("begun anew: ")
        process.says("not ready: ", times=before + 1)
        # With its definition the run is gone.
        install(server)
        cluster.reach(name, "Failed")
        assert cluster.locked(name)["reason"] == "DeletedExternally"
        begin(cluster)
    assert len(cluster.created()) == 2


def test_through_a_restart_of_the_api_server_nothing_is_made_twice(tmp_path: Path) -> None:
    """With executions in every phase; one replica starts while nobody answers."""
    server = fragile()
    install(server)
    cluster = Cluster(server)
    rested = f"{TARGET}-rested"
    # A server that has just started may know no rights yet: then kopf fails, with a traceback, and is begun anew.
    with replica(cluster, tmp_path, "--look", "1s", quiet=False) as process:
        running = begin(cluster)
        resting = cluster.execute(rested)
        cluster.finish(cluster.reach(resting, "Running")["pipelineRun"])
        cluster.reach(resting, "Completed")
        server.kill()
        with replica(cluster, tmp_path, until="not ready: ", quiet=False) as newcomer:
            newcomer.says("nobody listens there; start the server")
            server.start()
            late = cluster.execute(TARGET)
            assert cluster.reach(late, "Skipped")["reason"] == f"ResourceBusy (active: {running})"
            other = cluster.execute(rested)
            assert cluster.reach(other, "Skipped")["reason"].startswith(f"RecentlyRemediated (by {resting}, ")
            cluster.finish(NAME)
            cluster.reach(running, "Completed")
            newcomer.says("ready: executions of")
        assert process.process.poll() is None
    assert len(cluster.created()) == 2


def test_a_namespace_that_cannot_be_one_ends_the_program_with_the_reason(cluster: Cluster, tmp_path: Path) -> None:
    program = str(module("executor").__file__).replace("executor.py", "")
    command = [program, "--namespace", "no such/namespace", "--runs", "b"]
    process = Process(tmp_path, command, KUBECONFIG=str(cluster.home.kubeconfig))
    assert process.process.wait(60) == 1
    assert "workflow_executor: " in process.said()
    assert "Traceback" not in process.said()
