"""Chance, for everything that must not happen in step.

From the system, not from Python's seeded generator: a program that seeds it
would make all its processes jitter alike.
"""

from __future__ import annotations

import os
from random import SystemRandom

_system = SystemRandom()


def chance() -> float:
    """A number in [0, 1)."""
    return _system.random()


def secret() -> str:
    """Text that nobody else has, and nobody guesses: it tells one hold, or one run, from every other."""
    return os.urandom(16).hex()
