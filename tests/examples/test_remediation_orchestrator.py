"""The orchestrator as processes on a real API server: one active execution a target, whatever races and breaks."""

from __future__ import annotations

import functools
import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import leasehold
from leasehold.testing.servers import KubeServer
from tests.examples import gateway_support
from tests.examples.orchestrator_support import (
    EXECUTION,
    ORCHESTRATOR,
    REQUEST,
    Cluster,
    Executor,
    Replica,
    definition,
    deployment,
    fleet,
    install,
    is_active,
    overlaps,
    role,
    timestamp,
)
from tests.examples.proxy_support import Proxy, proxy
from tests.kube import support
from tests.stores.kubernetes_support import fragile
from tests.support import PYTHON, count, note
from tests.support import eventually as wait_until

TARGETS = 4
EACH = 3
# Without a lock, rounds are gone through until one has two active executions of a target, at most so many.
ROUNDS_MAX = 20
QUICK = ("--cooldown", "0", "--again", "1", "--ttl", "3")
OVER = {"Completed", "Failed"}
# A machine that does much else answers late.
eventually = functools.partial(wait_until, patience=90)


@pytest.fixture(scope="module")
def server() -> KubeServer:
    found = support.server()
    install(found)
    return found


@pytest.fixture
def cluster(server: KubeServer) -> Cluster:
    return Cluster(server)


@pytest.fixture(scope="module")
def pair(server: KubeServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, list[Replica]]]:
    """Two replicas that several tests use one after the other."""
    cluster = Cluster(server)
    with fleet(cluster, 2, tmp_path_factory.mktemp("pair"), *QUICK) as replicas:
        yield cluster, replicas


@pytest.fixture
def between(cluster: Cluster) -> Iterator[Proxy]:
    with proxy(cluster.server, cluster.user) as made:
        yield made


def ask_at_once(cluster: Cluster, prefix: str) -> list[str]:
    """Several requests for each of many targets, together."""
    with ThreadPoolExecutor(8) as pool:
        wanted = [deployment(f"{prefix}-{number % TARGETS}") for number in range(TARGETS * EACH)]
        return list(pool.map(cluster.ask, wanted))


def are_over(cluster: Cluster, names: list[str]) -> bool:
    return {cluster.phases().get(name) for name in names} <= OVER


# Races.


@pytest.mark.parametrize("size", [2, 3])
def test_a_target_never_has_two_active_executions_and_every_request_gets_its_turn(
    cluster: Cluster, tmp_path: Path, size: int
) -> None:
    with fleet(cluster, size, tmp_path, *QUICK):
        for turn in range(count(10)):
            names = ask_at_once(cluster, f"turn-{turn}")
            executor = Executor(cluster)
            eventually(lambda: are_over(cluster, names), nudge=executor.work)  # noqa: B023  used up within the turn
            assert overlaps(executor.lives) == []
            assert Counter(life.target for life in executor.lives) == {
                f"production/deployment/turn-{turn}-{number}": EACH for number in range(TARGETS)
            }
            assert {cluster.phase(name) for name in names} == {"Completed"}
    assert cluster.leases() == []
    assert cluster.forbidden() == []


@pytest.mark.parametrize("size", [2, 3])
def test_without_the_lock_the_same_requests_get_two(cluster: Cluster, tmp_path: Path, size: int) -> None:
    """The control: it is the lock that keeps them apart, and not the look."""
    rounds: list[int] = []
    with fleet(cluster, size, tmp_path, *QUICK, "--no-lock"):
        while len(rounds) < ROUNDS_MAX and not (sum(rounds) and len(rounds) >= count(10)):
            names = ask_at_once(cluster, f"round-{len(rounds)}")
            executor = Executor(cluster)
            eventually(lambda: are_over(cluster, names), nudge=executor.work)  # noqa: B023  used up within the round
            rounds.append(len({one.target for pair in overlaps(executor.lives) for one in pair}))
    hit, all_targets = sum(rounds), TARGETS * len(rounds)
    note(
        f"without a lock, {size} replicas, {EACH} requests a target: {hit} of {all_targets} targets "
        f"({hit / all_targets:.0%}) had two active executions at once"
    )
    assert hit > 0


@pytest.mark.parametrize("winners", [1, 2], ids=["locked", "bare"])
def test_whoever_is_between_its_look_and_its_create_keeps_the_others_out(
    cluster: Cluster, tmp_path: Path, between: Proxy, winners: int
) -> None:
    """The same race, held open at its worst moment: without the lock it has two winners."""
    gate = between.gate("POST", EXECUTION.plural)
    options = QUICK if winners == 1 else (*QUICK, "--no-lock")
    with fleet(cluster, 2, tmp_path, *options, KUBECONFIG=str(between.kubeconfig(cluster.name))) as replicas:
        names = [cluster.ask(deployment("api")) for _ in range(2)]
        if winners == 1:
            refused = 'acquisition_failures_total{reason="contention"}'
            eventually(lambda: gate.waiting and sum(one.metric(refused) for one in replicas) >= 5)
        else:
            eventually(lambda: gate.waiting == winners)
        gate.open()
        settled = {"Executing", "Blocked"} if winners == 1 else {"Executing"}
        eventually(lambda: {cluster.phase(name) for name in names} == settled)
        assert cluster.active() == {"production/deployment/api": winners}
        assert gate.most == winners


# Replicas that die.


def test_killed_with_the_lock_in_its_hand_it_is_followed_by_another_after_the_ttl(
    cluster: Cluster, tmp_path: Path, between: Proxy
) -> None:
    gate = between.gate("POST", EXECUTION.plural)
    with fleet(cluster, 1, tmp_path, *QUICK, KUBECONFIG=str(between.kubeconfig(cluster.name))) as (first,):
        name = cluster.ask(deployment("api"))
        eventually(lambda: gate.waiting)
        first.kill()
    (lease,) = cluster.leases()
    assert lease["metadata"]["name"].startswith("ro-lock-production-deployment-api-")
    assert cluster.executions() == []
    with fleet(cluster, 1, tmp_path, *QUICK):
        eventually(lambda: cluster.routed(name).get("reason") == "LockBusy")
        assert cluster.status(name)["blockedBy"] == "ro-0"
        eventually(lambda: cluster.phase(name) == "Executing")
    assert len(cluster.executions()) == 1
    assert cluster.leases() == []


def test_killed_between_create_and_note_its_execution_is_adopted(
    cluster: Cluster, tmp_path: Path, between: Proxy
) -> None:
    gate = between.gate("PATCH", "/status")
    with fleet(cluster, 1, tmp_path, *QUICK, KUBECONFIG=str(between.kubeconfig(cluster.name))) as (first,):
        name = cluster.ask(deployment("api"))
        eventually(lambda: gate.waiting)
        first.kill()
    (made,) = cluster.executions()
    assert cluster.status(name) == {}
    with fleet(cluster, 2, tmp_path, *QUICK):
        eventually(lambda: cluster.phase(name) == "Executing")
        assert cluster.status(name)["workflowExecution"] == made["metadata"]["name"]
        cluster.end(made["metadata"]["name"])
        eventually(lambda: cluster.phase(name) == "Completed")
    assert len(cluster.executions()) == 1


def test_killed_before_the_answer_to_its_create_its_execution_is_adopted(
    cluster: Cluster, tmp_path: Path, between: Proxy
) -> None:
    gate = between.gate("POST", EXECUTION.plural, answered=True)
    with fleet(cluster, 1, tmp_path, *QUICK, KUBECONFIG=str(between.kubeconfig(cluster.name))) as (first,):
        name = cluster.ask(deployment("api"))
        eventually(lambda: gate.waiting)
        first.kill()
    (made,) = cluster.executions()
    with fleet(cluster, 1, tmp_path, *QUICK):
        eventually(lambda: cluster.phase(name) == "Executing")
        assert cluster.status(name)["workflowExecution"] == made["metadata"]["name"]
    assert len(cluster.executions()) == 1


def test_replicas_killed_again_and_again_leave_nothing_out_and_nothing_twice(cluster: Cluster, tmp_path: Path) -> None:
    """With requests that execute and requests that are blocked: the next one goes on from what the objects say."""
    names: list[str] = []
    executor = Executor(cluster)
    with fleet(cluster, 1, tmp_path, *QUICK):
        for turn in range(count(30)):
            with fleet(cluster, 1, tmp_path, *QUICK) as (mortal,):
                names += [cluster.ask(deployment(f"turn-{turn}")) for _ in range(EACH)]
                eventually(lambda: "Blocked" in cluster.phases().values())
                executor.work()
                mortal.kill()
        eventually(lambda: are_over(cluster, names), nudge=executor.work)
    assert overlaps(executor.lives) == []
    assert Counter(life.request for life in executor.lives) == dict.fromkeys(names, 1)


# What blocks, and for how long.


def executing(cluster: Cluster, name: str) -> str:
    """Wait until a request executes; the name of its execution."""
    eventually(lambda: cluster.phase(name) == "Executing")
    return str(cluster.status(name)["workflowExecution"])


def test_an_execution_says_what_for_and_belongs_to_its_request(pair: tuple[Cluster, list[Replica]]) -> None:
    cluster, _ = pair
    name = cluster.ask({"kind": "Node", "name": "worker-1"})
    made = cluster.execution(executing(cluster, name))
    assert made["spec"]["targetResource"] == "node/worker-1"
    assert made["spec"]["remediationRequest"] == name
    (owner,) = made["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("RemediationRequest", cluster.get(name)["metadata"]["uid"])
    assert made["metadata"]["labels"]["remediation.example.com/request"] == owner["uid"]
    routed = cluster.routed(name)
    assert (routed["status"], routed["reason"]) == ("True", "WorkflowExecutionCreated")


def test_a_blocked_request_says_by_whom_and_costs_nothing_while_it_waits(pair: tuple[Cluster, list[Replica]]) -> None:
    cluster, _ = pair
    first = executing(cluster, cluster.ask(deployment("busy")))
    second = cluster.ask(deployment("busy"))
    eventually(lambda: cluster.phase(second) == "Blocked")
    said = cluster.status(second)
    assert (said["reason"], said["blockedBy"]) == (f"ResourceBusy (active: {first})", first)
    assert cluster.routed(second)["status"] == "False"
    written, touched = cluster.get(second)["metadata"]["resourceVersion"], len(cluster.touched(second))
    # Meanwhile others come and go, each of them several looks long.
    for number in range(3):
        other = cluster.ask(deployment(f"passing-{number}"))
        cluster.end(executing(cluster, other))
        eventually(lambda other=other: cluster.phase(other) == "Completed")
    assert cluster.get(second)["metadata"]["resourceVersion"] == written
    assert len(cluster.touched(second)) == touched
    cluster.end(first)
    executing(cluster, second)


def test_a_lock_that_stays_taken_is_told_once(pair: tuple[Cluster, list[Replica]]) -> None:
    cluster, replicas = pair
    refused = 'acquisition_failures_total{reason="contention"}'
    with leasehold.connect(cluster.url, prefix="ro-lock-", holder="somebody") as locks:
        lease = locks.acquire("production/deployment/locked", ttl=30)
        name = cluster.ask(deployment("locked"))
        eventually(lambda: cluster.phase(name) == "Blocked")
        assert cluster.status(name)["reason"] == "LockBusy (held by somebody)"
        written, before = cluster.get(name)["metadata"]["resourceVersion"], [one.metric(refused) for one in replicas]
        eventually(lambda: all(one.metric(refused) > was + 5 for one, was in zip(replicas, before, strict=True)))
        assert cluster.get(name)["metadata"]["resourceVersion"] == written
        lease.release()
        executing(cluster, name)
    eventually(lambda: "LockBusy" in {event["reason"] for event in cluster.events(name)})


def test_a_target_rests_after_an_execution_and_a_time_that_cannot_be_true_is_not_waited_for(
    cluster: Cluster, tmp_path: Path
) -> None:
    with fleet(cluster, 2, tmp_path, "--cooldown", "3"):
        first = executing(cluster, cluster.ask(deployment("api")))
        cluster.end(first, "Failed")
        second = cluster.ask(deployment("api"))
        eventually(lambda: cluster.phase(second) == "Blocked")
        assert re.fullmatch(rf"RecentlyRemediated \(by {first}, [0-3]s ago\)", cluster.status(second)["reason"])
        again = executing(cluster, second)
        cluster.end(again, completionTime=timestamp(ahead=3600))
        executing(cluster, cluster.ask(deployment("api")))
    assert len(cluster.executions()) == 3


def test_one_that_was_skipped_is_tried_again_after_its_time(pair: tuple[Cluster, list[Replica]]) -> None:
    cluster, _ = pair
    name = cluster.ask(deployment("skipped"))
    first = executing(cluster, name)
    cluster.end(first, "Skipped", reason="ResourceBusy (held by wfe-7)")
    eventually(lambda: cluster.phase(name) == "Blocked")
    assert cluster.status(name)["reason"] == f"Skipped: {first} ResourceBusy (held by wfe-7)"
    second = executing(cluster, name)
    assert second != first
    cluster.end(second)
    eventually(lambda: cluster.phase(name) == "Completed")
    assert len(cluster.executions("production/deployment/skipped")) == 2


def test_one_that_failed_ends_its_request_with_its_reason(pair: tuple[Cluster, list[Replica]]) -> None:
    cluster, _ = pair
    name = cluster.ask(deployment("failed"))
    cluster.end(executing(cluster, name), "Failed", reason="the pipeline timed out")
    eventually(lambda: cluster.phase(name) == "Failed")
    assert cluster.status(name)["reason"].endswith("the pipeline timed out")
    assert "completionTime" in cluster.status(name)


def test_one_that_is_deleted_frees_its_target_and_is_noted(pair: tuple[Cluster, list[Replica]]) -> None:
    cluster, _ = pair
    name = cluster.ask(deployment("deleted"))
    made = executing(cluster, name)
    waiting = cluster.ask(deployment("deleted"))
    eventually(lambda: cluster.phase(waiting) == "Blocked")
    cluster.server.request("DELETE", f"{cluster.executions_path}/{made}")
    eventually(lambda: cluster.phase(name) == "Failed")
    assert cluster.routed(name)["reason"] == "WorkflowExecutionDeleted"
    eventually(lambda: "WorkflowExecutionDeleted" in {event["reason"] for event in cluster.events(name)})
    executing(cluster, waiting)


def test_a_request_that_is_deleted_while_it_waits_is_gone_and_never_executed(
    pair: tuple[Cluster, list[Replica]],
) -> None:
    cluster, _ = pair
    first = executing(cluster, cluster.ask(deployment("withdrawn")))
    waiting = cluster.ask(deployment("withdrawn"))
    eventually(lambda: cluster.phase(waiting) == "Blocked")
    cluster.delete(waiting)
    eventually(lambda: waiting not in cluster.names())
    cluster.end(first)
    last = cluster.ask(deployment("withdrawn"))
    executing(cluster, last)
    made = {one["spec"]["remediationRequest"] for one in cluster.executions("production/deployment/withdrawn")}
    assert waiting not in made


def test_one_made_by_hand_blocks_and_one_that_only_shares_a_label_does_not(
    pair: tuple[Cluster, list[Replica]],
) -> None:
    cluster, _ = pair
    by_hand = cluster.make_execution("production/deployment/by-hand")
    blocked = cluster.ask(deployment("by-hand"))
    eventually(lambda: cluster.phase(blocked) == "Blocked")
    assert cluster.status(blocked)["blockedBy"] == by_hand
    cluster.end(by_hand)
    made = cluster.execution(executing(cluster, blocked))
    cluster.end(made["metadata"]["name"])
    eventually(lambda: cluster.phase(blocked) == "Completed")
    label = {"remediation.example.com/target": made["metadata"]["labels"]["remediation.example.com/target"]}
    other = cluster.make_execution("production/deployment/another", label)
    executing(cluster, cluster.ask(deployment("by-hand")))
    assert is_active(cluster.execution(other))


# Requests that cannot be routed.

INVALID = {
    "none": (None, "needs kind and name; give the alert a label"),
    "no kind": ({"namespace": "production", "name": "api"}, "needs kind and name"),
    "no name": ({"namespace": "production", "kind": "deployment"}, "needs kind and name"),
    "over-long": (deployment("x" * 254), "has 254 characters; in Kubernetes no name has more than 253"),
    "a path": (deployment("../secrets"), "is '../secrets', which is no name in Kubernetes"),
    "another's": ({"namespace": "a/b", "kind": "pod", "name": "c"}, "is 'a/b', which is no namespace"),
}


@pytest.mark.parametrize("what", INVALID)
def test_a_request_without_a_target_that_can_be_says_what_is_wrong(
    pair: tuple[Cluster, list[Replica]], what: str
) -> None:
    cluster, replicas = pair
    target, words = INVALID[what]
    before = len(cluster.executions())
    name = cluster.ask(target)
    eventually(lambda: cluster.phase(name) == "Failed")
    routed = cluster.routed(name)
    assert (routed["status"], routed["reason"]) == ("False", "InvalidTarget")
    assert words in routed["message"]
    eventually(lambda: cluster.events(name))
    (event,) = cluster.events(name)
    assert (event["type"], event["reason"]) == ("Warning", "InvalidTarget")
    assert words in event["message"]
    assert len(cluster.executions()) == before
    assert all(replica.process.poll() is None for replica in replicas)


def test_the_longest_target_that_can_be_is_routed(pair: tuple[Cluster, list[Replica]]) -> None:
    """The control of the test above."""
    cluster, _ = pair
    name = cluster.ask({"namespace": "n" * 63, "kind": "deployment", "name": "x" * 253})
    assert len(cluster.execution(executing(cluster, name))["spec"]["targetResource"]) == 63 + 253 + len("/deployment/")


# When the cluster is not as it should be.


@pytest.mark.parametrize(
    ("missing", "words"),
    [("leases", 'cannot create resource "leases"'), ("workflowexecutions", 'cannot create resource "workflowexec')],
)
def test_a_missing_right_is_told_in_the_request_and_works_once_it_is_granted(
    server: KubeServer, tmp_path: Path, missing: str, words: str
) -> None:
    granted = [
        rule | {"verbs": [verb for verb in rule["verbs"] if verb != "create" or missing not in rule["resources"]]}
        for rule in role()
    ]
    cluster = Cluster(server, granted)
    with fleet(cluster, 2, tmp_path, *QUICK) as replicas:
        name = cluster.ask(deployment("api"))
        eventually(lambda: cluster.phase(name) == "Blocked")
        routed = cluster.routed(name)
        assert routed["reason"] == "PermissionDenied"
        assert words in routed["message"]
        assert "with a Role" in routed["message"]
        eventually(lambda: "PermissionDenied" in {event["reason"] for event in cluster.events(name)})
        assert cluster.executions() == []
        cluster.allow([rule for rule in role() if missing in rule["resources"]])
        executing(cluster, name)
        if missing == "leases":
            failed = 'acquisition_failures_total{reason="api_error"}'
            assert sum(one.metric(failed) for one in replicas) > 0
    assert len(cluster.executions()) == 1


def test_without_the_right_to_note_nothing_is_made_twice(server: KubeServer, tmp_path: Path) -> None:
    cluster = Cluster(server, [rule for rule in role() if f"{REQUEST.plural}/status" not in rule["resources"]])
    with fleet(cluster, 2, tmp_path, *QUICK) as replicas:
        name = cluster.ask(deployment("api"))
        denied = 'cannot patch resource "remediationrequests/status"'
        eventually(lambda: all(denied in replica.log.read_text() for replica in replicas))
        assert len(cluster.executions()) == 1
        cluster.allow([rule for rule in role() if f"{REQUEST.plural}/status" in rule["resources"]])
        executing(cluster, name)
    assert len(cluster.executions()) == 1


def test_definitions_that_are_missing_or_taken_away_are_told_and_no_reason_to_end(tmp_path: Path) -> None:
    server = fragile()
    install(server)
    cluster = Cluster(server)
    gateway_support.forget(server, definition()["metadata"]["name"], EXECUTION)
    with fleet(cluster, 1, tmp_path, *QUICK, until="/healthz", calm=False) as (replica,):
        eventually(lambda: "serves no workflowexecutions" in replica.get("/readyz")[1])
        status, why = replica.get("/readyz")
        assert (status, "install the CustomResourceDefinition" in why) == (503, True)
        install(server)
        eventually(lambda: replica.is_up("/readyz"))
        executing(cluster, cluster.ask(deployment("early")))
        gateway_support.forget(server, definition()["metadata"]["name"], EXECUTION)
        eventually(lambda: not replica.is_up("/readyz"))
        install(server)
        eventually(lambda: replica.is_up("/readyz"))
        executing(cluster, cluster.ask(deployment("late")))
    assert len(cluster.executions("production/deployment/late")) == 1


def test_through_a_restart_of_the_api_server_nothing_is_made_twice(tmp_path: Path) -> None:
    server = fragile()
    install(server)
    cluster = Cluster(server)
    executor = Executor(cluster)
    with fleet(cluster, 2, tmp_path, *QUICK):
        names = ask_at_once(cluster, "restart")
        eventually(cluster.executions)
        server.kill()
        with fleet(cluster, 1, tmp_path, *QUICK, until="/healthz") as (newcomer,):
            eventually(lambda: "nobody listens there; start the server" in newcomer.get("/readyz")[1])
            server.start()
            eventually(lambda: newcomer.is_up("/readyz"))
            eventually(lambda: are_over(cluster, names), nudge=executor.work)
    assert overlaps(executor.lives) == []
    assert Counter(life.request for life in executor.lives) == dict.fromkeys(names, 1)


CLOCK = """
import os, time
ahead, real = float(os.environ["AHEAD"]), time.time
time.time = lambda: real() + ahead
"""


def test_replicas_whose_clocks_are_hours_apart_keep_each_other_out(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(CLOCK)
    executor = Executor(cluster)
    early = {"PYTHONPATH": f"{tmp_path}:{Path(leasehold.__file__).parents[1]}", "AHEAD": "-7200"}
    with fleet(cluster, 1, tmp_path, *QUICK, **early), fleet(cluster, 1, tmp_path, *QUICK, **early | {"AHEAD": "7200"}):
        names = ask_at_once(cluster, "clocks")
        eventually(lambda: are_over(cluster, names), nudge=executor.work)
    assert overlaps(executor.lives) == []
    assert Counter(life.request for life in executor.lives) == dict.fromkeys(names, 1)
    noted = {cluster.routed(name)["lastTransitionTime"] for name in names}
    assert any(not timestamp(-3600) < one < timestamp(3600) for one in noted), "their clocks were not moved at all"


# What it costs.


def cost(cluster: Cluster, folder: Path, *options: str) -> Counter[tuple[str, str]]:
    """What one replica asks for, from a request's creation until it is let go."""
    with fleet(cluster, 1, folder, *QUICK, *options):
        # The first one shows that the watches stand.
        executing(cluster, cluster.ask(deployment("first")))
        before = len(cluster.asked())
        name = cluster.ask(deployment("second"))
        cluster.end(executing(cluster, name))
        eventually(lambda: cluster.is_let_go(name))
        return Counter(cluster.asked()[before:])


def test_the_lock_adds_a_create_and_a_delete_and_nothing_else(server: KubeServer, tmp_path: Path) -> None:
    with_lock, without = (cost(Cluster(server), tmp_path, *options) for options in ((), ("--no-lock",)))
    note(f"a request from its creation to its end: {without.total()} calls, {dict(without)}; with the lock 2 more")
    assert with_lock - without == {("create", "leases"): 1, ("delete", "leases"): 1}
    assert without - with_lock == {}


# Looking at it.


def test_the_lock_has_its_metrics(pair: tuple[Cluster, list[Replica]]) -> None:
    cluster, replicas = pair
    executing(cluster, cluster.ask(deployment("measured")))
    for name in ("acquisition_attempts_total", "acquisition_successes_total", "releases_total"):
        assert sum(one.metric(name) for one in replicas) > 0
    for one in replicas:
        assert one.metric("hold_duration_seconds_count") == one.metric("releases_total")
        assert one.metric('acquisition_duration_seconds_bucket{le="+Inf"}') == one.metric("acquisition_successes_total")
        assert one.metric('acquisition_failures_total{reason="api_error"}') == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--namespace", "A b"], "remediation_orchestrator: url: the namespace must be a name"),
        (["--namespace", "a", "--cooldown", "-1"], "--cooldown must be 0 or more"),
        (["--namespace", "a", "--again", "nan"], "--again more than 0"),
        (["--namespace", "a", "--ttl", "0"], "--ttl 1 to 86400"),
    ],
)
def test_options_that_cannot_work_end_the_program_with_the_reason(
    cluster: Cluster, options: list[str], words: str
) -> None:
    env = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig)}
    command = [PYTHON, str(ORCHESTRATOR), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=env)
    assert done.returncode != 0
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_its_page_names_its_options_and_every_verb_of_its_role() -> None:
    page = (ORCHESTRATOR / "README.md").read_text()
    for option in re.findall(r'"(--[a-z-]+)"', (ORCHESTRATOR / "__main__.py").read_text()):
        assert option in page
    for rule in role():
        assert ", ".join(rule["verbs"]) in page
