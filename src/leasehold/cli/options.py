"""The options every command takes, and the store they lead to."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click
import msgspec

from leasehold.client import Locks, connect
from leasehold.errors import InvalidInput

VARIABLE = "LEASEHOLD_STORE"
EXAMPLE = "sqlite:///var/lib/app/leases.db"


class Place(msgspec.Struct, frozen=True):
    """Which store, which part of it, and how the caller wants to be answered."""

    store: str | None
    prefix: str | None
    tenant: str | None
    timeout: float
    json: bool

    def connect(self) -> Locks:
        """The client for it."""
        return connect(self.url, prefix=self.prefix, tenant=self.tenant, timeout=self.timeout)

    @property
    def url(self) -> str:
        """Of the store. Refuses one that no other process could share."""
        if not self.store:
            raise click.UsageError(f"No store: give --store URL or set {VARIABLE}, for example to {EXAMPLE}.")
        if self.store.startswith("memory:"):
            raise InvalidInput(
                "store",
                self.store,
                f"memory:// lives inside one process and this command is another; use a shared store such as {EXAMPLE}",
            )
        return self.store


def at_a_place(function: Callable[..., int]) -> Callable[..., int]:
    """Add the options to a command and hand them to it as one `Place`, before its own arguments."""

    @functools.wraps(function)
    def command(
        *, store: str | None, prefix: str | None, tenant: str | None, timeout: float, json: bool, **own: Any
    ) -> int:
        return function(Place(store, prefix, tenant, timeout, json), **own)

    for option in reversed(_OPTIONS):
        command = option(command)
    return command


_OPTIONS = (
    click.option(
        "--store", metavar="URL", envvar=VARIABLE, help=f"Where the leases are; or set {VARIABLE}. Example: {EXAMPLE}"
    ),
    click.option("--prefix", metavar="TEXT", help="Separates users of one store."),
    click.option("--tenant", metavar="TEXT", help="Separates tenants; no key reaches across."),
    click.option(
        "--timeout", metavar="SECONDS", type=float, default=5.0, show_default=True, help="Bounds each request."
    ),
    click.option("--json", is_flag=True, help="Answer in JSON."),
)
