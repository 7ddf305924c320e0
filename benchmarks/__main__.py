"""Measure everything, print one table, and fail if a figure misses its target."""

from __future__ import annotations

import sys

from benchmarks import (
    calls,
    canonical,
    etcd,
    fences,
    imports,
    kubernetes,
    once,
    once_http,
    optimistic,
    postgres,
    redis,
    renewals,
    scans,
    sqlite,
    waiting,
    zookeeper,
)
from benchmarks.harness import print_table

figures = [
    figure
    for measured in (
        *(sqlite, redis, postgres, kubernetes, etcd, zookeeper),
        *(waiting, optimistic, scans, fences, once, once_http, calls, canonical, renewals, imports),
    )
    for figure in measured.figures()
]
print_table(figures)
sys.exit(any(figure.verdict == "FAIL" for figure in figures))
