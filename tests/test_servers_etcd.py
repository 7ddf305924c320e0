"""etcd for tests with TLS, with users, and as a cluster, seen from outside: what each does, and that nothing stays."""

from __future__ import annotations

import http.client
import socket
import ssl
from base64 import b64encode

import pytest

import leasehold
from leasehold.testing.servers import EtcdCluster, EtcdServer, ServerFailed
from leasehold.testing.servers.shared import shared
from tests.support import eventually


def written(data: bytes) -> str:
    return b64encode(data).decode()


def put(server: EtcdServer, key: bytes) -> int:
    """Write a key; answers the revision."""
    answer = server.request("kv/put", {"key": written(key), "value": written(b"x")})
    return int(answer["header"]["revision"])


def is_there(server: EtcdServer, key: bytes) -> bool:
    return "kvs" in server.request("kv/range", {"key": written(key)})


def answered_in_the_clear(server: EtcdServer) -> int:
    """The status of an answer without TLS."""
    plain = http.client.HTTPConnection(server.host, server.port, timeout=5)
    plain.request("POST", "/v3/kv/range", "{}")
    status = plain.getresponse().status
    plain.close()
    if status == http.client.BAD_REQUEST:
        raise http.client.HTTPException("it wants TLS")
    return status


def test_with_tls_it_speaks_nothing_else_and_its_certificate_is_for_loopback() -> None:
    with EtcdServer(tls=True) as server:
        put(server, b"key")
        assert server.url == f"etcds://{server.host}:{server.port}?ca={server.ca}"
        with pytest.raises((http.client.HTTPException, OSError)):
            answered_in_the_clear(server)
        context = ssl.create_default_context(cafile=str(server.ca))
        with socket.create_connection((server.host, server.port)) as raw:
            context.wrap_socket(raw, server_hostname="localhost").close()
        server.restart()
        assert is_there(server, b"key")


def test_users_get_in_with_their_password_and_only_to_their_prefix() -> None:
    with EtcdServer(users={"app": ("secret", "leasehold/"), "b/c": ("p@ss", "x/leasehold/")}) as server:
        with leasehold.connect(server.url_for("app", "secret")) as locks:
            assert locks.acquire("job").release() is True
        with leasehold.connect(f"{server.url_for('b/c', 'p@ss')}?namespace=x/") as locks:
            assert locks.acquire("job").release() is True
        with pytest.raises(leasehold.PermissionDenied):
            leasehold.connect(server.url_for("app", "secret") + "?namespace=x/")
        with pytest.raises(leasehold.PermissionDenied):
            leasehold.connect(server.url)
        # The administrator stays one, over a restart.
        server.restart()
        assert put(server, b"anywhere") > 0


def test_a_cluster_survives_the_loss_of_its_leader_and_no_more() -> None:
    cluster = shared("etcd cluster", EtcdCluster())
    leader, followers = cluster.leader, cluster.followers
    assert len(followers) == 2
    before = put(leader, b"key")
    leader.kill()
    successor = cluster.leader
    assert successor in followers
    assert put(successor, b"key") > before
    other = next(member for member in followers if member is not successor)
    other.pause()
    with pytest.raises((ServerFailed, OSError)):
        successor.request("kv/put", {"key": written(b"key"), "value": ""}, timeout=1.0)
    other.go_on()
    leader.start()
    eventually(lambda: is_there(leader, b"key"))
    assert cluster.leader.is_running


def test_a_cluster_leaves_nothing_behind() -> None:
    with EtcdCluster(members=1) as cluster:
        (member,) = cluster.members
        folder, port = member.folder, member.port
        with pytest.raises(ServerFailed, match="runs already"):
            cluster.start()
    assert not folder.exists()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((member.host, port))
