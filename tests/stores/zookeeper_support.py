"""A ZooKeeper store driven from plain tests, the servers several of them share, and an administrator."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from leasehold.engine.blocking import drive
from leasehold.testing.conformance.zookeeper_worlds import make_chroot, plain_wire
from leasehold.testing.proxy import Proxy
from leasehold.testing.servers import ZooKeeperEnsemble, ZooKeeperServer
from leasehold.testing.servers.shared import shared
from leasehold.wires import zookeeper_frames as frames
from leasehold.wires.zookeeper import Session
from tests.servers import zookeeper

_turn = itertools.count()


def fresh(server: ZooKeeperServer | None = None) -> str:
    """The URL of an empty place on a server, which is the shared one if none is given."""
    found = server or zookeeper()
    return f"{found.url}{fresh_chroot(found)}"


def fresh_chroot(server: ZooKeeperServer) -> str:
    chroot = f"/test-{os.getpid()}-{next(_turn)}"
    make_chroot(server, chroot)
    return chroot


def behind(proxy: Proxy, server: ZooKeeperServer | None = None) -> str:
    """The URL of an empty place on the server that a proxy leads to."""
    return f"zookeeper://127.0.0.1:{proxy.port}{fresh_chroot(server or zookeeper())}"


def chroot_of(url: str) -> str:
    return "/" + url.rpartition("/")[2]


def ensemble() -> ZooKeeperEnsemble:
    """Three servers, of which tests kill and pause one and bring it back."""
    return shared("zookeeper ensemble", ZooKeeperEnsemble(sync=False))


def with_tls() -> ZooKeeperServer:
    return shared("zookeeper with TLS", ZooKeeperServer(tls=True, sync=False))


def with_short_sessions() -> ZooKeeperServer:
    """One whose sessions last half a second at most."""
    return shared("zookeeper with short sessions", ZooKeeperServer(sync=False, config={"maxSessionTimeout": 500}))


def asked(server: ZooKeeperServer, *requests: Any) -> list[Any]:
    """What a server answers to an administrator."""
    session = Session(plain_wire(server), 5.0)
    try:
        return drive(session.ask(requests))
    finally:
        drive(session.end())


def nodes(server: ZooKeeperServer, path: str) -> list[str]:
    """All nodes below a path."""
    (children,) = asked(server, frames.GetChildren(path, False))
    below = [] if isinstance(children, frames.Refused) else [f"{path.rstrip('/')}/{child}" for child in children]
    return [*below, *(deeper for child in below for deeper in nodes(server, child))]


def records(server: ZooKeeperServer, url: str) -> dict[str, Any]:
    """The stat of every record at a place, by path."""
    within = f"{chroot_of(url)}/leasehold/records/"
    paths = [path for path in nodes(server, within.rstrip("/")) if path.count("/") > within.count("/")]
    return dict(
        zip(paths, asked(server, *(frames.Exists(path, False) for path in paths)) if paths else (), strict=True)
    )


def witnesses(server: ZooKeeperServer, url: str) -> list[str]:
    within = f"{chroot_of(url)}/leasehold/witnesses/"
    return [path for path in nodes(server, within.rstrip("/")) if path.count("/") > within.count("/")]


def in_thread(call: Callable[[], Any]) -> Future[Any]:
    pool = ThreadPoolExecutor(1)
    try:
        return pool.submit(call)
    finally:
        pool.shutdown(wait=False)
