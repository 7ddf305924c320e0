"""An error says what was wrong, with what value, and what to do; and it survives the way to another process."""

from __future__ import annotations

import copy
import inspect
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

import leasehold
from leasehold import errors
from leasehold.errors import (
    AcquireTimeout,
    AlreadyHeld,
    ClientClosed,
    FinishedLate,
    ForgedToken,
    InvalidInput,
    KeyReused,
    LeaseholdError,
    LeaseLost,
    MissingExtra,
    NoSuchResource,
    NotAcquired,
    NotRunOnce,
    OutcomeUnknown,
    PermissionDenied,
    RecentlyRemediated,
    ResourceBusy,
    ResultNotKept,
    RunFailed,
    ScopeMismatch,
    StaleToken,
    StillRunning,
    StoreDamaged,
    StoreError,
    StoreUnavailable,
    StoreWentBack,
    TokenRefused,
    TooContended,
    WouldDeadlock,
    shown,
)
from tests.rules.hostile import HOSTILE

EXAMPLES = [
    LeaseholdError("something"),
    InvalidInput("ttl", -1, "must be from 0.1 to 86400 seconds"),
    MissingExtra("redis://", "redis"),
    ClientClosed("the client was closed; connect again"),
    AlreadyHeld("invoice/42", 7),
    NotAcquired("invoice/42", holder="web-1", expires_in=12.34, retry_after=5.0),
    AcquireTimeout("invoice/42", holder=None, expires_in=None, retry_after=5.0),
    ResourceBusy("payment-api", holder="wfe-1", expires_in=12.34, retry_after=5.0, active=True),
    RecentlyRemediated("payment-api", holder="wfe-1", ago=42.4, retry_after=258.0),
    WouldDeadlock("shared:report"),
    LeaseLost("invoice/42", 7, "it was not renewed in time"),
    NotRunOnce("order/42", "was not done"),
    StillRunning("order/42", 1.5),
    KeyReused("order/42"),
    OutcomeUnknown("order/42", "charge"),
    RunFailed("order/42", "CardDeclined", "no money"),
    FinishedLate("order/42", 7),
    ResultNotKept("order/42", "it has 300000 bytes, more than limit=262144"),
    TokenRefused("something"),
    StaleToken("invoice 42", 7, 9),
    ScopeMismatch("invoice 42", "invoice/7", "invoice/42"),
    ForgedToken("invoice 42", "it is not a sealed token"),
    NoSuchResource("invoice 42", "write it first"),
    TooContended("invoice 42", 10),
    StoreError("something"),
    StoreWentBack("invoice/42", 7, 9),
    StoreUnavailable("the file is locked", applied=False),
    PermissionDenied("the file cannot be written"),
    StoreDamaged("the file is not ours"),
]


def test_there_is_an_example_of_every_error() -> None:
    kinds = {kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, Exception)}
    assert {type(example) for example in EXAMPLES} == kinds


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_survives_pickling_and_copying(error) -> None:
    """Process pools and task queues send errors home this way; one that cannot travel breaks the pool."""
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error)):  # noqa: S301  our own bytes
        assert type(twin) is type(error)
        assert str(twin) == str(error)
        assert vars(twin) == vars(error)


def test_bad_input_names_the_field_the_value_and_the_remedy() -> None:
    error = InvalidInput("ttl", -1, "must be from 0.1 to 86400 seconds")
    assert str(error) == "ttl: must be from 0.1 to 86400 seconds (given: -1)"
    assert (error.field, error.remedy) == ("ttl", "must be from 0.1 to 86400 seconds")


def test_not_acquired_names_the_holder_its_time_left_and_when_to_come_back() -> None:
    error = NotAcquired("invoice/42", holder="web-1", expires_in=12.34, retry_after=5.0)
    assert str(error) == "'invoice/42' is held by web-1 for another 12.3 s unless renewed; try again in 5.00 s"
    assert (error.scope, error.holder, error.expires_in, error.retry_after) == ("invoice/42", "web-1", 12.34, 5.0)


def test_not_acquired_says_so_if_the_holder_or_its_time_is_unknown() -> None:
    error = NotAcquired("x", holder=None, expires_in=None, retry_after=1.0)
    assert str(error) == "'x' is held by a holder that cannot be read; try again in 1.00 s"
    overdue = NotAcquired("x", holder="me", expires_in=-3.0, retry_after=1.0)
    assert "for another 0.0 s" in str(overdue)


def test_already_held_and_lost_name_scope_and_token_and_what_to_do() -> None:
    held, lost = AlreadyHeld("x", 7), LeaseLost("x", 7, "it was revoked: stuck")
    assert "already holds 'x' (token 7)" in str(held)
    assert "reentrant=True" in str(held)
    assert "the lease on 'x' (token 7) is lost: it was revoked: stuck" in str(lost)
    assert "acquire again" in str(lost)
    assert (held.scope, held.token, lost.scope, lost.token, lost.reason) == ("x", 7, "x", 7, "it was revoked: stuck")


def test_a_guarded_target_says_shortly_and_at_length_why_it_is_not_free() -> None:
    busy = ResourceBusy("payment-api", holder="wfe-1", expires_in=12.34, retry_after=5.0)
    assert busy.reason == "ResourceBusy (held by wfe-1)"
    assert str(busy) == (
        "ResourceBusy (held by wfe-1): 'payment-api' has a run that is not finished and ends in 12.3 s at the latest; "
        "try again in 5.00 s"
    )
    active = ResourceBusy("payment-api", holder="wfe-1", expires_in=None, retry_after=5.0, active=True)
    assert active.reason == "ResourceBusy (active: wfe-1)"
    unread = ResourceBusy("payment-api", holder=None, expires_in=None, retry_after=5.0)
    assert unread.reason == "ResourceBusy"
    assert "cannot be read; try again in 5.00 s, or see what it is and remove it" in str(unread)
    other = ResourceBusy("payment-api", holder="wfe-1", expires_in=1.0, retry_after=1.0, other="cart")
    assert "shares its short name with 'cart'; give one of them a Guard with another name=" in str(other)
    resting = RecentlyRemediated("payment-api", holder="wfe-1", ago=42.4, retry_after=257.6)
    assert resting.reason == "RecentlyRemediated (by wfe-1, 42s ago)"
    assert str(resting) == f"{resting.reason}: 'payment-api' rests; try again in 257.60 s"


def test_unavailable_keeps_what_is_known_of_the_outcome() -> None:
    assert StoreUnavailable("x").applied is None
    assert StoreUnavailable("x", applied=False).applied is False


def test_waiting_in_vain_names_who_holds_it() -> None:
    with leasehold.connect("memory://errors", holder="web-1") as one, leasehold.connect("memory://errors") as other:
        one.acquire("invoice/42", ttl=30)
        with pytest.raises(AcquireTimeout, match="'invoice/42' is held by web-1 for another") as caught:
            other.acquire("invoice/42", wait=0)
        assert caught.value.holder == "web-1"
        assert caught.value.expires_in is not None
        assert 0 < caught.value.expires_in <= 30
        assert 0 < caught.value.retry_after <= 6


class Unprintable:
    """Something whose author got `__repr__` wrong."""

    def __repr__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    "value",
    [*HOSTILE, "x" * 10_000_000, b"\xff" * 10_000_000, ["x"] * 1_000_000, 10**5000, Unprintable(), [Unprintable()]],
    ids=lambda value: type(value).__name__,
)
def test_whatever_was_given_is_shown_shortly_and_on_one_line(value) -> None:
    text = shown(value)
    assert 0 < len(text) <= 100
    assert text.isprintable()
    assert str(InvalidInput("x", value, "must be better")).startswith("x: must be better (given: ")


@given(st.text())
def test_short_text_is_shown_whole_and_long_text_is_marked_as_cut(text) -> None:
    short = ascii(text)
    assert shown(text) == short if len(short) <= errors.SHOWN else shown(text).endswith("…")


@pytest.mark.parametrize("text", ["a\nb", "a\r\nERROR forged", "\x1b[2J", "\u202etxet", "\u2028", "x" * 300])
def test_what_others_wrote_cannot_forge_lines_in_a_message(text) -> None:
    """The holder's name and the reason of a revocation come from other clients."""
    for error in (
        NotAcquired(text, holder=text, expires_in=1.0, retry_after=1.0),
        LeaseLost(text, 7, f"it was revoked: {text}"),
        ResourceBusy(text, holder=text, expires_in=1.0, retry_after=1.0, other=text),
        RecentlyRemediated(text, holder=text, ago=1.0, retry_after=1.0),
        AlreadyHeld(text, 7),
    ):
        assert str(error).isprintable()
