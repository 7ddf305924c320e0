"""Fenced files: the laws, and what a crash leaves."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

import leasehold
from leasehold import fence
from leasehold.fence import files
from leasehold.fence.files import FileResource
from leasehold.testing.fences import FenceLaws


class TestFiles(FenceLaws):
    @pytest.fixture
    def reach(self, tmp_path: Path):
        return lambda: FileResource(tmp_path / "total", 20)


def test_a_lease_opens_what_it_protects(tmp_path: Path) -> None:
    with leasehold.connect("memory://fences") as locks:
        total = fence.File(tmp_path / "total", scope="total")
        with locks.hold("total") as first:
            opened = total.open(first)
            opened.write(b"1")
        with locks.hold("total") as second:
            assert total.open(second).read() == b"1"
        with pytest.raises(leasehold.StaleToken, match=f"token {first.token} comes too late") as refusal:
            opened.write(b"2")
        assert (refusal.value.token, refusal.value.mark) == (first.token, second.token)
        with locks.hold("other") as other, pytest.raises(leasehold.ScopeMismatch, match="'other'"):
            total.open(other)


def test_a_sharer_reads_and_does_not_write(tmp_path: Path) -> None:
    with leasehold.connect("memory://fences") as locks:
        total = fence.File(tmp_path / "total")
        scope = leasehold.Shared("total")
        with locks.hold(scope) as writer:
            total.open(writer).write(b"1")
        with locks.hold(scope, mode="shared") as first, locks.hold(leasehold.Shared("other"), mode="shared"):
            opened = total.open(first)
            assert opened.read() == b"1"
            with pytest.raises(leasehold.ScopeMismatch, match="reading"):
                opened.write(b"2")
        with locks.hold(scope) as writer:
            total.open(writer)
        with pytest.raises(leasehold.StaleToken):
            opened.read()


def test_a_crash_between_mark_and_data_leaves_the_old_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    total = fence.File(tmp_path / "total")
    total.open(5).write(b"old")

    def crash(*_given):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(files, "_replace", crash)
        with pytest.raises(KeyboardInterrupt):
            total.open(6).write(b"new")
    assert total.open(6).read() == b"old"
    assert sorted(os.listdir(tmp_path)) == ["total", "total.mark"]
    with pytest.raises(leasehold.StaleToken):
        total.open(5)


def test_a_mark_that_was_half_written_is_the_one_before(tmp_path: Path) -> None:
    total = fence.File(tmp_path / "total")
    for token in (5, 6, 7):
        total.open(token)
    marks = tmp_path / "total.mark"
    text = marks.read_bytes()
    at = text.index(b"%019d" % 7)
    marks.write_bytes(text[:at] + b"99" + text[at + 2 :])
    with pytest.raises(leasehold.StaleToken) as refusal:
        total.open(5)
    assert refusal.value.mark == 6


def test_a_mark_that_cannot_be_read_lets_nobody_in(tmp_path: Path) -> None:
    (tmp_path / "total.mark").write_text("something else")
    with pytest.raises(leasehold.StoreDamaged, match=r"total\.mark"):
        fence.File(tmp_path / "total").open(5)


def test_rights_stay_what_they_were(tmp_path: Path) -> None:
    path = tmp_path / "total"
    opened = fence.File(path).open(5)
    opened.write(b"1")
    path.chmod(0o640)
    opened.write(b"2")
    assert path.stat().st_mode & 0o777 == 0o640


def test_whoever_waits_too_long_for_another_process_is_told(tmp_path: Path) -> None:
    total = FileResource(tmp_path / "total", 0.05)
    with total._locked():
        told: list[BaseException] = []

        def late() -> None:
            try:
                fence.File(tmp_path / "total", timeout=0.05).open(5)
            except leasehold.StoreUnavailable as error:
                told.append(error)

        thread = threading.Thread(target=late)
        thread.start()
        thread.join(20)
    assert told[0].applied is False


def test_there_is_nothing_to_read_before_something_was_written(tmp_path: Path) -> None:
    with pytest.raises(leasehold.NoSuchResource, match="write it first"):
        fence.File(tmp_path / "total").open(5).read()
