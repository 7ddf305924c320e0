"""Start-up: what `import leasehold` loads and costs, against `import redis`. Fresh interpreters, CPU time."""

from __future__ import annotations

import functools
import os
import resource
import subprocess
import sys

from benchmarks.harness import Figure, medians

ROUNDS = 31


def figures() -> list[Figure]:
    """Modules loaded and CPU time taken, both as a ratio to redis."""
    ours, theirs = modules("leasehold"), modules("redis")
    found = medians({name: functools.partial(cpu, name) for name in ("leasehold", "redis")}, ROUNDS)
    return [
        Figure("import: modules loaded ÷ import redis", str(ours), str(theirs), ours / theirs, 1.0),
        Figure(
            "import: CPU time of a fresh interpreter ÷ import redis",
            f"{found['leasehold'] * 1e3:.0f} ms",
            f"{found['redis'] * 1e3:.0f} ms",
            found["leasehold"] / found["redis"],
            1.0,
        ),
    ]


def modules(name: str) -> int:
    """How many modules an interpreter has loaded after importing this one."""
    return int(_python(f"import {name}, sys; print(len(sys.modules))"))


def cpu(name: str) -> float:
    """User and system time of an interpreter that imports this module and ends, in seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    _python(f"import {name}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _python(code: str) -> str:
    # Compiled files are kept: every start but the first on a machine finds them.
    clean = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    done = subprocess.run([sys.executable, "-c", code], env=clean, capture_output=True, text=True, check=True)
    return done.stdout
