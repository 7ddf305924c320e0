"""Names are made of the whole target; a rest is not over before its time, for any clock within the skew."""

from __future__ import annotations

import hashlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.errors import InvalidInput
from leasehold.model import Key, Record
from leasehold.rules.cooldown import (
    Phase,
    RunRecord,
    Sight,
    Standing,
    begun_anew,
    checked_rest,
    checked_timeout,
    finished,
    judge,
    notes,
    read_run,
    rest_ttl,
    sight,
    write_run,
)
from leasehold.rules.kubernetes_names import is_name, lease_name
from leasehold.rules.names import Names, short_name
from leasehold.stores.memory import GUARANTEES
from tests.rules.hostile import KEYS

RESTS = st.floats(0, 1e7)
TIMES = st.floats(1e9, 2e9)
SKEWS = st.floats(0, 3600)
PHASES = st.sampled_from(Phase)


def run_of(phase: Phase = Phase.COMPLETED, rest: float = 300.0, **changes: object) -> RunRecord:
    run = RunRecord("shop/cart", "wfe-1", "secret", 1e9, notes("shop/cart", phase), phase, 3600.0, rest, 1e9)
    return msgspec.structs.replace(run, **changes)


def record_of(value: bytes, ttl: float | None = 300.0, left: float | None = 100.0) -> Record:
    return Record(Key("//guard/x", "lock"), value, 7, 7, ttl, left)


# Names.


def test_the_name_is_the_one_the_platform_s_other_programs_compute() -> None:
    assert short_name("wfe-", "production/deployment/payment-api") == "wfe-fbb8266ac354e9c2"


@given(KEYS)
def test_a_name_is_the_word_and_the_beginning_of_the_target_s_sha256(target) -> None:
    name = short_name("wfe-", target)
    assert name == f"wfe-{hashlib.sha256(target.encode()).hexdigest()[:16]}"
    assert is_name(name)
    # As it is in Kubernetes, for whoever looks for it by name.
    names = Names(None, None)
    assert lease_name(names.guard(name)) == name
    assert is_name(lease_name(names.interval(name)))
    assert lease_name(names.interval(name)) != name


@given(KEYS, KEYS)
def test_two_targets_have_two_names(one, other) -> None:
    assert (short_name("wfe-", one) == short_name("wfe-", other)) is (one == other)


@given(KEYS, KEYS)
def test_runs_intervals_locks_and_elections_never_meet(one, other) -> None:
    names = Names(None, None)
    keys = {names.guard(one), names.interval(one), names.election(one), names.election(other)}
    assert len(keys) == 3 + (one != other)
    assert names.text(names.guard(one)) == f"guard:{one}"


# What is written can be read, and what others wrote is not misread.


@given(KEYS, KEYS, PHASES, TIMES, st.booleans())
def test_what_was_written_is_read(target, owner, phase, time, per) -> None:
    run = run_of(phase, scope=target, holder=owner, since=time, ended=time, per=per)
    assert read_run(record_of(write_run(run))) == run


@pytest.mark.parametrize(
    "value",
    [b"", b"{}", b"null", b"\xff", b'{"scope":"x","holder":"me","secret":"s","since":1.0}', b'{"phase":"running"}'],
)
def test_what_no_guard_wrote_is_not_read(value) -> None:
    assert read_run(record_of(value)) is None
    assert read_run(None) is None


def test_a_run_is_shown_without_its_secret() -> None:
    assert "secret" not in repr(run_of())
    assert "'shop/cart' by 'wfe-1', completed" in repr(run_of())


@given(TIMES, st.sampled_from([Phase.COMPLETED, Phase.FAILED]))
def test_a_finished_run_says_when_and_how(now, phase) -> None:
    done = finished(run_of(Phase.RUNNING), phase, now)
    assert (done.phase, done.ended, done.metadata["phase"]) == (phase, now, phase.value)
    assert (done.since, done.secret) == (1e9, "secret")


# Whether it is over.


@given(TIMES, RESTS, SKEWS, st.none() | RESTS)
def test_a_run_that_is_not_finished_is_never_judged_by_times(now, rest, skew, asked) -> None:
    run = run_of(Phase.RUNNING, rest)
    for passed in (None, 1e9):
        assert judge(run, Sight(now, passed), asked, skew).standing is Standing.RUNNING


@given(RESTS.filter(bool), st.floats(0, 2e7), TIMES)
def test_by_the_store_s_clock_a_rest_is_over_after_its_length_whatever_wall_clocks_say(rest, passed, wall) -> None:
    verdict = judge(run_of(rest=rest), Sight(wall, passed), None, 5.0)
    assert (verdict.standing is Standing.FREE) is (passed >= rest)
    assert verdict.ago == passed
    assert not verdict.ahead


@given(RESTS.filter(bool), SKEWS, TIMES, st.floats(0, 1), st.floats(-1, 1))
def test_by_written_times_no_rest_is_cut_short_while_clocks_are_within_the_skew(rest, skew, ended, part, lean) -> None:
    # So much time has really passed, and the one who looks has a clock off by up to `skew`.
    really = part * rest * 0.999
    verdict = judge(run_of(rest=rest, ended=ended), Sight(ended + really + lean * skew * 0.999, None), None, skew)
    # Close to the end, adding to a large time rounds.
    assert verdict.standing is Standing.RESTING or rest - really < 1e-5


@given(RESTS, SKEWS, TIMES)
def test_by_written_times_a_rest_is_over_after_length_and_skew(rest, skew, ended) -> None:
    late = judge(run_of(rest=rest, ended=ended), Sight(ended + rest + skew + 1e-3, None), None, skew)
    assert late.standing is Standing.FREE


def test_clocks_further_apart_than_the_skew_cut_a_rest_short() -> None:
    """The control: the skew is what protects the rest."""
    run, looked = run_of(rest=300.0, ended=1e9), Sight(1e9 + 100 + 240, None)
    assert judge(run, looked, None, 0.0).standing is Standing.FREE
    assert judge(run, looked, None, 240.0).standing is Standing.RESTING


@given(RESTS, RESTS, st.floats(0, 2e7))
def test_the_shorter_of_the_two_rests_counts(written, asked, passed) -> None:
    both = judge(run_of(rest=written), Sight(1e9, passed), asked, 5.0).standing
    assert both is judge(run_of(rest=min(written, asked)), Sight(1e9, passed), None, 5.0).standing


@given(st.floats(0, 1e6), SKEWS)
def test_a_rest_that_begins_in_the_future_counts_as_just_begun_and_is_noticed_beyond_the_skew(early, skew) -> None:
    run = run_of(rest=300.0, ended=1e9 + early)
    verdict = judge(run, Sight(1e9, None), None, skew)
    assert (verdict.standing, verdict.ago, verdict.left) == (Standing.RESTING, 0.0, 300.0 + skew)
    assert verdict.ahead is (run.ended > 1e9 + skew)
    assert not judge(begun_anew(run, 1e9), Sight(1e9, None), None, skew).ahead


@given(PHASES, st.floats(0, 100), TIMES)
def test_an_interval_counts_from_the_beginning_whatever_became_of_the_run(phase, passed, since) -> None:
    run = run_of(phase, 100.0, since=since, ended=since + 50, per=True)
    assert run.rests_from == since
    verdict = judge(run, Sight(since + passed, None), None, 0.0)
    assert verdict.ago == pytest.approx(passed, abs=1e-5)
    assert begun_anew(run, 5.0).rests_from == 5.0


def test_no_rest_is_no_rest() -> None:
    assert judge(run_of(rest=0.0), Sight(1e9, 0.0), None, 5.0).standing is Standing.FREE
    assert judge(run_of(rest=300.0), Sight(1e9, None), 0.0, 5.0).standing is Standing.FREE


@pytest.mark.parametrize(
    ("ttl", "left", "observed", "passed"),
    [
        (300.0, 100.0, False, 200.0),
        (300.0, 300.5, False, 0.0),
        (300.0, 100.0, True, None),
        (None, None, False, None),
        (300.0, None, False, None),
    ],
)
def test_the_store_says_how_much_has_passed_where_it_knows(ttl, left, observed, passed) -> None:
    limits = msgspec.structs.replace(GUARANTEES, left_is_bound=observed)
    assert sight(record_of(b"", ttl, left), 5.0, limits) == Sight(5.0, passed)


# Arguments.


@given(RESTS)
def test_the_record_of_a_rest_lasts_at_least_as_long_as_the_rest(rest) -> None:
    limits = msgspec.structs.replace(GUARANTEES, ttl_step=1.0, ttl_min=1.0)
    ttl = rest_ttl(rest, limits)
    assert (ttl is None) is (rest > limits.ttl_max)
    assert ttl is None or ttl >= max(rest, limits.ttl_min)


@pytest.mark.parametrize("given", [-1, -0.001, None, "300", True, float("nan"), float("inf"), 10**400], ids=ascii)
def test_a_rest_that_cannot_be_is_refused(given) -> None:
    with pytest.raises(InvalidInput) as caught:
        checked_rest("cooldown", given)
    assert caught.value.field == "cooldown"


@pytest.mark.parametrize("given", [0, -1, 86_401, None, "1", True], ids=ascii)
def test_a_timeout_is_one_that_the_store_can_keep(given) -> None:
    with pytest.raises(InvalidInput) as caught:
        checked_timeout(given, GUARANTEES)
    assert caught.value.field == "timeout"
    assert checked_timeout(60, GUARANTEES) == 60.0
