"""The `leasehold` command."""

from leasehold.cli.program import main

__all__ = ["main"]
