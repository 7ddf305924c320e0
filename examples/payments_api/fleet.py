"""Several workers behind one port: this process listens, hands its socket to them, and replaces those that die."""

from __future__ import annotations

import logging
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

BACKLOG = 1024
LOOK = 0.1
PATIENCE = 30.0

_log = logging.getLogger("payments")


class Fleet:
    """So many workers, started with these words of the command line."""

    def __init__(self, host: str, port: int, size: int, words: list[str]) -> None:
        self._listener = socket.create_server((host, port), backlog=BACKLOG)
        self._words = words
        self._stopping = threading.Event()
        self._workers = [self._start() for _ in range(size)]

    def run(self) -> None:
        """Until SIGTERM or Ctrl-C."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._stopping.set())
        while not self._stopping.wait(LOOK):
            for place, worker in enumerate(self._workers):
                if worker.poll() is not None:
                    _log.warning("worker %s ended with %s; another one takes its place", worker.pid, worker.returncode)
                    worker.communicate()
                    self._workers[place] = self._start()
        for worker in self._workers:
            worker.terminate()
        for worker in self._workers:
            worker.communicate(timeout=PATIENCE)
        self._listener.close()

    def _start(self) -> subprocess.Popen[bytes]:
        number = self._listener.fileno()
        command = [sys.executable, str(Path(__file__).parent), "work", "--socket", str(number), *self._words]
        # Its input ends with this process, however that does.
        return subprocess.Popen(command, pass_fds=[number], stdin=subprocess.PIPE)
