"""The wall clock of a server, moved by the test while the server runs (through libfaketime).

`ServerClock` stands still until it is advanced. `ShiftedClock` runs, with an offset to
real time that can be changed. Only what a server takes from the system's wall clock
follows: its timeouts and intervals stay in real time.
"""

from __future__ import annotations

import abc
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from leasehold.errors import InvalidInput
from leasehold.testing.servers import programs

# Redis measures its own pace with the monotonic clock, and must go on doing so. Without its cache the library looks
# at its file at each call, which is what lets a test move the clock. Only newer versions can do without shared memory.
COMMON = {"FAKETIME_DONT_FAKE_MONOTONIC": "1", "FAKETIME_NO_CACHE": "1", "FAKETIME_DISABLE_SHM": "1"}


class Clock(abc.ABC):
    """A clock given to one or several servers: `RedisServer(clock=clock)`. Safe to move from any thread."""

    def __init__(self) -> None:
        # How many seconds each server is kept behind this clock, by the file it reads.
        self._lags: dict[Path, float] = {}
        self._lock = threading.Lock()

    def attach(self, folder: Path) -> dict[str, str]:
        """Called by a server at each start: the environment that makes it follow this clock."""
        file = _file(folder)
        # The C library after it: without that, redis-server with jemalloc hangs at its start.
        preload = f"{programs.libfaketime()}:libc.so.6"
        with self._lock:
            self._lags.setdefault(file, 0.0)
            self._write(file)
        return COMMON | {"LD_PRELOAD": preload, "FAKETIME_TIMESTAMP_FILE": str(file)}

    def detach(self, folder: Path) -> None:
        """Called by a server when its folder goes."""
        with self._lock:
            self._lags.pop(_file(folder), None)

    def _write_all(self) -> None:
        for file in self._lags:
            self._write(file)

    def _write(self, file: Path) -> None:
        # Renamed into place: a server that reads while we write must not see half a time.
        fresh = file.with_suffix(".new")
        fresh.write_text(self._reading(self._lags[file]))
        fresh.chmod(0o644)
        fresh.replace(file)

    @abc.abstractmethod
    def _reading(self, lag: float) -> str:
        """The time of a server that is `lag` seconds behind, as libfaketime reads it."""


class ServerClock(Clock):
    """Stands still until advanced: servers see this very instant, to the microsecond."""

    def __init__(self, start: float | None = None) -> None:
        super().__init__()
        self.start: float = float(int(time.time())) if start is None else start
        # Whole microseconds, because many small steps of a float do not add up.
        self._micros = round(self.start * 1e6)

    @property
    def now(self) -> float:
        """What the servers see, in seconds since 1970."""
        return self._micros / 1e6

    def advance(self, seconds: float) -> None:
        """Let this much time pass for the servers."""
        with self._lock:
            self._set(self._micros + round(seconds * 1e6))

    def advance_to(self, seconds: float) -> None:
        """Let time pass until this instant (since 1970)."""
        with self._lock:
            self._set(round(seconds * 1e6))

    def _set(self, micros: int) -> None:
        if micros < self._micros:
            raise InvalidInput("seconds", micros / 1e6, f"{self.now} is reached already; ShiftedClock can step back")
        self._micros = micros
        self._write_all()

    def keep_behind(self, folder: Path, seconds: float) -> None:
        """Keep one server this far behind, so that time can pass for it while the clock stands still."""
        with self._lock:
            self._lags[_file(folder)] = seconds
            self._write(_file(folder))

    def _reading(self, lag: float) -> str:
        # In the servers' time zone, which is UTC. Half a microsecond more, as the library cuts where it should round.
        instant = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=self._micros, seconds=-lag)
        return instant.strftime("%Y-%m-%d %H:%M:%S.%f") + "5"


class ShiftedClock(Clock):
    """Runs like real time, `offset` seconds off. Assign `offset` to let the servers' clock step, also back."""

    def __init__(self, offset: float = 0.0) -> None:
        super().__init__()
        self._offset = offset

    @property
    def offset(self) -> float:
        """Seconds the servers are ahead of real time."""
        return self._offset

    @offset.setter
    def offset(self, seconds: float) -> None:
        with self._lock:
            self._offset = seconds
            self._write_all()

    def _reading(self, lag: float) -> str:
        return f"{self._offset - lag:+f}"


def _file(folder: Path) -> Path:
    return folder / "clock"
