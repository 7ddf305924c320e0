"""`leasehold run`: a command that runs only while a lease is held.

    leasehold run nightly-report --ttl 30 -- ./report.sh

The command is told (TERM) when two thirds of the ttl passed without a renewal,
or at once when the lease is lost outright, and it is ended (KILL) before trust
in the lease ends: so it is gone before the store frees the lease for others.
Limits: `break --force` frees first and tells afterwards; a process that leaves
its group, or that the kernel cannot kill, is not reached.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys

import click
import msgspec

from leasehold.cli.child import Child
from leasehold.cli.codes import LOST, NOT_EXECUTABLE, NOT_FOUND, code_of_child
from leasehold.cli.options import Place, at_a_place
from leasehold.cli.output import as_json, complain, tell, tell_warnings
from leasehold.cli.signals import Bell, Stopped
from leasehold.cli.terminal import Terminal
from leasehold.client import Lease
from leasehold.errors import AcquireTimeout, InvalidInput, StoreError, shown
from leasehold.rules.timing import DEFAULT_TTL, TRUST
from leasehold.wires.clock import system_clock

# In parts of the ttl, before the end of trust.
TERM_AT = TRUST - 2 / 3
KILL_AT = 0.05
# A host that slept is noticed this soon after it wakes: timers stand still meanwhile, the lease's clock does not.
LOOK_EVERY = 0.1

NOT_RENEWED = "it was not renewed for two thirds of its ttl, or its max_hold came near"


class Outcome(msgspec.Struct):
    """How it went. `token` None: never granted; `child` None: never started; `lost`: why the command was ended."""

    key: str
    token: int | None = None
    child: int | None = None
    lost: str | None = None
    code: int = 0
    problem: str | None = None

    def tell(self, *, in_json: bool) -> None:
        """On stderr: stdout belongs to the command."""
        if in_json:
            told = {
                "key": self.key,
                "token": None if self.token is None else str(self.token),
                "exit_code": self.code,
                "child_exit_code": self.child,
                "lost": self.lost,
                "message": self.problem,
            }
            tell(as_json(told))
        elif self.problem is not None:
            complain(self.problem)


@click.command("run")
@click.argument("key")
@click.argument("words", metavar="-- CMD...", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("--ttl", metavar="SECONDS", type=float, default=DEFAULT_TTL, show_default=True, help="Length of a lease.")
@click.option("--wait", metavar="SECONDS", type=float, help="How long to wait for it; 0 tries once. [default: forever]")
@click.option("--max-hold", metavar="SECONDS", type=float, help="End the command before it has held the lease longer.")
@click.option("--metadata", metavar="NAME=VALUE", multiple=True, help="A note for others to see; may be repeated.")
@at_a_place
def command(
    place: Place,
    *,
    key: str,
    words: tuple[str, ...],
    ttl: float,
    wait: float | None,
    max_hold: float | None,
    metadata: tuple[str, ...],
) -> int:
    """Run a command while holding the lease on KEY, and exit with its exit code."""
    if sys.platform != "linux":
        raise click.UsageError("run needs Linux: elsewhere a command cannot be tied to its lease")
    notes = dict(_note(text) for text in metadata)
    tell_warnings(wanted=not place.json)
    bell, outcome = Bell(), Outcome(key)
    with place.connect() as locks:
        try:
            with bell.stopping():
                lease = locks.acquire(
                    key, ttl=ttl, wait=wait, max_hold=max_hold, metadata=notes, on_lost=lambda _: bell.ring()
                )
        except AcquireTimeout as error:
            if locks.guarantees.newcomers:
                error.add_note(locks.guarantees.newcomers)
            raise
        except Stopped as stop:
            outcome.code = code_of_child(-stop.number)
        else:
            _run(words, lease, bell, outcome)
            # Told as a warning; the lease ends by its ttl, and the command's outcome stands.
            with contextlib.suppress(StoreError):
                lease.release()
    outcome.tell(in_json=place.json)
    return outcome.code


def _run(words: tuple[str, ...], lease: Lease, bell: Bell, outcome: Outcome) -> None:
    outcome.token = lease.token
    environment = {**os.environ, "LEASEHOLD_KEY": lease.scope, "LEASEHOLD_TOKEN": str(lease.token)}
    terminal = Terminal()
    try:
        child = _started(words, environment, terminal, outcome)
        if child is not None:
            returned, outcome.lost = _Watch(child, lease, bell).until_the_end()
            outcome.code = outcome.child = code_of_child(returned)
    finally:
        terminal.take_back()
    if outcome.lost is not None:
        outcome.code = LOST
        outcome.problem = (
            f"the command was told to end: the lease on {shown(lease.scope)} (token {lease.token}) "
            f"was lost or about to be: {outcome.lost}"
        )


def _started(words: tuple[str, ...], environment: dict[str, str], terminal: Terminal, outcome: Outcome) -> Child | None:
    try:
        return Child(words, environment, terminal)
    except FileNotFoundError:
        outcome.code, outcome.problem = NOT_FOUND, f"{words[0]}: command not found"
    except OSError as error:
        outcome.code, outcome.problem = NOT_EXECUTABLE, f"{words[0]}: cannot be executed: {error.strerror}"
    return None


class _Watch:
    """One command beside one lease, until the command has ended."""

    def __init__(self, child: Child, lease: Lease, bell: Bell) -> None:
        self._child = child
        self._lease = lease
        self._bell = bell
        self._trust = _Trust(lease)
        self._ending: str | None = None
        self._killed = False
        self._told = False

    def until_the_end(self) -> tuple[int, str | None]:
        """The child's return code, and why it was ended if that was for the lease's sake."""
        try:
            while True:
                self._child.look()
                patience = self._end_in_time()
                # Once told to end, all of the group must be gone before we let go: any of it may still be at work.
                if self._child.code is not None and not (self._told and self._child.alive()):
                    return self._child.code, self._ending
                if self._child.stopped:
                    self._stop_and_go_on()
                for number in self._bell.wait(patience):
                    self._told = True
                    self._child.signal(number)
        finally:
            if self._child.code is None:
                # Something is wrong with us. Nobody may work on without a watch.
                self._child.signal(signal.SIGKILL)

    def _end_in_time(self) -> float:
        """TERM and KILL when their time has come. Returns the seconds until the next look."""
        left = self._trust.left()
        if self._ending is None and (left <= TERM_AT or not self._lease.held):
            self._ending, self._told = self._lease.why_lost() or NOT_RENEWED, True
            self._child.signal(signal.SIGTERM)
        if self._ending is not None and left <= KILL_AT and not self._killed:
            self._killed = True
            self._child.signal(signal.SIGKILL)
        if self._killed:
            return LOOK_EVERY * self._lease.ttl
        return min(left - (TERM_AT if self._ending is None else KILL_AT), LOOK_EVERY) * self._lease.ttl

    def _stop_and_go_on(self) -> None:
        """Ctrl-Z: stop like the command did. Once continued, so is the command, unless the lease was lost."""
        self._child.stop_with_it()
        if self._lease.held:
            self._child.go_on()


class _Trust:
    """How long the lease may be trusted, in parts of its ttl; also after it was lost before its time."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self._clock = system_clock()
        self._end = self._clock.now()

    def left(self) -> float:
        """What is left now. After a loss, what was left of the trust last seen: the store frees nothing sooner."""
        now, more = self._clock.now(), self._lease.expires_in
        if more > 0:
            self._end = now + more
        return (self._end - now) / self._lease.ttl


def _note(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator:
        raise InvalidInput("metadata", text, "must be NAME=VALUE")
    return name, value
