"""Every finding about ZooKeeper, provoked on a real one, and absent from a healthy one.

The server stands behind a proxy that tells a version without known faults.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

import leasehold
from leasehold.cli.codes import ILL, UNAVAILABLE
from leasehold.doctor.examine import Report, examine
from leasehold.doctor.facts import Contents, ZooKeeperFacts
from leasehold.doctor.versions import ZOOKEEPER
from leasehold.testing.servers import ZooKeeperServer
from leasehold.testing.servers.process import free_port
from tests.doctor.support import Liar, Trouble, check_trouble, codes, doctor
from tests.stores.zookeeper_support import ensemble, fresh_chroot, nodes

LIMIT = 12


class Place:
    """A server with the proxy before it."""

    def __init__(self, server: ZooKeeperServer) -> None:
        self.server = server
        srvr = server.word("srvr").splitlines()[0]
        self.version = srvr.partition(": ")[2].partition("-")[0]

    def told(self, version: str) -> Liar:
        """A proxy through which the server seems to have another version, written as long as its own."""
        return Liar(
            "127.0.0.1", self.server.port, {f"version: {self.version}".encode(): f"version: {version}".encode()}
        )

    def url(self, liar: Liar, login: str = "app:secret@") -> str:
        return f"zookeeper://{login}127.0.0.1:{liar.port}{fresh_chroot(self.server)}"


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with ZooKeeperServer(config={"maxClientCnxns": LIMIT}) as server:
        yield Place(server)


@pytest.fixture(scope="module")
def healthy(place: Place) -> Report:
    with place.told("9.9.9") as liar:
        return examine(place.url(liar))


def version(number: str) -> Trouble:
    @contextmanager
    def told(place: Place) -> Iterator[dict[str, Any]]:
        with place.told(number) as liar:
            yield {"url": place.url(liar)}

    return told


@contextmanager
def server_missing(place: Place) -> Iterator[dict[str, Any]]:
    with place.told("9.9.9") as liar:
        url = place.url(liar)
        yield {"url": url.replace(f":{liar.port}", f":{liar.port},127.0.0.1:{free_port()}")}


@contextmanager
def ttl_refused(place: Place) -> Iterator[dict[str, Any]]:
    with place.told("9.9.9") as liar:
        yield {"url": place.url(liar), "ttl": 300.0}


@contextmanager
def connections(place: Place) -> Iterator[dict[str, Any]]:
    with place.told("9.9.9") as liar, ExitStack() as stack:
        url = place.url(liar)
        for _ in range(LIMIT - 3):
            stack.enter_context(leasehold.connect(url))
        yield {"url": url}


@contextmanager
def open_to_all(place: Place) -> Iterator[dict[str, Any]]:
    with place.told("9.9.9") as liar:
        yield {"url": place.url(liar, login="")}


TROUBLES: dict[str, Trouble] = {
    "zookeeper-sync-bug": version("3.8.3"),
    "zookeeper-gap-bug": version("3.9.3"),
    "zookeeper-server-missing": server_missing,
    "zookeeper-ttl-refused": ttl_refused,
    "zookeeper-connections-nearly-full": connections,
    "zookeeper-world-writable": open_to_all,
}


@pytest.mark.parametrize("code", TROUBLES)
def test_each_trouble_is_found_and_no_other(code: str, place: Place, healthy: Report) -> None:
    check_trouble(code, TROUBLES[code](place), healthy)


def test_a_server_of_the_ensemble_that_is_down_is_named() -> None:
    group = ensemble()
    chroot = fresh_chroot(group.leader)
    follower = group.followers[0]
    follower.kill()
    try:
        report = examine(group.url.replace("://", "://app:secret@") + chroot)
    finally:
        follower.start()
        group.await_agreement()
    (found,) = [each for each in report.findings if each.code == "zookeeper-server-missing"]
    assert found.value == f"{follower.host}:{follower.port}"


def test_the_server_s_own_version_is_told(place: Place) -> None:
    """The control of the proxy."""
    report = examine(f"{place.server.url_for('app', 'secret')}{fresh_chroot(place.server)}")
    assert isinstance(report.facts, ZooKeeperFacts)
    (server,) = report.facts.servers
    assert server.version == tuple(map(int, place.version.split(".")))
    assert codes(report) == {bug.code for bug in ZOOKEEPER if bug.affects(server.version)}


def test_the_facts_are_those_of_the_server(place: Place) -> None:
    url = f"{place.server.url}{fresh_chroot(place.server)}"
    with leasehold.connect(url) as locks:
        locks.acquire("one")
        locks.acquire("two")
        facts = examine(url).facts
    assert isinstance(facts, ZooKeeperFacts)
    assert facts.contents == Contents(2, 0)
    assert (facts.shortest, facts.longest, facts.open_to_all) == (0.2, 120.0, True)
    assert (facts.servers[0].mode, facts.servers[0].limit) == ("standalone", LIMIT)


def test_words_that_a_server_does_not_answer_are_told_as_not_examined() -> None:
    with ZooKeeperServer(config={"4lw.commands.whitelist": "srvr, conf"}) as server:
        report = examine(f"{server.url_for('app', 'secret')}{fresh_chroot(server)}")
    assert "not-examined" in codes(report)


def test_the_command_examines_zookeeper(place: Place) -> None:
    with ttl_refused(place) as given:
        done = doctor("--store", given["url"], "--ttl", "300")
    assert done.returncode == ILL
    assert "zookeeper: 1 error" in done.stdout


def test_a_server_that_does_not_answer_is_unavailable() -> None:
    assert doctor("--store", f"zookeeper://127.0.0.1:{free_port()}", "--timeout", "5").returncode == UNAVAILABLE


def test_the_doctor_leaves_nothing_behind(place: Place) -> None:
    chroot = fresh_chroot(place.server)
    url = f"{place.server.url}{chroot}"
    leasehold.connect(url).close()
    before = nodes(place.server, chroot)
    examine(url)
    assert nodes(place.server, chroot) == before
