"""The laws of optimistic updates find what is wrong with a resource: each of these keeps its version badly."""

from __future__ import annotations

import threading

import pytest

from leasehold.testing.versions import Racer, VersionLaws


class Memory:
    """As it should be, in memory."""

    def __init__(self) -> None:
        self.lock, self.data, self.version = threading.Lock(), b"0", 0

    def load(self):
        with self.lock:
            return self.data, self.version

    def replace(self, value, version):
        with self.lock:
            if version != self.version:
                return False
            self.data, self.version = value, self.version + 1
            return True


class MemoryLater(Memory):
    """The same, awaited."""

    async def load(self):
        return Memory.load(self)

    async def replace(self, value, version):
        return Memory.replace(self, value, version)


class Blind(Memory):
    """Looks at no version."""

    def replace(self, value, version):
        return super().replace(value, self.version)


class Standing(Memory):
    """Its version never changes."""

    def replace(self, value, version):
        done = super().replace(value, version)
        self.version = 0
        return done


class Lying(Memory):
    """Writes, and says that it did not."""

    def replace(self, value, version):
        super().replace(value, version)
        return False


class Silent(Memory):
    """Writes, and says nothing."""

    def replace(self, value, version):
        super().replace(value, version)


class Restless(Memory):
    """Every look counts as a change."""

    def load(self):
        self.version += 1
        return super().load()


@pytest.fixture(params=[Memory, MemoryLater])
def kind(request):
    return request.param


class TestMemory(VersionLaws):
    @pytest.fixture
    def reach(self, kind):
        kept = kind()
        return lambda: kept


@pytest.mark.parametrize(
    ("kind", "law"),
    [
        (Blind, "test_a_version_once_used_is_refused_and_changes_nothing"),
        (Blind, "test_no_update_is_lost_however_many_race"),
        (Standing, "test_a_version_once_used_is_refused_and_changes_nothing"),
        (Standing, "test_no_update_is_lost_however_many_race"),
        (Lying, "test_what_one_replaces_the_next_one_loads"),
        (Silent, "test_what_one_replaces_the_next_one_loads"),
        (Restless, "test_none_leaves_it_as_it_is"),
    ],
)
def test_control_what_keeps_its_version_badly_breaks_a_law(kind, law: str) -> None:
    bad, good = kind(), Memory()
    getattr(VersionLaws(), law)(lambda: Racer(good, None))
    with pytest.raises(AssertionError):
        getattr(VersionLaws(), law)(lambda: Racer(bad, None))
