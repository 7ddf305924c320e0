"""Every error Leasehold raises, as one tree.

    LeaseholdError
    ├── InvalidInput            (also a ValueError)   an argument cannot work; nothing was written
    ├── MissingExtra            (also an ImportError) an optional package is not installed
    ├── ClientClosed            (also a RuntimeError) the client was closed, or belongs to another process or loop
    ├── AlreadyHeld             (also a RuntimeError) this thread or task holds it already
    ├── NotAcquired                                   somebody else holds it
    │   ├── AcquireTimeout                            and still did when `wait` was over
    │   ├── ResourceBusy                              a target has a run that is not finished
    │   └── RecentlyRemediated                        a guarded target rests after its last run
    ├── NotRunOnce                                    work that is done once was not done by this call
    │   ├── StillRunning                              somebody is doing it now
    │   ├── KeyReused                                 its key was used for another payload
    │   ├── OutcomeUnknown                            somebody began it, and nobody knows how far it came
    │   ├── RunFailed                                 it failed for good when it was done
    │   ├── FinishedLate                              it was done, but somebody else had taken over by then
    │   └── ResultNotKept                             it was done, and its result cannot be replayed
    ├── WouldDeadlock                                 a sharer would wait for somebody who waits for it
    ├── LeaseLost                                     the lease is no longer ours
    ├── TokenRefused                                  a resource does not accept a token; nothing was changed
    │   ├── StaleToken                                a later holder was there already
    │   ├── ScopeMismatch                             it was given for something else, or for reading only
    │   └── ForgedToken                               its seal was not made with a key of the resource
    ├── NoSuchResource          (also a LookupError)  there is nothing to fence
    ├── TooContended                                  an update lost every race it ran
    └── StoreError
        ├── StoreUnavailable                          no answer, or not in time; `applied` says what is known
        ├── PermissionDenied                          the store answers, but not to us
        ├── StoreWentBack                             the store gives smaller tokens than it gave before
        └── StoreDamaged                              the store's data cannot be read; nothing is granted from it

A message says what was wrong, with what value, and what to do. Errors of other
libraries are translated at the edge that meets them and stay as `__cause__`.
"""

from __future__ import annotations

SHOWN = 80


class LeaseholdError(Exception):
    """The root of the tree: catch this to catch everything Leasehold raises."""

    def __reduce__(self) -> tuple[object, ...]:
        # Python's own way would call the class with the message alone; process pools send errors home like this.
        return _rebuilt, (type(self), self.args), self.__dict__


class InvalidInput(LeaseholdError, ValueError):
    """An argument that cannot work. Raised before anything is written."""

    def __init__(self, field: str, given: object, remedy: str) -> None:
        super().__init__(f"{field}: {remedy} (given: {shown(given)})")
        self.field = field
        self.remedy = remedy


class MissingExtra(LeaseholdError, ImportError):
    """A feature whose optional packages are not installed."""

    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(f"{feature} needs packages that are not installed; run: pip install 'leasehold[{extra}]'")
        self.extra = extra


class ClientClosed(LeaseholdError, RuntimeError):
    """The client cannot be used here any more; connect again."""


class AlreadyHeld(LeaseholdError, RuntimeError):
    """This thread, task or candidate already holds the scope and would wait for itself."""

    def __init__(self, scope: str, token: int, remedy: str = "use that lease, or ask with reentrant=True") -> None:
        super().__init__(f"this thread or task already holds {shown(scope)} (token {token}); {remedy}")
        self.scope = scope
        self.token = token


class NotAcquired(LeaseholdError):
    """Somebody else holds the scope. Says who, for how long, and when to ask again."""

    def __init__(self, scope: str, *, holder: str | None, expires_in: float | None, retry_after: float) -> None:
        super().__init__(
            f"{shown(scope)} is held by {one_line(holder) if holder else 'a holder that cannot be read'}"
            f"{_for_another(expires_in)}; try again in {retry_after:.2f} s"
        )
        self.scope = scope
        self.holder = holder
        self.expires_in = expires_in
        self.retry_after = retry_after


class AcquireTimeout(NotAcquired):
    """The scope was still held when `wait` was over."""


class WouldDeadlock(LeaseholdError):
    """A sharer asks to have it to itself, and somebody ahead in line waits for that very sharer."""

    def __init__(self, scope: str) -> None:
        super().__init__(
            f"{shown(scope)} cannot be upgraded: somebody who is ahead in line waits for this lease to end, so each "
            "would wait for the other. Release it and acquire it with mode='exclusive'"
        )
        self.scope = scope


class NotRunOnce(LeaseholdError):
    """Work that is done once was not done by this call, or its result is not to be had."""

    def __init__(self, key: str, told: str) -> None:
        super().__init__(f"{shown(key)} {told}")
        self.key = key


class StillRunning(NotRunOnce):
    """Somebody is doing it at this moment. Ask again after `retry_after` seconds for what it came to."""

    def __init__(self, key: str, retry_after: float) -> None:
        super().__init__(key, f"is being handled by somebody else; ask again in {retry_after:.2f} s for its result")
        self.retry_after = retry_after


class KeyReused(NotRunOnce):
    """The key was used for another payload. Nothing was run."""

    def __init__(self, key: str) -> None:
        super().__init__(key, "was used for another payload; use a new key for a new request")


class OutcomeUnknown(NotRunOnce):
    """Somebody began it and is gone: it may have been done, in part or as a whole. Nothing was run now.

    `step` is the step that was begun and not finished, if that is what is unknown.
    """

    def __init__(self, key: str, step: str | None = None) -> None:
        what = "" if step is None else f" in step {shown(step)}"
        super().__init__(
            key,
            f"was begun by somebody who is gone, and nobody knows how far it came{what}; look at what it was to do, "
            "then settle() or forget() it, or declare rerun=True if doing it again is safe",
        )
        self.step = step


class RunFailed(NotRunOnce):
    """It was done before, and failed for good: `kind` and `message` are those of the error then."""

    def __init__(self, key: str, kind: str, message: str) -> None:
        super().__init__(key, f"failed when it was handled: {one_line(kind)}: {one_line(message)}")
        self.kind = kind
        self.message = message


class FinishedLate(NotRunOnce):
    """The work was done, but its lease had ended and the record is somebody else's by now: nothing was changed there.

    Only what was fenced with `token` is in order.
    """

    def __init__(self, key: str, token: int) -> None:
        super().__init__(
            key, f"was finished too late (token {token}): somebody else has taken it over, and that result counts"
        )
        self.token = token


class ResultNotKept(NotRunOnce):
    """The work was done, but its result is not kept, and cannot be replayed. `value` is it, for who did it.

    Why says `reason`. Unless the store did not even take that, it is not done again.
    """

    def __init__(self, key: str, reason: str, value: object = None) -> None:
        super().__init__(key, f"was handled, and its result cannot be kept: {one_line(reason)}")
        self.reason = reason
        self.value = value


class ResourceBusy(NotAcquired):
    """A target has a run, or an object that is its lock. `reason` is the short form, for a status or an event.

    `active` when a look found it, else the attempt to begin did. `other` is another
    target, which has the same short name.
    """

    def __init__(
        self,
        target: str,
        *,
        holder: str | None,
        expires_in: float | None,
        retry_after: float,
        active: bool = False,
        other: str | None = None,
    ) -> None:
        super().__init__(target, holder=holder, expires_in=expires_in, retry_after=retry_after)
        who = "" if holder is None else f" ({'active:' if active else 'held by'} {one_line(holder)})"
        self.target = target
        self.other = other
        self.reason: str = f"ResourceBusy{who}"
        again = f"try again in {retry_after:.2f} s"
        if other is not None:
            what = f"shares its short name with {shown(other)}; give one of them a Guard with another name="
        elif holder is None:
            what = f"is taken by something that cannot be read; {again}, or see what it is and remove it"
        else:
            what = f"has a run that is not finished{_at_the_latest(expires_in)}; {again}"
        # A sentence of its own, in place of the one above it in the tree.
        LeaseholdError.__init__(self, f"{self.reason}: {shown(target)} {what}")


class RecentlyRemediated(NotAcquired):
    """A guarded target rests after a run that ended `ago` seconds ago. `reason` is the short form.

    `retry_after` is when the rest will be over.
    """

    def __init__(self, target: str, *, holder: str, ago: float, retry_after: float) -> None:
        super().__init__(target, holder=holder, expires_in=retry_after, retry_after=retry_after)
        self.target = target
        self.ago = ago
        self.reason: str = f"RecentlyRemediated (by {one_line(holder)}, {ago:.0f}s ago)"
        LeaseholdError.__init__(self, f"{self.reason}: {shown(target)} rests; try again in {retry_after:.2f} s")


class LeaseLost(LeaseholdError):
    """The lease is no longer ours: stop what it protected."""

    def __init__(self, scope: str, token: int, reason: str) -> None:
        super().__init__(
            f"the lease on {shown(scope)} (token {token}) is lost: {one_line(reason)}; "
            "stop the protected work and acquire again before going on"
        )
        self.scope = scope
        self.token = token
        self.reason = reason


class TokenRefused(LeaseholdError):
    """A resource does not accept a token. It changed nothing, its mark included."""


class StaleToken(TokenRefused):
    """A later holder was at the resource already: whoever shows this token has lost its lease.

    `token` is what was shown, `mark` the largest that the resource has seen.
    """

    def __init__(self, resource: str, token: int, mark: int) -> None:
        super().__init__(
            f"token {token} comes too late for {shown(resource)}: a later holder was there with {mark}; "
            "stop the protected work and acquire again before going on"
        )
        self.resource = resource
        self.token = token
        self.mark = mark


class ScopeMismatch(TokenRefused):
    """A token that was given for something else than it is shown for, or for reading only."""

    def __init__(self, resource: str, given_for: str, wanted: str) -> None:
        super().__init__(
            f"{shown(resource)} refuses a token that was given for {shown(given_for)}: it wants one for {shown(wanted)}"
        )
        self.resource = resource
        self.given_for = given_for
        self.wanted = wanted


class ForgedToken(TokenRefused):
    """A sealed token whose seal no key of the resource made."""

    def __init__(self, resource: str, reason: str) -> None:
        super().__init__(
            f"{shown(resource)} refuses a token: {reason}. If keys were changed, the resource must know the new one "
            "before clients seal with it"
        )
        self.resource = resource
        self.reason = reason


class NoSuchResource(LeaseholdError, LookupError):
    """There is nothing of that name to open, read or write."""

    def __init__(self, resource: str, remedy: str) -> None:
        super().__init__(f"there is no {shown(resource)}; {remedy}")
        self.resource = resource


class TooContended(LeaseholdError):
    """An update that found something else than it had read, as often as it was to try."""

    def __init__(self, resource: str, attempts: int) -> None:
        super().__init__(
            f"{shown(resource)} changed under all {attempts} attempts to update it; nothing was written. "
            "Try again later, or hold a lease on it"
        )
        self.resource = resource
        self.attempts = attempts


class StoreError(LeaseholdError):
    """The store could not do what was asked."""


class StoreUnavailable(StoreError):
    """No answer from the store, or none in time.

    `applied` is False when the request certainly changed nothing, and None when
    nobody can tell: then the engine looks for its own trace before it goes on.
    """

    def __init__(self, message: str, *, applied: bool | None = None) -> None:
        super().__init__(message)
        self.applied = applied


class PermissionDenied(StoreError):
    """The store refuses this client."""


class StoreWentBack(StoreError):
    """The store gave a token that is not larger than one it gave before: it was restored from a backup, or lost data.

    `token` is what it gave now, `mark` what was seen before, at a resource or by this client.
    """

    def __init__(self, scope: str, token: int, mark: int) -> None:
        super().__init__(
            f"the store gave token {token} for {shown(scope)} after {mark}: it forgot what it had granted, as when an "
            f"old backup is restored. Raise its tokens above {mark} before anybody goes on: see docs/howto/went-back.md"
        )
        self.scope = scope
        self.token = token
        self.mark = mark


class StoreDamaged(StoreError):
    """The store's data is not what Leasehold wrote; it grants nothing from it."""


def shown(given: object) -> str:
    """A short, printable form of what a caller gave: it may be ten megabytes or not printable."""
    try:
        text = ascii(given[: SHOWN + 1]) if isinstance(given, str | bytes) else ascii(given)
    except Exception:  # noqa: BLE001  a whole number of 5,000 digits, or somebody's own __repr__
        text = f"<{type(given).__name__} that cannot be shown>"
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def one_line(text: str) -> str:
    """Text that others wrote, for a sentence: it must not break the line or hide what follows."""
    return text if text.isprintable() else repr(text)[1:-1]


def _rebuilt(kind: type[LeaseholdError], args: tuple[object, ...]) -> LeaseholdError:
    error = kind.__new__(kind, *args)
    error.args = args
    return error


def _at_the_latest(expires_in: float | None) -> str:
    return "" if expires_in is None else f" and ends in {max(expires_in, 0.0):.1f} s at the latest"


def _for_another(expires_in: float | None) -> str:
    return "" if expires_in is None else f" for another {max(expires_in, 0.0):.1f} s unless renewed"
