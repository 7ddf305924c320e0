"""The workflow executor as processes on a real API server: one run a target, a rest after it, and who is in the way."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from leasehold import kube
from leasehold.rules.names import short_name
from leasehold.testing.servers import KubeServer
from tests.examples.executor_support import (
    CONFIG,
    EXECUTION,
    EXECUTOR,
    FINALIZER,
    RUN,
    Cluster,
    actor,
    documents,
    fleet,
    install,
    module,
    replica,
    role,
    without,
)
from tests.kube import support
from tests.support import count, eventually, note

decisions = module("decisions")
TOGETHER, TARGETS = 6, 4
# Without a lock, rounds are gone through until two run at once, at most so many.
ROUNDS_MAX = 40
_numbers = itertools.count()


@pytest.fixture(scope="module")
def server() -> KubeServer:
    found = support.server()
    install(found)
    return found


@pytest.fixture(scope="module")
def pair(server: KubeServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster with two replicas that several tests use, each with targets of its own."""
    cluster = Cluster(server)
    with fleet(cluster, 2, tmp_path_factory.mktemp("pair")):
        yield cluster
    assert cluster.forbidden() == []


def fresh() -> str:
    """A target that nobody has seen."""
    return f"production/deployment/service-{next(_numbers)}"


def run_of(target: str) -> str:
    name: str = short_name(decisions.PREFIX, target)
    return name


def begun(cluster: Cluster, target: str, **parameters: str) -> str:
    """An execution that runs."""
    name = cluster.execute(target, **parameters)
    cluster.reach(name, "Running")
    eventually(lambda: "status" not in cluster.away.get(run_of(target))["spec"])
    return name


def completed(cluster: Cluster, target: str) -> str:
    """An execution that rests."""
    name = begun(cluster, target)
    cluster.finish(run_of(target))
    cluster.reach(name, "Completed")
    return name


def skipped(cluster: Cluster, target: str, **given: str) -> str:
    """Why the next execution of a target does not run."""
    reason: str = cluster.reach(cluster.execute(target, **given), "Skipped")["reason"]
    return reason


def foreign_lock(cluster: Cluster, target: str, owner: str) -> kube.LockObject:
    """A run that somebody else holds a target with."""
    config = cluster.server.kubeconfig()
    with kube.connect(f"kubernetes://{cluster.away.name}?kubeconfig={config}", RUN) as runs:
        return kube.ObjectLocks(runs, prefix="wfe-").create(
            target, owner=owner, manifest={"spec": {"pipelineRef": {"name": "other"}}}
        )


# A whole life.


def test_an_execution_runs_rests_and_lets_go_and_then_the_next_one_may(server: KubeServer, tmp_path: Path) -> None:
    """Testing table: full lifecycle. Steps 1 to 8 of the lifecycle; the actor ends runs as their parameters say."""
    cluster = Cluster(server, cooldown="2s")
    good, bad, endless = fresh(), fresh(), fresh()
    with actor(cluster, tmp_path) as tekton, replica(cluster, tmp_path):
        first = cluster.execute(good, seconds="0.5")
        failing = cluster.execute(bad, outcome="fail")
        hanging = cluster.execute(endless, outcome="hang")
        done = cluster.reach(first, "Completed")
        assert (done["pipelineRun"], done["reason"]) == (run_of(good), "Succeeded")
        assert done["startTime"] <= done["completionTime"]
        assert cluster.reach(failing, "Failed")["reason"] == "Failed"
        # Through the rest the run is still there, and in the way.
        assert skipped(cluster, good).startswith(f"RecentlyRemediated (by {first}, ")
        for name, target in ((first, good), (failing, bad)):
            assert "2s" in cluster.released(name)["message"]
            assert not cluster.is_there(cluster.away, run_of(target))
        second = cluster.execute(good)
        cluster.reach(second, "Completed")
        assert cluster.phase(hanging) == "Running"
        begun_runs = re.findall(r"(\S+) begins", tekton.said())
    # Each was begun once: two of one target, one of each other.
    assert len(begun_runs) == len(set(begun_runs)) == len(cluster.created()) == 4


# Both layers.


def test_layer_1_names_who_runs_and_nothing_is_created(pair: Cluster) -> None:
    """Testing table: checkResourceLock() finds Running. Edge case: different workflow, same target."""
    target = fresh()
    first = begun(pair, target)
    before = len(pair.created())
    assert skipped(pair, target, workflow="another workflow") == f"ResourceBusy (active: {first})"
    assert len(pair.created()) == before


def test_layer_1_names_who_was_at_it_recently(pair: Cluster) -> None:
    """Testing table: checkResourceLock() finds Cooldown."""
    target = fresh()
    first = completed(pair, target)
    assert re.fullmatch(rf"RecentlyRemediated \(by {first}, [0-9ms]+ ago\)", skipped(pair, target))


def test_layer_2_names_who_holds_the_run(pair: Cluster) -> None:
    """The create was lost to somebody whom the query does not know: another namespace's executor."""
    target = fresh()
    foreign_lock(pair, target, "team-b/exec-9/00000000-0000-4000-8000-000000000000")
    assert skipped(pair, target) == "ResourceBusy (held by exec-9)"


def test_layer_1_fails_open_and_a_holder_that_cannot_be_read_is_busy(server: KubeServer, tmp_path: Path) -> None:
    """Without the right to list, the create decides; without the right to read the run as well, nobody is named."""
    cluster = Cluster(server)
    target = fresh()
    with replica(cluster, tmp_path) as process:
        first = begun(cluster, target)
        # The watch that kopf has begun goes on.
        cluster.home.allow(without(role("rbac.yaml"), EXECUTION.plural, "list"))
        assert skipped(cluster, target) == f"ResourceBusy (held by {first})"
        begun(cluster, fresh())
        assert "layer 1 cannot look, layer 2 decides" in process.said()
        cluster.away.allow(without(role("rbac-runs.yaml"), RUN.plural, "get"))
        assert skipped(cluster, target) == "ResourceBusy"
    assert len(cluster.created()) == 2


def together(cluster: Cluster, target: str) -> list[str]:
    """Executions of one target, made at once."""
    with ThreadPoolExecutor(TOGETHER) as pool:
        return list(pool.map(lambda _: cluster.execute(target), range(TOGETHER)))


def running(cluster: Cluster, names: list[str]) -> list[str]:
    """Those that run, once none is pending."""
    eventually(lambda: all(cluster.phase(name) != "Pending" for name in names), 60)
    return [name for name in names if cluster.phase(name) == "Running"]


def check_one_runs(cluster: Cluster, target: str, names: list[str]) -> None:
    """And that the others say who."""
    (winner,) = running(cluster, names)
    losers = [cluster.status(name) for name in names if name != winner]
    assert {one["phase"] for one in losers} == {"Skipped"}
    assert {one["reason"] for one in losers} <= {f"ResourceBusy ({how} {winner})" for how in ("active:", "held by")}
    assert cluster.status(winner)["pipelineRunUID"] == cluster.away.get(run_of(target))["metadata"]["uid"]


def test_of_simultaneous_executions_one_runs_and_the_others_say_who(pair: Cluster) -> None:
    """Edge case: two, same target, simultaneous. Testing table: concurrent creation. M1: race condition."""
    for _ in range(count(30)):
        target, before = fresh(), len(pair.created())
        check_one_runs(pair, target, together(pair, target))
        assert len(pair.created()) == before + 1


def test_replicas_that_start_together_and_find_many_let_one_run(server: KubeServer, tmp_path: Path) -> None:
    """The same, with all of them there before both replicas: nothing is more simultaneous."""
    cluster = Cluster(server)
    asked = {target: together(cluster, target) for target in (fresh() for _ in range(TARGETS))}
    with fleet(cluster, 2, tmp_path):
        for target, names in asked.items():
            check_one_runs(cluster, target, names)
    assert len(cluster.created()) == TARGETS


def test_without_layer_2_they_run_at_once(server: KubeServer, tmp_path: Path) -> None:
    """The control of the tests above: layer 1 alone lets several through."""
    cluster = Cluster(server)
    waiting = [together(cluster, fresh()) for _ in range(TARGETS)]
    rounds: list[int] = []
    with fleet(cluster, 2, tmp_path, "--no-lock"):
        while waiting or (len(rounds) < ROUNDS_MAX and not sum(rounds)):
            names = waiting.pop() if waiting else together(cluster, fresh())
            rounds.append(len(running(cluster, names)) - 1)
    note(f"without layer 2: of {TOGETHER} executions of one target, {sum(rounds)} too many ran in {len(rounds)} rounds")
    assert sum(rounds) > 0


def test_the_same_workflow_runs_on_different_targets_at_once(pair: Cluster) -> None:
    """Edge case: same workflow, different target."""
    one, other = fresh(), fresh()
    names = [begun(pair, one), begun(pair, other)]
    assert [pair.phase(name) for name in names] == ["Running", "Running"]
    assert run_of(one) != run_of(other)


def test_another_target_under_the_same_name_is_told_apart(pair: Cluster) -> None:
    """M5: hash collision. The whole target stands in the run."""
    target = fresh()
    notes = {"leasehold/target": "another", "leasehold/owner": "team-b/exec-9/u", "leasehold/hold": "h"}
    body = {"apiVersion": RUN.api_version, "kind": RUN.kind, "metadata": {"name": run_of(target), "annotations": notes}}
    pair.server.request("POST", pair.away.path, body)
    name = pair.execute(target)
    assert pair.reach(name, "Failed")["reason"] == "TargetCollision"
    assert "stands for 'another'" in pair.locked(name)["message"]


# Deletion.


def test_who_is_deleted_while_it_runs_takes_its_own_run_along(pair: Cluster) -> None:
    """Edge case: deleted during Running. Testing table: finalizer cleanup. One that was skipped takes nothing."""
    target, other = fresh(), fresh()
    first, bystander = begun(pair, target), begun(pair, other)
    loser = pair.execute(target)
    pair.reach(loser, "Skipped")
    pair.home.delete(loser)
    eventually(lambda: not pair.is_there(pair.home, loser))
    assert pair.is_there(pair.away, run_of(target))
    pair.home.delete(first)
    eventually(lambda: not pair.is_there(pair.home, first))
    assert not pair.is_there(pair.away, run_of(target))
    assert (pair.phase(bystander), pair.is_there(pair.away, run_of(other))) == ("Running", True)
    begun(pair, target)


def test_who_is_deleted_while_it_rests_frees_its_target_early(pair: Cluster) -> None:
    """Edge case: deleted during Cooldown. Step 9 of the lifecycle."""
    target = fresh()
    first = completed(pair, target)
    assert skipped(pair, target).startswith("RecentlyRemediated")
    pair.home.delete(first)
    eventually(lambda: not pair.is_there(pair.home, first))
    assert not pair.is_there(pair.away, run_of(target))
    begun(pair, target)


@pytest.mark.parametrize("phase", ["Running", "Completed"])
def test_a_run_that_somebody_deletes_frees_its_target_and_is_noted(pair: Cluster, phase: str) -> None:
    """M4: deleted externally."""
    target = fresh()
    first = begun(pair, target) if phase == "Running" else completed(pair, target)
    pair.away.delete(run_of(target))
    said = pair.released(first, "DeletedExternally")
    assert said["status"] == "False"
    assert pair.phase(first) == ("Failed" if phase == "Running" else "Completed")
    eventually(lambda: "DeletedExternally" in dict(pair.events(first)))
    assert "the target is free" in dict(pair.events(first))["DeletedExternally"]
    begun(pair, target)


def test_what_nobody_will_come_for_is_cleared_away(pair: Cluster) -> None:
    """An execution that is gone, and one of the same name that is made anew: what the old one held is not adopted."""
    target, name = fresh(), f"anew-{next(_numbers)}"
    left = foreign_lock(pair, target, f"{pair.home.name}/{name}/00000000-0000-4000-8000-000000000000")
    pair.execute(target, name=name)
    status = pair.reach(name, "Running")
    assert status["pipelineRunUID"] not in {left.uid, None}
    eventually(lambda: "LeftBehind" in dict(pair.events(name)))


# What cannot be right.


@pytest.mark.parametrize("target", ["", "x" * 2000, "a\0b"], ids=["empty", "over-long", "NUL"])
def test_a_target_that_cannot_be_one_fails_with_what_to_do(pair: Cluster, target: str) -> None:
    before = len(pair.created())
    name = pair.execute(target)
    assert pair.reach(name, "Failed")["reason"] == "InvalidTarget"
    said = pair.locked(name)
    assert said["status"] == "False"
    assert "spec.targetResource: target: must" in said["message"]
    assert "create another one" in said["message"]
    assert len(pair.created()) == before
    pair.home.delete(name)
    eventually(lambda: not pair.is_there(pair.home, name))


def test_a_target_that_is_changed_while_it_runs_counts_as_it_was(pair: Cluster) -> None:
    """The name of its run follows from it: another one would leave the run behind."""
    target, other = fresh(), fresh()
    first = begun(pair, target)
    pair.home.patch(first, {"spec": {"targetResource": other}})
    assert skipped(pair, target) == f"ResourceBusy (active: {first})"
    begun(pair, other)
    pair.finish(run_of(target))
    pair.reach(first, "Completed")


def test_a_completion_in_the_future_begins_the_rest_now(pair: Cluster) -> None:
    target = fresh()
    first = begun(pair, target)
    pair.finish(run_of(target), at=datetime.now(UTC) + timedelta(hours=1))
    eventually(lambda: "CompletionInFuture" in dict(pair.events(first)))
    eventually(lambda: decisions.completion(pair.home.get(first)) <= datetime.now(UTC))
    assert re.fullmatch(rf"RecentlyRemediated \(by {first}, [0-9]+s ago\)", skipped(pair, target))
    assert pair.is_there(pair.away, run_of(target))


def test_a_run_that_never_ends_is_ended_by_its_timeout(server: KubeServer, tmp_path: Path) -> None:
    """M3: stuck forever. The lock has a last resort besides."""
    cluster = Cluster(server)
    target = fresh()
    with replica(cluster, tmp_path, "--timeout", "1s"):
        name = cluster.execute(target, outcome="hang")
        status = cluster.reach(name, "Failed")
    run = cluster.away.get(run_of(target))
    assert status["reason"].startswith(f"TimedOut: {run_of(target)} has not ended after ")
    assert (run["spec"]["status"], run["spec"]["timeouts"]) == ("Cancelled", {"pipeline": "1s"})
    # The rest begins: the lock is still there, and ends by itself if everybody forgets it.
    assert cluster.locked(name)["reason"] == "Cooldown"
    assert float(run["metadata"]["annotations"]["leasehold/ttl"]) > 3600


# The cooldown's configuration.


def test_the_cooldown_follows_its_config_and_a_bad_one_stops_nothing(server: KubeServer, tmp_path: Path) -> None:
    """Changed, negative, malformed, 0: what was good last counts, and an event says what to write."""
    cluster = Cluster(server, cooldown="-5m")
    target = fresh()
    with replica(cluster, tmp_path, "--look", "100ms") as process:
        # Nothing was good yet: the default.
        first = completed(cluster, target)
        process.says("is negative; write 0 for none, or a duration such as 5m; until then 5m0s is used")
        assert cluster.is_there(cluster.away, run_of(target))
        cluster.configure("1h")
        assert skipped(cluster, target).startswith("RecentlyRemediated")
        cluster.write_config({"config.yaml": "resource_locking: [5m"})
        process.says("until then 1h0m0s is used")
        eventually(lambda: len(cluster.events(CONFIG)) == 2)
        assert {reason for reason, _ in cluster.events(CONFIG)} == {"InvalidCooldown"}
        assert cluster.phase(first) == "Completed"
        assert cluster.is_there(cluster.away, run_of(target))
        # Shorter than what has passed: it ends at once. And with none at all there is no rest.
        cluster.configure("1ms")
        cluster.released(first)
        cluster.configure(0)
        second = completed(cluster, target)
        cluster.released(second)
        assert not cluster.is_there(cluster.away, run_of(target))
        begun(cluster, target)


# What it costs.


def test_a_life_costs_three_writes_of_the_run_and_three_of_the_status(server: KubeServer, tmp_path: Path) -> None:
    cluster = Cluster(server, cooldown="0")
    target = fresh()
    with replica(cluster, tmp_path):
        first = completed(cluster, target)
        cluster.released(first)
    writes = [
        (event["verb"], event["objectRef"]["resource"], event["objectRef"].get("subresource"))
        for event in server.audit()
        if event["user"].get("username") == cluster.home.user and event["verb"] in {"create", "patch", "delete"}
    ]
    assert [verb for verb, resource, _ in writes if resource == RUN.plural] == ["create", "patch", "delete"]
    own = [part for _, resource, part in writes if resource == EXECUTION.plural]
    # The finalizer, the label; Running, Completed, let go.
    assert (own.count(None), own.count("status")) == (2, 3)


def test_its_page_names_its_finalizer_and_every_verb_of_its_roles() -> None:
    page = (EXECUTOR / "README.md").read_text()
    assert FINALIZER in page
    for file in ("rbac.yaml", "rbac-runs.yaml"):
        for rule in role(file):
            assert ", ".join(rule["verbs"]) in page
    (config,) = documents("config.yaml")
    assert config["metadata"]["name"] == CONFIG
    assert module("settings").read(config["data"]) == 300
