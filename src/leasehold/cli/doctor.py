"""`leasehold doctor`: is the store fit to keep leases?"""

from __future__ import annotations

import click
import msgspec

from leasehold.cli.codes import ILL, WARNED
from leasehold.cli.options import EXAMPLE, VARIABLE, Place, at_a_place
from leasehold.cli.output import as_json, say, tell_warnings, visible
from leasehold.doctor.examine import Report, examine
from leasehold.doctor.findings import Check, Finding, Severity
from leasehold.rules.timing import DEFAULT_TTL

CODES = {None: 0, Severity.NOTE: 0, Severity.WARNING: WARNED, Severity.ERROR: ILL}
INDENT = " " * 9


@click.command("doctor")
@click.option(
    "--ttl",
    metavar="SECONDS",
    type=float,
    default=DEFAULT_TTL,
    show_default=True,
    help="The shortest ttl your programs use.",
)
@at_a_place
def command(place: Place, ttl: float) -> int:
    """Examine the store: speed, clock, version, persistence, permissions, what piles up. Each finding has a remedy.

    Exits 0 if it is healthy or there are only notes, 3 with warnings, 4 with errors.
    """
    if not place.store:
        raise click.UsageError(f"No store: give --store URL or set {VARIABLE}, for example to {EXAMPLE}.")
    tell_warnings(wanted=False)
    report = examine(place.store, timeout=place.timeout, ttl=ttl)
    say(as_json(_fields(report)) if place.json else _text(report))
    return CODES[report.severity]


def _text(report: Report) -> str:
    """One line a check, and below it what was found."""
    width = max(len(check.name) for check in report.checks)
    lines = [line for check in report.checks for line in _lines(check, width)]
    return "\n".join([*lines, _verdict(report)])


def _lines(check: Check, width: int) -> list[str]:
    gravest = max((each.severity for each in check.findings), default=None)
    lines = [f"{_word(gravest):<9}{check.name:<{width}}  {visible(check.value)}"]
    for found in check.findings:
        lines.append(f"{INDENT}{_word(found.severity)} {found.code}: {visible(found.what)} ({visible(found.value)})")
        lines.append(f"{INDENT}remedy: {visible(found.remedy)}")
    return lines


def _word(severity: Severity | None) -> str:
    return "ok" if severity is None else severity.name.lower()


def _verdict(report: Report) -> str:
    if report.facts is None:
        return f"{report.store}: not examined"
    counts = {each: sum(found.severity is each for found in report.findings) for each in reversed(Severity)}
    told = ", ".join(f"{count} {_word(each)}{'s' * (count != 1)}" for each, count in counts.items() if count)
    return f"{report.store}: {told or 'healthy'}"


def _fields(report: Report) -> dict[str, object]:
    """The report for programs: findings, the checks that led to them, and the facts as they were measured."""
    return {
        "store": report.store,
        "severity": None if report.severity is None else _word(report.severity),
        "findings": [_finding(each) for each in report.findings],
        "checks": [
            {"name": check.name, "value": check.value, "findings": [found.code for found in check.findings]}
            for check in report.checks
        ],
        "facts": msgspec.to_builtins(report.facts),
    }


def _finding(found: Finding) -> dict[str, str]:
    return {
        "code": found.code,
        "severity": _word(found.severity),
        "what": found.what,
        "value": found.value,
        "remedy": found.remedy,
    }
