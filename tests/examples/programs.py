"""Programs of the examples as processes: started, asked, and ended politely or not."""

from __future__ import annotations

import http.client
import os
import secrets
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from tests.support import PYTHON, eventually

PATIENCE = 60.0


class Program:
    """One process, and what it says."""

    def __init__(self, folder: Path, command: Sequence[str], **environment: str) -> None:
        self.log = folder / f"log-{secrets.token_hex(4)}"
        env = {**os.environ, **environment}
        with self.log.open("wb") as out:
            self.process = subprocess.Popen([PYTHON, *command], stdout=out, stderr=out, env=env, cwd=folder)

    def said(self) -> str:
        return self.log.read_text()

    def end(self) -> str:
        """Stop it politely; what it has said."""
        assert self.process.poll() is None, self.said()
        self.process.terminate()
        assert self.process.wait(PATIENCE) == 0, self.said()
        return self.said()

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.process.wait(PATIENCE)


class Served(Program):
    """One that answers HTTP on a port."""

    def __init__(self, folder: Path, port: int, command: Sequence[str], **environment: str) -> None:
        super().__init__(folder, ["-W", "error", *command, "--port", str(port)], **environment)
        self.port = port

    def ask(self, verb: str, path: str, body: bytes | None = None) -> tuple[int, str]:
        """Status and text; 0 while nobody listens."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(verb, path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        except ConnectionRefusedError:
            return 0, ""
        finally:
            connection.close()

    def get(self, path: str) -> tuple[int, str]:
        return self.ask("GET", path)

    def is_up(self, path: str) -> bool:
        assert self.process.poll() is None, self.said()
        return self.get(path)[0] == http.client.OK


P = TypeVar("P", bound=Program)


@contextmanager
def running(programs: Sequence[P], is_ready: Callable[[P], object], *, quiet: bool = True) -> Iterator[list[P]]:
    """All of them ready, and ended with the block. If they are `quiet`, none may have shown a traceback."""
    try:
        for each in programs:
            eventually(lambda each=each: is_ready(each), PATIENCE)
        yield list(programs)
        for each in programs:
            if each.process.poll() is None:
                said = each.end()
                assert not quiet or "Traceback" not in said, said
    finally:
        for each in programs:
            each.kill()
