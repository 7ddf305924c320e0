"""Where the programs are that the servers are made of, and what to install when one is missing."""

from __future__ import annotations

import os
import re
import shutil
from glob import glob
from pathlib import Path

from leasehold.errors import LeaseholdError

# Debian keeps each PostgreSQL version in a folder of its own, off the PATH, and daemons in sbin, off a user's PATH.
POSTGRES = "/usr/lib/postgresql/*/bin"
SBIN = "/usr/local/sbin:/usr/sbin:/sbin"
FAKETIME = ("/usr/lib/*/faketime", "/usr/lib/faketime", "/usr/lib64/faketime", "/usr/local/lib/faketime")
# Where Debian keeps what Java programs are made of.
JARS = "/usr/share/java"
ZOOKEEPER = ("zookeeper", "netty-codec", "netty-resolver", "slf4j-simple")
# What envtest calls the folder with kube-apiserver, etcd and kubectl.
KUBE_ASSETS = "KUBEBUILDER_ASSETS"
KUBE_CACHE = Path("leasehold", "kube-apiserver-1.20.2")


class MissingProgram(LeaseholdError):
    """A program that a server needs is not on this machine."""

    def __init__(self, program: str, package: str | None, remedy: str = "") -> None:
        super().__init__(f"{program} is not installed here; run: {remedy or f'apt-get install -y {package}'}")
        self.program: str = program
        self.package: str | None = package


def redis_server(name: str = "redis-server") -> str:
    return _found(name, "redis-server")


def postgres(name: str) -> str:
    """A program of PostgreSQL, of the newest version that Debian's packages brought, else from PATH."""
    return _found(name, "postgresql", *sorted(glob(POSTGRES), key=_version, reverse=True))


def pgbouncer() -> str:
    return _found("pgbouncer", "pgbouncer")


def openssl() -> str:
    return _found("openssl", "openssl")


def etcd() -> str:
    return _found("etcd", "etcd-server", *_kube_assets())


def etcdctl() -> str:
    """etcd's own client, which takes and restores snapshots."""
    return _found("etcdctl", "etcd-client", *_kube_assets())


def java() -> str:
    return _found("java", "default-jre-headless")


def zookeeper_classes() -> str:
    """ZooKeeper and what it is made of, with a log on its output."""
    found = [place for name in ZOOKEEPER for place in glob(f"{JARS}/{name}.jar")]
    if len(found) < len(ZOOKEEPER):
        raise MissingProgram("zookeeper.jar", "zookeeper")
    return ":".join(found)


def kubectl() -> str:
    return _found("kubectl", "kubernetes-client", *_kube_assets())


def kube_apiserver() -> str:
    return _kube_found("kube-apiserver")


def client_go_leader_election() -> str:
    """client-go's own example of an elected leader, as a rival; its flags are -kubeconfig, -id, -lease-lock-name."""
    return _kube_found("client-go-leader-election")


def libfaketime() -> str:
    """The library that servers with a moved clock are started with."""
    for place in FAKETIME:
        for path in glob(f"{place}/libfaketime.so.1"):
            return path
    raise MissingProgram("libfaketime.so.1", "libfaketime")


def _kube_found(name: str) -> str:
    """Which no package of Debian has: where envtest keeps it, else from PATH, else where `make servers` put it."""
    for place in (*_kube_assets(), None, SBIN, _kube_cache()):
        if path := shutil.which(name, path=place):
            return path
    raise MissingProgram(name, None, f"make servers (or let {KUBE_ASSETS} name a folder that has it)")


def _kube_assets() -> list[str]:
    assets = os.environ.get(KUBE_ASSETS)
    return [assets] if assets else []


def _kube_cache() -> str:
    cache = os.environ.get("XDG_CACHE_HOME")
    return str((Path(cache) if cache else Path.home() / ".cache") / KUBE_CACHE)


def _found(name: str, package: str, *places: str) -> str:
    for place in (*places, None, SBIN):
        if path := shutil.which(name, path=place):
            return path
    raise MissingProgram(name, package)


def _version(place: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", place)]
