"""Elections on every store whose time a test can move: one leader at an instant, in both colours."""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

import leasehold
from leasehold import aio
from leasehold.engine import events
from leasehold.engine.engine import Engine
from leasehold.engine.looped import LoopedRuntime
from leasehold.errors import AcquireTimeout, AlreadyHeld, ClientClosed, InvalidInput, LeaseLost
from leasehold.model import Name
from leasehold.patterns import election, election_aio
from leasehold.rules.names import Names
from leasehold.stores.memory import Memory, MemoryStore
from leasehold.testing.clock import VirtualClock
from leasehold.testing.conformance.arena import Arena
from leasehold.testing.faults import FaultyStore, cut, drop, hold_back, refuse
from tests import test_conformance
from tests.election_support import NAME, Runner, election_of
from tests.support import count
from tests.test_shape import _members, differences

# One of each kind: how a store is reached makes no difference to an election.
WORLDS = {kind: test_conformance.WORLDS[kind] for kind in ("memory", "sqlite", "redis", "postgresql", "kubernetes")}
COLOURS = ("blocking", "asyncio")
# What the store has no part in is tried where it costs least.
CHEAP = ("memory", "sqlite")


def stages(worlds: Iterable[str]) -> Any:
    return pytest.mark.parametrize(
        ("world", "colour"),
        [pytest.param(world, colour, id=f"{world}-{colour}") for world in worlds for colour in COLOURS],
    )


everywhere, here = stages(WORLDS), stages(CHEAP)


@pytest.fixture
def arena(world: str, colour: str, tmp_path: Path) -> Iterator[Arena]:
    made = Arena(WORLDS[world](tmp_path), colour)
    yield made
    made.close()


# Winning and being turned away.


@everywhere
def test_the_elected_candidate_leads_and_the_next_is_told_who_does(arena: Arena) -> None:
    one, other = Runner(arena, "one"), Runner(arena, "other")
    won = one.do("campaign")
    assert (won.held, won.over, won.holder, won.ttl) == (True, False, "one", arena.ttl)
    assert (one.election.leading, other.election.leading) == (True, False)
    with pytest.raises(AcquireTimeout) as caught:
        other.do("campaign", wait=0)
    assert caught.value.holder == "one"
    assert "election:scheduler" in str(caught.value)


@here
def test_the_client_s_own_name_is_the_identity_unless_another_is_given(arena: Arena) -> None:
    assert Runner(arena, holder="pod-7").election.identity == "pod-7"
    assert Runner(arena, "me", holder="pod-7").election.identity == "me"


@here
def test_two_candidates_of_one_identity_are_two_candidates(arena: Arena) -> None:
    one, other = Runner(arena, "same"), Runner(arena, "same")
    one.do("campaign")
    with pytest.raises(AcquireTimeout):
        other.do("campaign", wait=0)


@here
def test_a_candidate_that_leads_does_not_campaign_against_itself(arena: Arena) -> None:
    one = Runner(arena)
    one.do("campaign")
    with pytest.raises(AlreadyHeld):
        one.beside("campaign")


# Except on Kubernetes: both keep their name there, so they have one object and stand in each other's way.
@here
def test_an_election_and_a_lock_of_one_name_do_not_meet(arena: Arena) -> None:
    one, other = Runner(arena, "one"), Runner(arena, "other", tenant="t")
    one.do("campaign", wait=0)
    assert one.client.try_acquire(NAME).held
    assert one.client.try_acquire("election:" + NAME).held
    assert other.do("campaign", wait=0).held
    assert {info.scope for info in one.client.list()} == {NAME, "election:" + NAME}


@here
def test_the_key_of_an_election_is_no_key_of_a_lock(arena: Arena) -> None:
    names = arena.client().locks._engine.names
    assert names.election("a/b") != names.lock(Name("a/b"))
    assert names.text(names.election("a/b")) == "election:a/b"


# Succession.


@everywhere
def test_a_resigned_leader_is_replaced_at_once(arena: Arena) -> None:
    one, other = Runner(arena, "one"), Runner(arena, "other")
    first = one.do("campaign")
    waiting = other.begin("campaign")
    arena.eventually(lambda: any(isinstance(event, events.Busy) for event in other.client.events))
    resigned = arena.world.clock.now()
    assert one.do("resign") is True
    arena.eventually(waiting.done)
    second = waiting.result()
    assert second.token > first.token
    # Not by its ttl: what little has passed is for stores that poll.
    assert arena.world.clock.now() - resigned < arena.ttl / 5
    assert (one.election.leading, other.election.leading) == (False, True)
    assert one.do("resign") is False


@everywhere
def test_a_leader_that_is_cut_off_ends_before_the_next_one_begins(arena: Arena) -> None:
    one, other = Runner(arena, "one"), Runner(arena, "other")
    first = one.do("campaign")
    waiting = other.begin("campaign")
    arena.eventually(lambda: any(isinstance(event, events.Busy) for event in other.client.events))
    one.store.down()
    step = arena.ttl / 10
    for _ in range(8):
        arena.elapse(step)
        assert first.held
        assert not waiting.done()
    arena.elapse(1.1 * step)
    assert (first.held, first.over, waiting.done()) == (False, True, False)
    arena.eventually(waiting.done)
    assert waiting.result().token > first.token


@here
def test_a_leader_that_is_well_stays(arena: Arena) -> None:
    """The control: time alone ends no leadership."""
    one, other = Runner(arena, "one"), Runner(arena, "other")
    won = one.do("campaign")
    waiting = other.begin("campaign")
    arena.live(one.client.face(won), 3 * arena.ttl)
    assert won.held
    assert not waiting.done()
    one.do("resign")
    arena.eventually(waiting.done)


# lead().


@here
def test_a_worker_that_ends_by_itself_ends_the_leadership(arena: Arena) -> None:
    one = Runner(arena)
    assert one.lead(lambda leadership: leadership.token).result(20) > 0
    assert one.do("leader") is None


@here
def test_a_worker_s_error_is_raised_and_the_leadership_given_up(arena: Arena) -> None:
    one = Runner(arena)

    def fail(_leadership: Any) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        one.lead(fail).result(20)
    assert one.do("leader") is None


@here
def test_another_lease_s_loss_inside_the_worker_is_raised(arena: Arena) -> None:
    one = Runner(arena)

    def fail(_leadership: Any) -> None:
        raise LeaseLost("other", 1, "gone")

    with pytest.raises(LeaseLost):
        one.lead(fail).result(20)


@everywhere
def test_a_worker_is_stopped_on_loss_and_runs_again_when_elected_again(arena: Arena) -> None:
    one, other = Runner(arena, "one"), Runner(arena, "other")
    leading = one.lead()
    arena.eventually(lambda: one.work.terms)
    one.store.down()
    waiting = other.begin("campaign")
    for _ in range(12):
        arena.elapse(arena.ttl / 10)
    arena.eventually(waiting.done)
    arena.eventually(lambda: one.work.ended)
    (first,) = one.work.terms
    # It ended because it no longer believed.
    assert one.work.ended == [(first, False)]
    one.store.up()
    other.do("resign")
    arena.eventually(lambda: len(one.work.terms) == 2)
    assert one.work.terms[1] > waiting.result().token > first
    one.election.stop()
    arena.eventually(leading.done)
    assert not leading.exception()


@here
def test_a_worker_that_only_checks_learns_of_the_loss_and_runs_again(arena: Arena) -> None:
    one = Runner(arena)
    tokens: list[int] = []

    def check(leadership: Any) -> str:
        tokens.append(leadership.token)
        if len(tokens) == 1:
            arena.world.elapse(arena.ttl)
        leadership.check()
        return "done"

    assert one.lead(check).result(20) == "done"
    assert tokens[0] < tokens[1]


@here
def test_a_worker_that_resigned_is_not_run_again(arena: Arena) -> None:
    one = Runner(arena)
    runs: list[bool] = []

    def resign(leadership: Any) -> None:
        runs.append(leadership.held)
        one.election.resign()
        leadership.check()

    async def resign_later(leadership: Any) -> None:
        runs.append(leadership.held)
        await one.election.resign()
        leadership.check()

    leading = one.begin("lead", resign_later if arena.loop else resign)
    arena.eventually(leading.done)
    assert leading.result() is None
    assert runs == [True]
    assert one.do("leader") is None


@everywhere
def test_a_stopped_leader_tells_its_worker_first_and_lets_go_after(arena: Arena) -> None:
    one, other = Runner(arena, "one"), Runner(arena, "other")
    leading = one.lead()
    arena.eventually(lambda: one.work.terms)
    waiting = other.begin("campaign")
    one.election.stop()
    arena.eventually(waiting.done)
    # When it ended it still led: nobody else could have begun.
    assert one.work.ended == [(one.work.terms[0], True)]
    arena.eventually(leading.done)
    assert leading.result() == (None if arena.loop else "told")


@everywhere
def test_stopping_ends_whoever_waits(arena: Arena) -> None:
    leader = Runner(arena, "leader")
    leader.do("campaign")
    candidate, deputy, observer = Runner(arena), Runner(arena), Runner(arena)
    campaign, lead = candidate.begin("campaign"), deputy.lead()
    seen, observing = observer.observe()
    arena.eventually(lambda: seen)
    for runner in (candidate, deputy, observer):
        runner.election.stop()
    for waiting in (campaign, lead, observing):
        arena.eventually(waiting.done)
    with pytest.raises(ClientClosed, match="was stopped; make a new one"):
        campaign.result()
    assert lead.result() is None
    assert deputy.work.terms == []
    assert observing.exception() is None
    assert leader.election.leading


@here
def test_a_stop_before_the_start_counts(arena: Arena) -> None:
    one = Runner(arena)
    one.election.stop()
    assert one.lead().result(20) is None
    with pytest.raises(ClientClosed):
        one.do("campaign", wait=0)
    assert one.store.calls["swap"] == 0


@here
def test_an_outage_is_waited_for_and_told(arena: Arena, caplog: pytest.LogCaptureFixture) -> None:
    one = Runner(arena)
    one.store.down(refuse)
    with caplog.at_level(logging.WARNING, "leasehold"):
        leading = one.lead()
        # Patience of one ttl, and then a second campaign.
        arena.eventually(lambda: one.store.calls["swap"])
        for _ in range(30):
            arena.elapse(arena.ttl / 10)
            arena.eventually(lambda: True)
        arena.eventually(lambda: "goes on without its store" in caplog.text)
        one.store.up()
        arena.eventually(lambda: one.work.terms)
    one.election.stop()
    arena.eventually(leading.done)


# Looking.


@everywhere
def test_the_leader_is_shown_to_everybody(arena: Arena) -> None:
    one, other = Runner(arena, "one"), Runner(arena, "other")
    assert other.do("leader") is None
    won = one.do("campaign")
    shown = other.do("leader")
    assert (shown.identity, shown.token) == ("one", won.token)
    assert shown.since > 0
    assert 0 < shown.expires_in <= arena.ttl


@everywhere
def test_an_observer_sees_each_leader_once_and_the_time_without_one(arena: Arena) -> None:
    one, other, observer = Runner(arena, "one"), Runner(arena, "other"), Runner(arena)
    seen, observing = observer.observe()

    def identities() -> list[str | None]:
        return [leader and leader.identity for leader in seen]

    arena.eventually(lambda: identities() == [None])
    won = one.do("campaign")
    arena.eventually(lambda: identities() == [None, "one"])
    # Renewals are no change.
    arena.live(one.client.face(won), 2 * arena.ttl)
    one.do("resign")
    arena.eventually(lambda: identities() == [None, "one", None])
    other.do("campaign")
    arena.eventually(lambda: identities() == [None, "one", None, "other"])
    # A new term of the same candidate is a change.
    other.do("resign")
    arena.eventually(lambda: len(seen) == 5)
    other.do("campaign")
    arena.eventually(lambda: identities()[3:] == ["other", None, "other"])
    assert seen[5].token > seen[3].token
    observer.election.stop()
    arena.eventually(observing.done)


@here
def test_an_observer_waits_for_an_outage_to_end(arena: Arena, caplog: pytest.LogCaptureFixture) -> None:
    one, observer = Runner(arena, "one"), Runner(arena)
    seen, observing = observer.observe()
    arena.eventually(lambda: seen == [None])
    observer.store.down()
    one.do("campaign")
    arena.eventually(lambda: "goes on without its store" in caplog.text)
    assert not observing.done()
    observer.store.up()
    arena.eventually(lambda: len(seen) == 2)
    observer.election.stop()
    arena.eventually(observing.done)


@here
def test_an_observer_ends_with_its_client(arena: Arena) -> None:
    observer = Runner(arena)
    seen, observing = observer.observe()
    arena.eventually(lambda: seen)
    observer.client.close()
    arena.eventually(observing.done)
    assert observing.exception() is None


# At most one, whatever happens.


FAULTS = (drop, cut, refuse, hold_back)
TTL = 10.0
CANDIDATES = 4


class Play:
    """Candidates on one loop in virtual time, cut off and let back at random; not `shared`, each has its own store."""

    def __init__(self, chance: random.Random, *, shared: bool) -> None:
        self.chance = chance
        self.clock = VirtualClock()
        self.memories = [Memory(self.clock)] * CANDIDATES if shared else [Memory(self.clock) for _ in range(CANDIDATES)]
        self.stores: list[FaultyStore] = []
        self.elections: list[aio.Election] = []
        self.late: list[asyncio.Future[Any]] = []
        self.terms: list[int] = []
        self.most = 0

    async def work(self, leadership: aio.Leadership) -> None:
        self.terms.append(leadership.token)
        if self.chance.random() < 0.7:
            await leadership.wait()
        else:
            # Ends in the middle of its term: as good as resigned.
            await leadership.wait(TTL * self.chance.random())

    async def lead(self, candidate: aio.Election) -> None:
        while not candidate._candidate.stopped:
            await candidate.lead(self.work)

    async def run(self, steps: int) -> None:
        locks = [await self.client(memory) for memory in self.memories]
        self.elections = [aio.Election(each, NAME, ttl=TTL) for each in locks]
        running = [asyncio.ensure_future(self.lead(each)) for each in self.elections]
        for _ in range(steps):
            await self.step()
        for store, candidate in zip(self.stores, self.elections, strict=True):
            store.up()
            candidate.stop()
        while not all(each.done() for each in (*running, *self.late)):
            await self.pass_time(0.5)
        for late in self.late:
            late.result()
        assert [each.result() for each in running] == [None] * CANDIDATES
        for each in locks:
            await each.close()

    async def client(self, memory: Memory) -> aio.Locks:
        runtime = LoopedRuntime(self.clock)
        self.stores.append(store := FaultyStore(MemoryStore(memory, runtime), runtime))
        return aio.Locks(Engine(store, runtime, Names(None, None), holder=None, timeout=5.0, observers=[]))

    async def step(self) -> None:
        chance, store = self.chance, self.chance.choice(self.stores)
        match chance.randrange(6):
            case 0 | 1:
                store.down(chance.choice(FAULTS))
            case 2 | 3:
                store.up()
            case 4:
                store.plan(chance.choice(("swap", "touch", "watch")), chance.choice(FAULTS))
            case 5:
                # Beside us: a watch that arrives late waits for time, which only we let pass.
                self.late.append(asyncio.ensure_future(store.deliver()))
        for _ in range(chance.randrange(1, 12)):
            await self.pass_time(TTL * chance.random() / 10)

    async def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.look()
        for _ in range(30):
            await asyncio.sleep(0)
            self.look()

    def look(self) -> None:
        self.most = max(self.most, sum(each.leading for each in self.elections))


def test_whatever_is_cut_off_at_most_one_believes_to_lead() -> None:
    plays = 0
    for number in range(count(400)):
        play = Play(random.Random(number), shared=True)
        asyncio.run(play.run(steps=40))
        assert play.most <= 1, f"play {number}"
        assert play.terms == sorted(set(play.terms)), f"play {number}"
        plays += len(play.terms) > 2
    # Not because nobody was ever replaced.
    assert plays


def test_candidates_that_do_not_share_a_store_would_all_lead() -> None:
    """The control: the play can show two leaders."""
    play = Play(random.Random(0), shared=False)
    asyncio.run(play.run(steps=10))
    assert play.most > 1


# asyncio.


def test_a_cancelled_lead_cancels_its_worker_and_gives_up_the_leadership() -> None:
    tidied: list[bool] = []
    begun = asyncio.Event()

    async def work(leadership: aio.Leadership) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            tidied.append(leadership.held)

    async def main() -> None:
        async with await aio.connect("memory://cancelled") as locks:
            candidate = aio.Election(locks, NAME)
            task = asyncio.ensure_future(candidate.lead(work))
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert tidied == [True]
            assert await candidate.leader() is None

    asyncio.run(main())


def test_a_worker_that_cancels_itself_is_a_cancellation() -> None:
    async def work(_leadership: aio.Leadership) -> None:
        raise asyncio.CancelledError

    async def main() -> None:
        async with await aio.connect("memory://itself") as locks:
            with pytest.raises(asyncio.CancelledError):
                await aio.Election(locks, NAME).lead(work)

    asyncio.run(main())


def test_an_election_belongs_to_the_loop_of_its_client() -> None:
    async def make() -> aio.Election:
        return aio.Election(await aio.connect("memory://loops"), NAME)

    made = asyncio.run(make())
    for verb in (made.campaign, made.leader, made.resign):
        with pytest.raises(ClientClosed, match="another event loop"):
            asyncio.run(verb())


# Arguments.


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("name", {"name": ""}),
        ("name", {"name": 5}),
        ("name", {"name": "a\0b"}),
        ("name", {"name": "x" * 1025}),
        ("identity", {"identity": ""}),
        ("identity", {"identity": "x" * 257}),
        ("ttl", {"ttl": 0}),
        ("ttl", {"ttl": "15"}),
        ("ttl", {"ttl": 86_401}),
    ],
)
@here
def test_an_argument_that_cannot_work_is_refused_before_anything_is_written(
    arena: Arena, field: str, options: dict[str, Any]
) -> None:
    client = arena.client()
    with pytest.raises(InvalidInput) as caught:
        election_of(client, **options)
    assert caught.value.field == field
    assert not client.store.calls


@here
def test_a_worker_of_the_wrong_colour_is_refused(arena: Arena) -> None:
    one = Runner(arena)
    wrong = one.work.blocking if arena.loop else one.work.looped
    for worker in (wrong, None):
        with pytest.raises(InvalidInput) as caught:
            one.do("lead", worker)
        assert caught.value.field == "worker"
    assert not one.store.calls


@here
def test_a_client_of_the_wrong_colour_is_refused(arena: Arena) -> None:
    other = leasehold.Election if arena.loop else aio.Election
    for locks in (arena.client().locks, None, "memory://"):
        with pytest.raises(InvalidInput) as caught:
            other(locks, NAME)
        assert caught.value.field == "locks"


@here
def test_waiting_takes_seconds_and_nothing_else(arena: Arena) -> None:
    one = Runner(arena)
    with pytest.raises(InvalidInput):
        one.do("campaign", wait=-1)
    won = one.do("campaign")
    assert one.client.person.do(lambda: won.wait(0)) is False
    with pytest.raises(InvalidInput):
        one.client.person.do(lambda: won.wait("1"))


# Shape.


AWAITED = {
    "Election": {"campaign", "lead", "leader", "resign"},
    "Leadership": {"downgrade", "release", "release_part", "renew", "upgrade", "wait"},
}


@pytest.mark.parametrize("name", AWAITED)
def test_both_colours_look_alike(name: str) -> None:
    mine, theirs = getattr(leasehold, name), getattr(aio, name)
    assert (mine, theirs) == (getattr(election, name), getattr(election_aio, name))
    found = [each for each in differences(mine, theirs) if each not in TYPES]
    assert found == []


# Which client it takes, and what a worker is, has a colour.
TYPES = {"Election: parameters", "lead: parameters", "__init__: parameters"}


@pytest.mark.parametrize("name", AWAITED)
def test_what_reaches_the_store_is_awaited_and_nothing_else_is(name: str) -> None:
    coroutines = {
        member for member, value in _members(getattr(aio, name)).items() if inspect.iscoroutinefunction(value)
    }
    assert coroutines == AWAITED[name]
    for member in ("campaign", "lead", "leader", "resign", "wait", "observe", "stop", "over", "leading"):
        assert any(member in _members(getattr(leasehold, each)) for each in AWAITED)
