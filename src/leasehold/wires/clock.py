"""The machine's clock: the only file that reads it.

Deadlines need a clock that runs on while the host sleeps, so this is
CLOCK_BOOTTIME where there is one, with a time namespace's offset taken out so
that all processes of one kernel start agree. A clock also *waits*: whoever can
move time must be able to wake those who wait for it.
"""

from __future__ import annotations

import functools
import math
import select
import threading
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from leasehold.rules.clocks import ClockDomain

if TYPE_CHECKING:
    import asyncio

MACHINE_ID = 32
_BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    """Time as everything in Leasehold sees it. Tests bring a virtual one."""

    @property
    def domain(self) -> ClockDomain:
        """Whose readings `now` can be compared with."""
        ...

    def now(self) -> float:
        """Seconds on the boot clock."""
        ...

    def wait(self, event: threading.Event, until: float | None) -> bool:
        """Block until the event is set (True) or `until` has come (False)."""
        ...

    async def wait_async(self, event: asyncio.Event, until: float | None) -> bool:
        """The same on an event loop."""
        ...

    def wait_readable(self, files: select.poll, until: float, longest: float) -> list[tuple[int, int]]:
        """Block until some files can be read, which are answered; or until `until`, or for `longest` real seconds."""
        ...


class SystemClock:
    """The boot clock of this machine."""

    def __init__(self) -> None:
        domain, self._offset = _read_domain()
        self.domain: ClockDomain = domain

    def now(self) -> float:
        return time.clock_gettime(_BOOT) - self._offset

    def wait(self, event: threading.Event, until: float | None) -> bool:
        if until is None:
            return event.wait()
        while not event.is_set():
            left = until - self.now()
            # A timeout runs on the monotonic clock and its largest value is
            # about 292 years; an hour at a time keeps sleeping hosts honest.
            if left <= 0:
                return False
            event.wait(min(left, 3600.0))
        return True

    def wait_readable(self, files: select.poll, until: float, longest: float) -> list[tuple[int, int]]:
        # Rounded up: whoever waits until then looks at the clock, and must not find that it came too early.
        return files.poll(math.ceil(max(min(until - self.now(), longest), 0.0) * 1000))

    async def wait_async(self, event: asyncio.Event, until: float | None) -> bool:
        import asyncio  # noqa: PLC0415  a blocking program never pays for this import

        while not event.is_set():
            left = 3600.0 if until is None else until - self.now()
            if left <= 0:
                return False
            try:
                async with asyncio.timeout(min(left, 3600.0)):
                    await event.wait()
            except TimeoutError:
                continue
        return True


def _read_domain() -> tuple[ClockDomain, float]:
    boot = _text("/proc/sys/kernel/random/boot_id")
    if not boot or _link("/proc/self/ns/time") != _link("/proc/self/ns/time_for_children"):
        # No boot id, or a process that left its time namespace for its children:
        # its readings compare with nobody else's.
        return ClockDomain(machine="", boot=f"private-{uuid.uuid4().hex}", shifted=True), 0.0
    offset = boottime_offset(_text("/proc/self/timens_offsets"))
    return ClockDomain(machine=machine_id(_text("/etc/machine-id")), boot=boot, shifted=offset != 0), offset


def machine_id(text: str) -> str:
    """The machine's id, or nothing where the file holds none: "uninitialized" at first boot is no id."""
    return text if len(text) == MACHINE_ID and set(text) <= set("0123456789abcdef") else ""


def boottime_offset(text: str) -> float:
    """The seconds a time namespace adds to the boot clock, from the kernel's own table."""
    for line in text.splitlines():
        name, whole, nanos = line.split()
        if name in {"boottime", "7"}:
            return int(whole) + int(nanos) / 1e9
    return 0.0


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _link(path: str) -> str:
    try:
        return str(Path(path).readlink())
    except OSError:
        return ""


@functools.cache
def system_clock() -> SystemClock:
    """The one clock of this machine: everybody in the process compares readings of the same object."""
    return SystemClock()
