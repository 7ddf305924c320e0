"""ZooKeeper for tests: one, and several that agree; killed, paused and brought back, and gone at the end."""

from __future__ import annotations

import socket
import ssl
from contextlib import closing

import pytest
from kazoo.client import KazooClient

from leasehold.testing.servers import MissingProgram, ZooKeeperEnsemble, ZooKeeperServer, programs
from tests.stores.zookeeper_support import ensemble, fresh_chroot, nodes
from tests.support import eventually


def is_marked(server: ZooKeeperServer, path: str) -> bool:
    return path in nodes(server, "/")


def test_it_keeps_what_was_written_when_it_is_stopped_or_killed() -> None:
    with ZooKeeperServer() as server:
        path = fresh_chroot(server)
        port, pid = server.port, server.pid
        server.restart()
        assert is_marked(server, path)
        assert (server.port, server.pid != pid) == (port, True)
        server.kill()
        assert not server.is_running
        server.start()
        assert is_marked(server, path)
        folder = server.folder
    assert not folder.exists()


def test_a_paused_server_answers_nothing_until_it_goes_on() -> None:
    with ZooKeeperServer() as server:
        server.pause()
        with pytest.raises(TimeoutError):
            server.word("ruok", timeout=0.3)
        server.go_on()
        assert server.word("ruok") == "imok"


def test_other_clients_see_the_same_server() -> None:
    """Not only what was written here: kazoo itself."""
    with ZooKeeperServer() as server:
        path = fresh_chroot(server)
        client = KazooClient(hosts=f"{server.host}:{server.port}")
        client.start()
        try:
            assert client.exists(path) is not None
            assert client.exists(f"{path}/nothing") is None
        finally:
            client.stop()
            client.close()


def test_over_tls_it_is_trusted_through_its_authority_and_by_its_name() -> None:
    with ZooKeeperServer(tls=True) as server:
        good = ssl.create_default_context(cafile=str(server.ca))
        with closing(_wrapped(good, server, "localhost")):
            assert server.word("ruok") == "imok"
        with pytest.raises(ssl.SSLCertVerificationError):
            _wrapped(good, server, "somebody.else")
        with pytest.raises(ssl.SSLCertVerificationError):
            _wrapped(ssl.create_default_context(), server, "localhost")


def _wrapped(context: ssl.SSLContext, server: ZooKeeperServer, name: str) -> ssl.SSLSocket:
    plain = socket.create_connection((server.host, server.port), 10)
    try:
        return context.wrap_socket(plain, server_hostname=name)
    except BaseException:
        plain.close()
        raise


def test_three_agree_and_elect_another_leader_when_theirs_is_killed() -> None:
    group = ensemble()
    leader = group.leader
    path = fresh_chroot(leader)
    assert len(group.followers) == 2
    leader.kill()
    try:
        assert group.leader is not leader
        eventually(lambda: is_marked(group.leader, path))
    finally:
        leader.start()
        group.await_agreement()
    assert len(group.followers) == 2


def test_an_ensemble_is_gone_with_its_block() -> None:
    with ZooKeeperEnsemble(sync=False) as group:
        folders = [node.folder for node in group.nodes]
        assert all(folder.exists() for folder in folders)
    assert not any(folder.exists() for folder in folders)


def test_classes_that_are_missing_are_named_with_their_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "JARS", "/nowhere")
    complaint = r"zookeeper\.jar is not installed here; run: apt-get install -y zookeeper"
    with pytest.raises(MissingProgram, match=complaint), ZooKeeperServer():
        pass
