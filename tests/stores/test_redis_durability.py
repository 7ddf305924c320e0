"""What crashes and stepping clocks do to leases and tokens: what is promised holds, what is not is shown."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Self

import pytest

import leasehold
from leasehold.errors import LeaseholdError, LeaseLost, StoreUnavailable
from leasehold.testing.servers import RedisServer, ShiftedClock
from leasehold.wires.clock import system_clock
from tests.stores.redis_support import KEY, driven, key
from tests.support import count, eventually

TTL = 2.0
CONTENDERS = 4


class Turn:
    """A time in which somebody believed to hold, and the token."""

    def __init__(self, token: int, begun: float, ended: float) -> None:
        self.token, self.begun, self.ended = token, begun, ended


class Contenders:
    """Threads with a client each that take turns on one key, through every crash, until told to stop."""

    def __init__(self, url: str) -> None:
        self.turns: list[Turn] = []
        self.failures: list[LeaseholdError] = []
        self._url = url
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._work) for _ in range(CONTENDERS)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        with leasehold.connect(self._url, timeout=2) as locks:
            while not self._over.is_set():
                try:
                    with locks.hold("job", ttl=TTL, wait=30) as lease:
                        self._believe(lease)
                except (StoreUnavailable, LeaseLost) as error:
                    self.failures.append(error)

    def _believe(self, lease: leasehold.Lease) -> None:
        clock = system_clock()
        begun = clock.now()
        # Read before it is asked: it was believed at that moment at the latest.
        ended = begun
        for _ in range(20):
            at = clock.now()
            if not lease.held:
                break
            ended = at
        self.turns.append(Turn(lease.token, begun, ended))


def overlaps(turns: list[Turn]) -> int:
    """How often somebody began to believe before another had stopped."""
    ordered = sorted(turns, key=lambda turn: turn.begun)
    return sum(after.begun < before.ended for before, after in pairwise(ordered))


def inversions(turns: list[Turn]) -> int:
    """How often a later turn had a token that was not larger."""
    ordered = sorted(turns, key=lambda turn: turn.begun)
    return sum(after.token <= before.token for before, after in pairwise(ordered))


def test_with_a_synced_log_a_kill_under_load_makes_no_second_believer_and_no_lower_token() -> None:
    with RedisServer(aof="always") as crashing, Contenders(crashing.url) as contenders:
        for _ in range(count(20)):
            before = len(contenders.turns)
            eventually(lambda before=before: len(contenders.turns) > before + 20)
            crashing.kill()
            crashing.start()
        before = len(contenders.turns)
        eventually(lambda: len(contenders.turns) > before + 20)
    assert overlaps(contenders.turns) == 0
    assert inversions(contenders.turns) == 0


def test_overlapping_and_inverted_turns_would_be_noticed() -> None:
    """The control for the counting above."""
    assert overlaps([Turn(1, 0.0, 2.0), Turn(2, 1.0, 3.0)]) == 1
    assert inversions([Turn(2, 0.0, 1.0), Turn(1, 2.0, 3.0)]) == 1


def test_without_persistence_tokens_still_grow_but_a_hold_is_lost() -> None:
    """What the page on Redis says: for one moment two believe, and the tokens tell them apart."""
    with RedisServer(aof="no") as forgetful, clients(forgetful) as (ada, bob):
        first = ada.acquire("job", ttl=60)
        forgetful.kill()
        forgetful.start()
        second = bob.acquire("job", ttl=60, wait=20)
        assert first.held
        assert second.held
        assert second.token > first.token
        assert not first.renew()
        assert not first.held


def test_with_a_synced_log_the_same_hold_survives() -> None:
    """The control: it is the log that makes the difference."""
    with RedisServer(aof="always") as careful, clients(careful) as (ada, bob):
        first = ada.acquire("job", ttl=60)
        careful.kill()
        careful.start()
        eventually(first.renew)
        assert bob.try_acquire("job", ttl=60) is None


@contextmanager
def clients(server: RedisServer) -> Iterator[tuple[leasehold.Locks, leasehold.Locks]]:
    with leasehold.connect(server.url) as one, leasehold.connect(server.url) as other:
        yield one, other


# Clocks.


@pytest.fixture
def clock() -> ShiftedClock:
    return ShiftedClock()


@pytest.fixture
def shifted(clock: ShiftedClock) -> Iterator[RedisServer]:
    with RedisServer(aof="always", clock=clock) as server:
        yield server


def test_a_clock_that_steps_back_lowers_no_token(clock: ShiftedClock, shifted: RedisServer) -> None:
    with driven(shifted.url) as store:
        first = store.grant()
        store.swap(KEY, first, None, None)
        clock.offset = -5.0
        second = store.grant()
        assert second.revision == first.revision + 1
        # Also after a crash: the counter is in the log.
        shifted.kill()
        shifted.start()
        store.swap(KEY, second, None, None)
        third = store.grant()
        assert third.revision > second.revision
        # The control: a family of another bucket, never used, goes by the clock alone.
        fresh = [store.grant(key(number)).revision for number in range(8)]
        assert min(fresh) < first.revision


@pytest.mark.parametrize("offset", [-5.0, 5.0])
def test_a_server_whose_clock_is_five_seconds_off_keeps_leases_as_long_as_any(
    clock: ShiftedClock, shifted: RedisServer, offset: float
) -> None:
    clock.offset = offset
    with clients(shifted) as (ada, bob):
        lease = ada.acquire("job", ttl=30)
        seen = bob.inspect("job")
        assert seen is not None
        assert seen.expires_in is not None
        assert 20 < seen.expires_in <= 30
        assert lease.renew()
        assert bob.try_acquire("job") is None
        assert lease.release()
        assert bob.acquire("job", ttl=30, wait=0).token > lease.token


def test_a_forgetful_server_whose_clock_was_set_back_too_repeats_tokens() -> None:
    """The limit the page on Redis states; this is what its table means."""
    clock = ShiftedClock()
    with RedisServer(aof="no", clock=clock) as forgetful, driven(forgetful.url) as store:
        first = store.grant()
        forgetful.kill()
        clock.offset = -3600.0
        forgetful.start()
        assert store.grant().revision < first.revision
