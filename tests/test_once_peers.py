"""How others who handle a request once were seen to fail, and that we do not: one test for each failure."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

import leasehold
from leasehold.errors import (
    FinishedLate,
    KeyReused,
    OutcomeUnknown,
    ResultNotKept,
    RunFailed,
    StillRunning,
    StoreUnavailable,
)
from leasehold.rules.once import State, read_once
from leasehold.testing.conformance import Arena, arenas
from leasehold.testing.conformance.once_face import (
    KEY,
    RECEIPT,
    Declined,
    Doing,
    Gate,
    Hiccup,
    Ledger,
    OnceFace,
    WorkFace,
    comes_back,
    died,
    live,
    two_of,
)
from leasehold.testing.conformance.worlds import MemoryWorld, SqliteWorld
from tests.support import eventually

arena = arenas(memory=MemoryWorld, sqlite=SqliteWorld)

DAY = 86_400.0


def answering(value: Any, gate: Gate | None = None, error: Exception | None = None) -> Doing:
    async def doing(_work: WorkFace) -> Any:
        if gate is not None:
            await gate.passed()
        if error is not None:
            raise error
        return value

    return doing


def reached(arena: Arena, one: OnceFace, doing: Doing, gate: Gate, **options: Any) -> Future[Any]:
    running = one.begin(KEY, doing, **options)
    arena.eventually(gate.reached.is_set)
    return running


def everything(arena: Arena, once: OnceFace) -> list[Any]:
    """All that is in the store of this client's prefix and tenant."""
    return arena.store().page(once.who.locks._engine.names.root, None, 100)


# Zombies.


def test_a_worker_that_finishes_late_does_not_overwrite_the_answer_of_its_heir(arena: Arena) -> None:
    """Elsewhere the update is unconditional: all later replays returned the answer of the zombie."""
    one, two = two_of(arena)
    gate = Gate(arena)
    zombie = died(arena, one, two, answering("by A", gate))
    assert two.run(KEY, answering("by B"), rerun=True) == "by B"
    comes_back(arena, one, gate, zombie)
    assert isinstance(zombie.exception(), FinishedLate)
    assert [once.run(KEY, answering("by C")) for once in (one, two)] == ["by B", "by B"]


def test_a_worker_that_fails_late_does_not_free_the_key_under_its_heir(arena: Arena) -> None:
    """Elsewhere the delete is unconditional: a third one ran while the heir was still at it."""
    one, two = two_of(arena, retry=(Hiccup,))
    gate, heirs = Gate(arena), Gate(arena)
    zombie = died(arena, one, two, answering(None, gate, Hiccup()))
    heir = reached(arena, two, answering("by B", heirs), heirs, rerun=True)
    comes_back(arena, one, gate, zombie)
    third = OnceFace(arena, arena.client("cleo"))
    with pytest.raises(StillRunning):
        third.run(KEY, answering("by C"), duplicates="raise", rerun=True)
    heirs.open()
    arena.eventually(heir.done)
    assert third.run(KEY, answering("by C")) == "by B"


def test_two_who_recover_at_once_do_not_both_run(arena: Arena) -> None:
    """Elsewhere recovery was not under a lock: the same work was executed twice by those who recovered it."""
    one, two = two_of(arena)
    ledger, gate, slow = Ledger(), Gate(arena), Gate(arena)
    zombie = died(arena, one, two, answering(None, gate))
    cleo = OnceFace(arena, arena.client("cleo"))
    recovering = [once.begin(KEY, ledger.held_up(slow), rerun=True) for once in (two, cleo)]
    arena.eventually(slow.reached.is_set)
    slow.open()
    arena.eventually(lambda: all(each.done() for each in recovering))
    assert [each.result() for each in recovering] == [RECEIPT] * 2
    assert len(ledger.done) == 1
    comes_back(arena, one, gate, zombie)


# Payloads.


def test_an_identical_retry_of_a_completed_call_is_no_mismatch(arena: Arena) -> None:
    """Elsewhere completing the record dropped what the payload is compared with: every retry was refused."""
    one, two = two_of(arena)
    ledger = Ledger()

    async def doing(work: WorkFace) -> Any:
        await work.step("charge", lambda: None)
        return await ledger.charge(work)

    one.run(KEY, doing, fingerprint="sha256:a")
    for once in (one, two):
        assert once.run(KEY, doing, fingerprint="sha256:a") == RECEIPT
        # The control: it is compared.
        with pytest.raises(KeyReused):
            once.run(KEY, doing, fingerprint="sha256:b")
    assert len(ledger.done) == 1


@pytest.mark.parametrize("error", [Declined("no"), KeyError("what")])
def test_another_payload_is_refused_however_the_first_ended(arena: Arena, error: Exception) -> None:
    """Elsewhere the payload was compared with completed records only, or not at all."""
    one, two = two_of(arena, definite=(Declined,))
    with pytest.raises(type(error)):
        one.run(KEY, answering(None, error=error), fingerprint="a")
    with pytest.raises(KeyReused):
        two.run(KEY, answering("other"), fingerprint="b", rerun=True)


def test_work_that_changes_its_own_payload_is_found_again(arena: Arena) -> None:
    """Elsewhere the key was computed once more after the work: two records, the first of them in progress for ever."""
    one, two = two_of(arena)
    done: list[str] = []

    def charge(work: Any, body: dict[str, Any]) -> str:
        done.append(body.pop("order"))
        return work.key

    async def looped(work: Any, body: dict[str, Any]) -> str:
        return charge(work, body)

    for once in (one, two):
        decorate = once.handler(lambda body: body["order"], fingerprint=lambda body: repr(sorted(body.items())))
        wrapped = decorate(charge if arena.loop is None else looped)
        body = {"order": "o/1", "cents": 5}
        assert arena.person().do(lambda: wrapped(body)) == "o/1"  # noqa: B023  done at once
    assert done == ["o/1"]
    assert [read_once(record).state for record in everything(arena, two)] == [State.COMPLETED]


def test_the_order_of_keys_and_the_spelling_of_a_number_make_no_other_payload(arena: Arena) -> None:
    """Elsewhere the text was hashed as it came: a client that wrote its keys in another order was another request."""
    one, two = two_of(arena)
    ledger = Ledger()
    first = leasehold.fingerprint(b'{"cents": 1250, "to": {"name": "A\\u00e9", "id": 7}}')
    again = leasehold.fingerprint('{"to":{"id":7.0,"name":"Aé"},"cents":1.25e3}')
    assert one.run(KEY, ledger.charge, fingerprint=first) == two.run(KEY, ledger.charge, fingerprint=again)
    assert len(ledger.done) == 1


def test_what_changes_from_one_try_to_the_next_makes_no_other_payload(arena: Arena) -> None:
    """Elsewhere a time and a trace id were hashed with the rest: every retry was a new request, and a new charge."""
    one, two = two_of(arena)
    ledger = Ledger()
    sent = ({"cents": 5, "meta": {"trace": trace, "items": [{"at": at}]}} for trace, at in (("a", 1), ("b", 2)))
    volatile = ["/meta/trace", "/meta/items/*/at"]
    first, again = (leasehold.fingerprint(body, volatile=volatile) for body in sent)
    assert one.run(KEY, ledger.charge, fingerprint=first) == two.run(KEY, ledger.charge, fingerprint=again)
    assert len(ledger.done) == 1


@pytest.mark.parametrize(
    ("first", "other"),
    [
        ({"cents": None}, {}),
        ({"cents": [1, 2]}, {"cents": [2, 1]}),
        ({"a": {"b": 1}}, {"a": [{"b": 1}]}),
        ({"a": "b:c"}, {"a:b": "c"}),
        ({"cents": 1}, {"cents": "1"}),
    ],
    ids=str,
)
def test_what_means_something_else_is_another_payload(arena: Arena, first: Any, other: Any) -> None:
    """Elsewhere a form of one's own making took what is missing for null, or one nesting for another."""
    one, two = two_of(arena)
    one.run(KEY, answering("done"), fingerprint=leasehold.fingerprint(first))
    with pytest.raises(KeyReused):
        two.run(KEY, answering("done"), fingerprint=leasehold.fingerprint(other))


def test_an_answer_is_not_given_to_another_tenant_or_for_another_kind_of_work(arena: Arena) -> None:
    """Elsewhere the key was all that was compared: one client received the answer of another."""
    alice, bob = (OnceFace(arena, arena.client(tenant, tenant=tenant)) for tenant in ("alice", "bob"))
    assert alice.run(KEY, answering("for alice")) == "for alice"
    assert bob.run(KEY, answering("for bob")) == "for bob"
    assert OnceFace(arena, alice.who, "refunds").run(KEY, answering("refund")) == "refund"
    # Names that run into each other when they are put together.
    assert OnceFace(arena, alice.who, "a/b").run("c", answering("a/b, c")) == "a/b, c"
    assert OnceFace(arena, alice.who, "a").run("b/c", answering("a, b/c")) == "a, b/c"
    assert OnceFace(arena, alice.who, "a%2Fb").run("c", answering("a%2Fb, c")) == "a%2Fb, c"


# Leases and how long things last.


def test_work_that_goes_on_is_not_taken_for_an_orphan(arena: Arena) -> None:
    """Elsewhere a record in progress was reclaimed although its worker lived: two ran at once."""
    one, two = two_of(arena)
    ledger, gate = Ledger(), Gate(arena)
    running = reached(arena, one, ledger.held_up(gate), gate)
    for _ in range(3):
        live(arena, one, arena.ttl)
        with pytest.raises(StillRunning):
            two.run(KEY, ledger.charge, duplicates="raise", rerun=True)
    gate.open()
    arena.eventually(running.done)
    assert len(ledger.done) == 1


def test_work_whose_worker_died_does_not_stay_in_progress(arena: Arena) -> None:
    """Elsewhere a crash left the key in progress, with no end or one a day away: every retry was turned away."""
    one, two = two_of(arena, keep=DAY)
    ledger, gate = Ledger(), Gate(arena)
    # It is told as unknown within a lease, not within the life of an answer.
    zombie = died(arena, one, two, answering(None, gate))
    assert two.run(KEY, ledger.charge, rerun=True) == RECEIPT
    comes_back(arena, one, gate, zombie)
    arena.elapse(DAY / 2)
    assert two.run(KEY, ledger.charge) == RECEIPT
    assert len(ledger.done) == 1


def test_a_key_whose_answer_has_ended_is_free_and_has_left_nothing(arena: Arena) -> None:
    """Elsewhere the set of known keys had no end: an expired one was refused for ever, and the set grew."""
    one, two = two_of(arena, keep=2 * arena.ttl)
    assert one.run(KEY, answering("first")) == "first"
    arena.elapse(3 * arena.ttl)
    assert two.run(KEY, answering("second")) == "second"
    assert one.run(KEY, answering("third")) == "second"
    arena.elapse(3 * arena.ttl)
    two.who.gc(100)
    assert everything(arena, two) == []


def test_collecting_what_has_ended_does_not_touch_work_that_goes_on(arena: Arena) -> None:
    """Elsewhere a sweep of old records raced with work on them, and the answer was wrong."""
    one, two = two_of(arena)
    gate = Gate(arena)
    running = reached(arena, one, answering("done", gate), gate)
    for _ in range(5):
        two.who.gc(100)
    gate.open()
    arena.eventually(running.done)
    assert running.result() == two.run(KEY, answering("other")) == "done"


def test_the_clock_on_the_wall_of_a_worker_decides_nothing(arena: Arena) -> None:
    """Elsewhere the caller's own clock decided whether a record had ended."""
    one, two = two_of(arena)
    one.real._handling.wall = lambda: 0.0
    two.real._handling.wall = lambda: 4e9
    assert one.run(KEY, answering("first")) == "first"
    assert two.run(KEY, answering("second")) == "first"
    assert two.run(f"{KEY}/2", answering("second")) == "second"
    assert one.run(f"{KEY}/2", answering("first")) == "second"


# Errors.


def test_an_error_after_the_effect_does_not_do_it_again(arena: Arena) -> None:
    """Elsewhere any error deleted the record: the retry did what had been done already."""
    one, two = two_of(arena)
    ledger = Ledger()
    with pytest.raises(ConnectionError):
        one.run(KEY, ledger.failing(ConnectionError("the answer of the bank got lost")))
    for once in (one, two):
        with pytest.raises(OutcomeUnknown):
            once.run(KEY, ledger.charge)
    assert len(ledger.done) == 1


def test_a_passing_failure_is_not_the_answer_for_a_day(arena: Arena) -> None:
    """Elsewhere every failure was kept like an answer: a moment's outage was replayed for a day."""
    one, two = two_of(arena, retry=(Hiccup,), definite=(Declined,))
    with pytest.raises(Hiccup):
        one.run(KEY, answering(None, error=Hiccup("try again")))
    assert two.run(KEY, answering("done")) == "done"
    # The control: what is definite is kept.
    with pytest.raises(Declined):
        one.run(f"{KEY}/2", answering(None, error=Declined("no")))
    with pytest.raises(RunFailed):
        two.run(f"{KEY}/2", answering("done"))


def test_a_failure_that_proves_to_be_one_can_be_told_and_frees_the_key(arena: Arena) -> None:
    """Elsewhere somebody found out what had become of it, and the key could not be released."""
    one, two = two_of(arena)
    for key, see_to_it in ((f"{KEY}/a", lambda k: two.settle(k, "was done")), (f"{KEY}/b", two.forget)):
        with pytest.raises(TimeoutError):
            one.run(key, answering(None, error=TimeoutError()))
        assert see_to_it(key) is True
    assert two.run(f"{KEY}/a", answering("again")) == "was done"
    assert two.run(f"{KEY}/b", answering("again")) == "again"


def test_our_own_errors_are_not_taken_for_a_definite_failure_of_the_work(arena: Arena) -> None:
    """Elsewhere a wide list of failures swallowed the library's own: a lost lock was kept as the answer."""
    one, two = two_of(arena, definite=(Exception,), retry=(Exception,))

    async def doing(work: WorkFace) -> Any:
        one.who.store.down()
        return await work.step("charge", lambda: None)

    with pytest.raises(StoreUnavailable):
        one.run(KEY, doing)
    one.who.store.up()
    waiting = two.begin(KEY, answering("other"))
    for _ in range(12):
        arena.elapse(arena.ttl / 10)
    arena.eventually(waiting.done)
    assert isinstance(waiting.exception(), OutcomeUnknown)


# Stores.


def test_an_answer_that_could_not_be_written_does_not_run_the_work_again(arena: Arena) -> None:
    """Elsewhere the response was written after the commit: where that failed, the next request ran it again."""
    one, two = two_of(arena)
    ledger = Ledger()

    async def doing(work: WorkFace) -> Any:
        one.who.store.down()
        return await ledger.charge(work)

    running = one.begin(KEY, doing)
    # It tries to write it for a while.
    eventually(running.done, nudge=lambda: arena.elapse(arena.ttl / 50))
    # Who did it has the value, and knows that nobody else has.
    assert isinstance(running.exception(), ResultNotKept)
    assert running.exception().value == RECEIPT
    assert isinstance(running.exception().__cause__, StoreUnavailable)
    one.who.store.up()
    waiting = two.begin(KEY, ledger.charge)
    for _ in range(12):
        arena.elapse(arena.ttl / 10)
    arena.eventually(waiting.done)
    assert isinstance(waiting.exception(), OutcomeUnknown)
    assert len(ledger.done) == 1


def test_nothing_runs_unlocked_because_the_store_is_down(arena: Arena) -> None:
    """Elsewhere the default was to run all the same: an outage of the cache was a second payroll."""
    one, _ = two_of(arena)
    ledger = Ledger()
    one.who.store.down()
    for options in ({}, {"duplicates": "skip"}, {"rerun": True}, {"duplicates": "raise"}):
        with pytest.raises(StoreUnavailable):
            one.run(KEY, ledger.charge, **options)
    one.who.store.up()
    assert ledger.done == []


def test_cleaning_up_removes_what_was_written_and_under_the_name_it_was_written(arena: Arena) -> None:
    """Elsewhere the bare key was deleted in place of the one with its namespace: stale locks were left."""
    who = arena.client("ada", prefix="shop/eu", tenant="a%b")
    once = OnceFace(arena, who, "pay/ments", retry=(Hiccup,))
    with pytest.raises(Hiccup):
        once.run(KEY, answering(None, error=Hiccup()))
    assert everything(arena, once) == []
    once.run(KEY, answering("done"))
    # The control: it is to be seen.
    assert len(everything(arena, once)) == 1
    once.forget(KEY)
    assert everything(arena, once) == []


# Concurrency.


def test_duplicates_that_come_at_once_are_one(arena: Arena) -> None:
    """Elsewhere the lock covered only the look: both found nothing, and both ran."""
    ledger, gate = Ledger(), Gate(arena)
    shops = [OnceFace(arena, arena.client(f"shop-{number}")) for number in range(4)]
    running = [once.begin(KEY, ledger.held_up(gate), beside=True) for once in shops for _ in range(4)]
    arena.eventually(gate.reached.is_set)
    gate.open()
    arena.eventually(lambda: all(each.done() for each in running))
    assert [each.result() for each in running] == [RECEIPT] * len(running)
    assert len(ledger.done) == 1


def test_one_key_does_not_wait_for_another(arena: Arena) -> None:
    """Elsewhere one lock was held for all requests."""
    one, two = two_of(arena)
    gate = Gate(arena)
    running = reached(arena, one, answering("slow", gate), gate)
    assert two.run(f"{KEY}/2", answering("quick")) == "quick"
    assert not running.done()
    gate.open()
    arena.eventually(running.done)


def test_two_kinds_of_work_of_one_client_keep_their_own_options(arena: Arena) -> None:
    """Elsewhere the options of the first were silently those of all that shared its storage."""
    who = arena.client("ada")
    strict = OnceFace(arena, who, "strict", definite=(Declined,))
    lenient = OnceFace(arena, who, "lenient", retry=(Declined,))
    for once in (strict, lenient):
        with pytest.raises(Declined):
            once.run(KEY, answering(None, error=Declined("no")))
    with pytest.raises(RunFailed):
        strict.run(KEY, answering("done"))
    assert lenient.run(KEY, answering("done")) == "done"


def test_a_client_keeps_nothing_of_the_keys_it_has_handled(arena: Arena) -> None:
    """Elsewhere a lock for every key stayed in memory for ever."""
    one, two = two_of(arena, retry=(Hiccup,))
    engine = one.who.locks._engine
    for number in range(20):
        one.run(f"{KEY}/{number}", answering(number))
        two.run(f"{KEY}/{number}", answering(number))
        with pytest.raises(Hiccup):
            one.run(f"{KEY}/{number}/fails", answering(None, error=Hiccup()))
    assert engine.heartbeat.held() == []
    assert (len(engine.doubts), engine._kept, engine._parts) == (0, {}, {})
