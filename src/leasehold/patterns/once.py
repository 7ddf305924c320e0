"""Doing something once for each key, and replaying what it came to. `once_aio.py`: the same names, awaited.

    payments = leasehold.Once(locks, "payments", definite=(CardDeclined,))

    def charge(work):
        return gateway.charge(order, token=work.token)

    receipt = payments.run(f"order/{order.id}", charge, fingerprint=leasehold.fingerprint(body))

A facade decides nothing: it drives the coroutines of `handling.py`, and calls your functions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from leasehold.client import Locks
from leasehold.errors import InvalidInput
from leasehold.patterns import handled, steps
from leasehold.patterns.handled import OnceInfo
from leasehold.patterns.handling import Handling
from leasehold.patterns.work import KEEP, RESULT_MAX, Duplicates, Errors, Kept, Policy
from leasehold.rules.arguments import function as check_function
from leasehold.rules.timing import DEFAULT_TTL
from leasehold.wires.colour import drive

P = ParamSpec("P")
R = TypeVar("R")


class Work(steps.SteppedWork):
    """What a function is given that does the work: show its token to whatever it changes."""

    def step(self, name: str, function: Callable[[], R], *, rerun: bool = False) -> R:
        """Do a part of the work once, also if the rest is done again: then its result, as JSON has it, is replayed.

        A step that was begun and not finished raises OutcomeUnknown, unless `rerun` declares that it may be done again.
        Steps come one after the other.
        """
        check_function("function", function)
        known = drive(steps.step(self._handling, self._begun, name, rerun=rerun))
        if known is not None:
            return cast("R", known.value)
        try:
            value = function()
        except BaseException as error:
            steps.unstepped(self._begun, name, error)
            raise
        drive(steps.stepped(self._handling, self._begun, name, value))
        return value


class Once:
    """Work that is done once for each key, under a lease, and whose result is replayed to whoever comes again.

    At no instant do two believe that they do it, under the assumptions of leases; that an effect happens once
    is for the resource to see to, with the token. A worker that dies leaves an unknown outcome.
    """

    def __init__(
        self,
        locks: Locks,
        name: str = "once",
        *,
        ttl: float = DEFAULT_TTL,
        keep: float = KEEP,
        duplicates: Duplicates = "wait",
        wait: float | None = None,
        definite: Errors = (),
        retry: Errors = (),
        rerun: bool = False,
        result: Any = Any,
        limit: int = RESULT_MAX,
        on_replay: Callable[[str, Any], Any] | None = None,
    ) -> None:
        if not isinstance(locks, Locks):
            raise InvalidInput("locks", locks, "must be what leasehold.connect() returns")
        policy = Policy(ttl, keep, duplicates, wait, definite, retry, rerun, result, limit, on_replay)
        self._handling = Handling(locks._engine, name, policy)  # noqa: SLF001  one library, two rooms

    def run(self, key: str, function: Callable[[Work], R], *, fingerprint: str | None = None, **changes: Any) -> R:
        """What the function returns, or what it returned when the key was handled before.

        `changes` are options of `Once` that differ for this run. Raises StillRunning, KeyReused, OutcomeUnknown,
        RunFailed, ResultNotKept or FinishedLate, and what the function raises; StoreUnavailable before it ran if
        the store is down: nothing ever runs unlocked.
        """
        check_function("function", function)
        begun = drive(self._handling.begin(key, fingerprint, self._handling.changed(changes)))
        if isinstance(begun, Kept):
            return cast("R", begun.value if begun.hook is None else begun.hook(begun.value))
        try:
            value = function(Work(self._handling, begun))
        except BaseException as error:
            drive(self._handling.failed(begun, error))
            raise
        return cast("R", drive(self._handling.completed(begun, value)))

    def handler(
        self, key: Callable[P, str], *, fingerprint: Callable[P, str] | None = None, **changes: Any
    ) -> Callable[[Callable[Concatenate[Work, P], R]], Callable[P, R]]:
        """Decorate a function so that each call is handled once, under the key made of its arguments.

        The function is given its Work first.
        """
        check_function("key", key)

        def decorate(function: Callable[Concatenate[Work, P], R]) -> Callable[P, R]:
            @functools.wraps(function)
            def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
                printed = None if fingerprint is None else fingerprint(*args, **kwargs)
                return self.run(
                    key(*args, **kwargs), lambda work: function(work, *args, **kwargs), fingerprint=printed, **changes
                )

            return wrapped

        return decorate

    def inspect(self, key: str) -> OnceInfo | None:
        """What the store shows of a key: its state, who did it, with which token; None if nothing was begun."""
        return drive(handled.inspect(self._handling, key))

    def settle(self, key: str, value: object) -> bool:
        """Keep what an unknown outcome turned out to be: it is replayed from now on. False if it was not unknown.

        Raises StillRunning if somebody works on it.
        """
        return drive(handled.settle(self._handling, key, value))

    def forget(self, key: str) -> bool:
        """Remove what is kept of a key, so that the next one begins anew. False if there was nothing.

        Raises StillRunning if somebody works on it.
        """
        return drive(handled.forget(self._handling, key))
