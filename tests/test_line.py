"""Lines and local passes, closely: what they cost, whose turn it is, and that nothing of them stays behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import leasehold
from leasehold import aio
from leasehold.engine import events
from leasehold.model import Record, Scan
from leasehold.testing.conformance.arena import Arena, Client
from leasehold.testing.conformance.worlds import MemoryWorld, SqliteWorld
from leasehold.testing.faults import FaultyStore, drop
from leasehold.wires import ears
from tests.support import count, eventually, note
from tests.test_processes import URLS

WORLDS = {"memory": MemoryWorld, "sqlite": SqliteWorld}
TASKS = 1000
CLIENTS = 4
LONG = 600.0


@pytest.fixture(params=[f"{world}-{colour}" for world in WORLDS for colour in ("blocking", "asyncio")])
def arena(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Arena]:
    world, _, colour = request.param.partition("-")
    made = Arena(WORLDS[world](tmp_path), colour)
    yield made
    made.close()


def tries(client: Client) -> int:
    return sum(isinstance(event, events.Attempt) for event in client.events)


def queue(arena: Arena, client: Client, size: int, **options: object) -> list[Client]:
    """So many more threads or tasks of a client, each of which waits for the job."""
    before = tries(client)
    others = [client.beside() for _ in range(size)]
    for place, other in enumerate(others):
        other.waiting = other.begin("acquire", "job", ttl=arena.ttl, **options)
        arena.eventually(lambda place=place: tries(client) == before + place + 1)
    return others


# Passing on.


def test_a_burst_of_a_thousand_tasks_costs_few_calls(tmp_path: Path) -> None:
    arena = Arena(MemoryWorld(tmp_path), "asyncio")
    ada = arena.client("ada")
    tokens: list[int] = []

    async def one() -> None:
        async with ada.locks.hold("job", ttl=arena.ttl) as lease:
            await asyncio.sleep(0)
            tokens.append(lease.token)

    async def burst() -> None:
        await asyncio.gather(*(one() for _ in range(TASKS)))

    ada.person.do(burst)
    calls = sum(ada.store.calls.values())
    note(f"store calls for a burst of {TASKS} tasks: {calls} {dict(ada.store.calls)}")
    assert 0 < calls <= 12
    assert tokens == sorted(set(tokens))
    assert len(tokens) == TASKS
    assert len(ada.locks._engine.local) == 0
    arena.close()


@pytest.mark.parametrize("passes", [0, 1, 3])
def test_another_client_in_line_has_its_turn_after_one_run_of_passes(arena: Arena, passes: int) -> None:
    ada, bob = arena.client("ada", local_passes=passes), arena.client("bob")
    lease = ada.acquire("job", ttl=arena.ttl)
    others = queue(arena, ada, 5)
    waiting = bob.begin("acquire", "job", ttl=arena.ttl)
    arena.eventually(lambda: bob.store.calls["watch"])
    lease.release()
    for _ in range(passes):
        arena.eventually(lambda: any(other.waiting.done() for other in others))
        (holder,) = [other for other in others if other.waiting.done()]
        others.remove(holder)
        assert not waiting.done()
        holder.face(holder.waiting.result()).release()
    arena.eventually(waiting.done)
    assert not any(other.waiting.done() for other in others)
    bob.face(waiting.result()).release()
    arena.eventually(lambda: any(other.waiting.done() for other in others))


def test_under_fair_nothing_is_passed_on_past_who_came_before(arena: Arena) -> None:
    ada, bob = arena.client("ada"), arena.client("bob")
    lease = ada.acquire("job", ttl=arena.ttl, fair=True)
    waiting = bob.begin("acquire", "job", ttl=arena.ttl, fair=True)
    arena.eventually(lambda: bob.store.calls["watch"])
    (other,) = queue(arena, ada, 1, fair=True)
    arena.eventually(lambda: ada.store.calls["watch"])
    lease.release()
    arena.eventually(waiting.done)
    assert not other.waiting.done()
    bob.face(waiting.result()).release()
    arena.eventually(other.waiting.done)


def test_the_first_in_a_client_gives_up_and_the_next_takes_its_place(arena: Arena) -> None:
    ada, bob = arena.client("ada"), arena.client("bob")
    lease = bob.acquire("job", ttl=arena.ttl)
    first, second = queue(arena, ada, 1, wait=0.3 * arena.ttl)[0], queue(arena, ada, 1)[0]
    arena.elapse(0.4 * arena.ttl)
    arena.eventually(first.waiting.done)
    assert isinstance(first.waiting.exception(), leasehold.AcquireTimeout)
    lease.release()
    arena.eventually(second.waiting.done)
    assert second.face(second.waiting.result()).held


# Nothing stays behind.


def test_neither_queues_nor_tickets_nor_crowds_accumulate(arena: Arena) -> None:
    ada, bob = arena.client("ada"), arena.client("bob")
    for number in range(count(300)):
        scope = f"job {number}"
        lease = ada.acquire(scope, ttl=arena.ttl)
        waiting = bob.begin("acquire", scope, ttl=arena.ttl)
        arena.eventually(lambda number=number: bob.store.calls["watch"] > number)
        lease.release()
        arena.eventually(waiting.done)
        bob.face(waiting.result()).release()
    for client in (ada, bob):
        engine = client.locks._engine
        assert (len(engine.local), len(engine.doubts), engine.heartbeat.held()) == (0, 0, [])
    store = arena.store()
    arena.eventually(lambda: store.page("/", None, 10) == [])


def test_who_is_cancelled_in_line_leaves_it(tmp_path: Path) -> None:
    arena = Arena(MemoryWorld(tmp_path), "asyncio")
    ada, bob, cleo = (arena.client(name) for name in ("ada", "bob", "cleo"))
    lease = ada.acquire("job", ttl=arena.ttl)

    async def cancelled() -> None:
        task = asyncio.ensure_future(bob.locks.acquire("job", ttl=arena.ttl))
        await asyncio.to_thread(eventually, lambda: bob.store.calls["watch"])
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    bob.person.do(cancelled)
    waiting = cleo.begin("acquire", "job", ttl=arena.ttl)
    # The clock stands: his ticket does not end by its ttl.
    eventually(lambda: [waiter.holder for waiter in ada.inspect("job").waiters] == ["cleo"])
    lease.release()
    eventually(waiting.done)
    arena.close()


def test_a_forked_child_queues_behind_nobody(tmp_path: Path) -> None:
    """Threads of the parent hold and wait; the child's own client, made anew, is free to ask."""
    url = f"sqlite://{tmp_path}/leases.db"
    with leasehold.connect(url) as locks:
        lease = locks.acquire("job", ttl=30)
        waiting = threading.Thread(target=lambda: locks.acquire("job", ttl=30).release())
        waiting.start()
        child = os.fork()
        if child == 0:
            # In the child: nothing of the parent's may keep it waiting.
            signal.alarm(60)
            with contextlib.suppress(leasehold.LeaseholdError), leasehold.connect(url) as own:
                found = own.try_acquire("job", ttl=30)
                other = own.acquire("other", ttl=30)
                os._exit(0 if found is None and other.held and len(locks._engine.local) == 0 else 1)
            os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        lease.release()
        waiting.join(20)
        assert not waiting.is_alive()


# What is bequeathed to who no longer wants it.


async def deaf(store: FaultyStore, _call) -> None:
    """Nothing is heard, and nothing is looked at again."""
    await store.colour.signal().wait()


def test_what_became_ours_while_we_left_goes_to_the_next(tmp_path: Path) -> None:
    """Our time is over, we are about to give our ticket back, and at this moment the lock is let go.

    From then on the clock stands: it is not freed by its ttl.
    """
    arena = Arena(MemoryWorld(tmp_path), "blocking")
    ada, bob, cleo = (arena.client(name) for name in ("ada", "bob", "cleo"))
    lease = ada.acquire("job", ttl=arena.ttl, fair=True)
    impatient = bob.begin("acquire", "job", ttl=arena.ttl, wait=1)
    arena.eventually(lambda: bob.store.calls["watch"])
    patient = cleo.begin("acquire", "job", ttl=arena.ttl)
    arena.eventually(lambda: cleo.store.calls["watch"])
    holders: list[str] = []

    def release() -> None:
        lease.release()
        holders.append(ada.inspect("job").holder)

    bob.store.plan("swap", _after(release))
    arena.elapse(1)
    assert isinstance(impatient.exception(20), leasehold.AcquireTimeout)
    assert holders == ["bob"]
    eventually(patient.done)
    assert cleo.face(patient.result()).held
    arena.close()


def test_what_became_ours_without_our_knowing_is_given_back_when_we_are_cancelled(tmp_path: Path) -> None:
    """The clock stands: it is not freed by its ttl."""
    arena = Arena(MemoryWorld(tmp_path), "asyncio")
    ada, bob = (arena.client(name) for name in ("ada", "bob"))
    lease = ada.acquire("job", ttl=arena.ttl, fair=True)
    bob.store.plan("watch", deaf)

    async def cancelled() -> None:
        task = asyncio.ensure_future(bob.locks.acquire("job", ttl=arena.ttl))
        await asyncio.to_thread(eventually, lambda: bob.store.calls["watch"])
        await asyncio.to_thread(lease.release)
        assert (await asyncio.to_thread(ada.inspect, "job")).holder == "bob"
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    bob.person.do(cancelled)
    eventually(lambda: ada.try_acquire("job", ttl=arena.ttl))
    arena.close()


def test_what_was_left_to_us_is_believed_from_when_our_ticket_was_sent_and_not_from_when_we_heard(
    tmp_path: Path,
) -> None:
    """We hear shortly before it ends, and cannot renew it: so we do not believe it, and have nothing when it ends."""
    arena = Arena(MemoryWorld(tmp_path), "blocking")
    ada, bob, cleo = (arena.client(name) for name in ("ada", "bob", "cleo"))
    lease = ada.acquire("job", ttl=arena.ttl, fair=True)
    heard = threading.Event()

    async def late(_store: FaultyStore, _call) -> None:
        heard.wait(20)

    bob.store.plan("watch", late)
    waiting = bob.begin("acquire", "job", ttl=arena.ttl)
    arena.eventually(lambda: bob.store.calls["watch"])
    lease.release()
    found = cleo.inspect("job")
    assert found.holder == "bob"
    arena.elapse(0.9 * found.expires_in)
    looks = bob.store.calls["scan"]
    bob.store.plan("touch", *[drop] * 50)
    heard.set()
    arena.eventually(lambda: bob.store.calls["scan"] > looks)
    arena.elapse(0.2 * found.expires_in)
    assert cleo.try_acquire("job", ttl=arena.ttl) is not None
    assert not waiting.done()
    arena.close()


# No wake-up is lost.


class Late(FaultyStore):
    """Tells of nothing that happened before a watch began; and, if asked to, looks before it takes a place in line."""

    def __init__(self, inner: FaultyStore) -> None:
        super().__init__(inner, inner.colour)
        self.between: object = None

    async def watch(self, key, seen, until):
        await self.colour.sleep(until - self.colour.clock.now())

    async def together(self, asks):
        if self.between is None or not isinstance(asks[-1], Scan):
            return await super().together(asks)
        seen = await self.inner.scan(asks[-1].family)
        happen, self.between = self.between, None
        happen()
        *answers, _ = await super().together(asks)
        made = answers[-1]
        return [*answers, [*seen, made] if isinstance(made, Record) else seen]


def gone_meanwhile(tmp_path: Path, *, looking_again: bool) -> bool:
    """Whether one who waits is granted, when the lock is released while it takes its place in line."""
    arena = Arena(MemoryWorld(tmp_path), "blocking")
    ada, bob = arena.client("ada"), arena.client("bob", change=Late)
    lease = ada.acquire("job", ttl=arena.ttl)
    store = bob.locks._engine.store
    done = threading.Event()

    def release() -> None:
        lease.release()
        done.set()

    if looking_again:
        store.inner.plan("scan", _after(release))
    else:
        store.between = release
    waiting = bob.begin("acquire", "job", ttl=arena.ttl, fair=True)
    assert done.wait(20)
    granted = True
    try:
        waiting.result(1)
    except TimeoutError:
        granted = False
    arena.elapse(2 * arena.ttl)
    arena.close()
    return granted


def _after(happen):
    async def fault(_store, call):
        happen()
        return await call()

    return fault


def test_a_release_while_one_takes_its_place_is_not_missed(tmp_path: Path) -> None:
    """Registered first, looked second. The control looks first: the news is lost, and only the poll would tell."""
    assert gone_meanwhile(tmp_path, looking_again=True)
    assert not gone_meanwhile(tmp_path, looking_again=False)


@pytest.mark.parametrize("store", URLS)
def test_hundreds_of_hand_overs_miss_no_wake_up(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In real time, and without the poll beneath: tickets last for minutes, so whoever is not called stands still."""
    monkeypatch.setattr(ears, "HEARTBEAT", LONG)
    url, grants = URLS[store](tmp_path), count(4000)
    done: list[int] = []

    def contend(locks: leasehold.Locks, seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(grants // CLIENTS):
            with locks.hold(f"job {chance.randrange(2)}", ttl=60, fair=chance.random() < 0.5) as lease:
                done.append(lease.token)

    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(leasehold.connect(url, timeout=30)) for _ in range(CLIENTS)]
        for locks in clients:
            engine = locks._engine
            engine.store.guarantees = msgspec.structs.replace(engine.store.guarantees, ticket_ttl=LONG)
        people = [threading.Thread(target=contend, args=(locks, n), daemon=True) for n, locks in enumerate(clients)]
        for each in people:
            each.start()
        for each in people:
            each.join(60)
        assert len(done) == grants // CLIENTS * CLIENTS


# Several at once.


def test_whoever_wants_several_in_whatever_order_waits_for_nobody_who_waits_for_it(tmp_path: Path) -> None:
    """Subsets of a few scopes in any order, by threads of several clients: all come to an end."""
    scopes = [f"account {n}" for n in range(5)]
    url = f"memory://{tmp_path.name}"
    inside: dict[str, int] = dict.fromkeys(scopes, 0)
    wrong: list[str] = []

    def transfer(locks: leasehold.Locks, seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(count(100)):
            wanted = chance.sample(scopes, chance.randint(2, 4))
            with locks.hold_all([*wanted, wanted[0]], ttl=30) as leases:
                for scope in wanted:
                    inside[scope] += 1
                wrong.extend(scope for scope in wanted if inside[scope] != 1 or not leases[scope].held)
                for scope in wanted:
                    inside[scope] -= 1

    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(leasehold.connect(url, timeout=30)) for _ in range(3)]
        people = [threading.Thread(target=transfer, args=(clients[n % 3], n)) for n in range(6)]
        for each in people:
            each.start()
        for each in people:
            each.join(100)
        assert not any(each.is_alive() for each in people)
    assert wrong == []


def test_what_fails_in_the_middle_of_several_is_let_go(arena: Arena) -> None:
    ada, bob = arena.client("ada"), arena.client("bob")
    held = bob.acquire("b", ttl=arena.ttl)
    with pytest.raises(leasehold.AcquireTimeout, match="'b'"):
        ada.within_all(["c", "b", "a"], lambda _: None, ttl=arena.ttl, wait=0)
    assert [info.scope for info in bob.list()] == ["b"]
    assert held.release()
    leases = ada.within_all(["c", "b", "a"], list, ttl=arena.ttl, wait=0)
    assert leases == ["a", "b", "c"]


def test_a_policy_of_ones_own_decides_when_to_ask_again(arena: Arena) -> None:
    class Twice:
        attempts = 2

        def delay(self, attempt: int, chance: float, /) -> float:
            assert 0 <= chance < 1
            return 0.25 * (attempt + 1)

    ada, bob = arena.client("ada"), arena.client("bob")
    ada.acquire("job", ttl=arena.ttl)
    waiting = bob.begin("acquire", "job", ttl=arena.ttl, retry=Twice())
    arena.eventually(waiting.done)
    assert isinstance(waiting.exception(), leasehold.NotAcquired)
    assert bob.store.calls["swap"] == 2
    assert bob.store.calls["watch"] == 0


def test_both_facades_offer_the_same_waiting() -> None:
    assert set(dir(leasehold.Locks)) - set(dir(aio.Locks)) <= {"__enter__", "__exit__"}
