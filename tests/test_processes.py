"""Every kind of store that other processes can reach × both colours, in real time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from leasehold.testing.conformance.process_laws import ProcessLaws
from leasehold.testing.conformance.zookeeper_worlds import make_chroot
from tests.servers import etcd, postgres, redis, zookeeper


def empty_redis(_folder: Path) -> str:
    redis().command("FLUSHALL")
    return redis().url


def empty_postgres(_folder: Path) -> str:
    postgres().execute("DROP SCHEMA IF EXISTS leasehold CASCADE")
    return postgres().url


def empty_zookeeper(folder: Path) -> str:
    chroot = f"/{folder.name}"
    make_chroot(zookeeper(), chroot)
    return f"{zookeeper().url}{chroot}"


def empty_etcd(folder: Path) -> str:
    # Each test has a folder of its own, and so keys of its own.
    return f"{etcd().url}?namespace={folder}/"


# One of each kind: between processes, how a store is reached makes no difference.
URLS: dict[str, Callable[[Path], str]] = {
    "sqlite": lambda folder: f"sqlite://{folder}/leases.db",
    "redis": empty_redis,
    "postgresql": empty_postgres,
    "zookeeper": empty_zookeeper,
    "etcd": empty_etcd,
}


@pytest.fixture(params=["blocking", "asyncio"])
def colour(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=URLS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return URLS[request.param](tmp_path)


class TestProcesses(ProcessLaws):
    pass
