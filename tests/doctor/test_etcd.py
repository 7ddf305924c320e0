"""Every finding about etcd, provoked on a real one, and absent from a healthy cluster.

The members stand behind proxies that tell a version without known faults.
"""

from __future__ import annotations

import contextlib
import functools
import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from email.utils import formatdate
from typing import Any

import pytest

from leasehold.cli.codes import WARNED
from leasehold.doctor.examine import Report, examine
from leasehold.doctor.facts import EtcdFacts
from leasehold.doctor.versions import ETCD
from leasehold.testing.servers import EtcdCluster, EtcdServer, ServerFailed
from tests.doctor.support import Liar, Trouble, check_trouble, codes, doctor
from tests.stores.etcd_support import written
from tests.support import eventually

USERS = {"app": ("secret", "leasehold/")}
HEALTHY = b"3.4.99"
FSYNC = "etcd_disk_wal_fsync_duration_seconds_bucket"
Change = Callable[[str], str]


class EtcdLiar(Liar):
    """Tells another version, and another page of metrics at another time."""

    def __init__(self, server: EtcdServer, version: bytes = HEALTHY, change: Change = str, ahead: float = 0.0) -> None:
        truth = server.request("maintenance/status", {})["version"].encode()
        super().__init__(server.host, server.port, {truth: version})
        self._server = server
        self._change = change
        self._ahead = ahead
        self.silent = False

    def _join(self, client: socket.socket) -> None:
        if not client.recv(12, socket.MSG_PEEK).startswith(b"GET /metrics"):
            super()._join(client)
            return
        # A member that is down tells nothing, and its connection ends.
        with client, contextlib.suppress(OSError):
            client.recv(65536)
            body = self._change(self._server.metrics()).encode()
            status = "404 Not Found" if self.silent else "200 OK"
            date = formatdate(time.time() + self._ahead, usegmt=True)
            head = f"HTTP/1.1 {status}\r\nDate: {date}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            client.sendall(head.encode() + body)


class Place:
    """A healthy cluster, and single servers, started when they are first needed."""

    def __init__(self, started: ExitStack) -> None:
        self._started = started

    @functools.cached_property
    def cluster(self) -> EtcdCluster:
        return self._started.enter_context(EtcdCluster(users=USERS))

    @functools.cached_property
    def single(self) -> EtcdServer:
        return self._started.enter_context(EtcdServer(users=USERS))

    @functools.cached_property
    def open_one(self) -> EtcdServer:
        return self._started.enter_context(EtcdServer())

    def liar(self, server: EtcdServer, **told: Any) -> EtcdLiar:
        return self._started.enter_context(EtcdLiar(server, **told))

    def url(self, *liars: EtcdLiar) -> str:
        return f"etcd://app:secret@{','.join(f'127.0.0.1:{liar.port}' for liar in liars)}"

    @functools.cached_property
    def liars(self) -> list[EtcdLiar]:
        return [self.liar(member) for member in self.cluster.members]

    def told(self, **told: Any) -> str:
        """The cluster, each of whose members tells this."""
        return self.url(*(self.liar(member, **told) for member in self.cluster.members))


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with ExitStack() as started:
        yield Place(started)


@pytest.fixture(scope="module")
def healthy(place: Place) -> Report:
    return examine(place.url(*place.liars))


@contextmanager
def early_revocation(place: Place) -> Iterator[dict[str, Any]]:
    yield {"url": place.told(version=b"3.4.30")}


@contextmanager
def stale_reads(place: Place) -> Iterator[dict[str, Any]]:
    yield {"url": place.told(version=b"3.5.27")}


@contextmanager
def lease_rights(place: Place) -> Iterator[dict[str, Any]]:
    yield {"url": place.told(version=b"3.6.08")}


@contextmanager
def member_down(place: Place) -> Iterator[dict[str, Any]]:
    url = place.url(*place.liars)
    lost = place.cluster.followers[0]
    lost.kill()
    try:
        yield {"url": url}
    finally:
        lost.start()
        eventually(lambda: place.cluster.leader)


@contextmanager
def single_member(place: Place) -> Iterator[dict[str, Any]]:
    yield {"url": place.url(place.liar(place.single))}


@contextmanager
def members_unnamed(place: Place) -> Iterator[dict[str, Any]]:
    yield {"url": place.url(place.liars[0])}


@contextmanager
def slow_disk(place: Place) -> Iterator[dict[str, Any]]:
    def slower(text: str) -> str:
        # As if no sync had been quicker than 0.256 s.
        lines = text.splitlines()
        quick = [f'{FSYNC}{{le="{0.001 * 2**n:g}"}} ' for n in range(8)]
        assert sum(line.startswith(tuple(quick)) for line in lines) == len(quick)
        return "\n".join(line.rpartition(" ")[0] + " 0" if line.startswith(tuple(quick)) else line for line in lines)

    yield {"url": place.told(change=slower)}


@contextmanager
def space_nearly_full(place: Place) -> Iterator[dict[str, Any]]:
    def smaller(text: str) -> str:
        name = "etcd_server_quota_backend_bytes"
        lines = text.splitlines()
        assert sum(line.startswith(f"{name} ") for line in lines) == 1
        return "\n".join(f"{name} 20000" if line.startswith(f"{name} ") else line for line in lines)

    yield {"url": place.told(change=smaller)}


@contextmanager
def alarm(place: Place) -> Iterator[dict[str, Any]]:
    with EtcdServer(users=USERS, config={"quota-backend-bytes": 2_000_000}) as small:
        for n in range(100):
            try:
                small.request("kv/put", {"key": written(b"ballast%d" % n), "value": written(b"x" * 200_000)})
            except ServerFailed:
                break
        yield {"url": place.url(place.liar(small))}


@contextmanager
def open_to_all(place: Place) -> Iterator[dict[str, Any]]:
    yield {"url": place.url(place.liar(place.open_one))}


@contextmanager
def clock_differs(place: Place) -> Iterator[dict[str, Any]]:
    yield {"url": place.told(ahead=60.0)}


@contextmanager
def not_examined(place: Place) -> Iterator[dict[str, Any]]:
    liars = [place.liar(member) for member in place.cluster.members]
    for liar in liars:
        liar.silent = True
    yield {"url": place.url(*liars)}


TROUBLES: dict[str, Trouble] = {
    "etcd-early-revocation": early_revocation,
    "etcd-stale-reads": stale_reads,
    "etcd-lease-rights": lease_rights,
    "etcd-member-down": member_down,
    "etcd-single-member": single_member,
    "etcd-members-unnamed": members_unnamed,
    "etcd-slow-disk": slow_disk,
    "etcd-space-nearly-full": space_nearly_full,
    "etcd-alarm": alarm,
    "etcd-open": open_to_all,
    "clock-differs": clock_differs,
    "not-examined": not_examined,
}
# What cannot but come with it.
ALSO = {
    "etcd-early-revocation": ("etcd-stale-reads", "etcd-lease-rights"),
    "etcd-stale-reads": ("etcd-lease-rights",),
    "etcd-lease-rights": ("etcd-stale-reads",),
    "etcd-alarm": ("etcd-single-member", "etcd-space-nearly-full", "verb-fails"),
    "etcd-open": ("etcd-single-member",),
}


@pytest.mark.parametrize("code", TROUBLES)
def test_a_trouble_is_found_and_nothing_else(code: str, place: Place, healthy: Report) -> None:
    check_trouble(code, TROUBLES[code](place), healthy, ALSO.get(code, ()))


def test_a_healthy_cluster_is_seen_whole(healthy: Report) -> None:
    facts = healthy.facts
    assert isinstance(facts, EtcdFacts)
    assert [one.leads for one in facts.members].count(True) == 1
    assert (len(facts.members), facts.voters, facts.guarded) == (3, 3, True)
    assert all(one.version == (3, 4, 99) and one.quota and one.sync_p99 is not None for one in facts.members)
    assert abs(facts.difference) <= facts.difference_error + 1.0


def test_the_version_of_this_very_server_has_the_faults_it_has(place: Place) -> None:
    """Debian's 3.4.23: told without a lie."""
    server = place.open_one
    version = tuple(map(int, server.request("maintenance/status", {})["version"].split(".")))
    report = examine(server.url)
    expected = {bug.code for bug in ETCD if bug.affects(version)}
    assert codes(report) == expected | {"etcd-single-member", "etcd-open"}


def test_the_command_tells_it(place: Place) -> None:
    done = doctor("--store", place.open_one.url, "--json")
    assert done.returncode == WARNED
    told = {found["code"] for found in json.loads(done.stdout)["findings"]}
    assert {"etcd-open", "etcd-single-member"} <= told
