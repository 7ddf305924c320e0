"""What can be seen of an etcd cluster: of every member the URL names, over the store's own wire and its metrics."""

from __future__ import annotations

import contextlib
import http.client
import re
import ssl
import time
from email.utils import parsedate_to_datetime

from leasehold.doctor.facts import Contents, EtcdFacts, EtcdMember, Unseen
from leasehold.doctor.gather_common import time_trips, try_verbs
from leasehold.errors import StoreError
from leasehold.rules import etcd_messages as messages
from leasehold.rules.addresses import Address
from leasehold.stores.etcd import EtcdStore
from leasehold.wires.colour import Colour
from leasehold.wires.etcd_url import EtcdConfig

# A wall clock in a header is cut to the second: on the average half a second is missing.
TICK = 0.5
_SYNCED = re.compile(r'^etcd_disk_wal_fsync_duration_seconds_bucket\{le="([\d.e+-]+|\+Inf)"\} (\S+)$', re.MULTILINE)
_QUOTA = re.compile(r"^etcd_server_quota_backend_bytes (\S+)$", re.MULTILINE)
_METRICS = Unseen(
    "how fast the disks are, and the time there", "a way to the page /metrics on the members' client port"
)


async def gather(store: EtcdStore, colour: Colour) -> EtcdFacts:
    """Look at every member, and do everything once."""
    wire = store._wire  # noqa: SLF001  the doctor looks behind the verbs, over the store's own wire
    pages = [await colour.call(lambda at=at: _Page(wire.config, at, wire.timeout)) for at in wire.config.hosts]  # type: ignore[misc]
    members = [await _member(store, place, page) for place, page in enumerate(pages)]
    unseen = (
        [_METRICS] if any(page.text is None for page, one in zip(pages, members, strict=True) if one.version) else []
    )
    refusals = await try_verbs(store, colour.clock)
    read = next((page for page in pages if page.text is not None), None)
    return EtcdFacts(
        trips=await time_trips(store),
        contents=Contents(await _count(store), 0),
        refusals=refusals,
        unseen=tuple(unseen),
        members=tuple(members),
        voters=await _voters(store),
        guarded=bool(wire._token or wire.config.cert),  # noqa: SLF001  the same
        difference=read.difference if read else 0.0,
        difference_error=read.difference_error if read else TICK,
    )


class _Page:
    """What a member tells Prometheus, and what time it is there. Blocks."""

    def __init__(self, config: EtcdConfig, at: Address, timeout: float) -> None:
        self.text: str | None = None
        self.difference = 0.0
        self.difference_error = TICK
        # A member that is down is found so by the wire; here it only has nothing to tell.
        with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
            self._read(config, at, timeout)

    def _read(self, config: EtcdConfig, at: Address, timeout: float) -> None:
        sent = time.time()
        with contextlib.closing(_connection(config, at, timeout)) as connection:
            connection.request("GET", "/metrics")
            answer = connection.getresponse()
            text = answer.read().decode()
        blur = (time.time() - sent) / 2
        if answer.status != http.client.OK:
            return
        date = answer.getheader("Date")
        if date is not None:
            there = parsedate_to_datetime(date).timestamp() + TICK
            self.difference, self.difference_error = there - (sent + blur), TICK + blur
        self.text = text

    def sync_p99(self) -> float | None:
        """Below how many seconds 99 of 100 writes of the log reached the disk; None where it is not told."""
        buckets = [(float(limit), float(count)) for limit, count in _SYNCED.findall(self.text or "")]
        if not buckets or not buckets[-1][1]:
            return None
        return next(limit for limit, count in buckets if count >= 0.99 * buckets[-1][1])

    def quota(self) -> int | None:
        """How large the database may grow."""
        found = _QUOTA.search(self.text or "")
        return int(float(found[1])) if found else None


async def _member(store: EtcdStore, place: int, page: _Page) -> EtcdMember:
    wire = store._wire  # noqa: SLF001  as above
    address = str(wire.config.hosts[place])
    try:
        status = messages.read_status(await wire.ask_member(place, messages.STATUS, b""))
    except StoreError:
        return EtcdMember(address, None, leads=False, bytes=0, quota=None, sync_p99=None, troubles=())
    return EtcdMember(
        address,
        tuple(map(int, re.findall(r"\d+", status.version)))[:3],
        leads=status.leads,
        bytes=status.bytes,
        quota=page.quota(),
        sync_p99=page.sync_p99(),
        troubles=status.troubles,
    )


async def _voters(store: EtcdStore) -> int | None:
    try:
        return messages.read_members(await store._wire.ask(messages.MEMBERS, b""))  # noqa: SLF001  as above
    except StoreError:
        # Newer versions tell it to administrators alone; then only what the URL names is judged.
        return None


async def _count(store: EtcdStore) -> int:
    prefix = store._prefix  # noqa: SLF001  as above
    message = messages.count_all(prefix, messages.after_all(prefix))
    return messages.read_count(await store._wire.ask(messages.RANGE, message))  # noqa: SLF001


def _connection(config: EtcdConfig, at: Address, timeout: float) -> http.client.HTTPConnection:
    if not config.tls:
        return http.client.HTTPConnection(at.host, at.port, timeout=timeout)
    context = ssl.create_default_context(cafile=config.ca or None)
    if config.cert:
        context.load_cert_chain(config.cert, config.key)
    return http.client.HTTPSConnection(at.host, at.port, timeout=timeout, context=context)
