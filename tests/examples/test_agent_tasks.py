"""The task controller as processes on a real API server: one request to the model a turn, whatever dies or sleeps."""

from __future__ import annotations

import math
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from leasehold.testing.servers import KubeServer
from leasehold.testing.servers.process import free_ports
from tests.examples.agent_support import (
    AGENTS,
    CALLS,
    EVENTS,
    TASK,
    TURNS,
    Cluster,
    FakeModel,
    Replica,
    documents,
    fleet,
    install,
    role,
    until,
)
from tests.kube import support
from tests.support import PYTHON, count, note

REPLICAS = 3
# Long enough for a machine that is busy; where a replica dies, others wait for the shorter one.
LONG, SHORT, REQUEUE = 30, 4, 0.5
# One request for each turn, and every one answered.
ONCE = [(turn, "answered") for turn in range(1, TURNS + 2)]


@pytest.fixture(scope="module")
def server() -> KubeServer:
    found = support.server()
    install(found)
    return found


@pytest.fixture
def cluster(server: KubeServer) -> Cluster:
    return Cluster(server)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeModel]:
    made = FakeModel(tmp_path_factory.mktemp("model"))
    try:
        yield made
        assert "Traceback" not in made.end()
    finally:
        made.kill()


Three = tuple[Cluster, list[Replica]]


@pytest.fixture(scope="module")
def three(server: KubeServer, model: FakeModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Three]:
    """Three replicas that several tests use; the tests themselves are the tools."""
    cluster, options = Cluster(server), ["--no-tools", "--ttl", str(LONG), "--requeue", str(REQUEUE)]
    with fleet(cluster, model.port, REPLICAS, tmp_path_factory.mktemp("three"), *options) as replicas:
        yield cluster, replicas
    assert cluster.forbidden() == []


def replica_of(request: dict[str, str], replicas: list[Replica]) -> Replica:
    (found,) = (one for one in replicas if one.name == request["replica"])
    return found


def assert_in_order(cluster: Cluster, model: FakeModel, task: str) -> None:
    """What the model has checked at every request, and the window at the end: all of it, and nothing twice."""
    assert model.violations(task) == []
    status = cluster.status(task)
    last = model.requests(task)[-1]["messages"]
    assert status["contextWindow"] == [*last, {"role": "assistant", "content": status["output"]}]
    roles = [message["role"] for message in status["contextWindow"]]
    assert roles == ["system", "user", *(["assistant", *["tool"] * CALLS] * TURNS), "assistant"]
    assert cluster.events(task) == EVENTS


# Tool calls that finish together.


def test_tool_calls_that_finish_at_once_lead_to_one_request_a_turn(three: Three, model: FakeModel) -> None:
    cluster, replicas = three
    for storm in range(count(10)):
        tasks = [f"storm-{storm}-{number}" for number in range(3)]
        for task in tasks:
            cluster.create(task)
        for turn in range(1, TURNS + 1):
            cluster.finish_at_once(turn, *tasks)
        for task in tasks:
            until(lambda task=task: cluster.is_over(task))
            assert model.outcomes(task) == ONCE
            assert_in_order(cluster, model, task)
    # Not even tried: the API server was sent every Event once.
    assert {number for name, number in Counter(cluster.written_events()).items() if "storm" in name} == {1}
    # They met: others wanted the same task at the same time, and were turned away, or waited for one another.
    metrics = [replica.metrics() for replica in replicas]
    met = sum(
        one[f'agent_task_lease_acquisitions_total{{outcome="{way}"}}']
        for one in metrics
        for way in ("held", "passed_on")
    )
    assert met > 0


def test_whoever_finds_a_task_in_other_hands_comes_back_later(three: Three, model: FakeModel) -> None:
    cluster, replicas = three
    with model.holding("slow"):
        cluster.create("slow")
        until(lambda: model.requests("slow"))
        asking = replica_of(model.requests("slow")[0], replicas)
        for other in replicas:
            # More than once: each came back after it was turned away.
            until(lambda other=other: other is asking or other.turned_away("slow") > 2)
        (lease,) = (one for one in cluster.leases() if one["metadata"]["name"] == "task-llm-slow")
        assert lease["spec"]["holderIdentity"] == asking.name
        assert lease["spec"]["leaseDurationSeconds"] == LONG
        assert model.outcomes("slow") == [(1, None)]
    until(lambda: cluster.status("slow")["phase"] == "ToolCallsPending")
    assert model.outcomes("slow") == ONCE[:1]
    assert all(one.metrics()['agent_task_requeues_total{reason="held"}'] > 0 for one in replicas if one is not asking)


def test_different_tasks_are_asked_about_at_the_same_time(three: Three, model: FakeModel) -> None:
    cluster, _ = three
    with model.holding("left"), model.holding("right"):
        cluster.create("left")
        cluster.create("right")
        until(lambda: model.outcomes("left") + model.outcomes("right") == [(1, None)] * 2)
    for task in ("left", "right"):
        until(lambda task=task: model.outcomes(task) == ONCE[:1])
    (left,), (right,) = model.requests("left"), model.requests("right")
    assert max(left["begin"], right["begin"]) < min(left["end"], right["end"])


def test_without_the_lock_a_turn_is_sent_more_than_once(cluster: Cluster, model: FakeModel, tmp_path: Path) -> None:
    """The control: it is the lock that keeps the requests apart, and not the fake model that cannot see them."""
    tasks = [f"bare-{number}" for number in range(count(10))]
    with fleet(cluster, model.port, REPLICAS, tmp_path, "--no-lock", "--requeue", str(REQUEUE)):
        for task in tasks:
            with model.holding(task):
                cluster.create(task)
                until(lambda task=task: len(model.violations(task)) >= REPLICAS - 1)
            until(lambda task=task: cluster.is_over(task))
    sent = sum(len(model.requests(task)) for task in tasks)
    twice = [number for number in Counter(cluster.written_events()).values() if number > 1]
    note(
        f"without a lock, {REPLICAS} replicas: {sent} requests for {len(tasks) * len(ONCE)} turns, "
        f"{sum(len(model.violations(task)) for task in tasks)} refused by the model, {len(twice)} Events sent again"
    )
    assert sent > len(tasks) * len(ONCE)
    assert twice != []


# When a replica dies, or sleeps.


def test_a_replica_killed_in_the_middle_of_a_request_is_followed_within_its_lease_and_two_requeues(
    cluster: Cluster, model: FakeModel, tmp_path: Path
) -> None:
    options = ["--ttl", str(SHORT), "--requeue", str(REQUEUE)]
    with fleet(cluster, model.port, REPLICAS, tmp_path, *options) as replicas:
        with model.holding("killed"):
            cluster.create("killed")
            cluster.create("beside")
            until(lambda: model.outcomes("killed") == [(1, None)])
            victim = replica_of(model.requests("killed")[0], replicas)
            others = [one for one in replicas if one is not victim]
            until(lambda: all(one.turned_away("killed") for one in others))
            before = {one.name: len(one.said()) for one in others}
            victim.kill()
            until(lambda: model.outcomes("killed") == [(1, "hung up")])
        for task in ("killed", "beside"):
            until(lambda task=task: cluster.is_over(task))
        taker = replica_of(model.requests("killed")[1], others)
        waiting, taken, _ = taker.said()[before[taker.name] :].partition("acquired lease task-llm-killed")
        tries = waiting.count("lease held by another pod: task-llm-killed\n")
        note(f"{tries} tries of {taker.name} after the kill")
        assert taken
        assert tries <= math.ceil(SHORT / REQUEUE) + 2
    assert model.outcomes("killed") == [(1, "hung up"), *ONCE]
    assert_in_order(cluster, model, "killed")
    # Sent again for the turn that the dead one had begun, where its name was taken; and for no other.
    again = [name for name, number in Counter(cluster.written_events()).items() if number > 1]
    assert [name.partition(".")[2] for name in again if name.startswith("killed")] == ["sendingcontextwindowtollm"]


def test_a_replica_that_sleeps_beyond_its_lease_changes_nothing_when_it_wakes(
    cluster: Cluster, model: FakeModel, tmp_path: Path
) -> None:
    options = ["--ttl", str(SHORT), "--requeue", str(REQUEUE)]
    with fleet(cluster, model.port, REPLICAS - 1, tmp_path, *options) as replicas:
        with model.holding("slept"):
            cluster.create("slept")
            until(lambda: model.outcomes("slept") == [(1, None)])
            sleeper = replica_of(model.requests("slept")[0], replicas)
            others = [one for one in replicas if one is not sleeper]
            until(lambda: all(one.turned_away("slept") for one in others))
            sleeper.pause()
        try:
            # The model's answer lies in the sleeper's socket; somebody else asks again, and is answered the same.
            until(lambda: cluster.is_over("slept"))
            before = cluster.get("slept")
        finally:
            sleeper.go_on()
        until(lambda: "slept is left to others" in sleeper.said())
        for other in others:
            other.end()
        # It works again, alone: whatever it was about to write is behind it.
        cluster.create("after")
        until(lambda: cluster.is_over("after"))
        assert cluster.get("slept") == before
    assert model.outcomes("slept") == [ONCE[0], (1, "repeated"), *ONCE[1:]]
    assert_in_order(cluster, model, "slept")
    assert model.outcomes("after") == ONCE


def test_an_answer_is_refused_where_a_later_holder_has_left_its_token(three: Three, model: FakeModel) -> None:
    """As if another replica had taken over while this one thought that it held the lease."""
    cluster, replicas = three
    with model.holding("fenced"):
        cluster.create("fenced")
        until(lambda: model.outcomes("fenced") == [(1, None)])
        late = replica_of(model.requests("fenced")[0], replicas)
        # The largest that this very lease could have had, passed on as often as it may be.
        later = int(cluster.status("fenced")["token"]) | 255
        cluster.server.request("PATCH", f"{cluster.path}/fenced/status", {"status": {"token": str(later)}})
    until(lambda: cluster.status("fenced")["phase"] == "ToolCallsPending")
    assert f"fenced is left to others: it carries token {later}" in late.said()
    assert model.outcomes("fenced") == [ONCE[0], (1, "repeated")]
    assert int(cluster.status("fenced")["token"]) > later


def test_an_answer_is_kept_when_somebody_edits_the_task_meanwhile(three: Three, model: FakeModel) -> None:
    """The control of the test above: not every write of others makes an answer void."""
    cluster, _ = three
    with model.holding("edited"):
        cluster.create("edited")
        until(lambda: model.outcomes("edited") == [(1, None)])
        cluster.patch("edited", {"metadata": {"labels": {"team": "a"}}})
    until(lambda: cluster.status("edited")["phase"] == "ToolCallsPending")
    assert model.outcomes("edited") == ONCE[:1]
    assert cluster.get("edited")["metadata"]["labels"] == {"team": "a"}


def test_a_task_deleted_meanwhile_is_forgotten_and_its_name_can_be_used_again(three: Three, model: FakeModel) -> None:
    cluster, replicas = three
    with model.holding("gone"):
        cluster.create("gone")
        until(lambda: model.outcomes("gone") == [(1, None)])
        cluster.delete("gone")
    until(lambda: any("gone is left to others: it was deleted" in one.said() for one in replicas))
    assert cluster.calls(1, "gone") == []
    cluster.create("gone")
    cluster.finish_at_once(1, "gone")
    until(lambda: len(cluster.calls(2, "gone")) == CALLS)
    assert model.outcomes("gone") == [ONCE[0], *ONCE[:2]]
    assert len({one["key"] for one in model.requests("gone")}) == 3


# One pod.


def test_in_one_pod_a_lease_is_passed_on_inside_the_process_and_nobody_is_asked_who_holds_it(
    cluster: Cluster, model: FakeModel, tmp_path: Path
) -> None:
    with fleet(cluster, model.port, 1, tmp_path, "--no-tools", "--requeue", str(REQUEUE)) as (replica,):
        cluster.create("alone")
        for turn in range(1, TURNS + 1):
            cluster.finish_at_once(turn, "alone")
        until(lambda: cluster.is_over("alone"))
        until(lambda: cluster.leases() == [])
        metrics = replica.metrics()
    asked = Counter(cluster.asked())
    taken, passed = (
        metrics[f'agent_task_lease_acquisitions_total{{outcome="{way}"}}'] for way in ("acquired", "passed_on")
    )
    note(f"one pod, {len(ONCE)} turns: {taken:g} leases, passed on {passed:g} times")
    assert model.outcomes("alone") == ONCE
    assert_in_order(cluster, model, "alone")
    assert asked["create", "leases"] == asked["delete", "leases"] == taken > 0
    assert passed > 0
    assert asked["get", "leases"] == 0
    assert asked["patch", "tasks"] == 2 * len(ONCE)
    assert asked["create", "events"] == len(ONCE) + 1
    assert asked["create", "toolcalls"] == TURNS * CALLS
    assert metrics['agent_task_lease_acquisitions_total{outcome="lost"}'] == 0
    assert metrics["agent_task_lease_hold_seconds_count"] == taken + passed
    said = replica.said()
    assert "acquired lease task-llm-alone" in said
    assert "deleted or passed on lease task-llm-alone" in said


# What the model and the cluster may do.


def test_a_model_that_is_away_is_asked_again(cluster: Cluster, model: FakeModel, tmp_path: Path) -> None:
    (nobody,) = free_ports(1)
    with fleet(cluster, nobody, 1, tmp_path, "--requeue", "0.1") as (replica,):
        cluster.create("patient")
        until(lambda: "the model did not answer" in replica.said())
        assert cluster.status("patient")["phase"] == "SendingContextWindow"
        assert replica.metrics()['agent_task_requeues_total{reason="model"}'] > 0
    # Another process goes on from what is there.
    with fleet(cluster, model.port, 1, tmp_path):
        until(lambda: cluster.is_over("patient"))
    assert model.outcomes("patient") == ONCE
    assert_in_order(cluster, model, "patient")


def test_a_time_that_cannot_be_waited_for_is_refused() -> None:
    command = [PYTHON, str(AGENTS), "--requeue=nan"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "--requeue: must be 0.05 to 86400 seconds, not nan" in done.stderr


def test_a_namespace_that_cannot_be_ends_the_program_with_the_reason() -> None:
    command = [PYTHON, str(AGENTS), "--namespace", "Team A", "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "failed permanently: url: the namespace must be a name of Kubernetes" in done.stderr


def test_its_page_names_every_verb_of_its_role_and_its_manifests_fit_together() -> None:
    page = (AGENTS / "README.md").read_text()
    for rule in role():
        assert ", ".join(rule["verbs"]) in page
    (deployment,) = documents("deployment.yaml")
    pod = deployment["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] in {one["metadata"]["name"] for one in documents("rbac.yaml")}
    assert {one["name"] for one in pod["containers"][0]["env"]} == {"POD_NAME", "POD_NAMESPACE"}
    assert {one["spec"]["group"] for one in documents("crd.yaml")} == {TASK.group}
