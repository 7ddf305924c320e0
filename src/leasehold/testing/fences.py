"""The laws of fences, for any resource: ours, and yours.

    class TestInvoices(FenceLaws):
        @pytest.fixture
        def reach(self, tmp_path):
            return lambda: Invoice(tmp_path / "invoice")     # one more client of the same, new resource

        def value(self, number):                             # what is written for a number, and back
            return {"total": number}

        def number(self, value):
            return value["total"]

A resource has `open(token)`, `read(token)` and `write(token, value)`, blocking or asyncio, and refuses a token
smaller than one it has seen with `leasehold.StaleToken`.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from leasehold.errors import InvalidInput, StaleToken
from leasehold.rules.fencing import TOKEN_MAX

Reach = Callable[[], Any]
NO_TOKENS = [0, -1, 1.5, 7.0, "7", b"7", True, None, TOKEN_MAX + 1]
HANDS = 4
TURNS = 25


class Hand:
    """One client of a resource, whatever its colour."""

    def __init__(self, resource: Any, loop: asyncio.AbstractEventLoop | None) -> None:
        self._resource = resource
        self._loop = loop

    def open(self, token: Any) -> None:
        self._done("open", token)

    def read(self, token: Any) -> Any:
        return self._done("read", token)

    def write(self, token: Any, value: Any) -> None:
        self._done("write", token, value)

    def _done(self, verb: str, *given: Any) -> Any:
        answer = getattr(self._resource, verb)(*given)
        if not inspect.iscoroutine(answer) or self._loop is None:
            return answer
        return asyncio.run_coroutine_threadsafe(answer, self._loop).result(60)


class FenceLaws:
    """Laws of fences. Give a `reach` fixture, and `value` and `number` if what is written is not bytes."""

    def value(self, number: int) -> Any:
        """What is written for a number."""
        return str(number).encode()

    def number(self, value: Any) -> int:
        """The number that was written."""
        return int(value)

    @pytest.fixture
    def hand(self, reach: Reach) -> Iterator[Callable[[], Hand]]:
        """A function that gives one more client."""
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, daemon=True)
        thread.start()

        async def reached() -> Any:
            return reach()

        yield lambda: Hand(asyncio.run_coroutine_threadsafe(reached(), loop).result(60), loop)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(20)
        loop.close()

    def test_what_a_holder_writes_the_next_one_reads(self, hand: Callable[[], Hand]) -> None:
        first, second = hand(), hand()
        first.open(5)
        first.write(5, self.value(1))
        assert self.number(first.read(5)) == 1
        second.open(6)
        assert self.number(second.read(6)) == 1
        second.write(6, self.value(2))
        assert self.number(hand().read(6)) == 2

    def test_a_holder_opens_reads_and_writes_as_often_as_it_likes(self, hand: Callable[[], Hand]) -> None:
        holder = hand()
        for number in range(3):
            holder.open(5)
            holder.write(5, self.value(number))
            assert self.number(holder.read(5)) == number

    def test_whoever_was_overtaken_can_neither_open_nor_read_nor_write(self, hand: Callable[[], Hand]) -> None:
        late, current = hand(), hand()
        late.open(5)
        late.write(5, self.value(1))
        current.open(6)
        # The later holder has read and written nothing yet: it is enough that it registered.
        for refused in (
            lambda: late.write(5, self.value(7)),
            lambda: late.read(5),
            lambda: late.open(5),
        ):
            with pytest.raises(StaleToken) as refusal:
                refused()
            assert (refusal.value.token, refusal.value.mark) == (5, 6)
        assert self.number(current.read(6)) == 1
        current.write(6, self.value(2))
        assert self.number(current.read(6)) == 2

    def test_a_refusal_leaves_the_mark_where_it_was(self, hand: Callable[[], Hand]) -> None:
        holder = hand()
        holder.open(8)
        holder.write(8, self.value(1))
        with pytest.raises(StaleToken):
            hand().write(7, self.value(2))
        holder.write(8, self.value(3))
        assert self.number(holder.read(8)) == 3

    def test_a_write_raises_the_mark_too(self, hand: Callable[[], Hand]) -> None:
        holder = hand()
        holder.open(5)
        holder.write(6, self.value(1))
        with pytest.raises(StaleToken):
            holder.read(5)

    @pytest.mark.parametrize(
        ("smaller", "larger"), [(9, 10), (99, 100), (2**53, 2**53 + 1), (2**62 + 1, 2**62 + 2), (1, TOKEN_MAX)]
    )
    def test_tokens_are_numbers_of_63_bits(self, hand: Callable[[], Hand], smaller: int, larger: int) -> None:
        late, current = hand(), hand()
        late.open(smaller)
        late.write(smaller, self.value(1))
        current.open(larger)
        with pytest.raises(StaleToken) as refusal:
            late.write(smaller, self.value(2))
        assert (refusal.value.token, refusal.value.mark) == (smaller, larger)
        assert self.number(current.read(larger)) == 1

    @pytest.mark.parametrize("token", NO_TOKENS, ids=repr)
    def test_what_is_no_token_is_refused_and_changes_nothing(self, hand: Callable[[], Hand], token: Any) -> None:
        holder = hand()
        holder.open(5)
        holder.write(5, self.value(1))
        for refused in (
            lambda: holder.open(token),
            lambda: holder.read(token),
            lambda: holder.write(token, self.value(2)),
        ):
            with pytest.raises(InvalidInput):
                refused()
        assert self.number(holder.read(5)) == 1

    def test_no_update_is_lost_however_holders_come_and_go(self, hand: Callable[[], Hand]) -> None:
        """Every turn has the next token, and nobody waits for anybody: who is overtaken is told, or has written."""
        first = hand()
        first.open(1)
        first.write(1, self.value(0))
        tokens = itertools.count(2)
        counted = threading.Lock()
        hands = [hand() for _ in range(HANDS)]

        def turns(mine: Hand) -> int:
            written = 0
            for _ in range(TURNS):
                with counted:
                    token = next(tokens)
                try:
                    mine.open(token)
                    mine.write(token, self.value(self.number(mine.read(token)) + 1))
                except StaleToken:
                    continue
                written += 1
            return written

        with ThreadPoolExecutor(HANDS) as pool:
            acknowledged = sum(pool.map(turns, hands))
        last = next(tokens)
        first.open(last)
        assert self.number(first.read(last)) == acknowledged > 0
