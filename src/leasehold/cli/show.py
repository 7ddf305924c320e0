"""`leasehold show`: who holds one key."""

from __future__ import annotations

import click

from leasehold.cli.codes import FREE
from leasehold.cli.options import Place, at_a_place
from leasehold.cli.output import as_json, cell, fields, free, paragraph, say


@click.command("show")
@click.argument("key")
@at_a_place
def command(place: Place, key: str) -> int:
    """Show who holds KEY. Exits 0 if it is held, 1 if it is free."""
    with place.connect() as locks:
        found = locks.inspect(key)
    if found is None:
        say(as_json(free(key)) if place.json else f"{cell(key)} is free")
        return FREE
    say(as_json(fields(found)) if place.json else paragraph(found))
    return 0
