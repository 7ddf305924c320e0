"""`leasehold ls`: everything that is held."""

from __future__ import annotations

import click

from leasehold.cli.options import Place, at_a_place
from leasehold.cli.output import as_json, fields, say, table


@click.command("ls")
@at_a_place
def command(place: Place) -> int:
    """List what is held under the prefix and tenant."""
    with place.connect() as locks:
        found = locks.list()
    say(as_json([fields(lease) for lease in found]) if place.json else table(found))
    return 0
