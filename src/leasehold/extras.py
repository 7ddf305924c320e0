"""Optional packages, imported when first needed; their absence is one clear error."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from leasehold.errors import MissingExtra


def require(module: str, *, feature: str, extra: str) -> ModuleType:
    """The module, or MissingExtra with the command that installs it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingExtra(feature, extra) from error
