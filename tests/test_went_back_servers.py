"""Stores that went back, from real backups: etcd, ZooKeeper and Kubernetes, which number their grants themselves.

Their tokens follow no clock: any backup that is older than a grant does the harm.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import leasehold
from leasehold.testing.servers import EtcdServer, KubeServer, ZooKeeperServer, programs
from tests.went_back_support import goes_on, went_back, write_until_above


def snapshot(server: EtcdServer, file: Path) -> None:
    """What an operator keeps of an etcd."""
    etcdctl(server, "snapshot", "save", str(file))


def restore(server: EtcdServer, file: Path) -> None:
    """What an operator does with it, while the server is down."""
    data = server.folder / "data"
    shutil.rmtree(data)
    peers = f"http://{server.host}:{server.port + 10000}"
    name = server.name
    words = ["--data-dir", str(data), "--name", name, "--initial-cluster", f"{name}={peers}"]
    etcdctl(server, "snapshot", "restore", str(file), *words, "--initial-advertise-peer-urls", peers)


def etcdctl(server: EtcdServer, *words: str) -> None:
    command = [programs.etcdctl(), f"--endpoints={server.endpoint}", *words]
    subprocess.run(command, env={"ETCDCTL_API": "3"}, check=True, capture_output=True, timeout=60)


def grants(url: str, times: int) -> None:
    with leasehold.connect(url) as locks:
        for _ in range(times):
            locks.acquire("job").release()


# etcd.


@pytest.fixture
def etcd():
    with EtcdServer() as server:
        yield server


def put_back(server: EtcdServer, file: Path) -> Callable[[], None]:
    snapshot(server, file)
    grants(server.url, 20)

    def forget() -> None:
        server.stop()
        restore(server, file)
        server.start()

    return forget


def test_a_restored_etcd_goes_back_until_it_has_counted_further(etcd, tmp_path: Path) -> None:
    went_back(
        etcd.url,
        tmp_path,
        forget=put_back(etcd, tmp_path / "snapshot"),
        repair=lambda mark: write_until_above(etcd, mark),
    )


def test_a_restored_etcd_that_counts_further_before_anybody_comes_does_no_harm(etcd, tmp_path: Path) -> None:
    """What a restore with --bump-revision does, where etcdutl has it."""
    forget = put_back(etcd, tmp_path / "snapshot")

    def forget_and_count() -> None:
        before = int(etcd.request("kv/put", {"key": "YQ=="})["header"]["revision"])
        forget()
        write_until_above(etcd, (before + 1) * 256)

    goes_on(etcd.url, tmp_path, forget=forget_and_count)


# ZooKeeper.


def test_a_restored_zookeeper_goes_back_until_it_has_counted_further(tmp_path: Path) -> None:
    with ZooKeeperServer(sync=False) as server:
        grants(server.url, 1)
        data, copy = server.folder / "data", tmp_path / "copy"
        server.stop()
        shutil.copytree(data, copy)
        server.start()
        grants(server.url, 20)

        def forget() -> None:
            server.stop()
            shutil.rmtree(data)
            shutil.copytree(copy, data)
            server.start()

        def repair(mark: int) -> None:
            with leasehold.connect(server.url) as locks:
                counted = 0
                while counted <= mark:
                    with locks.hold("count") as lease:
                        counted = lease.token

        went_back(server.url, tmp_path, forget=forget, repair=repair, refuses=True)


# Kubernetes.


def test_kubernetes_on_a_restored_etcd_goes_back_until_it_has_counted_further(tmp_path: Path) -> None:
    with KubeServer(rbac=False, audit=False) as server:
        url = f"kubernetes://default?kubeconfig={server.kubeconfig(path=tmp_path / 'kubeconfig')}"
        snapshot(server.etcd, tmp_path / "snapshot")
        grants(url, 20)

        def forget() -> None:
            server.stop()
            server.etcd.stop()
            restore(server.etcd, tmp_path / "snapshot")
            server.etcd.start()
            server.start()

        went_back(url, tmp_path, forget=forget, repair=lambda mark: write_until_above(server.etcd, mark))
