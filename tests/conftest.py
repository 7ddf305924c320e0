"""What every run of the tests ends with: which counts it really ran, and where its time went."""

from __future__ import annotations

from collections import defaultdict

import pytest

from tests.support import COUNTS, NOTES

SLOWEST = 25


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if COUNTS:
        terminalreporter.section("repeats (all of them with make soak)")
        for where, chosen, full in sorted(set(COUNTS)):
            terminalreporter.write_line(f"{chosen:>7} of {full:<7} {where}")
    if NOTES:
        terminalreporter.section("figures")
        for text in NOTES:
            terminalreporter.write_line(text)
    terminalreporter.section("seconds, by file")
    taken = seconds_by_file(terminalreporter)
    for file, seconds in sorted(taken.items(), key=lambda one: -one[1])[:SLOWEST]:
        terminalreporter.write_line(f"{seconds:>7.1f} {file}")


def seconds_by_file(reporter: pytest.TerminalReporter) -> dict[str, float]:
    """Set-up and tear-down included."""
    taken: defaultdict[str, float] = defaultdict(float)
    for reports in reporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                taken[report.location[0]] += report.duration
    return taken
