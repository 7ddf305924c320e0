"""Several processes want one thing; a lease says whose turn it is. Run it with `make run`.

Everything the story claims is checked, and the exit code is not 0 if any of it
did not happen. Workers are processes of their own that use only the public API.
"""
# ruff: noqa: T201  a script that speaks to people

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from types import FrameType
from typing import NamedTuple, NoReturn, TextIO

import leasehold

KEY = "invoice/42"
TTL = 2.0
ROUNDS = 3
PATIENCE = 60


# The workers.


def take_turns(locks: leasehold.Locks, name: str) -> None:
    """Hold the lease a few times, for a moment each."""
    for _ in range(ROUNDS):
        with locks.hold(KEY, ttl=TTL) as lease:
            tell(name, "granted", lease.token)
            time.sleep(0.15)
            lease.check()
            tell(name, "leaving", lease.token)
        time.sleep(0.05)


def hold_on(locks: leasehold.Locks, name: str) -> None:
    """Hold the lease until it is lost, and say up to when it was believed."""
    believed = 0.0
    try:
        with locks.hold(KEY, ttl=TTL) as lease:
            tell(name, "trusts", lease.token, at=now() + lease.expires_in)
            tell(name, "granted", lease.token)
            while lease.held:
                believed = now()
                time.sleep(0.01)
    except leasehold.LeaseLost as error:
        tell(name, "lost", error.token, at=believed)


WORK = {"take_turns": take_turns, "hold_on": hold_on}


def tell(name: str, what: str, token: int, *, at: float | None = None) -> None:
    """One short line to the narrator. The pipe is shared: a line is written whole or not at all."""
    os.write(sys.stdout.fileno(), f"{name} {what} {token} {now() if at is None else at}\n".encode())


def now() -> float:
    """Seconds, the same for every process of this machine."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)


# The narrator.


class Told(NamedTuple):
    """What a worker said, and when it happened."""

    name: str
    what: str
    token: int
    at: float


class Stage:
    """Starts workers and hears what they tell."""

    def __init__(self, url: str, lines: TextIO, pipe: int) -> None:
        self.url = url
        self.told: list[Told] = []
        self._lines = lines
        self._pipe = pipe
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, name: str, work: str) -> subprocess.Popen[bytes]:
        """A new process."""
        worker = subprocess.Popen([sys.executable, __file__, self.url, name, work], stdout=self._pipe)
        self._started.append(worker)
        return worker

    def hear(self, what: str) -> Told:
        """The next thing of this kind that anybody tells."""
        for line in self._lines:
            name, said, token, at = line.split()
            self.told.append(Told(name, said, int(token), float(at)))
            if said == what:
                return self.told[-1]
        raise SystemExit("the narrator's pipe was closed")

    def end(self) -> None:
        """Nobody outlives the demo."""
        for worker in self._started:
            worker.kill()
            worker.wait()


def play(stage: Stage) -> list[str]:
    """The story. Returns what went wrong, which should be nothing."""
    print(f"Three processes take turns on {KEY!r}. Look at the token: it only grows.")
    crowd = [stage.start(name, "take_turns") for name in ("ann", "bob", "eve")]
    for _ in range(ROUNDS * len(crowd)):
        turn = stage.hear("granted")
        print(f"  {turn.name:4} holds it, token {turn.token}")
    for worker in crowd:
        worker.wait()
    stage.hear("leaving")

    print(f"\nA holder is killed with -9. It cannot let go; its lease ends {TTL:g} s after its last renewal.")
    victim = stage.start("kim", "hold_on")
    stage.hear("granted")
    victim.kill()
    killed = now()
    heir = stage.start("leo", "hold_on")
    new = stage.hear("granted")
    print(f"  leo  holds it {new.at - killed:.1f} s after kim was killed, token {new.token}")

    print("\nNow the holder is frozen with SIGSTOP, like a paused machine: it can neither renew nor notice.")
    heir.send_signal(signal.SIGSTOP)
    stage.start("mia", "hold_on")
    last = stage.hear("granted")
    print(f"  mia  holds it while leo is frozen, token {last.token}")
    heir.send_signal(signal.SIGCONT)
    woken = stage.hear("lost")
    print(f"  leo  wakes up and sees LeaseLost at once, token {woken.token}: too small for a fence to accept")
    return check(stage.told)


def check(told: list[Told]) -> list[str]:
    """What of the story is not true: tokens grow with every grant, and no two believe at once."""
    grants = sorted((one for one in told if one.what == "granted"), key=lambda grant: grant.at)
    # Who was killed said only how long it would trust its lease: it counts as a believer until then.
    ends = {one.token: one.at for one in told if one.what == "trusts"}
    ends |= {one.token: one.at for one in told if one.what in {"leaving", "lost"}}
    wrong = []
    for earlier, later in itertools.pairwise(grants):
        if later.token <= earlier.token:
            wrong.append(f"{later.name}'s token {later.token} is not above {earlier.name}'s {earlier.token}")
        if ends.get(earlier.token, later.at) >= later.at:
            wrong.append(f"{earlier.name} still believed in its lease when {later.name} was granted it")
    return wrong


@contextlib.contextmanager
def stage() -> Iterator[Stage]:
    """A stage on a lease file in a temporary folder, cleared at the end."""
    with tempfile.TemporaryDirectory(prefix="leasehold-demo-") as folder:
        ears, mouth = os.pipe()
        with os.fdopen(ears) as lines:
            prepared = Stage(f"sqlite://{folder}/leases.db", lines, mouth)
            try:
                yield prepared
            finally:
                prepared.end()
                os.close(mouth)


def too_long(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(f"the demo did not come to its end in {PATIENCE} s")


def main() -> int:
    if len(sys.argv) > 1:
        _, url, name, work = sys.argv
        # The narrator tells of the loss; Leasehold's own warning would only repeat it.
        logging.getLogger("leasehold").setLevel(logging.ERROR)
        with leasehold.connect(url, holder=name) as locks:
            WORK[work](locks, name)
        return 0
    signal.signal(signal.SIGALRM, too_long)
    signal.alarm(PATIENCE)
    with stage() as prepared:
        wrong = play(prepared)
        grants = sum(one.what == "granted" for one in prepared.told)
    if wrong:
        print("\nThis must not happen:", *wrong, sep="\n  ")
        return 1
    print(f"\n{grants} grants, every token above the one before, never two believers at once.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
