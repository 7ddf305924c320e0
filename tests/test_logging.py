"""What is logged, with which fields; and that the secret of a lease is nowhere to be read but in the store."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
import logging
import re
import traceback
import uuid

import pytest

import leasehold
from leasehold import aio
from leasehold.engine import events
from leasehold.engine.blocking import BlockingRuntime
from leasehold.engine.doubt import Doubt
from leasehold.engine.engine import Engine
from leasehold.engine.grant import read_hold
from leasehold.engine.looped import LoopedRuntime
from leasehold.errors import StoreUnavailable
from leasehold.rules.names import Names
from leasehold.stores.memory import Memory, MemoryStore
from leasehold.telemetry.logs import log_event
from leasehold.testing.clock import VirtualClock
from leasehold.testing.faults import Call, FaultyStore
from tests.facades import COLOURS, answer, memory_place, sqlite_place, within
from tests.support import note

KINDS = [
    kind
    for _, kind in inspect.getmembers(events, inspect.isclass)
    if issubclass(kind, events.Event) and kind is not events.Event
]
SAMPLES = {"str": "some text", "int": 7, "float": 1.5, "bool": True, "str | None": "web-2", "bool | None": True}


@pytest.fixture(autouse=True)
def everything_is_logged(caplog):
    caplog.set_level(logging.DEBUG, logger="leasehold")


@pytest.fixture(params=COLOURS, ids=lambda colour: colour.name)
def colour(request):
    return request.param


def sample(kind: type[events.Event], scope: str = "invoice/42", holder: str = "web-1") -> events.Event:
    """An event of this kind, its other fields filled in by their types."""
    rest = {name: SAMPLES[str(hint)] for name, hint in inspect.get_annotations(kind).items()}
    return kind(scope=scope, holder=holder, **rest)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_event_is_one_line_with_key_token_and_holder_as_fields(caplog, kind) -> None:
    event = sample(kind)
    log_event(event)
    (record,) = caplog.records
    assert record.name == "leasehold"
    assert (record.key, record.holder) == ("invoice/42", "web-1")
    assert record.token == getattr(event, "token", None)
    assert "invoice/42" in record.getMessage()
    assert record.getMessage().isprintable()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_no_name_of_a_key_or_holder_can_forge_a_line(caplog, kind) -> None:
    log_event(sample(kind, scope="a\r\nERROR forged\x1b[2J", holder="b\nERROR forged"))
    (record,) = caplog.records
    assert record.getMessage().isprintable()
    # The fields are data and stay as they are.
    assert record.key == "a\r\nERROR forged\x1b[2J"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_what_needs_a_person_is_a_warning_and_the_rest_is_detail(caplog, kind) -> None:
    log_event(sample(kind))
    urgent = {events.Lost, events.Lagged, events.Unanswered, events.Revoked, events.HelperEnded}
    assert caplog.records[0].levelno == (logging.WARNING if kind in urgent else logging.DEBUG)


def test_a_release_without_an_answer_is_a_warning(caplog) -> None:
    log_event(events.Released("x", "me", 7, None, 1.0))
    assert caplog.records[0].levelno == logging.WARNING
    assert "ends by its ttl" in caplog.text


@pytest.mark.parametrize(("outcome", "urgent"), [("unknown", True), ("late", True), ("completed", False)])
def test_work_of_unknown_outcome_or_done_in_vain_is_a_warning(caplog, outcome: str, *, urgent: bool) -> None:
    log_event(events.Handled("order/42", "me", 7, outcome))
    assert caplog.records[0].levelno == (logging.WARNING if urgent else logging.DEBUG)
    assert outcome in caplog.text


def test_nothing_is_formatted_that_nobody_listens_to(caplog) -> None:
    caplog.set_level(logging.ERROR, logger="leasehold")
    for kind in KINDS:
        log_event(sample(kind))
    assert not caplog.records


def test_a_lease_from_grant_to_loss_is_told_in_the_log(colour, caplog) -> None:
    url = f"memory://{uuid.uuid4().hex}"

    async def story() -> int:
        async with (
            within(await answer(colour.connect(url, holder="web-1"))) as one,
            within(await answer(colour.connect(url, holder="web-2"))) as other,
        ):
            lease = await answer(one.acquire("x"))
            assert await answer(other.try_acquire("x")) is None
            await answer(other.break_lease("x", reason="stuck", force=True))
            assert not await answer(lease.renew())
            again = await answer(one.acquire("y"))
            await answer(again.release())
            return lease.token

    token = colour.run(story())
    told = [(record.levelno, record.key, record.token, record.getMessage()) for record in caplog.records]
    assert any(
        level == logging.DEBUG and key == "x" and number == token and "granted" in text
        for level, key, number, text in told
    )
    assert any(
        level == logging.WARNING and key == "x" and "freed by force: stuck" in text for level, key, _, text in told
    )
    assert any(
        level == logging.WARNING and key == "x" and number == token and "lost" in text
        for level, key, number, text in told
    )
    assert any(level == logging.DEBUG and key == "y" and "released" in text for level, key, _, text in told)


def test_a_failing_observer_and_callback_are_logged_with_the_same_fields_and_cost_nobody_a_lease(
    colour, caplog
) -> None:
    url = f"memory://{uuid.uuid4().hex}"

    def observer(_event: events.Event) -> None:
        raise RuntimeError("the observer's own fault")

    def on_lost(_lease: object) -> None:
        raise RuntimeError("the callback's own fault")

    def logged(text: str) -> list[logging.LogRecord]:
        return [record for record in caplog.records if record.exc_info and text in str(record.exc_info[1])]

    async def story() -> None:
        async with within(await answer(colour.connect(url, observers=[observer]))) as locks:
            lease = await answer(locks.acquire("x", on_lost=on_lost))
            assert lease.held
            await answer(locks.break_lease("x", reason="stuck", force=True))
            assert not await answer(lease.renew())
            while not logged("callback"):
                await locks._engine.runtime.sleep(0.005)

    colour.run(story())
    assert logged("observer")
    for record in caplog.records:
        # A format string that names the fields must work for every record of this logger.
        logging.Formatter("%(key)s %(token)s %(holder)s %(message)s").format(record)


# The canary: the secret of an acquisition proves ownership, so nobody else may ever see it.


SECRET = re.compile(r"\\?\"secret\\?\": ?\\?\"(\w+)\\?\"")


class Canary:
    """Collects the secrets found in a store's raw content, and everything that anybody could read."""

    def __init__(self, content) -> None:
        self._content = content
        self.secrets: set[str] = set()
        self.readable: list[str] = []

    def look(self) -> None:
        self.secrets |= set(SECRET.findall(repr(self._content())))

    def read(self, *things: object) -> None:
        for thing in things:
            self.readable += [repr(thing), str(thing)]

    def event(self, event: events.Event) -> None:
        self.look()
        self.read(event)

    @contextlib.contextmanager
    def errors(self, *kinds: type[BaseException]):
        """Read the error that must come, with its traceback and causes."""
        with pytest.raises(kinds) as caught:
            yield
        self.read(caught.value, vars(caught.value), "".join(traceback.format_exception(caught.value)))

    def check(self, records: list[logging.LogRecord], least: int) -> None:
        """There were secrets to find, there was much to read, and no secret was in it."""
        everything = [
            *self.readable,
            *(f"{record.getMessage()} {vars(record)!r} {record.exc_text}" for record in records),
        ]
        note(f"secrets: {len(self.secrets)}, texts: {len(everything)}")
        assert len(self.secrets) >= least
        assert records
        leaks = [text for text, secret in itertools.product(everything, self.secrets) if secret in text]
        assert not leaks


@pytest.fixture(params=["memory", "sqlite"])
def place(request, tmp_path):
    return memory_place(uuid.uuid4().hex) if request.param == "memory" else sqlite_place(tmp_path / "leases.db")


def test_no_secret_is_to_be_read_anywhere_in_the_life_of_leases(colour, place, caplog) -> None:
    canary = Canary(place.content)

    async def story() -> None:
        async with (
            within(await answer(colour.connect(place.url, holder="web-1", observers=[canary.event]))) as one,
            within(await answer(colour.connect(place.url, holder="web-2", observers=[canary.event]))) as other,
        ):
            lease = await answer(one.acquire("x", ttl=60, metadata={"why": "test"}, max_hold=600))
            canary.look()
            canary.read(one, lease, lease.lost, lease.metadata, lease.scope, lease.holder, one.guarantees)
            canary.read(await answer(lease.renew()), await answer(other.inspect("x")), await answer(other.list()))
            with canary.errors(leasehold.AlreadyHeld):
                await answer(one.acquire("x"))
            with canary.errors(leasehold.AcquireTimeout):
                await answer(other.acquire("x", wait=0))
            with canary.errors(leasehold.InvalidInput):
                await answer(other.acquire("x", ttl=-1))
            canary.read(await answer(other.break_lease("x", reason="stuck")), await answer(other.inspect("x")))
            canary.look()
            canary.read(await answer(lease.renew()), lease, lease.why_lost())
            with canary.errors(leasehold.LeaseLost):
                lease.check()
            canary.read(await answer(lease.release()), lease)
            with canary.errors(leasehold.LeaseLost):
                async with within(one.hold("y")) as held:
                    canary.look()
                    canary.read(await answer(other.break_lease("y", reason="stuck", force=True)))
                    canary.read(await answer(held.renew()), held)
                    if colour.name == "asyncio":
                        await asyncio.Event().wait()
            last = await answer(one.acquire("z"))
            canary.look()
        with canary.errors(leasehold.ClientClosed):
            await answer(last.renew())
        canary.read(last, one)

    colour.run(story())
    canary.check(caplog.records, least=3)


def test_no_secret_is_to_be_read_when_the_store_fails(colour, caplog) -> None:
    clock = VirtualClock()
    memory = Memory(clock)
    canary = Canary(lambda: memory.families)

    async def seen_and_cut(_store: FaultyStore, call: Call) -> None:
        await call()
        canary.look()
        raise StoreUnavailable("injected: the reply was cut off")

    async def story() -> None:
        runtime = (BlockingRuntime if colour.name == "blocking" else LoopedRuntime)(clock)
        store = FaultyStore(MemoryStore(memory, runtime), runtime)
        observers = (log_event, canary.event)
        engine = Engine(store, runtime, Names(None, None), holder="web-1", timeout=5.0, observers=observers)
        locks = (leasehold if colour.name == "blocking" else aio).Locks(engine)
        # Applied, and its reply lost: the engine looks for it by its secret.
        store.plan("swap", seen_and_cut)
        with canary.errors(StoreUnavailable):
            await answer(locks.acquire("doubtful", wait=0))
        lease = await answer(locks.acquire("x", ttl=30))
        canary.look()
        store.down()
        canary.read(await answer(lease.renew()), lease)
        with canary.errors(StoreUnavailable):
            await answer(lease.release())
        with canary.errors(StoreUnavailable):
            await answer(locks.try_acquire("y"))
        with canary.errors(StoreUnavailable):
            await answer(locks.inspect("x"))
        store.up()
        late = await answer(locks.acquire("late", ttl=30))
        canary.look()
        clock.advance(29)
        with canary.errors(leasehold.LeaseLost):
            late.check()
        canary.read(late, engine, engine.doubts, store)
        await answer(locks.close())

    colour.run(story())
    canary.check(caplog.records, least=3)


def test_a_leak_would_be_seen(caplog) -> None:
    """The control: log what the store holds, and the canary finds it."""
    place = memory_place(uuid.uuid4().hex)
    canary = Canary(place.content)
    with leasehold.connect(place.url) as locks:
        locks.acquire("x")
        canary.look()
        logging.getLogger("leasehold").warning("leaked: %r", place.content())
    with pytest.raises(AssertionError, match="leaked"):
        canary.check(caplog.records, least=1)


def test_the_values_that_carry_a_secret_do_not_show_it() -> None:
    """Debuggers and error reporters print local variables: the record, what it says, and what is in doubt."""
    with leasehold.connect(f"memory://{uuid.uuid4().hex}") as locks:
        grant = locks.acquire("x")._grant
        hold = read_hold(grant.record)
        assert hold is not None
        assert len(hold.secret) == 32
        doubt = Doubt(grant.key, hold.secret, 0.0)
        for value in (hold, grant, grant.record, doubt, (hold,), {"hold": hold}):
            assert hold.secret not in repr(value)
            assert hold.secret not in f"{value}"
