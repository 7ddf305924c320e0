"""Each property's law fails when the property is broken on purpose.

A control breaks one rule, in a store or in the engine, and runs the laws that
stand guard over it. A law that still passes guards nothing.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from leasehold import client
from leasehold.client import Hold
from leasehold.engine import acquire, grant, heartbeat, looking
from leasehold.engine.attempt import Asking
from leasehold.engine.doubt import Doubts
from leasehold.engine.engine import Engine
from leasehold.engine.marks import Marks
from leasehold.errors import AcquireTimeout
from leasehold.model import Conflict, Keep, Key, Record, Renewal, Scan, Swap
from leasehold.stores.memory import MemoryStore
from leasehold.testing.conformance import Arena, Conformance
from leasehold.testing.conformance import arena as arena_module
from leasehold.testing.conformance.worlds import MemoryWorld
from leasehold.wires.colour import Colour

WINDOWS = "test_windows_show_those_of_a_family_that_lie_in_one_of_them_once_and_in_the_order_of_birth"


class Control(NamedTuple):
    broken: str
    laws: tuple[str, ...]
    store: type[MemoryStore] = MemoryStore
    patch: Callable[[pytest.MonkeyPatch], None] | None = None


# Broken stores.


class CounterInTheRecord(MemoryStore):
    """The counter lives in what a release deletes."""

    async def swap(
        self, key: Key, expect: Record | None, value: bytes | None, ttl: float | Keep | None
    ) -> Record | Conflict:
        answer = await super().swap(key, expect, value, ttl)
        if value is None:
            self._memory.revision = 0
        return answer


class UnconditionalDelete(MemoryStore):
    """DEL by name."""

    async def swap(
        self, key: Key, expect: Record | None, value: bytes | None, ttl: float | Keep | None
    ) -> Record | Conflict:
        if value is None:
            expect = await self.load(key)
        return await super().swap(key, expect, value, ttl)


class NoExclusion(MemoryStore):
    """A create that overwrites."""

    async def swap(
        self, key: Key, expect: Record | None, value: bytes | None, ttl: float | Keep | None
    ) -> Record | Conflict:
        return await super().swap(key, await self.load(key) if value else expect, value, ttl)


class SessionKeepalive(MemoryStore):
    """A keepalive that looks at no record."""

    async def touch(self, holds: Sequence[tuple[Record, float]]) -> list[tuple[Renewal, Record | None]]:
        await super().touch(holds)
        return [(Renewal.RENEWED, record) for record, _ in holds]


class TouchThatCreates(MemoryStore):
    """PUT after DELETE answers 201."""

    async def touch(self, holds: Sequence[tuple[Record, float]]) -> list[tuple[Renewal, Record | None]]:
        for record, ttl in holds:
            await self.swap(record.key, None, record.value, ttl)
        return await super().touch(holds)


class FreedEarly(MemoryStore):
    """A server whose clock runs ahead."""

    async def swap(
        self, key: Key, expect: Record | None, value: bytes | None, ttl: float | Keep | None
    ) -> Record | Conflict:
        return await super().swap(key, expect, value, ttl * 0.8 if isinstance(ttl, float) else ttl)


class NeverExpires(MemoryStore):
    """No ttl by default."""

    async def swap(
        self, key: Key, expect: Record | None, value: bytes | None, ttl: float | Keep | None
    ) -> Record | Conflict:
        return await super().swap(key, expect, value, None if isinstance(ttl, float) else ttl)


class DeafWatch(MemoryStore):
    """A wake-up lost between the failed try and the subscription."""

    async def watch(self, key: Key, seen: Record | None, until: float) -> None:
        await self._colour.signal().wait(until)


class ScanByName(MemoryStore):
    """SCAN is no index."""

    async def scan(self, family: str, windows: Sequence[tuple[str, str]] = ()) -> list[Record]:
        return sorted(await super().scan(family, windows), key=lambda record: record.key)


class ClosedWindows(MemoryStore):
    """A window has its end, too."""

    async def scan(self, family: str, windows: Sequence[tuple[str, str]] = ()) -> list[Record]:
        return await super().scan(family, [(first, f"{end}\1") for first, end in windows])


class WindowsOneByOne(MemoryStore):
    """Who lies in two windows is told twice."""

    async def scan(self, family: str, windows: Sequence[tuple[str, str]] = ()) -> list[Record]:
        some = [record for window in windows for record in await super(WindowsOneByOne, self).scan(family, [window])]
        return sorted(some, key=lambda record: record.born) if windows else await super().scan(family)


class WindowsAside(MemoryStore):
    """What is asked together forgets its windows."""

    async def together(self, asks: Sequence[Swap | Scan]) -> list[Record | Conflict | list[Record]]:
        return await super().together([ask if isinstance(ask, Swap) else Scan(ask.family) for ask in asks])


class LeakyPages(MemoryStore):
    """A prefix match without its separator."""

    async def page(self, root: str, after: Key | None, limit: int) -> list[Record]:
        return await super().page(root.rstrip("/"), after, limit)


class GreedyCollector(MemoryStore):
    """A clean-up that takes the living along."""

    async def collect(self, limit: int) -> int:
        with self._memory.lock:
            self._memory.families.clear()
        return 7


class BornMoves(MemoryStore):
    """A rewrite that loses the place in line."""

    async def swap(
        self, key: Key, expect: Record | None, value: bytes | None, ttl: float | Keep | None
    ) -> Record | Conflict:
        answer = await super().swap(key, expect, value, ttl)
        return msgspec.structs.replace(answer, born=answer.revision) if isinstance(answer, Record) else answer


# Broken engines.


def deadline_from_the_reply(patch: pytest.MonkeyPatch) -> None:
    real = acquire._Attempt.believe
    patch.setattr(acquire._Attempt, "believe", lambda self, record, sent: real(self, record, self.engine.clock.now()))


def trust_to_the_last_instant(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(grant, "trust_ends", lambda sent, ttl: sent + 2 * ttl)


def deadlines_by_the_wall(patch: pytest.MonkeyPatch) -> None:
    real = grant.Grant.loss
    born = time.time()
    patch.setattr(grant.Grant, "loss", lambda self: real(self) or ("late" if time.time() > born + self.ttl else None))


def a_callback_in_the_heartbeat(patch: pytest.MonkeyPatch) -> None:
    def at_once(held: grant.Grant, callback: Callable[[], None]) -> None:
        held.on_end.append(callback)

    patch.setattr(client, "tell", at_once)


def no_doubt_list(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Doubts, "add", lambda *_: None)


def a_new_secret_for_each_try(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(acquire, "is_ours", lambda *_: False)


def unknown_counts_as_renewed(patch: pytest.MonkeyPatch) -> None:
    real = heartbeat.Heartbeat._settle

    def settle(self, held, answer, record, sent):
        if answer is Renewal.UNKNOWN:
            held.trust(sent, 0.5)
        return real(self, held, answer, record, sent)

    patch.setattr(heartbeat.Heartbeat, "_settle", settle)


def nobody_watches_the_clock(patch: pytest.MonkeyPatch) -> None:
    async def sleep(self) -> None:
        return None

    patch.setattr(heartbeat.Heartbeat, "_watch", sleep)


def no_renewals(patch: pytest.MonkeyPatch) -> None:
    async def sleep(self) -> None:
        return None

    patch.setattr(heartbeat.Heartbeat, "_beat", sleep)


def with_falls_through(patch: pytest.MonkeyPatch) -> None:
    real = Hold.__enter__

    def enter(self):
        with contextlib.suppress(AcquireTimeout):
            return real(self)

    def leave(self, *_: object) -> None:
        return None

    patch.setattr(Hold, "__enter__", enter)
    patch.setattr(Hold, "__exit__", leave)


def the_name_owns(patch: pytest.MonkeyPatch) -> None:
    def same_name(record: Record | None, hold: grant.Hold) -> bool:
        found = grant.read_hold(record)
        return found is not None and found.holder == hold.holder

    patch.setattr(acquire, "is_ours", same_name)


def the_same_thread_waits_for_itself(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Engine, "keep", lambda self, held, _keeper: self.heartbeat.add(held))


def revoking_frees_at_once(patch: pytest.MonkeyPatch) -> None:
    real = looking._break
    patch.setattr(looking, "_break", lambda engine, record, reason, force: real(engine, record, reason, force=True))


def nothing_is_remembered(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Marks, "of", lambda _self, _family: 0)


def compared_with_what_is_known_now(patch: pytest.MonkeyPatch) -> None:
    known = property(lambda self: self.engine.marks.of(self.ask.key.family), lambda _self, _then: None)
    patch.setattr(Asking, "mark", known, raising=False)


CONTROLS = [
    Control(
        "the token restarts at one",
        ("test_revisions_grow_over_many_lives_of_one_key", "test_tokens_grow_across_release_expiry_and_force"),
        CounterInTheRecord,
        # A client that remembers would notice before the law does.
        patch=nothing_is_remembered,
    ),
    Control(
        "nothing is remembered",
        (
            "test_a_token_that_is_not_larger_is_given_back_and_told",
            "test_one_who_waited_for_such_a_token_calls_the_next_in_line",
        ),
        patch=nothing_is_remembered,
    ),
    Control(
        "what was granted meanwhile counts",
        ("test_one_who_came_first_and_is_served_last_is_not_refused",),
        patch=compared_with_what_is_known_now,
    ),
    Control(
        "a release deletes by name",
        (
            "test_a_stale_delete_does_not_remove_the_next_record",
            "test_a_late_release_does_not_remove_the_next_holders_lease",
        ),
        UnconditionalDelete,
    ),
    Control(
        "two hold at once",
        ("test_while_one_holds_nobody_else_is_granted", "test_of_many_who_create_at_once_one_wins"),
        NoExclusion,
    ),
    Control(
        "a keepalive says fine for a deleted record",
        (
            "test_a_batch_is_verified_record_by_record",
            "test_a_lease_the_store_no_longer_has_is_lost_at_the_next_renewal",
        ),
        SessionKeepalive,
    ),
    Control(
        "a late heartbeat resurrects the lock",
        ("test_a_late_touch_does_not_resurrect_a_released_record",),
        TouchThatCreates,
    ),
    Control("the store frees early", ("test_a_record_is_not_freed_before_its_ttl",), FreedEarly),
    Control(
        "nothing ever expires",
        (
            "test_an_expired_record_is_absent_to_every_verb",
            "test_watch_wakes_when_the_record_expires",
            "test_a_waiter_is_granted_after_a_silent_holders_ttl",
        ),
        NeverExpires,
    ),
    Control("a wake-up is lost", ("test_watch_wakes_on_a_change_of_any_kind",), DeafWatch),
    Control("a scan has no order", ("test_scan_shows_one_family_in_the_order_of_birth", WINDOWS), ScanByName),
    Control("a window is closed", (WINDOWS,), ClosedWindows),
    Control("one in two windows is two", (WINDOWS,), WindowsOneByOne),
    Control(
        "windows are forgotten on the way",
        ("test_whoever_creates_and_looks_through_windows_sees_itself_and_nobody_who_has_ended",),
        WindowsAside,
    ),
    Control("a listing leaks", ("test_pages_list_a_root_in_order_and_nothing_beside_it",), LeakyPages),
    Control(
        "a clean-up removes the living",
        ("test_collecting_removes_the_expired_and_lowers_no_revision",),
        GreedyCollector,
    ),
    Control("a rewrite moves born", ("test_the_owners_rewrite_moves_the_revision_and_keeps_born",), BornMoves),
    Control(
        "the deadline counts from the reply",
        (
            "test_a_reply_that_comes_after_the_trust_has_ended_is_not_believed",
            "test_a_hold_found_again_is_trusted_only_from_its_first_request",
        ),
        patch=deadline_from_the_reply,
    ),
    Control(
        "the loss is told after the end",
        ("test_a_loss_is_told_on_every_channel_before_the_store_frees_it",),
        patch=trust_to_the_last_instant,
    ),
    Control("deadlines by the wall clock", ("test_wall_clocks_decide_nothing",), patch=deadlines_by_the_wall),
    Control(
        "callbacks run in the heartbeat",
        ("test_a_callback_that_blocks_or_raises_does_not_stop_the_heartbeat",),
        patch=a_callback_in_the_heartbeat,
    ),
    Control(
        "an orphan is left behind",
        (
            "test_an_acquire_that_gave_up_leaves_no_orphan",
            "test_a_request_overtaken_by_its_callers_patience_is_undone_when_it_arrives",
        ),
        patch=no_doubt_list,
    ),
    Control(
        "a retry does not know its own hold",
        ("test_a_retried_acquire_finds_its_own_hold_with_the_same_token",),
        patch=a_new_secret_for_each_try,
    ),
    Control(
        "no answer counts as renewed",
        ("test_a_renewal_without_an_answer_extends_nothing_and_loses_nothing",),
        patch=unknown_counts_as_renewed,
    ),
    Control(
        "nobody tells the holder",
        (
            "test_a_loss_is_told_on_every_channel_before_the_store_frees_it",
            "test_a_store_that_never_answers_cannot_hold_up_the_news_of_a_loss",
        ),
        patch=nobody_watches_the_clock,
    ),
    Control("nobody renews", ("test_the_heartbeat_keeps_a_lease_far_beyond_its_ttl",), patch=no_renewals),
    Control("with runs unlocked", ("test_hold_never_runs_its_body_without_the_lease",), patch=with_falls_through),
    Control(
        "the display name owns",
        ("test_the_same_name_after_a_restart_waits_like_anyone",),
        patch=the_name_owns,
    ),
    Control(
        "a thread waits for itself",
        ("test_asking_again_for_what_one_holds_is_refused_at_once",),
        patch=the_same_thread_waits_for_itself,
    ),
    Control(
        "a revocation frees at once",
        ("test_a_revoked_holder_is_told_and_nobody_is_granted_before_the_old_end",),
        patch=revoking_frees_at_once,
    ),
]

CASES = [pytest.param(control, law, id=f"{control.broken}-{law}") for control in CONTROLS for law in control.laws]


@contextlib.contextmanager
def arena_of(store: type[MemoryStore], folder: Path) -> Iterator[Arena]:
    class Broken(MemoryWorld):
        def store(self, colour: Colour) -> MemoryStore:
            return store(self._memory, colour)

    opened = Arena(Broken(folder), "blocking")
    try:
        yield opened
    finally:
        # A broken client may not be able to close: its threads are told to end, and no more.
        for client in opened._clients:
            client.locks._engine.heartbeat.close()
        for one in opened._people:
            one.leave()


@pytest.mark.parametrize(("control", "law"), CASES)
def test_the_law_notices(control: Control, law: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # What never becomes true need not be waited for as long as what is slow.
    monkeypatch.setattr(arena_module, "PATIENCE", 1.0)
    if control.patch is not None:
        control.patch(monkeypatch)
    with (
        arena_of(control.store, tmp_path) as arena,
        pytest.raises((AssertionError, pytest.fail.Exception, TimeoutError)),
    ):
        getattr(Conformance(), law)(arena)


@pytest.mark.parametrize("law", sorted({law for control in CONTROLS for law in control.laws}))
def test_the_law_passes_where_nothing_is_broken(law: str, tmp_path: Path) -> None:
    with arena_of(MemoryStore, tmp_path) as arena:
        getattr(Conformance(), law)(arena)
