"""Servers that many tests use one after the other: started when first asked for, ended with the process."""

from __future__ import annotations

import atexit
from contextlib import AbstractContextManager
from typing import Any, TypeVar

S = TypeVar("S", bound="AbstractContextManager[Any]")

_RUNNING: dict[str, Any] = {}


def shared(name: str, server: S) -> S:
    """The running server of that name, which is `server` if nobody started one before.

    A server that is not needed was never started: making one costs nothing.
    """
    if name not in _RUNNING:
        server.__enter__()
        atexit.register(server.__exit__, None, None, None)
        _RUNNING[name] = server
    found: S = _RUNNING[name]
    return found
