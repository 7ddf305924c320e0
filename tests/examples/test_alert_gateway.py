"""The alert gateway as processes on a real API server: one object a fingerprint, whatever storms and breaks."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from leasehold.testing.servers import KubeServer
from tests.examples.gateway_support import (
    GATEWAY,
    KIND,
    PATH,
    Cluster,
    Replica,
    definition,
    duplicates,
    fleet,
    forget,
    fresh,
    install,
    role,
    storm,
    webhook,
)
from tests.kube import support
from tests.stores.kubernetes_support import fragile
from tests.support import PYTHON, count, eventually, note

SIGNALS = 100
REPLICAS = [1, 3, 10]
# How long before a second begins: what lies between a look and a create differs with the machine and the fleet.
LEADS = [0.04, 0.06, 0.09, 0.05, 0.12, 0.03, 0.15, 0.02]
# Without a lock, rounds are gone through until one has duplicates, at most so many.
ROUNDS_MAX = 60


@pytest.fixture(scope="module")
def server() -> KubeServer:
    found = support.server()
    install(found)
    return found


@pytest.fixture
def cluster(server: KubeServer) -> Cluster:
    return Cluster(server)


@pytest.fixture(scope="module")
def lone(server: KubeServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, Replica]]:
    """One replica that several tests use one after the other."""
    cluster = Cluster(server)
    with fleet(cluster, 1, tmp_path_factory.mktemp("lone")) as (replica,):
        yield cluster, replica


# Storms.


@pytest.mark.parametrize("size", REPLICAS)
def test_a_storm_over_a_second_boundary_makes_one_object_and_counts_the_rest(
    cluster: Cluster, tmp_path: Path, size: int
) -> None:
    with fleet(cluster, size, tmp_path) as replicas:
        for _, lead in zip(range(count(50)), itertools.cycle(LEADS), strict=False):
            told = storm(replicas, SIGNALS, lead)
            assert Counter(status for status, _ in told.answers) == {201: 1, 202: SIGNALS - 1}
            (made,) = cluster.requests(told.fingerprint)
            assert duplicates(made) == SIGNALS - 1
            assert {said["signals"][0]["remediationRequest"] for _, said in told.answers} == {made["metadata"]["name"]}
    assert cluster.leases() == []
    assert forbidden(cluster) == []


@pytest.mark.parametrize("size", REPLICAS)
def test_without_the_lock_the_same_storm_makes_duplicates(cluster: Cluster, tmp_path: Path, size: int) -> None:
    """The control: it is the lock that keeps them away. Hung up on as soon as all have looked, to save time."""
    rounds: list[int] = []
    lead = LEADS[0]
    with fleet(cluster, size, tmp_path, "--no-lock") as replicas:
        while len(rounds) < ROUNDS_MAX and not (sum(rounds) and len(rounds) >= count(30)):
            told = storm(replicas, SIGNALS, lead, patience=0.6)
            made = sorted(int(one["metadata"]["name"].rpartition("-")[2]) for one in cluster.requests(told.fingerprint))
            rounds.append(max(len(made) - 1, 0))
            lead = nearer(lead, is_early=bool(made) and made[0] < told.boundary)
    extra, hit = sum(rounds), sum(map(bool, rounds))
    note(
        f"without a lock, {size} replicas: {extra} duplicates in {len(rounds)} storms of {SIGNALS} signals "
        f"({extra / len(rounds) / SIGNALS:.2%} of signals, {hit / len(rounds):.0%} of storms)"
    )
    assert extra > 0


def nearer(lead: float, *, is_early: bool) -> float:
    """The next lead, so that the first create comes just before the second begins, however slow the machine is."""
    return max(lead * 0.85, 0.01) if is_early else min(lead * 1.3, 0.9)


def forbidden(cluster: Cluster) -> list[str]:
    """What the gateway asked for that its role does not allow."""
    return [
        event["requestURI"]
        for event in cluster.server.audit()
        if event["user"].get("username") == cluster.user
        and event.get("annotations", {}).get("authorization.k8s.io/decision") == "forbid"
    ]


# What it costs.


def asked_for(cluster: Cluster, replica: Replica, body: bytes) -> list[tuple[str, str]]:
    before = len(cluster.asked())
    assert replica.post(body)[0] in {201, 202}
    return cluster.asked()[before:]


def test_the_lock_adds_a_create_and_a_delete_and_nothing_else(
    lone: tuple[Cluster, Replica], cluster: Cluster, tmp_path: Path
) -> None:
    locked_cluster, locked = lone
    with fleet(cluster, 1, tmp_path, "--no-lock") as (bare,):
        body = webhook(fresh())
        for without in (
            [("list", KIND.plural), ("create", KIND.plural)],
            [("list", KIND.plural), ("patch", KIND.plural)],
        ):
            assert asked_for(cluster, bare, body) == without
            around = [("create", "leases"), *without, ("delete", "leases")]
            assert asked_for(locked_cluster, locked, body) == around


# What it makes of signals.


def test_a_signal_becomes_an_object_that_says_what_fires_where(lone: tuple[Cluster, Replica]) -> None:
    cluster, replica = lone
    fingerprint = fresh()
    status, said = replica.post(webhook(fingerprint))
    (made,) = cluster.requests(fingerprint)
    name = made["metadata"]["name"]
    assert (status, said) == (201, {"signals": [{"remediationRequest": name, "duplicate": False}]})
    assert name.startswith(f"rr-{fingerprint[:12]}-")
    assert name.rpartition("-")[2].isdigit()
    assert made["spec"]["signalName"] == "KubePodCrashLooping"
    assert made["spec"]["targetResource"] == {"namespace": "production", "kind": "pod", "name": "payment-api-7d9c"}
    assert duplicates(made) == 0


def test_a_webhook_of_several_alerts_makes_one_object_each(lone: tuple[Cluster, Replica]) -> None:
    cluster, replica = lone
    prints = [fresh() for _ in range(3)]
    assert replica.post(webhook(prints[0]))[0] == 201
    status, said = replica.post(webhook(*prints, prints[2]))
    assert status == 201
    assert [one["duplicate"] for one in said["signals"]] == [True, False, False, True]
    assert replica.post(webhook(*prints))[0] == 202
    counted = [[duplicates(one) for one in cluster.requests(each)] for each in prints]
    assert counted == [[2], [1], [2]]


def test_an_alert_without_a_fingerprint_gets_one_by_its_labels(lone: tuple[Cluster, Replica]) -> None:
    _, replica = lone
    labels = {"alertname": "NodeDown", "node": fresh()}
    orders = [labels, dict(reversed(labels.items()))]
    answers = [replica.post(changed(webhook(fresh()), labels=each, fingerprint="")) for each in orders]
    assert [status for status, _ in answers] == [201, 202]
    assert len({said["signals"][0]["remediationRequest"] for _, said in answers}) == 1


def test_what_is_resolved_makes_nothing(lone: tuple[Cluster, Replica]) -> None:
    cluster, replica = lone
    fingerprint, before = fresh(), cluster.asked()
    assert replica.post(changed(webhook(fingerprint), status="resolved")) == (202, {"signals": []})
    assert cluster.asked() == before


def test_a_signal_that_fires_again_after_its_end_gets_a_new_object(lone: tuple[Cluster, Replica]) -> None:
    cluster, replica = lone
    fingerprint = fresh()
    replica.post(webhook(fingerprint))
    (first,) = cluster.requests(fingerprint)
    path = f"{cluster.path}/{first['metadata']['name']}/status"
    cluster.server.request("PATCH", path, {"status": {"overallPhase": "Running"}})
    assert replica.post(webhook(fingerprint))[0] == 202
    cluster.server.request("PATCH", path, {"status": {"overallPhase": "Completed"}})
    assert replica.post(webhook(fingerprint))[0] == 201
    assert replica.post(webhook(fingerprint))[0] == 202
    old, new = sorted(cluster.requests(fingerprint), key=lambda one: int(one["metadata"]["resourceVersion"]))
    assert {duplicates(old), duplicates(new)} == {1}
    assert len(cluster.requests(fingerprint)) == 2


def test_counts_are_not_lost_when_others_write_the_status_too(lone: tuple[Cluster, Replica]) -> None:
    cluster, replica = lone
    fingerprint = fresh()
    replica.post(webhook(fingerprint))
    (made,) = cluster.requests(fingerprint)
    path, over = f"{cluster.path}/{made['metadata']['name']}/status", threading.Event()

    def controller() -> int:
        for turn in itertools.count():
            cluster.server.request("PATCH", path, {"status": {"observed": turn}})
            if over.is_set():
                return turn
        raise AssertionError("counting has no end")

    sent = 0
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(controller)
        # Until a count was really tried again, which is the only time that one object is read.
        while ("get", KIND.plural) not in cluster.asked() and not writing.done():
            sent += 1
            assert replica.post(webhook(fingerprint))[0] == 202
        over.set()
        assert writing.result() > 0
    (counted,) = cluster.requests(fingerprint)
    assert duplicates(counted) == sent > 0
    assert "observed" in counted["status"]


# What is not a webhook.


def changed(body: bytes, **changes: Any) -> bytes:
    """The first alert of a webhook with other fields; None leaves one out."""
    whole = json.loads(body)
    alert = whole["alerts"][0] | changes
    whole["alerts"][0] = {name: value for name, value in alert.items() if value is not None}
    return json.dumps(whole).encode()


GOOD = webhook("0123456789abcdef")
MALFORMED = {
    "nothing": (b"", "no webhook of Alertmanager"),
    "no JSON": (b"{", "no webhook of Alertmanager"),
    "no UTF-8": (b'{"version": "\xff"}', "no webhook of Alertmanager"),
    "a list": (b"[]", "Expected `object`, got `array`"),
    "another version": (webhook(version="3"), "Invalid enum value '3' - at `$.version`"),
    "no alerts": (webhook(), "alerts: must be 1 to 500, not 0"),
    "alerts that are none": (webhook(alerts=7), "Expected `array`, got `int` - at `$.alerts`"),
    "an alert that is none": (webhook(alerts=["x"]), "at `$.alerts[0]`"),
    "no labels": (changed(GOOD, labels=None), "missing required field `labels` - at `$.alerts[0]`"),
    "labels that are no text": (changed(GOOD, labels={"alertname": 7}), "Expected `str`, got `int`"),
    "no alertname": (changed(GOOD, labels={"pod": "a"}), "alerts[0].labels: alertname is missing"),
    "an odd status": (changed(GOOD, status="flapping"), "Invalid enum value 'flapping'"),
    "an odd fingerprint": (changed(GOOD, fingerprint="../../leases"), "alerts[0].fingerprint: must be 16 digits"),
    "a NUL": (changed(GOOD, annotations={"summary": "a\0b"}), "without NUL"),
    "a novel": (changed(GOOD, annotations={"summary": "x" * 20_000}), "at most 16384 characters"),
    "one bad alert of two": (changed(webhook("0123456789abcdef", fresh()), labels={}), "alerts[0].labels"),
    "too many": (webhook(*(["0123456789abcdef"] * 501)), "must be 1 to 500, not 501"),
}


@pytest.mark.parametrize("what", MALFORMED)
def test_a_malformed_webhook_is_told_what_is_wrong_and_nothing_is_done(
    lone: tuple[Cluster, Replica], what: str
) -> None:
    cluster, replica = lone
    body, reason = MALFORMED[what]
    before = cluster.asked()
    status, said = replica.post(body)
    assert status == 400
    assert reason in said["error"]
    assert cluster.asked() == before


def test_the_webhook_that_those_are_made_of_is_good(lone: tuple[Cluster, Replica]) -> None:
    """The control of the test above."""
    _, replica = lone
    assert replica.post(GOOD)[0] == 201


# When the cluster is not as it should be.


def test_a_missing_definition_is_told_and_no_reason_to_end(cluster: Cluster, tmp_path: Path) -> None:
    forget(cluster.server, definition()["metadata"]["name"])
    with fleet(cluster, 1, tmp_path, until="/healthz") as (replica,):
        status, said = replica.post(webhook(fresh()))
        ready, why = replica.get("/readyz")
        assert (status, ready) == (503, 503)
        for words in (said["error"], why):
            assert "serves no remediationrequests in remediation.example.com/v1" in words
            assert "install the CustomResourceDefinition" in words
        assert cluster.leases() == []
        install(cluster.server)
        eventually(lambda: replica.is_up("/readyz"))
        assert replica.post(webhook(fresh()))[0] == 201
    assert len(cluster.requests()) == 1


@pytest.mark.parametrize(
    ("missing", "words"),
    [("leases", 'cannot create resource "leases"'), (KIND.plural, 'cannot list resource "remediationrequests"')],
)
def test_a_missing_right_is_told_and_works_once_it_is_granted(
    server: KubeServer, tmp_path: Path, missing: str, words: str
) -> None:
    granted = [rule for rule in role() if missing not in rule["resources"]]
    cluster = Cluster(server, granted)
    with fleet(cluster, 1, tmp_path, until="/healthz") as (replica,):
        status, said = replica.post(webhook(fresh()))
        assert status == 503
        assert words in said["error"]
        assert "with a Role" in said["error"]
        assert (cluster.requests(), cluster.leases()) == ([], [])
        cluster.allow([rule for rule in role() if missing in rule["resources"]])
        assert replica.post(webhook(fresh()))[0] == 201
        assert replica.process.poll() is None


def test_through_a_restart_of_the_api_server_nothing_is_created_twice(tmp_path: Path) -> None:
    """Senders repeat what was answered 503, as Alertmanager does; everything is taken in the end.

    A replica that starts meanwhile serves, and says why it cannot work yet.
    """
    server = fragile()
    install(server)
    cluster = Cluster(server)
    fingerprint = fresh()
    with fleet(cluster, 3, tmp_path) as replicas, ThreadPoolExecutor(SIGNALS) as pool:

        def send(number: int) -> list[int]:
            told = [replicas[number % 3].post(webhook(fingerprint))[0]]
            while told[-1] == 503:
                told.append(replicas[number % 3].post(webhook(fingerprint))[0])
            return told

        before = [pool.submit(send, number) for number in range(SIGNALS // 2)]
        eventually(cluster.leases)
        server.kill()
        during = [pool.submit(send, number) for number in range(SIGNALS // 2, SIGNALS)]
        with fleet(cluster, 1, tmp_path, until="/healthz") as (newcomer,):
            status, said = newcomer.post(webhook(fingerprint))
            assert (status, newcomer.get("/readyz")[0]) == (503, 503)
            assert "nobody listens there; start the server" in said["error"]
            server.start()
            told = [one.result() for one in [*before, *during]]
            eventually(lambda: newcomer.is_up("/readyz"))
            assert newcomer.post(webhook(fingerprint))[0] == 202
    assert {status for each in told for status in each} <= {201, 202, 503}
    assert sum(each[-1] == 201 for each in told) <= 1
    (made,) = cluster.requests(fingerprint)
    # What was answered 503 may have been counted, too.
    assert SIGNALS <= duplicates(made) <= sum(map(len, told))


DIES = """
import os, signal, sys
import leasehold
leasehold.connect(sys.argv[1], prefix="gw-lock-").acquire(sys.argv[2], ttl=2)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_lock_of_a_replica_that_died_is_taken_over_after_its_ttl(cluster: Cluster, tmp_path: Path) -> None:
    fingerprint = fresh()
    done = subprocess.run([PYTHON, "-c", DIES, cluster.url, fingerprint], check=False)
    assert done.returncode == -signal.SIGKILL
    assert cluster.leases() == [f"gw-lock-{fingerprint}"]
    with fleet(cluster, 1, tmp_path, "--ttl", "2") as (replica,):
        assert replica.post(webhook(fingerprint))[0] == 201
    assert cluster.leases() == []


# Looking at it.


def test_the_lock_has_its_metrics(lone: tuple[Cluster, Replica]) -> None:
    _, replica = lone
    replica.post(webhook(fresh()))
    status, text = replica.get("/metrics")
    assert status == 200
    found = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    attempts = int(found["gateway_lock_acquisition_attempts_total"])
    assert attempts == int(found["gateway_lock_acquisition_successes_total"]) > 0
    assert int(found["gateway_lock_releases_total"]) == attempts
    assert found['gateway_lock_acquisition_failures_total{reason="contention"}'] == "0"
    assert found['gateway_lock_acquisition_failures_total{reason="api_error"}'] == "0"
    for name in ("acquisition", "hold"):
        assert int(found[f"gateway_lock_{name}_duration_seconds_count"]) == attempts
        assert found[f'gateway_lock_{name}_duration_seconds_bucket{{le="+Inf"}}'] == str(attempts)


def test_an_address_that_cannot_work_ends_the_program_with_the_reason() -> None:
    command = [PYTHON, str(GATEWAY), "--port", "0", "--store", "sqlite:///a.db"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "alert_gateway: url: must read kubernetes://NAMESPACE" in done.stderr
    assert "Traceback" not in done.stderr


def test_its_page_names_its_path_and_every_verb_of_its_role() -> None:
    page = (GATEWAY / "README.md").read_text()
    assert PATH in page
    for rule in role():
        assert ", ".join(rule["verbs"]) in page
