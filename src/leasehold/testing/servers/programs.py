"""Where the programs are that the servers are made of, and what to install when one is missing."""

from __future__ import annotations

import re
import shutil
from glob import glob

from leasehold.errors import LeaseholdError

# Debian keeps each PostgreSQL version in a folder of its own, off the PATH, and daemons in sbin, off a user's PATH.
POSTGRES = "/usr/lib/postgresql/*/bin"
SBIN = "/usr/local/sbin:/usr/sbin:/sbin"
FAKETIME = ("/usr/lib/*/faketime", "/usr/lib/faketime", "/usr/lib64/faketime", "/usr/local/lib/faketime")


class MissingProgram(LeaseholdError):
    """A program that a server needs is not on this machine."""

    def __init__(self, program: str, package: str) -> None:
        super().__init__(f"{program} is not installed here; run: apt-get install -y {package}")
        self.program: str = program
        self.package: str = package


def redis_server(name: str = "redis-server") -> str:
    return _found(name, "redis-server")


def postgres(name: str) -> str:
    """A program of PostgreSQL, of the newest version that Debian's packages brought, else from PATH."""
    return _found(name, "postgresql", *sorted(glob(POSTGRES), key=_version, reverse=True))


def pgbouncer() -> str:
    return _found("pgbouncer", "pgbouncer")


def openssl() -> str:
    return _found("openssl", "openssl")


def libfaketime() -> str:
    """The library that servers with a moved clock are started with."""
    for place in FAKETIME:
        for path in glob(f"{place}/libfaketime.so.1"):
            return path
    raise MissingProgram("libfaketime.so.1", "libfaketime")


def _found(name: str, package: str, *places: str) -> str:
    for place in (*places, None, SBIN):
        if path := shutil.which(name, path=place):
            return path
    raise MissingProgram(name, package)


def _version(place: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", place)]
