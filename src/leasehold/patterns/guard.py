"""Guarding a target against two runs at once, and giving it a rest after each. `guard_aio.py`: the same names, awaited.

    guard = leasehold.Guard(locks, cooldown=300)
    with guard.begin("production/deployment/payment-api", owner="wfe-1") as run:
        remediate(token=run.token)

A facade decides nothing: it drives the coroutines of `runs.py`.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from leasehold import client
from leasehold.errors import InvalidInput
from leasehold.patterns.run import BaseRun, Found
from leasehold.patterns.runs import COOLDOWN, MAX_SKEW, NAME, TIMEOUT, RunInfo, Runs
from leasehold.rules.cooldown import Phase
from leasehold.wires.colour import drive


class Run(BaseRun):
    """A run on a target. It belongs to its owner, not to this process: it outlives the program.

    As a block: `complete()` at its end, `fail()` if it raises, and LeaseLost if the run was
    over before the block was. Give `token` to what the run changes; only a check there
    refuses a run that went on after its timeout.
    """

    def complete(self) -> bool:
        """It is done: the target rests for the cooldown, from now on.

        True if the run is completed, by this call or one before. False if it was no longer
        the target's run (its timeout, a deletion), or had failed; then nothing was changed.
        Raises StoreUnavailable if nobody can tell; ask again.
        """
        return drive(self._finish(Phase.COMPLETED))

    def fail(self) -> bool:
        """It did not work: the target rests as well. The answer is that of `complete()`."""
        return drive(self._finish(Phase.FAILED))

    def abandon(self) -> bool:
        """Remove the run, whether it goes on or its target rests after it: the target is free at once.

        True if it was removed, False if it was gone already. Raises StoreUnavailable if nobody can tell.
        """
        return drive(self._abandon())

    def check(self) -> None:
        """Ask the store whether this still is the target's run; raise LeaseLost if it is not, or has ended.

        It says nothing about the moment after.
        """
        drive(self._check())

    def __enter__(self) -> Self:
        """The run itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Complete it, or let it fail if the block raised."""
        drive(self._leave(error))


class Guard:
    """Of all runs on a target at most one goes on, and after it the target rests.

    The record of a run is the lock, under a name made of the target's SHA-256. It
    outlives whoever began it; a run that is never finished ends after `timeout`, by the
    store's clock. `cooldown` counts from the end of a run, whether it was completed or
    failed; 0 is no rest. Guards with another `name` do not meet.

    Where the store cannot tell how long ago a run ended (on Kubernetes, and for rests
    longer than its longest ttl), the times in the record count, and the rest lasts
    `max_skew` longer: clocks further apart than that make it shorter, never two runs at once.
    """

    def __init__(
        self,
        locks: client.Locks,
        *,
        cooldown: float = COOLDOWN,
        timeout: float = TIMEOUT,
        name: str = NAME,
        max_skew: float = MAX_SKEW,
    ) -> None:
        if not isinstance(locks, client.Locks):
            raise InvalidInput("locks", locks, "must be what leasehold.connect() returns")
        self._runs = Runs(locks._engine, name, cooldown, timeout, max_skew)  # noqa: SLF001  one library, two rooms

    @property
    def cooldown(self) -> float:
        """How long a target rests, unless the call says otherwise."""
        return self._runs.cooldown

    @property
    def timeout(self) -> float:
        """How long a run may take, unless the call says otherwise; the real one, as the store keeps it."""
        return self._runs.timeout

    def name_of(self, target: str) -> str:
        """The name of a target's record: the guard's name and 16 digits of the target's SHA-256. Asks nobody."""
        return self._runs.name_of(target)

    def check(self, target: str, *, owner: str | None = None, cooldown: float | None = None) -> None:
        """For a router: raise ResourceBusy or RecentlyRemediated if the target is taken; a look, no promise.

        One read. **Fails open**: if the store does not answer, it logs a warning and
        returns. Whoever passed may still be refused by `begin`. A run of `owner` itself
        is not in its way.
        """
        drive(self._runs.check(target, owner, cooldown))

    def begin(self, target: str, *, owner: str, cooldown: float | None = None, timeout: float | None = None) -> Run:
        """For an executor: a run on the target, or ResourceBusy, or RecentlyRemediated. One atomic create.

        Never fails open: StoreUnavailable means that nobody may go on. Ask again with the
        same `owner`: it meets its own run and gets it, with the same token (`adopted`).
        So `owner` names the request that is being served, the same after a restart
        and no other request's; it is what makes the run yours.
        """
        return Run(self._runs, drive(self._runs.begin(target, owner, cooldown, timeout)))

    def once_per(self, target: str, interval: float, *, owner: str | None = None) -> Run | None:
        """A run if none on this target began within `interval` seconds, on any node; else None.

        For scheduled jobs. The interval counts from the beginning, by the store's clock, and
        is also the run's timeout: who has not finished by then may meet the next one. Let
        it be a little shorter than the schedule's period. `complete()` and `fail()` leave the turn used;
        `abandon()` gives it back. Only with an `owner` does a restarted job get its own run again.
        These runs and those of `begin` do not meet.
        """
        return self._run(drive(self._runs.once_per(target, interval, owner)))

    def resume(self, target: str, *, owner: str) -> Run | None:
        """After a restart: the run that `owner` has on the target, going on or resting after it; None if none.

        Begins nothing.
        """
        return self._run(drive(self._runs.resume(target, owner)))

    def inspect(self, target: str) -> RunInfo | None:
        """The target's run as the store shows it, for people; None if the target is free."""
        return drive(self._runs.inspect(target))

    def free(self, target: str, *, reason: str) -> bool:
        """Delete whatever run the target has, of `begin` and of `once_per`: it is free at once. True if there was one.

        Its owner learns of it when it next asks. It may still be at work: the token tells the two apart.
        """
        return drive(self._runs.free(target, reason))

    def _run(self, found: Found | None) -> Run | None:
        return None if found is None else Run(self._runs, found)
