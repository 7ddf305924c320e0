"""Leader elections of others, each in a process of its own: client-go's example and the official Python client's.

What they believe is told by their own words, with two allowances. One that is
told to step down (client-go, by SIGINT) says so after it has let go, so its belief counts until it was told. One
that is stopped (SIGSTOP) for longer than its deadline learns of it only afterwards, as its authors say; so that
is not done to them while they lead.
"""

from __future__ import annotations

import calendar
import os
import re
import signal
import subprocess
import time
from pathlib import Path

from leasehold.testing.servers import programs
from tests.election_fleet import PATIENCE, Term
from tests.support import ROOT

# The official client waits for as long as it is told, whoever leads: longer than client-go's example believes without a
# renewal, which is 15 s. That one waits for 60 s, and writes so; nothing of it can be set.
DURATION, DEADLINE = 20, 15
PEERS = Path(os.environ.get("LEASEHOLD_PEERS", ROOT / ".venv-peers" / "bin" / "python"))

# Runs in the environment of requirements/peers.txt.
OFFICIAL = """
import sys
from kubernetes import config
from kubernetes.leaderelection import electionconfig, leaderelection
from kubernetes.leaderelection.resourcelock.leaselock import LeaseLock

kubeconfig, namespace, name, identity, duration, deadline = sys.argv[1:]
config.load_kube_config(config_file=kubeconfig)

def say(word):
    import time
    print(word, repr(time.time()), flush=True)

while True:
    leaderelection.LeaderElection(electionconfig.Config(
        LeaseLock(name, namespace, identity), int(duration), int(deadline), 1, lambda: say("leads"), lambda: say("lost")
    )).run()
"""
# klog's line: severity and date, time of day, thread, place] words.
KLOG = re.compile(r"^I(\d\d)(\d\d) (\d\d):(\d\d):(\d\d\.\d+) .*\] (.*)$", re.MULTILINE)


class Rival:
    """One candidate that is not ours."""

    def __init__(self, identity: str, command: list[str], folder: Path) -> None:
        self.identity = identity
        self.log = folder / f"{identity}.log"
        self._ended: float | None = None
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=out, env={**os.environ, "TZ": "UTC"})

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def signalled(self, number: int) -> None:
        """Send it a signal; from now on nobody can say that it believes."""
        self._ended = time.time()
        self.process.send_signal(number)

    def kill(self) -> None:
        if self._ended is None:
            self.signalled(signal.SIGKILL)
        self.process.kill()
        self.process.wait(PATIENCE)

    def terms(self) -> list[Term]:
        """When it believed to lead, by its own words; to this moment if it said nothing else."""
        found: list[Term] = []
        for at, leads in self.told():
            if leads:
                found.append(Term(self.identity, None, at, self._ended or time.time()))
            elif found:
                found[-1] = found[-1]._replace(last=min(at, found[-1].last))
        return found

    def told(self) -> list[tuple[float, bool]]:
        """When it said that it leads (True) and that it no longer does."""
        raise AssertionError(f"nobody knows how {self.identity} speaks")


class ClientGo(Rival):
    """client-go's own example of a leader election."""

    def __init__(self, number: int, kubeconfig: Path, namespace: str, name: str, folder: Path) -> None:
        identity = f"client-go-{number}"
        flags = {"kubeconfig": kubeconfig, "lease-lock-name": name, "lease-lock-namespace": namespace, "id": identity}
        command = [programs.client_go_leader_election(), *(f"-{flag}={value}" for flag, value in flags.items())]
        super().__init__(identity, command, folder)

    def step_down(self) -> None:
        """It releases, says that it lost, and ends."""
        self.signalled(signal.SIGINT)
        self.process.wait(PATIENCE)

    def told(self) -> list[tuple[float, bool]]:
        lines = KLOG.findall(self.log.read_text())
        year = time.gmtime().tm_year
        return [
            (_seconds(year, *map(int, (month, day, hour, minute))) + float(second), "acquired" in words)
            for month, day, hour, minute, second, words in lines
            if words.startswith(("successfully acquired lease", "leader lost"))
        ]


class Official(Rival):
    """The official Python client's leader election, on a Lease."""

    def __init__(self, number: int, kubeconfig: Path, namespace: str, name: str, folder: Path) -> None:
        assert PEERS.exists(), f"the rivals' environment {PEERS} is missing; run: make peers"
        identity = f"official-{number}"
        words = [str(kubeconfig), namespace, name, identity, str(DURATION), str(DEADLINE)]
        super().__init__(identity, [str(PEERS), "-W", "ignore", "-c", OFFICIAL, *words], folder)

    def told(self) -> list[tuple[float, bool]]:
        lines = re.findall(r"^(leads|lost) ([\d.]+)$", self.log.read_text(), re.MULTILINE)
        return [(float(at), word == "leads") for word, at in lines]


def _seconds(year: int, month: int, day: int, hour: int, minute: int) -> float:
    return float(calendar.timegm((year, month, day, hour, minute, 0)))
