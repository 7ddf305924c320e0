"""What using Redis brings into a program, and what it does not."""

from __future__ import annotations

import json
import re
import subprocess

from tests.stores.redis_support import server
from tests.support import PYTHON, ROOT

PAGE = ROOT / "docs" / "stores" / "redis.md"


def modules_after(program: str) -> set[str]:
    """The modules that a program of its own has loaded at its end."""
    told = f"{program}\nimport sys, json; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([PYTHON, "-W", "error", "-c", told], capture_output=True, text=True, timeout=60, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_a_blocking_program_loads_neither_asyncio_nor_another_client_library() -> None:
    program = "import leasehold\nwith leasehold.connect({!r}) as locks: locks.acquire('job').release()"
    loaded = modules_after(program.format(server().url))
    assert {"leasehold.stores.redis", "hiredis"} <= loaded
    assert not {"asyncio", "redis", "leasehold.wires.redis_looped"} & loaded


def test_a_program_that_does_not_use_it_loads_nothing_of_it() -> None:
    loaded = modules_after("import leasehold\nleasehold.connect('memory://').close()")
    assert not {"hiredis", "ssl", "leasehold.stores.redis"} & loaded


def test_the_example_of_the_page_runs() -> None:
    examples = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert len(examples) == 1
    program = examples[0].replace("redis://localhost:6379/0", server().url)
    done = subprocess.run(
        [PYTHON, "-W", "error", "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert re.fullmatch(r"holding invoice/42 with token \d+\n", done.stdout)
