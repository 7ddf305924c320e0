"""Waiting for a change: the watches, how they go on when they end, and what they begin with."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from leasehold.errors import StoreUnavailable
from leasehold.testing.clock import VirtualClock
from leasehold.wires import kubernetes_line
from tests.stores.kubernetes_support import KEY, Driven, Place, driven, fragile
from tests.support import eventually

FAR = 1e6


@pytest.fixture
def place() -> Place:
    return Place()


@pytest.fixture
def store(place: Place) -> Iterator[Driven]:
    with driven(place.url(), "blocking", VirtualClock()) as opened:
        yield opened


class Waiting(threading.Thread):
    """Somebody who watches a record until it is no longer what was seen."""

    def __init__(self, store: Driven, seen: object) -> None:
        super().__init__(daemon=True)
        self.store, self.seen = store, seen
        self.start()

    def run(self) -> None:
        self.store.watch(KEY, self.seen, FAR)


def watches(place: Place) -> list[str]:
    """The addresses of all watches that were asked for here."""
    return [
        event["requestURI"]
        for event in place.server.audit()
        if event["verb"] == "watch" and event.get("objectRef", {}).get("namespace") == place.name
    ]


def looks(place: Place) -> int:
    return [verb for verb, _ in place.asked()].count("get")


def test_a_watch_begins_at_what_was_seen_last_and_asks_for_bookmarks(place: Place, store: Driven) -> None:
    made = store.grant(KEY, ttl=None)
    waiting = Waiting(store, made)
    eventually(lambda: looks(place) == 1)
    (address,) = watches(place)
    for word in (f"resourceVersion={made.revision}", "allowWatchBookmarks=true", "fieldSelector=metadata.name%3Djob"):
        assert word in address
    assert waiting.is_alive()
    store.swap(KEY, made, b"changed", None)
    waiting.join(20)
    assert not waiting.is_alive()


def test_a_watch_that_the_server_ends_goes_on_without_waking_anybody(
    place: Place, store: Driven, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes_line, "WATCH_SECONDS", 1)
    made = store.grant(KEY, ttl=None)
    waiting = Waiting(store, made)
    eventually(lambda: len(watches(place)) >= 2)
    assert waiting.is_alive()
    assert looks(place) == 1
    store.swap(KEY, made, None, None)
    waiting.join(20)
    assert not waiting.is_alive()


def test_a_watch_from_a_revision_the_server_has_forgotten_begins_anew_and_wakes() -> None:
    """410, as after a long pause: what happened meanwhile is not told any more, so whoever waits must look."""
    place = Place(fragile())
    with driven(place.url(), "blocking", VirtualClock()) as store:
        made = store.grant(KEY, ttl=None)
        # What it remembers begins with its start.
        place.server.restart()
        eventually(lambda: can_look(store))
        store.store._newest = 1
        waiting = Waiting(store, made)
        waiting.join(20)
        assert not waiting.is_alive()
        eventually(lambda: len(watches(place)) == 2)
        before, after = watches(place)
        assert "resourceVersion=1" in before
        assert "resourceVersion" not in after
        # The one that was begun anew hears what happens next.
        again = Waiting(store, made)
        store.swap(KEY, made, b"changed", None)
        again.join(20)
        assert not again.is_alive()
        assert len(watches(place)) == 2


def can_look(store: Driven) -> bool:
    """A server that has just started forbids everything until it knows its roles."""
    try:
        return store.load(KEY) is not None
    except StoreUnavailable:
        return False


def test_one_thread_hears_for_all_who_wait_and_each_only_of_its_own(place: Place, store: Driven) -> None:
    made = store.grant(KEY, ttl=None)
    other = store.grant(KEY._replace(family="//name/other"), ttl=None)
    waiting = Waiting(store, made)
    eventually(lambda: looks(place) == 1)
    with driven(place.url()) as second:
        second.swap(other.key, second.load(other.key), b"changed", None)
        second.swap(other.key, second.load(other.key), None, None)
    assert waiting.is_alive()
    assert sum(thread.name == "leasehold-ears" for thread in threading.enumerate()) == 1
    store.swap(KEY, made, None, None)
    waiting.join(20)
    assert not waiting.is_alive()


def test_closing_wakes_whoever_waits(place: Place) -> None:
    store = Driven(place.url(), "blocking", VirtualClock())
    store.begin()
    waiting = Waiting(store, store.grant(KEY, ttl=None))
    eventually(lambda: looks(place) == 1)
    store.end()
    waiting.join(20)
    assert not waiting.is_alive()
