"""A store whose revisions are smaller than they were, as after an old backup was restored.

    store = SetBack(inner)
    store.set_back()                     # from now on this client sees small numbers
    store.repair()                       # and from now on the real ones again

Only the numbers differ: records, ends and order are those of the store inside.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from leasehold.model import Conflict, Guarantees, Keep, Key, Record, Renewal, Scan, Swap
from leasehold.stores.base import Store


class SetBack:
    """One client's view of a store that went back."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner
        self._newest = 0
        self._by = 0

    @property
    def guarantees(self) -> Guarantees:
        return self.inner.guarantees

    def set_back(self) -> None:
        """Number everything as if nothing had been written so far."""
        self._by = self._newest - 1

    def repair(self) -> None:
        """Number everything as the store inside does."""
        self._by = 0

    async def open(self) -> None:
        await self.inner.open()

    async def close(self) -> None:
        await self.inner.close()

    async def load(self, key: Key) -> Record | None:
        return self._seen(await self.inner.load(key))

    async def swap(
        self, key: Key, expect: Record | None, value: bytes | None, ttl: float | Keep | None
    ) -> Record | Conflict:
        return self._answer(await self.inner.swap(key, self._real(expect), value, ttl))

    async def touch(self, holds: Sequence[tuple[Record, float]]) -> list[tuple[Renewal, Record | None]]:
        answers = await self.inner.touch([(self._moved(held, self._by), ttl) for held, ttl in holds])
        return [(renewal, self._seen(record)) for renewal, record in answers]

    async def watch(self, key: Key, seen: Record | None, until: float) -> Record | None:
        return self._seen(await self.inner.watch(key, self._real(seen), until))

    async def scan(self, family: str, windows: Sequence[tuple[str, str]] = ()) -> list[Record]:
        return self._all(await self.inner.scan(family, windows))

    async def together(self, asks: Sequence[Swap | Scan]) -> list[Record | Conflict | list[Record]]:
        real = [ask._replace(expect=self._real(ask.expect)) if isinstance(ask, Swap) else ask for ask in asks]
        answers = await self.inner.together(real)
        return [self._all(each) if isinstance(each, list) else self._answer(each) for each in answers]

    async def page(self, root: str, after: Key | None, limit: int) -> list[Record]:
        return self._all(await self.inner.page(root, after, limit))

    async def collect(self, limit: int) -> int:
        return await self.inner.collect(limit)

    # Numbers on their way.

    def _answer(self, answer: Record | Conflict) -> Record | Conflict:
        if isinstance(answer, Conflict):
            return Conflict(self._seen(answer.record))
        self._newest = max(self._newest, answer.revision)
        return self._moved(answer, -self._by)

    def _all(self, records: Sequence[Record]) -> list[Record]:
        return [self._moved(record, -self._by) for record in records]

    def _seen(self, record: Record | None) -> Record | None:
        return None if record is None else self._moved(record, -self._by)

    def _real(self, record: Record | None) -> Record | None:
        return None if record is None else self._moved(record, self._by)

    def _moved(self, record: Record, by: int) -> Record:
        return msgspec.structs.replace(record, revision=record.revision + by, born=record.born + by)
