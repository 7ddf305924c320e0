"""What can be seen of a ZooKeeper ensemble: through a client's session, and by the four-letter words it allows."""

from __future__ import annotations

import contextlib
import re
import socket
import ssl

from leasehold.doctor.facts import Contents, Unseen, ZooKeeperFacts, ZooKeeperServer
from leasehold.doctor.gather_common import ClockReader, time_trips, try_verbs
from leasehold.errors import StoreError
from leasehold.rules import zookeeper_nodes as nodes
from leasehold.rules.addresses import Address
from leasehold.rules.zookeeper_nodes import Kind
from leasehold.stores.zookeeper import Tag, ZooKeeperStore
from leasehold.wires import zookeeper_frames as frames
from leasehold.wires.colour import Colour
from leasehold.wires.zookeeper import ZooKeeperWire
from leasehold.wires.zookeeper_link import tls_context

EVERYTHING = 10**9
# Of ACL: to write, create, delete or administer.
CHANGES = 2 | 4 | 8 | 16
_NO_WORDS = Unseen(
    "how many connections the servers have and allow", "conf and cons in the servers' 4lw.commands.whitelist"
)
_VERSION = re.compile(r"^Zookeeper version: (\d+)\.(\d+)\.(\d+)", re.MULTILINE)
_MODE = re.compile(r"^Mode: (\S+)", re.MULTILINE)
_LIMIT = re.compile(r"^maxClientCnxns=(\d+)", re.MULTILINE)


async def gather(store: ZooKeeperStore, colour: Colour) -> ZooKeeperFacts:
    """Look at every server that the URL names, and at what we have there."""
    wire = store._wire  # noqa: SLF001  the doctor looks behind the verbs, over the store's own wire
    clock = ClockReader(store._leader_time, colour)  # noqa: SLF001  as above
    await clock.start()
    servers = [await colour.call(lambda address=address: _server(wire, address)) for address in wire.config.hosts]  # type: ignore[misc]
    return ZooKeeperFacts(
        trips=await time_trips(store),
        contents=await _contents(store),
        refusals=await try_verbs(store, colour.clock, Tag(Kind.LASTING, "none", 0, 0)),
        unseen=(_NO_WORDS,) if any(each.mode and each.limit is None for each in servers) else (),
        times=await clock.finish(),
        servers=tuple(servers),
        shortest=store.guarantees.ttl_min,
        longest=store.guarantees.ttl_max,
        open_to_all=await _is_open_to_all(store),
    )


async def _contents(store: ZooKeeperStore) -> Contents | None:
    try:
        records = len(await store._keys())  # noqa: SLF001  as above
        live = len(await store.page("", None, EVERYTHING))
    except StoreError:
        return None  # told as a verb that fails
    # More may have come in between.
    return Contents(records, max(records - live, 0))


async def _is_open_to_all(store: ZooKeeperStore) -> bool:
    """Whether everybody who reaches a server may change our nodes."""
    path = store._at(nodes.ROOT)  # noqa: SLF001  as above
    (found,) = await store._looks.ask([frames.GetACL(path)])  # noqa: SLF001  as above
    if isinstance(found, frames.Refused):
        return False
    acls, _ = found
    return any(acl.id.scheme == "world" and acl.perms & CHANGES for acl in acls)


def _server(wire: ZooKeeperWire, address: Address) -> ZooKeeperServer:
    said = {word: _word(wire, address, word) for word in ("srvr", "conf", "cons")}
    version, mode, limit = _VERSION.search(said["srvr"]), _MODE.search(said["srvr"]), _LIMIT.search(said["conf"])
    counted = [line for line in said["cons"].splitlines() if line.startswith(" /")]
    return ZooKeeperServer(
        address=str(address),
        version=tuple(map(int, version.groups())) if version else None,
        mode=mode[1] if mode else "",
        limit=int(limit[1]) if limit and counted else None,
        connections=_most_of_one_address(counted),
    )


def _most_of_one_address(lines: list[str]) -> int:
    hosts = [line.strip().partition(":")[0] for line in lines]
    return max((hosts.count(host) for host in set(hosts)), default=0)


def _word(wire: ZooKeeperWire, address: Address, word: str) -> str:
    """What a server answers to a four-letter word; nothing where it does not answer."""
    tls = tls_context(wire.config)
    said = b""
    with contextlib.suppress(OSError, ssl.SSLError), contextlib.ExitStack() as stack:
        plain = stack.enter_context(socket.create_connection(address, wire.timeout))
        link = stack.enter_context(tls.wrap_socket(plain, server_hostname=address.host)) if tls else plain
        link.sendall(word.encode())
        while data := link.recv(65536):
            said += data
    return said.decode("utf-8", "replace")
