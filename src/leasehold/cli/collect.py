"""`leasehold gc`: delete what has expired."""

from __future__ import annotations

import sys

import click

from leasehold.cli.options import Place, at_a_place
from leasehold.cli.output import as_json, complain, say


@click.command("gc")
@at_a_place
def command(place: Place) -> int:
    """Delete the expired records of the whole store and print how many. Lowers no token."""
    with place.connect() as locks:
        removed = locks.gc(sys.maxsize)
        if locks.guarantees.newcomers and not place.json:
            complain(locks.guarantees.newcomers)
    say(as_json({"removed": removed}) if place.json else str(removed))
    return 0
