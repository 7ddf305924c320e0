"""Leader election, blocking. `election_aio.py` has the same names, awaited.

    election = leasehold.Election(locks, "scheduler")

    def work(leadership):
        while not leadership.wait(1.0):
            schedule(token=leadership.token)

    election.lead(work)

A facade decides nothing: it drives the coroutines of `candidate.py` and is the
only place that calls the user's worker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from leasehold import client
from leasehold.engine.grant import Grant
from leasehold.errors import InvalidInput
from leasehold.patterns.candidate import DEFAULT_TTL, Candidate, Changes, Leader
from leasehold.rules.arguments import function as check_function
from leasehold.wires.colour import drive

R = TypeVar("R")


class Leadership(client.Lease):
    """A lease that makes its holder the leader: `token`, `held`, `check()`, `lost` and the rest are the lease's."""

    __slots__ = ("_candidate",)

    def __init__(self, candidate: Candidate, grant: Grant) -> None:
        super().__init__(candidate.engine, grant)
        self._candidate = candidate

    @property
    def over(self) -> bool:
        """Whether to end the work: the leadership was lost or resigned, or the election was told to stop."""
        return self._candidate.is_over(self._grant)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is over (True), or until `timeout` seconds have passed (False)."""
        return drive(self._candidate.over_within(self._grant, timeout))


class Election:
    """One candidate in an election: at most one of all candidates of the same name leads at an instant.

    That is the promise of a lease and has its limits: clock rates within 1 / 0.9,
    a store that keeps its state, and work that stops when it is told. Give `token`
    to what the leader writes to; only a check there orders effects.

    `identity` is the name others see (default: the client's). It owns nothing, and two
    candidates may share one. `ttl` is how long a leader that has died stays in office. A
    leader stops believing 0.9 ttl after the last renewal that was answered was sent.
    """

    def __init__(
        self, locks: client.Locks, name: str, *, identity: str | None = None, ttl: float = DEFAULT_TTL
    ) -> None:
        if not isinstance(locks, client.Locks):
            raise InvalidInput("locks", locks, "must be what leasehold.connect() returns")
        self._candidate = Candidate(locks._engine, name, identity, ttl)  # noqa: SLF001  one library, two rooms

    @property
    def name(self) -> str:
        """What the candidates contend for."""
        return self._candidate.name

    @property
    def identity(self) -> str:
        """The name this candidate shows to others."""
        return self._candidate.identity

    @property
    def leading(self) -> bool:
        """Whether this candidate may believe that it leads at this instant. Asks the clock, never the store."""
        return self._candidate.leads()

    def campaign(self, *, wait: float | None = None) -> Leadership:
        """Contend until elected: None as long as it takes, 0 one try, else seconds; then AcquireTimeout.

        The leadership is kept until `resign()`, or until it is lost.
        """
        return self._leadership(drive(self._candidate.campaign(wait)))

    def lead(self, worker: Callable[[Leadership], R]) -> R | None:
        """Run `worker(leadership)` whenever elected; campaign again each time the leadership is lost.

        Returns what the worker returns while it leads, and raises what it raises; None
        once `stop()` was called. In both cases the leadership is given up after the worker has ended,
        so that the next leader need not wait. The worker is told of a loss by `leadership.over`
        and by `check()`, which raises; in asyncio it is cancelled. A blocking worker
        that does not look goes on: nobody can stop a thread. While the store
        is down the campaign goes on, with a warning in the log.
        """
        check_function("worker", worker)
        import inspect  # noqa: PLC0415  slow to import, and only this needs it

        if inspect.iscoroutinefunction(worker):
            raise InvalidInput("worker", worker, "must be a plain function; for async def use leasehold.aio.Election")

        async def run(grant: Grant) -> R:
            return worker(self._leadership(grant))

        return drive(self._candidate.lead(run))

    def leader(self) -> Leader | None:
        """Who leads, as the store shows it now; None if nobody does."""
        return drive(self._candidate.leader())

    def observe(self) -> Iterator[Leader | None]:
        """Who leads now, then every change of it, for as long as one asks; None is a time without a leader.

        A term that is over before anybody looked is not seen. Outages of the store are
        waited for. Ends after `stop()` and when the client is closed.
        """
        changes = Changes(self._candidate)
        while drive(changes.advance()):
            yield changes.leader

    def resign(self) -> bool:
        """Give up the leadership now: True if there was one to give up, False if there was none or it was lost.

        Raises StoreUnavailable if nobody can tell; the leadership then ends by its ttl.
        Whoever waits for it is elected at once.
        """
        return drive(self._candidate.resign())

    def stop(self) -> None:
        """Campaign no more: a waiting `campaign`, `lead` and `observe` end, at the latest about two seconds later.

        The worker of `lead` is told, and the leadership given up once it has ended. What
        `campaign` won stays until `resign()`. Waits for nothing: a signal handler may call it. It lasts;
        to campaign again make a new Election.
        """
        self._candidate.stop()

    def _leadership(self, grant: Grant) -> Leadership:
        return Leadership(self._candidate, grant)
