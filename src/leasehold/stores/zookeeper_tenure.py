"""A session that leases of one length live in, and the list of what lives there.

A session keeps all its records alive together, also one that nobody renews any
more: lost, overstayed, or left behind by a reply that never came. So each has an end
of its own here, on our clock, and whatever is past it is removed by the next flight
that would keep it alive. A session that nothing is asked on ends by itself.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from leasehold.errors import StoreUnavailable
from leasehold.wires import zookeeper_frames as frames
from leasehold.wires.zookeeper import Session, ZooKeeperWire
from leasehold.wires.zookeeper_errors import reply_error
from leasehold.wires.zookeeper_frames import Refused, Request


class Tenure:
    """One session of ours, for one ttl."""

    def __init__(self, wire: ZooKeeperWire, ttl: float) -> None:
        self.session: Session = Session(wire, ttl)
        self._clock = wire.colour.clock
        self._lock = threading.Lock()
        self._life = 0
        # By witness: when it ends on our clock, and what removes it.
        self._living: dict[str, tuple[float, Request]] = {}

    async def timeout(self) -> float:
        """The real length: what the server granted. Asks it the first time."""
        if not self.session.timeout:
            await self.session.attach()
        return self.session.timeout

    async def make(self, request: Request, witness: str, removal: Request, *also: Request) -> list[Any]:
        """The answer to a request that makes a record. Where there is none, it may live here all the same.

        And to what is asked in the same flight: it is answered as of after that.
        """
        self._note(witness, removal)
        try:
            answer, *others = await self._ask(request, *also)
        except BaseException as error:
            # Noted once more: it may have been sent on a session that began meanwhile.
            self._note(witness, removal)
            if isinstance(error, StoreUnavailable) and error.applied is False:
                self.forget(witness)
            raise
        if isinstance(answer, Refused):
            self.forget(witness)
        else:
            self._note(witness, removal)
        return [answer, *others]

    async def rewrite(self, request: Request, witness: str) -> Any:
        """The answer to a request that changes a record and gives it its whole ttl again."""
        (answer,) = await self._ask(request)
        if not isinstance(answer, Refused):
            self._extend([witness])
        return answer

    async def keep(self, witnesses: Sequence[str], root: str) -> None:
        """Keep the session alive, for the sake of these. It may be another one afterwards, if it had expired.

        By `sync`, which the leader answers: a server cut off from it would still answer a ping.
        """
        (answer,) = await self._ask(frames.Sync(root))
        if isinstance(answer, Refused):
            raise reply_error(self.session.where, answer.code, root)
        self._extend(witnesses)

    def ends(self, witness: str) -> float | None:
        """When a record of ours ends if nobody renews it; None if it does not live here."""
        found = self._living.get(witness)
        return None if found is None else found[0]

    def forget(self, witness: str) -> None:
        """It is gone, or never was."""
        with self._lock:
            self._living.pop(witness, None)

    async def close(self) -> None:
        """Hang up. The session itself ends now only if nothing can live in it."""
        self._begin_life()
        await self.session.end(politely=not self._living)

    async def _ask(self, *requests: Request) -> list[Any]:
        """The answers, after whatever is past its end was removed in the same flight."""
        overdue = self._overdue()
        answers = await self.session.ask([*(removal for _, removal in overdue), *requests])
        for (witness, _), gone in zip(overdue, answers, strict=False):
            if not isinstance(gone, Refused) or gone.code == frames.NO_NODE:
                self.forget(witness)
        return answers[len(overdue) :]

    def _overdue(self) -> list[tuple[str, Request]]:
        self._begin_life()
        now = self._clock.now()
        with self._lock:
            return [(witness, removal) for witness, (ends, removal) in self._living.items() if now >= ends]

    def _begin_life(self) -> None:
        """What lived in an earlier session went with it; in a forked child it is the parent's."""
        with self._lock:
            if self._life != self.session.life:
                self._life = self.session.life
                self._living = {}

    def _note(self, witness: str, removal: Request) -> None:
        self._begin_life()
        with self._lock:
            self._living[witness] = self._clock.now() + self.session.timeout, removal

    def _extend(self, witnesses: Sequence[str]) -> None:
        ends = self._clock.now() + self.session.timeout
        with self._lock:
            for witness in witnesses:
                if witness in self._living:
                    self._living[witness] = ends, self._living[witness][1]
