"""The chunk store, its clients and its background work as processes, and what is judged by the server's journal."""

from __future__ import annotations

import http.client
import importlib
import json
import secrets
import signal
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple
from urllib.parse import urlencode

import leasehold
from leasehold.testing.servers.process import free_ports
from tests.examples.programs import PATIENCE, Program, Served
from tests.support import ROOT, eventually

FILES = ROOT / "examples" / "file_store"
LOG, TABLE = 1, 2
Lines = list[dict[str, Any]]


def module(name: str) -> ModuleType:
    """One of the example's own modules. They are imported by plain names, which other examples have, too."""
    before = dict(sys.modules)
    sys.path.insert(0, str(FILES))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(FILES))
        for new in sys.modules.keys() - before.keys():
            if str(FILES) in str(getattr(sys.modules[new], "__file__", "")):
                del sys.modules[new]


SIZE: int = module("records").SIZE
CHUNK: int = module("disk").CHUNK
END: int = module("fence").END


class Client(Program):
    """One process that works with files, and the lines it says about it."""

    def lines(self) -> Lines:
        return [json.loads(line) for line in self.said().splitlines() if line.startswith("{")]

    def all(self, key: str) -> list[Any]:
        return [line[key] for line in self.lines() if key in line]

    def pause(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def is_stopped(self) -> bool:
        assert self.process.poll() is None, self.said()
        state = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state == "T"

    def finished(self) -> Lines:
        """Wait for its own end; what it said."""
        assert self.process.wait(PATIENCE) == 0, self.said()
        assert "Traceback" not in self.said(), self.said()
        return self.lines()


class Damage(NamedTuple):
    """What became of records: 0 of each, if everybody is careful."""

    lost: int
    torn: int
    removed: int

    def __str__(self) -> str:
        removed = f"{self.removed} chunks removed that were referred to"
        return f"{self.lost} writes lost, {self.torn} torn records read, {removed}"


NONE = Damage(0, 0, 0)


class Place:
    """A directory with its server, a lock store, and everybody who works there."""

    def __init__(self, folder: Path, store: str, *options: str) -> None:
        self.folder, self.store, self.prefix = folder, store, f"files-{secrets.token_hex(4)}"
        self.root = folder / "files"
        self.clients: list[Client] = []
        self._options = options
        self.server = self.serve()

    def serve(self) -> Served:
        """Start the server; after a kill it goes on from what is there."""
        (port,) = free_ports(1)
        self.server = Served(self.folder, port, [str(FILES), "serve", "--root", str(self.root), *self._options])
        eventually(lambda: self.server.is_up("/healthz"), PATIENCE)
        return self.server

    def client(self, command: str, *options: str, name: str = "", port: int = 0, store: str = "") -> Client:
        """Start somebody; `port` and `store` are other ways to the server and the locks."""
        server = f"http://127.0.0.1:{port or self.server.port}"
        places = ["--server", server, "--store", store or self.store, "--prefix", self.prefix]
        words = ["-W", "error", str(FILES), command, *places, "--name", name or command, *options]
        self.clients.append(Client(self.folder, words))
        return self.clients[-1]

    def run(self, command: str, *options: str, name: str = "") -> Lines:
        return self.client(command, *options, name=name).finished()

    def locks(self) -> leasehold.Locks:
        return leasehold.connect(self.store, prefix=self.prefix, holder="test")

    def journal(self, *did: str) -> Lines:
        lines = [json.loads(line) for line in (self.root / "journal.jsonl").read_text().splitlines()]
        return [line for line in lines if not did or line["did"] in did]

    def progress(self, by: str, more: int) -> None:
        """Wait until somebody has written so many more records."""
        written = lambda: sum(line["by"] == by for line in self.journal("write"))  # noqa: E731
        enough = written() + more
        eventually(lambda: written() >= enough, PATIENCE)

    # Asking the server directly.

    def ask(
        self, verb: str, url: str, *leases: dict[str, Any], body: bytes | None = None, **query: Any
    ) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=PATIENCE)
        try:
            headers = {"Lease": json.dumps(leases)} if leases else {}
            connection.request(verb, f"{url}?{urlencode(query)}", body, headers)
            answer = connection.getresponse()
            data = answer.read()
            return answer.status, json.loads(data) if answer.getheader("Content-Type", "").startswith(
                "application/json"
            ) else data
        finally:
            connection.close()

    def read(self, inode: int, start: int, end: int) -> bytes:
        status, data = self.ask("GET", f"/inodes/{inode}/bytes", start=start, end=end)
        return bytes(data) if status == http.client.OK else b""

    def chunks(self, inode: int) -> list[str]:
        found: list[str] = self.ask("GET", f"/inodes/{inode}")[1]["chunks"]
        return found

    def garbage(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = self.ask("GET", "/chunks")[1]
        return found

    # Judging.

    def damage(self) -> Damage:
        """Every record must have been made of the one before it in the journal, and the last must lie there."""
        sent = defaultdict(set)
        for line in (line for client in self.clients for line in client.lines() if "sends" in line):
            sent[line["inode"], line["sends"]].add(line["after"])
        last: dict[tuple[int, int], str] = {}
        lost = 0
        for line in (line for line in self.journal("write") if line["inode"] in {LOG, TABLE}):
            where = line["inode"], line["start"]
            before = last.get(where, "")
            # A repeated request, after a connection broke, changes nothing.
            lost += line["digest"] != before and before not in sent[line["inode"], line["digest"]]
            last[where] = line["digest"]
        digest = module("records").digest
        torn = sum(client.all("failed").count("Torn") for client in self.clients)
        torn += sum(digest(self.read(inode, start, start + SIZE)) != said for (inode, start), said in last.items())
        removed = sum(line["referred"] for line in self.journal("remove"))
        return Damage(lost, torn, removed)

    def unwritten(self) -> set[str]:
        """What was acknowledged and is not in the journal."""
        done = {digest for client in self.clients for digest in client.all("done")}
        return done - {line["digest"] for line in self.journal("write")}

    def end(self) -> None:
        for each in [*self.clients, self.server]:
            each.process.kill()
            each.process.wait(PATIENCE)


@contextmanager
def place(folder: Path, store: str, *options: str, places: int = 6) -> Iterator[Place]:
    """A server with a table of so many records and an empty log. It shows no traceback."""
    made = Place(folder, store, *options)
    try:
        made.run("prepare", "--places", str(places), *(["--no-lock"] if "--no-fence" in options else []))
        yield made
        assert "Traceback" not in made.server.end()
    finally:
        made.end()


def shown(lease: leasehold.Lease, resource: str, *parts: Sequence[int] | str) -> dict[str, Any]:
    """A lease as requests show it."""
    return {"resource": resource, "parts": parts, "token": str(lease.token), "shared": lease.mode == "shared"}
