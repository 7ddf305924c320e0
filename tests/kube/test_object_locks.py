"""An object is a lock: made by one, met by others, adopted by its owner, and gone when it is released."""

from __future__ import annotations

import re
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import leasehold
from leasehold import kube
from leasehold.errors import LeaseLost, ResourceBusy, StoreDamaged
from leasehold.rules.kubernetes_objects import FINALIZER, HOLD, TARGET
from tests.kube.conftest import Clients, Face
from tests.kube.support import JOB, PIPELINE_RUN, VERBS, WIDGET, Place
from tests.support import PYTHON, ROOT, count, eventually

TARGET_NAME = "production/deployment/payment-api"
NAME = "wfe-fbb8266ac354e9c2"
RUN: dict[str, Any] = {"spec": {"pipelineRef": {"name": "restart"}}}
POD = {"containers": [{"name": "main", "image": "busybox"}], "restartPolicy": "Never"}
MANIFESTS: dict[kube.Kind, dict[str, Any]] = {
    JOB: {"spec": {"template": {"spec": POD}}},
    PIPELINE_RUN: RUN,
    WIDGET: {"spec": {"size": 3}},
    kube.Kind("v1", "ConfigMap", "configmaps"): {"data": {"what": "restart"}},
}


# What takes real time is looked at in one colour: both have one source.
one_colour = pytest.mark.parametrize("clients", ["blocking"], indirect=True)


@pytest.fixture
def place() -> Place:
    return Place()


def refused(locks: Face, owner: str, target: str = TARGET_NAME, **options: Any) -> ResourceBusy:
    with pytest.raises(ResourceBusy) as caught:
        locks.create(target, owner=owner, manifest=RUN, **options)
    return caught.value


# Taking and releasing.


def test_free_is_one_request_busy_two_and_release_one(clients: Clients, place: Place) -> None:
    locks = clients.locks(place)
    run = locks.create(TARGET_NAME, owner="wfe-1", manifest=RUN)
    assert (run.name, run.owner, run.target, run.adopted) == (NAME, "wfe-1", TARGET_NAME, False)
    error = refused(locks, "wfe-2")
    assert (error.holder, error.scope) == ("wfe-1", TARGET_NAME)
    assert "held by wfe-1" in str(error)
    assert locks.release(run)
    assert [verb for verb, _ in place.asked()] == ["create", "create", "get", "delete"]
    assert place.names() == []


@pytest.mark.parametrize("kind", MANIFESTS, ids=str)
def test_every_namespaced_kind_can_be_the_lock(kind: kube.Kind) -> None:
    place = Place(kind)
    with kube.connect(place.url, kind) as objects:
        locks = kube.ObjectLocks(objects, prefix="wfe-")
        run = locks.create(TARGET_NAME, owner="wfe-1", manifest=MANIFESTS[kind], ttl=60)
        made = place.get(NAME)
        wanted = MANIFESTS[kind].items()
        assert {name: made[name] for name in ("kind", "apiVersion")} == {
            "kind": kind.kind,
            "apiVersion": kind.api_version,
        }
        assert all(name in made for name, _ in wanted)
        assert made["metadata"]["labels"]["leasehold/owner"] == "wfe-1"
        assert made["metadata"]["annotations"][TARGET] == TARGET_NAME
        with pytest.raises(ResourceBusy):
            locks.create(TARGET_NAME, owner="wfe-2", manifest=MANIFESTS[kind])
        assert locks.release(run)
        assert place.names() == []


def test_a_released_lock_is_free_and_the_next_token_is_larger(clients: Clients, place: Place) -> None:
    locks = clients.locks(place)
    tokens = []
    for owner in ("wfe-1", "wfe-2", "wfe-3"):
        run = locks.create(TARGET_NAME, owner=owner, manifest=RUN)
        tokens.append(run.token)
        assert locks.release(run)
        assert not locks.release(run)
    assert tokens == sorted(set(tokens))


def test_of_many_at_once_one_gets_it_and_all_others_are_told_who(place: Place) -> None:
    with kube.connect(place.url + "&pool=32", place.kind) as objects, ThreadPoolExecutor(16) as pool:
        locks = kube.ObjectLocks(objects, prefix="wfe-")

        def contend(number: int) -> str:
            try:
                return locks.create(target, owner=f"wfe-{number}", manifest=RUN).owner
            except ResourceBusy as error:
                return f"told {error.holder}"

        for turn in range(count(50)):
            target = f"{TARGET_NAME}-{turn}"
            answers = list(pool.map(contend, range(16)))
            (winner,) = (answer for answer in answers if not answer.startswith("told"))
            assert set(answers) == {winner, f"told {winner}"}
        assert len(place.names()) == count(50)


def test_what_its_controllers_write_meanwhile_does_not_keep_it_from_being_released(
    clients: Clients, place: Place
) -> None:
    locks = clients.locks(place)
    run = locks.create(TARGET_NAME, owner="wfe-1", manifest=RUN)
    place.server.request("PATCH", f"{place.path}/{NAME}/status", {"status": {"phase": "Running"}})
    assert locks.check(run).manifest["status"] == {"phase": "Running"}
    assert locks.release(run)
    assert place.names() == []


def test_a_late_release_does_not_remove_the_next_lock_of_that_name(clients: Clients, place: Place) -> None:
    locks = clients.locks(place)
    run = locks.create(TARGET_NAME, owner="wfe-1", manifest=RUN)
    place.delete(NAME)
    other = locks.create(TARGET_NAME, owner="wfe-2", manifest=RUN)
    assert not locks.release(run)
    with pytest.raises(LeaseLost, match="wfe-2 holds it now"):
        locks.check(run)
    assert locks.check(other).owner == "wfe-2"


# Coming back.


KILLED = """
import os, signal, sys
from leasehold import kube
url, target = sys.argv[1:]
runs = kube.connect(url, kube.Kind("tekton.dev/v1", "PipelineRun", "pipelineruns"))
kube.ObjectLocks(runs, prefix="wfe-").create(target, owner="wfe-1", manifest={"spec": {}})
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_an_owner_killed_between_the_create_and_its_note_adopts_its_own_object(clients: Clients, place: Place) -> None:
    done = subprocess.run([PYTHON, "-c", KILLED, place.url, TARGET_NAME], capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    uid = place.get(NAME)["metadata"]["uid"]
    locks = clients.locks(place)
    assert refused(locks, "wfe-2").holder == "wfe-1"
    run = locks.create(TARGET_NAME, owner="wfe-1", manifest=RUN)
    assert (run.adopted, run.uid) == (True, uid)
    assert locks.release(run)


def test_an_adoption_draws_a_larger_token_and_ends_the_hold_before_it(clients: Clients, place: Place) -> None:
    locks = clients.locks(place)
    before = locks.create(TARGET_NAME, owner="wfe-1", manifest=RUN)
    after = locks.create(TARGET_NAME, owner="wfe-1", manifest=RUN)
    assert after.adopted
    assert after.token > before.token
    with pytest.raises(LeaseLost, match="a later run of wfe-1 has adopted it"):
        locks.check(before)
    assert not locks.release(before)
    assert locks.check(after).token == after.token
    assert locks.release(after)


# When the holder cannot be read.


def test_where_the_holder_may_not_be_read_it_is_still_refused(clients: Clients) -> None:
    place = Place(verbs=tuple(verb for verb in VERBS if verb != "get"))
    locks = clients.locks(place)
    locks.create(TARGET_NAME, owner="wfe-1", manifest=RUN)
    error = refused(locks, "wfe-2")
    assert error.holder is None
    assert "something that cannot be read" in str(error)


def test_an_object_of_others_under_that_name_is_in_the_way_and_left_alone(clients: Clients, place: Place) -> None:
    body = {"apiVersion": "tekton.dev/v1", "kind": "PipelineRun", "metadata": {"name": NAME}}
    place.server.request("POST", place.path, body)
    before = place.get(NAME)
    locks = clients.locks(place)
    assert refused(locks, "wfe-1").holder is None
    assert locks.find(TARGET_NAME) is None
    assert locks.collect() == 0
    assert place.get(NAME) == before


def test_another_target_under_the_same_name_is_noticed(clients: Clients, place: Place) -> None:
    locks = clients.locks(place)
    locks.create(TARGET_NAME, owner="wfe-1", manifest=RUN)
    place.patch(NAME, {"metadata": {"annotations": {TARGET: "production/deployment/other"}}})
    for ask in (lambda: locks.create(TARGET_NAME, owner="wfe-1", manifest=RUN), lambda: locks.find(TARGET_NAME)):
        with pytest.raises(StoreDamaged, match="stands for 'production/deployment/other'") as caught:
            ask()
        assert "use another prefix" in str(caught.value)
    assert place.names() == [NAME]


# Deleted by others.


def test_without_a_finalizer_whoever_deletes_the_object_frees_the_target(clients: Clients, place: Place) -> None:
    locks = clients.locks(place)
    run = locks.create(TARGET_NAME, owner="wfe-1", manifest=RUN)
    place.delete(NAME)
    with pytest.raises(LeaseLost, match="its object is gone"):
        locks.check(run)
    assert not locks.create(TARGET_NAME, owner="wfe-2", manifest=RUN).adopted


def test_with_a_finalizer_a_deletion_is_told_to_the_owner_and_frees_nothing(clients: Clients, place: Place) -> None:
    locks = clients.locks(place, finalizer=True)
    run = locks.create(TARGET_NAME, owner="wfe-1", manifest=RUN)
    assert place.get(NAME)["metadata"]["finalizers"] == [FINALIZER]
    place.delete(NAME)
    with pytest.raises(LeaseLost, match=r"being deleted by somebody else; release\(\) lets it go"):
        locks.check(run)
    assert locks.find(TARGET_NAME).is_going
    assert refused(locks, "wfe-2").holder == "wfe-1"
    assert locks.release(run)
    assert place.names() == []


def test_a_lock_with_a_finalizer_is_released_whole(clients: Clients, place: Place) -> None:
    locks = clients.locks(place, finalizer=True)
    assert locks.release(locks.create(TARGET_NAME, owner="wfe-1", manifest=RUN))
    assert place.names() == []


def test_an_owner_that_comes_back_to_a_deleted_lock_makes_it_anew(clients: Clients, place: Place) -> None:
    locks = clients.locks(place, finalizer=True)
    before = locks.create(TARGET_NAME, owner="wfe-1", manifest=RUN)
    place.delete(NAME)
    after = locks.create(TARGET_NAME, owner="wfe-1", manifest=RUN)
    assert not after.adopted
    assert after.uid != before.uid
    assert not locks.release(before)


def test_finalizers_of_others_keep_it_and_it_stays_taken(clients: Clients, place: Place) -> None:
    locks = clients.locks(place, finalizer=True)
    run = locks.create(TARGET_NAME, owner="wfe-1", manifest=RUN)
    place.patch(NAME, {"metadata": {"finalizers": [FINALIZER, "example.com/archive"]}})
    assert locks.release(locks.check(run))
    assert place.get(NAME)["metadata"]["finalizers"] == ["example.com/archive"]
    assert refused(locks, "wfe-1").holder == "wfe-1"
    place.patch(NAME, {"metadata": {"finalizers": []}})
    assert not locks.create(TARGET_NAME, owner="wfe-1", manifest=RUN).adopted


def test_namespace_name_and_uid_of_a_resource_fit_an_owner(clients: Clients, place: Place) -> None:
    locks = clients.locks(place)
    owner = "/".join(("n" * 63, "r" * 253, "00000000-0000-4000-8000-000000000000"))
    run = locks.create(TARGET_NAME, owner=owner, manifest=RUN)
    assert (run.owner, refused(locks, owner[:-1]).holder) == (owner, owner)
    assert [one.uid for one in locks.owned_by(owner)] == [run.uid]


# The last resort.


def test_past_its_ttl_whoever_wants_it_takes_it_and_without_one_nobody_does(clients: Clients, place: Place) -> None:
    locks = clients.locks(place, finalizer=True)
    kept = locks.create("kept", owner="wfe-1", manifest=RUN)
    run = locks.create(TARGET_NAME, owner="wfe-1", manifest=RUN, ttl=1)
    assert 0 < run.expires_in <= 0.9
    assert refused(locks, "wfe-2").holder == "wfe-1"
    taken: list[Any] = []

    def is_taken() -> bool:
        try:
            taken.append(locks.create(TARGET_NAME, owner="wfe-2", manifest=RUN, ttl=60))
        except ResourceBusy:
            return False
        return True

    eventually(is_taken)
    assert taken[0].token > run.token
    assert not locks.release(run)
    assert refused(locks, "wfe-2", "kept").holder == "wfe-1"
    assert locks.check(kept).expires_in is None
    assert locks.check(kept).age > taken[0].age >= 0


@one_colour
def test_its_owner_is_told_while_its_object_still_stands(clients: Clients, place: Place) -> None:
    locks = clients.locks(place)
    run = locks.create(TARGET_NAME, owner="wfe-1", manifest=RUN, ttl=1)

    def is_told() -> bool:
        try:
            locks.check(run)
        except LeaseLost as error:
            return "nine tenths of its ttl of 1 s" in str(error)
        return False

    eventually(is_told)
    assert locks.find(TARGET_NAME).owner == "wfe-1"


@one_colour
def test_collecting_removes_what_is_past_its_ttl_and_nothing_else(clients: Clients, place: Place) -> None:
    locks = clients.locks(place)
    locks.create("kept", owner="wfe-1", manifest=RUN)
    locks.create("long", owner="wfe-1", manifest=RUN, ttl=3600)
    for number in range(3):
        locks.create(f"short-{number}", owner="wfe-1", manifest=RUN, ttl=1)
    gone: list[int] = []
    eventually(lambda: gone.append(locks.collect(2)) or sum(gone) == 3)
    assert max(gone) <= 2
    assert sorted(one.target for one in locks.list()) == ["kept", "long"]


@one_colour
def test_with_max_skew_in_the_url_it_is_left_alone_for_that_much_longer(clients: Clients, place: Place) -> None:
    locks, patient = clients.locks(place), clients.locks(place, url=f"{place.url}&max_skew=3600")
    locks.create(TARGET_NAME, owner="wfe-1", manifest=RUN, ttl=1)
    locks.create("other", owner="wfe-1", manifest=RUN, ttl=1)
    eventually(lambda: locks.collect(1) == 1)
    assert patient.collect() == 0
    eventually(lambda: locks.collect(1) == 1)


# Looking.


@pytest.mark.parametrize("owner", ["wfe-1", "Team A/wfe 1", "-odd-", "ä" * 200, "x" * 63, "x" * 64])
def test_what_an_owner_holds_is_found_by_its_label(clients: Clients, place: Place, owner: str) -> None:
    locks = clients.locks(place)
    for target in ("one", "two"):
        locks.create(target, owner=owner, manifest=RUN)
    locks.create("three", owner="somebody else", manifest=RUN)
    clients.locks(place, prefix="other-").create("four", owner=owner, manifest=RUN)
    assert sorted(one.target for one in locks.owned_by(owner)) == ["one", "two"]
    assert sorted(one.target for one in locks.list()) == ["one", "three", "two"]
    assert "labelSelector" in str([event["requestURI"] for event in place.server.audit()][-2:])


def test_neither_the_secret_nor_the_manifest_is_shown(place: Place) -> None:
    with kube.connect(place.url, place.kind) as objects:
        run = kube.ObjectLocks(objects, prefix="wfe-").create(TARGET_NAME, owner="wfe-1", manifest=RUN)
        secret = place.get(NAME)["metadata"]["annotations"][HOLD]
        assert secret == run.hold
        assert secret not in repr(run)
        assert "pipelineRef" not in repr(run)


def test_a_lease_and_an_object_of_one_target_do_not_meet(place: Place) -> None:
    place.allow([{"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": list(VERBS)}])
    with kube.connect(place.url, place.kind) as objects, leasehold.connect(place.url) as leases:
        run = kube.ObjectLocks(objects, prefix="wfe-").create(TARGET_NAME, owner="wfe-1", manifest=RUN)
        with leases.hold(TARGET_NAME) as lease:
            assert lease.token > (run.token or 0)


def test_the_programs_of_the_page_run(place: Place) -> None:
    page = (ROOT / "docs" / "howto" / "objects.md").read_text()
    first, second = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    told: dict[str, Any] = {}
    exec(first, told)  # noqa: S102  as a reader would
    assert re.fullmatch(rf"{NAME} runs, token \d+", told["remediate"](place.url))
    exec(first.replace("remediation-7", "remediation-8"), told)  # noqa: S102
    assert told["remediate"](place.url).startswith("ResourceBusy (held by remediation-7), try again in ")
    exec(second, told)  # noqa: S102
    assert told["resize"].__name__ == "resize"
