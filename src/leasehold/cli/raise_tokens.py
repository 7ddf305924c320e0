"""`leasehold raise-tokens`: repair a store that went back."""

from __future__ import annotations

import click

from leasehold.cli.options import Place, at_a_place
from leasehold.cli.output import as_json, say, tell_warnings
from leasehold.engine.blocking import BlockingRuntime, drive
from leasehold.errors import InvalidInput
from leasehold.rules.fencing import read_token
from leasehold.rules.timing import TIMEOUT_MAX, seconds
from leasehold.rules.tokens import raised_to, token
from leasehold.stores.base import Raises
from leasehold.stores.open import open_store
from leasehold.wires.clock import system_clock

PAGE = "docs/howto/went-back.md"


@click.command("raise-tokens")
@click.option("--above", required=True, metavar="TOKEN", help="The mark that StoreWentBack told of, or the largest.")
@at_a_place
def command(place: Place, above: str) -> int:
    """Let every later token of the whole store be larger than TOKEN. Lowers nothing, and may be repeated.

    For SQLite, Redis and PostgreSQL, there as the owner of the schema. Others may use the store meanwhile.
    """
    tell_warnings(wanted=False)
    least = raised_to(read_token(above))
    before = _raised(place, least)
    if place.json:
        smallest = str(token(max(before, least) + 1))
        say(as_json({"above": above, "raised": before < least, "smallest": smallest}))
    elif before < least:
        say(f"raised: every later token is larger than {above}; before, it could be {token(before + 1)}")
    else:
        say(f"nothing to raise: every later token is {token(before + 1)} at least")
    return 0


def _raised(place: Place, least: int) -> int:
    """Raise the revision; what was reached before."""
    runtime = BlockingRuntime(system_clock())
    patience = seconds("timeout", place.timeout, 0.01, TIMEOUT_MAX)
    store = open_store(place.url, timeout=patience, colour=runtime)
    kind = store.guarantees.store
    if not isinstance(store, Raises):
        remedy = f"numbers its grants itself, and no client can raise that; {PAGE} says how to restore it instead"
        raise InvalidInput("store", kind, remedy)

    async def raise_it() -> int:
        await store.open()
        try:
            return await store.raise_revision(least)
        finally:
            await store.close()

    return drive(raise_it())
