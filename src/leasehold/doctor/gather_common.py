"""Asking that every store shares: round trips, and two readings of the server's clock."""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from leasehold.doctor.facts import Refusal, Times, Trips
from leasehold.errors import PermissionDenied, StoreError
from leasehold.model import Key, Record
from leasehold.stores.base import Store
from leasehold.wires.clock import Clock
from leasehold.wires.colour import Colour

T = TypeVar("T")

TRIPS = 20
# Enough is seen after so many seconds, however few trips it was; the doctor must end on a slow store too.
TRIPS_LONGEST = 2.0
TRIPS_LEAST = 3
# Between the two readings: a message of a millisecond then blurs the rate by less than a percent.
READINGS_APART = 0.25
# A prefix of its own: no list of anybody's leases shows it.
FAMILY = "leasehold-doctor//name/"
PROBE_TTL = 10.0


async def time_trips(store: Store) -> Trips:
    """How long the cheapest verb takes."""
    probe = Key(FAMILY, "lock")
    await store.load(probe)  # the first one may have to connect
    took: list[float] = []
    while len(took) < TRIPS and (len(took) < TRIPS_LEAST or sum(took) < TRIPS_LONGEST):
        sent = time.perf_counter()
        await store.load(probe)
        took.append(time.perf_counter() - sent)
    took.sort()
    return Trips(len(took), took[len(took) // 2], took[min(len(took) * 99 // 100, len(took) - 1)])


async def try_verbs(store: Store, clock: Clock, tag: object = None) -> tuple[Refusal, ...]:
    """Do everything once with a record made for it, and tell what was refused.

    The record is deleted again; where even that fails it ends by itself. Where none
    can be written, a record that is not there stands in for it, with this `tag`.
    """
    key = Key(FAMILY + secrets.token_hex(8), "lock")
    refused: list[Refusal] = []

    async def attempt(verb: str, work: Awaitable[T]) -> T | None:
        try:
            return await work
        except StoreError as error:
            refused.append(Refusal(verb, isinstance(error, PermissionDenied), str(error)))
            return None

    made = await attempt("swap", store.swap(key, None, b"doctor", PROBE_TTL))
    record = made if isinstance(made, Record) else Record(key, b"doctor", 1, 1, PROBE_TTL, None, tag)
    await attempt("watch", store.watch(key, record, clock.now()))
    touched = await attempt("touch", store.touch([(record, PROBE_TTL)]))
    # On some stores a renewal moves the revision, and only the newest can be deleted.
    record = (touched[0][1] if touched else None) or record
    await attempt("scan", store.scan(key.family))
    await attempt("page", store.page(FAMILY, None, 1))
    if isinstance(made, Record):
        await attempt("swap", store.swap(key, record, None, None))
    await attempt("collect", store.collect(1))
    return tuple(refused)


class ClockReader:
    """Reads the server's clock twice, some time apart, each reading between two of ours."""

    def __init__(self, ask: Callable[[], Awaitable[float]], colour: Colour) -> None:
        self._ask = ask
        self._colour = colour
        self._clock = colour.clock

    async def start(self) -> None:
        """The first reading."""
        self._first = await self._read()

    async def finish(self) -> Times:
        """The second reading, not too soon after the first, and what the two say."""
        server, here, blur, _ = self._first
        await self._colour.sleep(max(here + READINGS_APART - self._clock.now(), 0.0))
        server_later, here_later, blur_later, difference = await self._read()
        passed = here_later - here
        return Times(
            difference=difference,
            difference_error=blur_later,
            rate=(server_later - server) / passed,
            rate_error=(blur + blur_later) / passed,
        )

    async def _read(self) -> tuple[float, float, float, float]:
        """The server's time, ours in the middle of asking, how far that may be off, and the wall clocks apart.

        Whatever stops this process in between makes the blur larger, not the answer wrong.
        """
        sent = self._clock.now()
        wall = time.time()
        server = await self._ask()
        blur = (self._clock.now() - sent) / 2
        return server, sent + blur, blur, server - (wall + blur)
