"""Leases, fencing tokens and loss detection on the store you already run.

`connect` gives the blocking client; `leasehold.aio.connect` the asyncio one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasehold.client import Hold, HoldAll, Lease, Leases, Locks, Loss, connect
from leasehold.engine import events
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
)
from leasehold.model import (
    ByteRange,
    Guarantees,
    Inode,
    LeaseInfo,
    Name,
    Path,
    Permit,
    Renewal,
    ResourceInfo,
    Shared,
    Waiter,
)
from leasehold.patterns.candidate import Leader
from leasehold.patterns.election import Election, Leadership
from leasehold.patterns.guard import Guard, Run
from leasehold.patterns.handled import OnceInfo
from leasehold.patterns.once import Once, Work
from leasehold.patterns.runs import RunInfo
from leasehold.patterns.semaphore import Semaphore
from leasehold.rules.backoff import Backoff, Retry
from leasehold.rules.canonical import fingerprint
from leasehold.rules.cooldown import Phase
from leasehold.rules.keys import KeyParts, key, parsed_key
from leasehold.rules.once import State

if TYPE_CHECKING:
    from types import ModuleType

    from leasehold import aio, fence, optimistic, sql, web

__version__ = "0.1.0"

__all__ = [
    "AcquireTimeout",
    "AlreadyHeld",
    "Backoff",
    "ByteRange",
    "ClientClosed",
    "Election",
    "FinishedLate",
    "ForgedToken",
    "Guarantees",
    "Guard",
    "Hold",
    "HoldAll",
    "Inode",
    "InvalidInput",
    "KeyParts",
    "KeyReused",
    "Leader",
    "Leadership",
    "Lease",
    "LeaseInfo",
    "LeaseLost",
    "LeaseholdError",
    "Leases",
    "Locks",
    "Loss",
    "MissingExtra",
    "Name",
    "NoSuchResource",
    "NotAcquired",
    "NotRunOnce",
    "Once",
    "OnceInfo",
    "OutcomeUnknown",
    "Path",
    "PermissionDenied",
    "Permit",
    "Phase",
    "RecentlyRemediated",
    "Renewal",
    "ResourceBusy",
    "ResourceInfo",
    "ResultNotKept",
    "Retry",
    "Run",
    "RunFailed",
    "RunInfo",
    "ScopeMismatch",
    "Semaphore",
    "Shared",
    "StaleToken",
    "State",
    "StillRunning",
    "StoreDamaged",
    "StoreError",
    "StoreUnavailable",
    "StoreWentBack",
    "TokenRefused",
    "TooContended",
    "Waiter",
    "Work",
    "WouldDeadlock",
    "__version__",
    "aio",
    "connect",
    "events",
    "fence",
    "fingerprint",
    "key",
    "optimistic",
    "parsed_key",
    "sql",
    "web",
]


def __getattr__(name: str) -> ModuleType:
    # asyncio is slow to import, and a blocking program never needs it; nor do most need what guards a resource.
    if name in {"aio", "fence", "optimistic", "sql", "web"}:
        from importlib import import_module  # noqa: PLC0415

        return import_module(f"leasehold.{name}")
    raise AttributeError(f"module 'leasehold' has no attribute {name!r}")
