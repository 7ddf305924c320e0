"""What the command's exit codes mean; the numbers of sysexits.h where it has one."""

from __future__ import annotations

import signal

from leasehold import errors

FREE = 1
USAGE = 2
WARNED = 3
ILL = 4
UNAVAILABLE = 69
LOST = 70
BROKEN = 70
DAMAGED = 74
NOT_WRITTEN = 74
NOT_ACQUIRED = 75
DENIED = 77
NOT_EXECUTABLE = 126
NOT_FOUND = 127
INTERRUPTED = 128 + signal.SIGINT
PIPE_CLOSED = 128 + signal.SIGPIPE

_CODES: tuple[tuple[type[errors.LeaseholdError], int], ...] = (
    (errors.InvalidInput, USAGE),
    (errors.NotAcquired, NOT_ACQUIRED),
    (errors.LeaseLost, LOST),
    (errors.PermissionDenied, DENIED),
    (errors.StoreDamaged, DAMAGED),
    (errors.StoreError, UNAVAILABLE),
    (errors.MissingExtra, UNAVAILABLE),
)


def code_of(error: errors.LeaseholdError) -> int:
    """The exit code for an error of our tree. Never 1: that is an answer, not a failure."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), BROKEN)


def code_of_child(returncode: int) -> int:
    """What a shell would say of a child: its own code, or 128 + n if signal n ended it."""
    return returncode if returncode >= 0 else 128 - returncode
