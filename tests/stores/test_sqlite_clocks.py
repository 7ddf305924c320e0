"""When a record in a SQLite file ends, for readers of the same clock, after a restart, and of other clocks."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from leasehold.model import KEEP, Record, Renewal
from leasehold.rules.clocks import ClockDomain, read_domain, write_domain
from leasehold.testing.clock import VirtualClock
from leasehold.wires.clock import boottime_offset, machine_id
from tests.stores.support import KEY, ROOT_OF_KEYS, driven, key, run, start, virtual
from tests.support import note

TTL = 10.0
SHIFT = 100_000


def leased(path: Path, clock: VirtualClock | None = None) -> Record:
    """A record left behind by a holder whose process is gone."""
    with driven(path, clock or virtual()) as store:
        return store.grant(ttl=TTL)


def free_for(path: Path, clock: VirtualClock) -> bool:
    """Whether a process that lives no longer than one look finds the key free."""
    with driven(path, clock) as store:
        return store.load(KEY) is None


@pytest.mark.parametrize("shifted", [False, True])
def test_readers_of_the_same_boot_compare_ends(tmp_path: Path, *, shifted: bool) -> None:
    path = tmp_path / "leases.db"
    leased(path, virtual(start=1000))
    with driven(path, virtual(start=1009, shifted=shifted)) as store:
        assert store.refused().left == pytest.approx(1.0)
    assert free_for(path, virtual(start=1010.001, shifted=shifted))


def test_after_a_restart_of_the_machine_a_process_takes_over_at_once(tmp_path: Path) -> None:
    leased(tmp_path / "leases.db")
    with driven(tmp_path / "leases.db", virtual(boot="b2", start=5)) as store:
        assert store.grant(ttl=TTL).born > 0


@pytest.mark.parametrize(
    "domain",
    [
        ClockDomain(machine="m2", boot="b2", shifted=False),
        ClockDomain(machine="", boot="b2", shifted=False),
        ClockDomain(machine="m1", boot="b2", shifted=True),
    ],
    ids=["another machine", "no machine id", "inside a time namespace"],
)
def test_any_other_clock_must_observe_for_one_ttl(tmp_path: Path, domain: ClockDomain) -> None:
    path, clock = tmp_path / "leases.db", VirtualClock(5_000_000, domain)
    leased(path)
    assert not free_for(path, clock)
    clock.advance(TTL - 0.001)
    assert not free_for(path, clock)
    clock.advance(0.001)
    with driven(path, clock) as store:
        assert store.grant(ttl=TTL).born > 0


def test_a_record_written_inside_a_time_namespace_is_observed_after_a_restart(tmp_path: Path) -> None:
    leased(tmp_path / "leases.db", virtual(shifted=True))
    assert not free_for(tmp_path / "leases.db", virtual(boot="b2"))


def test_a_series_of_short_lived_processes_gets_there(tmp_path: Path) -> None:
    path, clock = tmp_path / "leases.db", virtual("m2", "b2", 7)
    leased(path)
    looks = 0
    while not free_for(path, clock):
        looks += 1
        clock.advance(1.0)
    assert looks == TTL


def test_a_renewal_by_the_owner_restarts_the_observation(tmp_path: Path) -> None:
    path, mine, theirs = tmp_path / "leases.db", virtual(), virtual("m2", "b2", 7)
    with driven(path, mine) as owner, driven(path, theirs) as other:
        record = owner.grant(ttl=TTL)
        for _ in range(5):
            assert other.refused().revision == record.revision
            mine.advance(TTL - 1)
            theirs.advance(TTL - 1)
            assert owner.touch([(record, TTL)])[0][0] is Renewal.RENEWED
        assert other.refused().left == TTL
        theirs.advance(TTL)
        assert other.grant(ttl=TTL).revision > record.revision
        assert owner.touch([(record, TTL)])[0][0] is Renewal.LOST


def test_revoking_in_place_restarts_the_observation(tmp_path: Path) -> None:
    path, theirs = tmp_path / "leases.db", virtual("m2", "b2", 7)
    leased(path)
    with driven(path, theirs) as other:
        found = other.load(KEY)
        theirs.advance(TTL - 1)
        rewritten = other.swap(KEY, found, b"revoked", KEEP)
        assert (rewritten.born, rewritten.ttl) == (found.born, TTL)
        assert other.load(KEY).left == TTL


def test_observers_with_different_clocks_do_not_disturb_each_other(tmp_path: Path) -> None:
    path, one, two = tmp_path / "leases.db", virtual("m2", "b2", 7), virtual("m3", "b3", 90_000)
    leased(path)
    for _ in range(int(TTL)):
        assert not free_for(path, one)
        assert not free_for(path, two)
        one.advance(1.0)
        two.advance(0.5)
    assert free_for(path, one)
    assert not free_for(path, two)
    two.advance(TTL / 2)
    assert free_for(path, two)


def test_a_restarted_observer_begins_again(tmp_path: Path) -> None:
    path, before, after = tmp_path / "leases.db", virtual("m2", "b2", 100), virtual("m2", "b3", 200)
    leased(path)
    assert not free_for(path, before)
    assert not free_for(path, after)
    after.advance(TTL)
    assert free_for(path, after)


def test_an_end_further_away_than_its_ttl_is_observed_not_believed(tmp_path: Path) -> None:
    """A machine put back to a snapshot while its disk went on: same boot, but the clock was set back."""
    path, back = tmp_path / "leases.db", virtual(start=1000)
    leased(path, virtual(start=50_000))
    assert not free_for(path, back)
    back.advance(TTL)
    assert free_for(path, back)


def test_lists_show_what_other_clocks_hold_until_it_was_observed_for_one_ttl(tmp_path: Path) -> None:
    path, theirs = tmp_path / "leases.db", virtual("m2", "b2", 7)
    with driven(path, virtual()) as owner:
        owner.grant(key(1), ttl=TTL)
        owner.grant(key(2), ttl=None)
    with driven(path, theirs) as other:
        mine = other.grant(key(3), ttl=5 * TTL)
        assert [record.key for record in other.page(ROOT_OF_KEYS, None, 10)] == [key(1), key(2), key(3)]
        assert [record.key for record in other.page(ROOT_OF_KEYS, None, 2)] == [key(1), key(2)]
        assert [record.left for record in other.scan(key(1).family)] == [TTL]
        theirs.advance(TTL)
        assert [record.key for record in other.page(ROOT_OF_KEYS, None, 10)] == [key(2), mine.key]
        assert other.scan(key(1).family) == []


@pytest.mark.parametrize("shifted", [False, True])
def test_a_domain_reads_as_it_was_written(*, shifted: bool) -> None:
    domain = ClockDomain(machine="m1", boot="b1", shifted=shifted)
    assert read_domain(write_domain(domain)) == domain


def test_a_line_with_only_a_boot_id_names_no_machine() -> None:
    assert read_domain("b1") == ClockDomain(machine="", boot="b1", shifted=False)


@pytest.mark.parametrize("text", ["", "uninitialized", "x" * 32, "0" * 31])
def test_what_is_no_machine_id_reads_as_none(text: str) -> None:
    assert machine_id(text) == ""
    assert machine_id("3d1219c7c4c5404aaa1f6d2a48adfda4") == "3d1219c7c4c5404aaa1f6d2a48adfda4"


@pytest.mark.parametrize(
    ("table", "offset"),
    [
        ("monotonic           0         0\nboottime       100000         0\n", 100_000),
        ("monotonic           0         0\nboottime           -3 500000000\n", -2.5),
        ("1 5 0\n7 6 250000000\n", 6.25),
        ("", 0),
    ],
)
def test_the_offset_of_a_time_namespace_is_read_from_the_kernels_table(table: str, offset: float) -> None:
    assert boottime_offset(table) == offset


def test_processes_in_different_time_namespaces_read_the_same_clock(tmp_path: Path) -> None:
    """Real namespaces where the kernel and this user can make them; the probe decides, and both ways assert."""
    url, inside = f"sqlite://{tmp_path}/leases.db", namespace()
    holder = start("hold", url, "job", 30, before=inside)
    held = json.loads(holder.stdout.readline())
    outside = run("inspect", url, "job")
    beside = run("inspect", url, "job", before=namespace(3 * SHIFT) if inside else ())
    assert abs(held["raw"] - outside["raw"]) > SHIFT / 2 if inside else held["raw"] <= outside["raw"]
    assert beside["shifted"] is bool(inside)
    for seen in (outside, beside):
        assert seen["token"] == held["token"]
        assert 0 < seen["left"] <= 30
        assert held["now"] <= seen["now"] < held["now"] + SHIFT / 2
    holder.communicate("\n")
    assert run("inspect", url, "job")["left"] is None


def namespace(shift: int = SHIFT) -> tuple[str, ...]:
    """The command that starts a process under a shifted boot clock, or nothing where that cannot be done."""
    for command in (("unshare", "-T"), ("unshare", "-U", "-r", "-T")):
        words = (*command, "--boottime", str(shift))
        try:
            if subprocess.run((*words, "true"), check=False, capture_output=True).returncode == 0:
                return words
        except FileNotFoundError:
            break
    note("no time namespaces here: all processes share one clock")
    return ()
