"""Measure everything, print one table, and fail if a figure misses its target."""

from __future__ import annotations

import sys

from benchmarks import calls, imports, kubernetes, postgres, redis, renewals, sqlite
from benchmarks.harness import print_table

figures = [
    figure
    for measure in (
        sqlite.figures,
        redis.figures,
        postgres.figures,
        kubernetes.figures,
        calls.figures,
        renewals.figures,
        imports.figures,
    )
    for figure in measure()
]
print_table(figures)
sys.exit(any(figure.verdict == "FAIL" for figure in figures))
