"""Elections on Kubernetes: client-go's record, the least role, and one leader of a fleet that is not all ours."""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import leasehold
from leasehold.cli.manifests import command
from leasehold.rules import kubernetes_roles as roles
from leasehold.testing.conformance import kube_worlds
from leasehold.testing.servers import KubeServer
from tests.election_fleet import PATIENCE, Candidate, Term, await_leader, overlaps, read_terms
from tests.election_rivals import ClientGo, Official, Rival
from tests.support import count, eventually

NAME = "scheduler"
USER = "leasehold-app"
TTL = 4


class Place:
    """A namespace of the one server, and what the user may do there."""

    def __init__(self, folder: Path, kube: KubeServer, namespace: str) -> None:
        self.kube = kube
        self.namespace = namespace
        self.kubeconfig = kube.kubeconfig(USER, namespace, folder / "kubeconfig")
        self.path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"

    @property
    def url(self) -> str:
        return f"kubernetes://{self.namespace}?kubeconfig={self.kubeconfig}"

    def lease(self) -> dict[str, Any]:
        """The object as an administrator sees it."""
        return self.kube.request("GET", f"{self.path}/{NAME}")

    def verbs(self, decision: str) -> set[tuple[str, str]]:
        """What the user has asked for in this namespace and RBAC decided so: verb and resource."""
        return {
            (event["verb"], event["objectRef"]["resource"])
            for event in self.kube.audit()
            if event["user"].get("username") == USER
            and event.get("objectRef", {}).get("namespace") == self.namespace
            and event.get("annotations", {}).get("authorization.k8s.io/decision") == decision
        }


@pytest.fixture
def place(tmp_path: Path) -> Place:
    kube = kube_worlds.kube()
    return Place(tmp_path, kube, kube_worlds.namespace(kube, verbs=roles.ORDINARY))


def spec(place: Place) -> dict[str, Any]:
    return place.lease()["spec"]


# The record.


def test_the_record_is_client_go_s_and_its_object_stays(place: Place) -> None:
    with leasehold.connect(place.url) as locks:
        first, second = (leasehold.Election(locks, NAME, identity=each, ttl=TTL) for each in ("one", "two"))
        first.campaign()
        uid, led = place.lease()["metadata"]["uid"], spec(place)
        assert (led["holderIdentity"], led["leaseDurationSeconds"]) == ("one", TTL)
        assert led.get("leaseTransitions", 0) == 0
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", led["acquireTime"])
        first.resign()
        free = spec(place)
        assert (free["holderIdentity"], free["leaseDurationSeconds"]) == ("", 1)
        second.campaign()
        assert spec(place)["holderIdentity"] == "two"
        assert spec(place)["leaseTransitions"] == 1
        second.resign()
        first.campaign()
        assert spec(place)["leaseTransitions"] == 2
        assert place.lease()["metadata"]["uid"] == uid


def test_a_renewal_keeps_the_time_of_the_election_and_the_transitions(place: Place) -> None:
    with leasehold.connect(place.url) as locks:
        won = leasehold.Election(locks, NAME, ttl=TTL).campaign()
        before = spec(place)
        assert won.renew()
        after = spec(place)
        assert after.pop("renewTime") > before.pop("renewTime")
        assert after == before


def test_a_leader_that_is_not_ours_is_shown_without_a_token_and_its_renewals_are_no_change(place: Place) -> None:
    times = {"acquireTime": "2026-01-01T00:00:00.000001Z", "leaseDurationSeconds": 60, "holderIdentity": "theirs"}

    def renewed(second: int) -> dict[str, Any]:
        return {"spec": times | {"renewTime": f"2026-01-01T00:00:{second:02}.000001Z"}}

    place.kube.request("POST", place.path, {"metadata": {"name": NAME}} | renewed(1))
    with leasehold.connect(place.url) as locks:
        election = leasehold.Election(locks, NAME)
        leader = election.leader()
        assert leader is not None
        assert (leader.identity, leader.token) == ("theirs", None)
        with pytest.raises(leasehold.AcquireTimeout, match="theirs"):
            election.campaign(wait=0)
        changes = election.observe()
        assert next(changes) is not None
        place.kube.request("PATCH", f"{place.path}/{NAME}", renewed(2))
        place.kube.request("PATCH", f"{place.path}/{NAME}", {"spec": {"holderIdentity": ""}})
        assert next(changes) is None


# The role.


def apply(kube: KubeServer, *words: str) -> None:
    """What the command prints, for a user instead of a service account, which has no token here."""
    listed = run_command("rbac", *words, "--json")
    for each in listed["items"]:
        if each["kind"] == "RoleBinding":
            each["subjects"] = [{"apiGroup": roles.RBAC, "kind": "User", "name": USER}]
    kube.kubectl("apply", "-f", "-", text=json.dumps(listed))


def run_command(*words: str) -> Any:
    done = CliRunner().invoke(command, list(words))
    assert done.exit_code == 0, done.output
    return json.loads(done.output)


def strict(folder: Path, name: str) -> Place:
    """A namespace where the user has the strict role, and nothing else."""
    kube = kube_worlds.kube()
    namespace = f"{name}-{secrets.token_hex(4)}"
    kube.request("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
    apply(kube, "--namespace", namespace, "--strict", "--name", NAME)
    return Place(folder, kube, namespace)


def test_an_election_needs_no_more_than_get_and_update_of_a_lease_made_beforehand(tmp_path: Path) -> None:
    place = strict(tmp_path, "strict")
    log = tmp_path / "diary"
    with contextlib.ExitStack() as stack:
        url = f"{place.url}&watch=no"
        fleet = [Candidate(url, colour, f"candidate-{colour}", TTL, log) for colour in ("blocking", "asyncio")]
        for each in fleet:
            stack.callback(each.kill)
        first = await_leader(log)
        leader, other = sorted(fleet, key=lambda each: each.identity != first.leader)
        leader.stop()
        await_leader(log, first.leader)
        other.stop()
    assert overlaps(read_terms(log)) == []
    assert place.verbs("allow") == {("get", "leases"), ("update", "leases")}
    assert place.verbs("forbid") == set()
    assert spec(place)["leaseTransitions"] == len(read_terms(log))


def test_the_strict_role_allows_nothing_else(tmp_path: Path) -> None:
    """The control: the server does refuse what the role does not name."""
    place = strict(tmp_path, "control")
    with leasehold.connect(place.url) as locks:
        with pytest.raises(leasehold.PermissionDenied, match="manifests rbac"):
            locks.try_acquire("anything")
        with pytest.raises(leasehold.PermissionDenied):
            leasehold.Election(locks, "another").campaign(wait=0)
        with pytest.raises(leasehold.PermissionDenied):
            locks.list()


def test_who_may_not_watch_and_did_not_say_so_asks_once_and_is_elected_all_the_same(tmp_path: Path) -> None:
    place = strict(tmp_path, "unsaid")
    with leasehold.connect(place.url) as one, leasehold.connect(place.url) as other:
        won = leasehold.Election(one, NAME, ttl=TTL).campaign()
        heir = leasehold.Election(other, NAME, ttl=TTL)
        with pytest.raises(leasehold.AcquireTimeout):
            heir.campaign(wait=1)
        won.release()
        assert heir.campaign().held
    assert place.verbs("forbid") == {("watch", "leases")}


# Mixed fleets.


class Fleet:
    """Three candidates of each kind, for one Lease, and who has led."""

    def __init__(self, place: Place, folder: Path, stack: contextlib.ExitStack) -> None:
        self.place = place
        self.folder = folder
        self.log = folder / "diary"
        self.stack = stack
        self.started = 0
        self.ours: list[Candidate] = []
        self.client_go: list[Rival] = []
        self.official: list[Rival] = []

    def start_rivals(self, kind: type[ClientGo | Official]) -> list[Rival]:
        made: list[Rival] = []
        for number in range(3):
            rival = kind(number, self.place.kubeconfig, self.place.namespace, NAME, self.folder)
            self.stack.callback(rival.kill)
            made.append(rival)
        return made

    def start_ours(self, colours: tuple[str, ...] = ("blocking", "asyncio", "blocking")) -> None:
        for colour in colours:
            self.started += 1
            made = Candidate(self.place.url, colour, f"leasehold-{self.started}", TTL, self.log)
            self.stack.callback(made.kill)
            self.ours.append(made)

    def step_down(self, leader: Candidate, *successors: Any) -> None:
        """One of ours steps down while only these can see it."""
        others = [each for each in self.everybody() if each is not leader and each not in successors]
        with self.paused(*others):
            leader.stop()
            self.ours.remove(leader)
            eventually(lambda: self.terms()[-1].leader in {each.identity for each in successors}, PATIENCE)

    def terms(self) -> list[Term]:
        """Everybody's, in the order in which they began."""
        theirs = [term for rival in (*self.client_go, *self.official) for term in rival.terms()]
        return sorted([*read_terms(self.log), *theirs], key=lambda term: term.begun)

    def await_leader(self, *kinds: str, but: str = "") -> Any:
        """The candidate that was the last to say that it leads, once it is of these kinds; the server says the same."""

        def last() -> str:
            terms = self.terms()
            return terms[-1].leader if terms and terms[-1].leader != but else ""

        eventually(lambda: last().startswith(kinds), PATIENCE)
        holder = spec(self.place)["holderIdentity"]
        (leader,) = (each for each in self.everybody() if each.identity == holder)
        assert leader.identity == last()
        return leader

    def everybody(self) -> list[Any]:
        """All that have not ended."""
        return [each for each in (*self.ours, *self.client_go, *self.official) if each.process.poll() is None]

    @contextlib.contextmanager
    def paused(self, *candidates: Any) -> Iterator[None]:
        for each in candidates:
            each.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            for each in candidates:
                each.process.send_signal(signal.SIGCONT)


@pytest.mark.parametrize("kind", [ClientGo, Official])
def test_leaders_of_two_elections_are_seen_to_lead_at_once(
    place: Place, tmp_path: Path, kind: type[ClientGo | Official]
) -> None:
    """The control: what the rivals say of themselves can show an overlap with what ours say."""
    elsewhere = Place(tmp_path, place.kube, kube_worlds.namespace(place.kube, verbs=roles.ORDINARY))
    with contextlib.ExitStack() as stack:
        fleet = Fleet(elsewhere, tmp_path, stack)
        fleet.client_go = fleet.start_rivals(kind)
        eventually(fleet.terms, PATIENCE)
        fleet.place = place
        fleet.start_ours()
        eventually(lambda: overlaps(fleet.terms()), PATIENCE)


OURS, GO, PYTHON_CLIENT = "leasehold-", "client-go-", "official-"
ANYBODY = (OURS, GO, PYTHON_CLIENT)


@pytest.mark.timeout(400)
def test_a_fleet_of_leasehold_client_go_and_the_official_client_has_one_leader(place: Place, tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        fleet = Fleet(place, tmp_path, stack)
        fleet.client_go = fleet.start_rivals(ClientGo)
        leader = fleet.await_leader(GO)
        fleet.official = fleet.start_rivals(Official)
        fleet.start_ours()
        # Takes the minute that client-go's example writes, so it is done in a soak run.
        for _ in range(count(2) - 1):
            leader = kill_client_go(fleet, leader)
        # client-go steps down while no other rival can see it: one of ours follows.
        with fleet.paused(*(each for each in (*fleet.client_go, *fleet.official) if each is not leader and each.alive)):
            leader.step_down()
            leader = fleet.await_leader(OURS)
        # Ours is stopped for longer than its ttl: another follows, and it does not believe when it goes on.
        with fleet.paused(leader):
            other = fleet.await_leader(OURS, but=leader.identity)
        # Ours is killed.
        other.kill()
        leader = fleet.await_leader(OURS, but=other.identity)
        # Ours steps down and nobody but the official client can see it.
        fleet.step_down(leader, *fleet.official)
        leader = fleet.await_leader(PYTHON_CLIENT)
        # The official one is killed: whoever follows has waited for what it wrote.
        leader.kill()
        fleet.await_leader(*ANYBODY, but=leader.identity)
        terms, transitions = fleet.terms(), spec(place)["leaseTransitions"]
    assert overlaps(terms) == []
    # The official client counts no transition of its own; the first leader made the object.
    assert transitions == sum(not term.leader.startswith(PYTHON_CLIENT) for term in terms) - 1
    assert {term.leader.rpartition("-")[0] + "-" for term in terms} == set(ANYBODY)


def kill_client_go(fleet: Fleet, leader: Any) -> Any:
    """Kill a leader that is client-go's; one of ours follows, and hands over to client-go again."""
    with fleet.paused(*(each for each in (*fleet.client_go, *fleet.official) if each is not leader and each.alive)):
        leader.kill()
        leader = fleet.await_leader(OURS)
    fleet.step_down(leader, *fleet.client_go)
    fleet.start_ours(("asyncio",))
    return fleet.await_leader(GO)
