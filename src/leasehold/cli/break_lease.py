"""`leasehold break`: take a lease away from its holder."""

from __future__ import annotations

import click

from leasehold.cli.codes import FREE
from leasehold.cli.options import Place, at_a_place
from leasehold.cli.output import as_json, cell, fields, free, say, tell_warnings
from leasehold.model import LeaseInfo


@click.command("break")
@click.argument("key")
@click.option("--reason", required=True, metavar="TEXT", help="Told to the holder, and shown to others.")
@click.option("--force", is_flag=True, help="Free it at once, while the holder may still believe it holds it.")
@at_a_place
def command(place: Place, key: str, reason: str, *, force: bool) -> int:
    """Revoke the lease on KEY: its holder is told at its next renewal, and nobody is granted before it lets go.

    Exits 0 if a lease was broken, 1 if nothing was held.
    """
    tell_warnings(wanted=False)
    with place.connect() as locks:
        broken = locks.break_lease(key, reason=reason, force=force)
    if broken is None:
        say(as_json({**free(key), "broken": False}) if place.json else f"{cell(key)} is free: nothing was broken")
        return FREE
    say(_as_json(broken, reason, force=force) if place.json else _sentence(broken, force=force))
    return 0


def _as_json(broken: LeaseInfo, reason: str, *, force: bool) -> str:
    """The lease as it is now: still held until its holder lets go, unless it was freed."""
    return as_json({**fields(broken), "held": not force, "revoked": reason, "broken": True, "forced": force})


def _sentence(broken: LeaseInfo, *, force: bool) -> str:
    whose = f"{cell(broken.scope)}, held by {cell(broken.holder)} with token {broken.token}"
    if force:
        return f"freed {whose}; the holder is told at its next renewal and may act until then"
    end = "" if broken.expires_in is None else f", which is at most {broken.expires_in:.1f} s away"
    return f"revoked {whose}; nobody is granted before the holder lets go or its time ends{end}"
