"""What every run of the tests ends with: which counts it really ran."""

from __future__ import annotations

import pytest

from tests.support import COUNTS, NOTES


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if COUNTS:
        terminalreporter.section("repeats (all of them with make soak)")
        for where, chosen, full in sorted(set(COUNTS)):
            terminalreporter.write_line(f"{chosen:>7} of {full:<7} {where}")
    if NOTES:
        terminalreporter.section("figures")
        for text in NOTES:
            terminalreporter.write_line(text)
