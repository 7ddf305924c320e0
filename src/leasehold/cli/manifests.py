"""`leasehold manifests`: what to hand to kubectl. Reaches no store."""

from __future__ import annotations

import json
import re
from typing import Any

import click

from leasehold.cli.output import as_json, say
from leasehold.rules.kubernetes_names import lease_name
from leasehold.rules.kubernetes_roles import check_account, check_namespace, manifests
from leasehold.rules.names import Names, check_text

# Text that YAML takes for nothing else; all other text is quoted as JSON does it, which is YAML, too.
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9./-]*")
_WORDS = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}


@click.group("manifests")
def command() -> None:
    """Print objects for Kubernetes, to be handed to: kubectl apply -f -"""


@command.command("rbac")
@click.option("--namespace", metavar="NAME", default="default", show_default=True, help="Where the Leases are.")
@click.option(
    "--service-account", metavar="NAME", default="default", show_default=True, help="Who may use them: your pods'."
)
@click.option("--strict", is_flag=True, help="For elections alone: get and update of the Leases named, nothing else.")
@click.option("--name", "names", metavar="NAME", multiple=True, help="With --strict: an election; may be repeated.")
@click.option("--prefix", metavar="TEXT", help="With --strict: the prefix your programs connect with.")
@click.option("--tenant", metavar="TEXT", help="With --strict: the tenant your programs connect with.")
@click.option("--json", is_flag=True, help="Print one List in JSON instead of YAML.")
def rbac(
    *,
    namespace: str,
    service_account: str,
    strict: bool,
    names: tuple[str, ...],
    prefix: str | None,
    tenant: str | None,
    json: bool,
) -> int:
    """Print the least Role that Leasehold needs, and its binding to a service account.

    The strict one also prints the Leases themselves, since it does not allow to make any.
    """
    if strict and not names:
        raise click.UsageError("--strict needs the elections it is for: give --name once for each.")
    if not strict and (names or prefix or tenant):
        raise click.UsageError("--name, --prefix and --tenant belong to --strict: the ordinary role is for all Leases.")
    keys = Names(prefix, tenant)
    leases = [lease_name(keys.election(check_text("name", name))) for name in dict.fromkeys(names)]
    objects = manifests(check_namespace(namespace), check_account(service_account), leases)
    if json:
        say(as_json({"apiVersion": "v1", "kind": "List", "items": objects}))
    else:
        say("\n---\n".join("\n".join(_lines(each)) for each in objects))
    return 0


def _lines(value: Any) -> list[str]:
    """An object as lines of YAML: maps, lists of maps or of text, and text; that is all our objects have."""
    lines: list[str] = []
    for name, below in value.items():
        if isinstance(below, dict):
            lines += [f"{name}:", *("  " + line for line in _lines(below))]
        elif isinstance(below, list):
            lines.append(f"{name}:")
            for item in below:
                first, *rest = _lines(item) if isinstance(item, dict) else [_text(item)]
                lines += [f"  - {first}", *("    " + line for line in rest)]
        else:
            lines.append(f"{name}: {_text(below)}")
    return lines


def _text(given: str) -> str:
    return given if _PLAIN.fullmatch(given) and given.lower() not in _WORDS else json.dumps(given)
