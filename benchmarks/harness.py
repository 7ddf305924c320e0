"""What every benchmark shares: interleaved rounds, medians, and a table that says pass or fail."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple


class Figure(NamedTuple):
    """One published figure: what was measured, against what, and the most it may be (None: only shown)."""

    name: str
    ours: str
    floor: str
    value: float
    target: float | None

    @property
    def verdict(self) -> str:
        if self.target is None:
            return "shown"
        return "pass" if self.value <= self.target else "FAIL"


def medians(cases: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """The median of each case. Cases take turns, so that a noisy moment of the machine hits all of them alike."""
    seen: dict[str, list[float]] = {name: [] for name in cases}
    for measure in cases.values():
        measure()
    for number in range(rounds):
        # Back and forth: nobody always runs after the same neighbour.
        for name in list(cases)[:: 1 if number % 2 else -1]:
            seen[name].append(cases[name]())
    return {name: statistics.median(values) for name, values in seen.items()}


def seconds_each(work: Callable[[], object], times: int) -> float:
    """How long one call of `work` takes, over `times` calls."""
    begin = time.perf_counter()
    for _ in range(times):
        work()
    return (time.perf_counter() - begin) / times


def micro(seconds: float) -> str:
    """A time for people."""
    return f"{seconds * 1e6:.0f} µs"


def print_table(figures: list[Figure]) -> None:
    """The figures for people."""
    head = ("figure", "Leasehold", "floor", "value", "target", "")
    rows = [
        (figure.name, figure.ours, figure.floor, f"{figure.value:.2f}", _target(figure), figure.verdict)
        for figure in figures
    ]
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    for row in [head, tuple("-" * width for width in widths), *rows]:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _target(figure: Figure) -> str:
    return "" if figure.target is None else f"≤ {figure.target:g}"
