"""The tale that every store tells: it forgets what it granted, somebody notices, it is repaired, and work goes on."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import leasehold
from leasehold import fence
from leasehold.testing.servers import EtcdServer

PROGRAM = Path(sys.executable).with_name("leasehold")


def went_back(
    url: str, folder: Path, *, forget: Callable[[], None], repair: Callable[[int], None], refuses: bool = False
) -> None:
    """Use a store, have it forget, see that both a client and a resource notice, repair it, and go on.

    `refuses`: the server itself turns away whoever has seen more than it knows.
    """
    total = fence.File(folder / "total")
    with leasehold.connect(url) as locks:
        with locks.hold("job") as lease:
            total.open(lease).write(b"1")
        forget()
        if refuses:
            with pytest.raises(leasehold.StoreUnavailable, match="older than what this client has seen"):
                locks.acquire("job", wait=0)
        else:
            with pytest.raises(leasehold.StoreWentBack) as told:
                locks.acquire("job")
            assert (told.value.mark, told.value.token <= lease.token) == (lease.token, True)
        with leasehold.connect(url) as newcomer, newcomer.hold("job") as late:
            # It remembers nothing, and so the store gave it a lease; what it is for does remember.
            assert late.token < lease.token
            with pytest.raises(leasehold.StoreWentBack) as refused:
                total.open(late)
            assert refused.value.mark == lease.token
        repair(refused.value.mark)
        with locks.hold("job") as again:
            assert again.token > lease.token
            opened = total.open(again)
            assert opened.read() == b"1"
            opened.write(b"2")


def goes_on(url: str, folder: Path, *, forget: Callable[[], None]) -> None:
    """Use a store, have it forget, and see that its tokens grow all the same."""
    total = fence.File(folder / "total")
    with leasehold.connect(url) as locks:
        with locks.hold("job") as lease:
            total.open(lease).write(b"1")
        forget()
        with locks.hold("job") as again:
            assert again.token > lease.token
            total.open(again).write(b"2")


def raise_tokens(url: str, above: int, *options: str) -> subprocess.CompletedProcess[str]:
    """The command, as people give it."""
    words = [PROGRAM, "raise-tokens", "--store", url, "--above", str(above), *options]
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)


def repaired(url: str) -> Callable[[int], None]:
    """The repair by the command."""

    def repair(mark: int) -> None:
        done = raise_tokens(url, mark)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith(f"raised: every later token is larger than {mark};")

    return repair


def write_until_above(server: EtcdServer, mark: int) -> None:
    """Let etcd count further, a revision a write."""
    key = {"key": "bGVhc2Vob2xkLWJ1bXA="}
    while int(server.request("kv/put", key)["header"]["revision"]) <= mark // 256:
        pass
