"""Exclusion of belief, as arithmetic: no two holders believe at one instant, whatever the delays.

A small model of the promise. Every clock runs at a rate of its own; requests
take any time to reach the store and answers any time to come back, or never
do. The store frees a record one ttl of its own clock after it applied the
write; a holder believes from the answer until `trust_ends(sent, ttl)` on its
clock. The product's own rule stands in the model; the controls replace it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from leasehold.rules.timing import trust_ends
from tests.support import count

TTL = 10.0
TOLERATED = 1.111  # just below 1 / 0.9
TOO_FAST = 1.2


class Request(NamedTuple):
    """An acquisition, or a renewal if the client holds: real times of sending, applying and answering."""

    client: int
    sent: float
    there: float
    back: float | None


class Belief(NamedTuple):
    client: int
    begins: float
    ends: float


Rule = Callable[[float, float], float]


def from_send(sent: float, _answered: float) -> float:
    return trust_ends(sent, TTL)


def from_answer(_sent: float, answered: float) -> float:
    return trust_ends(answered, TTL)


def beliefs(requests: Iterable[Request], rates: list[float], store_rate: float, rule: Rule) -> list[Belief]:
    """Who believes when, in real time, after the store has seen all requests in the order they reached it."""
    owner, frees, found = None, 0.0, []
    for request in sorted(requests, key=lambda request: request.sent + request.there):
        applied = request.sent + request.there
        if owner not in {None, request.client} and applied < frees:
            continue
        owner, frees = request.client, applied + TTL / store_rate
        if request.back is not None:
            rate, answered = rates[request.client], applied + request.back
            ends = rule(request.sent * rate, answered * rate) / rate
            found.append(Belief(request.client, answered, ends))
    return [belief for belief in found if belief.begins < belief.ends]


def overlap(found: list[Belief]) -> bool:
    return any(
        one.client != other.client and one.begins < other.ends and other.begins < one.ends
        for one, other in itertools.combinations(found, 2)
    )


def small_worlds(fastest: float) -> Iterable[tuple[list[Request], list[float], float]]:
    """Every mix of a holder that may renew, a rival asking at any half second, short and long delays, two rates."""
    rates = (1.0, fastest)
    for there, back, renewal, asks, slow in itertools.product(
        (0.0, 4.0), (0.0, 4.0, 20.0), (None, 3.5, 8.0), range(51), (0.0, 3.0)
    ):
        requests = [Request(0, 0.0, there, back), Request(1, asks / 2, slow, 0.0)]
        if renewal is not None:
            # Reaches the store late, and only its effect there is known, not its answer.
            requests += [Request(0, renewal, slow, None), Request(0, renewal + 1, 0.0, back)]
        for one, other, store in itertools.product(rates, repeat=3):
            yield requests, [one, other], store


def test_in_every_small_world_at_most_one_believes() -> None:
    worlds = believers = 0
    for requests, rates, store in small_worlds(TOLERATED):
        found = beliefs(requests, rates, store, from_send)
        assert not overlap(found), (requests, rates, store)
        worlds += 1
        believers += len({belief.client for belief in found}) == 2
    # Not because nobody ever got it: in many of them both have their turn.
    assert believers > worlds / 10


def test_counting_from_the_answer_makes_two_believers() -> None:
    assert any(overlap(beliefs(*world, from_answer)) for world in small_worlds(1.0))


def test_a_clock_rate_beyond_the_margin_makes_two_believers() -> None:
    assert any(overlap(beliefs(*world, from_send)) for world in small_worlds(TOO_FAST))


DELAYS = st.floats(0, 30)
REQUESTS = st.lists(
    st.builds(Request, st.integers(0, 3), st.floats(0, 100), DELAYS, st.none() | DELAYS), min_size=2, max_size=14
)
RATES = st.floats(1.0, TOLERATED)


@settings(max_examples=count(10_000), deadline=None)
@given(REQUESTS, st.lists(RATES, min_size=4, max_size=4), RATES)
def test_no_delay_loss_or_rate_within_the_margin_makes_two_believers(requests, rates, store) -> None:
    assert not overlap(beliefs(requests, rates, store, from_send))
