"""The pages say what the code does: the table of guarantees, and the walk of one acquire."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

import leasehold
from leasehold.model import Guarantees
from tests.servers import etcd, postgres, redis, redis_with_log, zookeeper
from tests.stores.kubernetes_support import Place
from tests.support import PYTHON, ROOT

DOCS = ROOT / "docs"


def row(name: str, declared: Guarantees) -> str:
    cells = (declared.clock, declared.persistence, declared.failover, declared.token_source, declared.wake_up)
    # Which version a server is of changes from server to server.
    return re.sub(r" \(this server is .*?\)", "", "| " + " | ".join((name, *cells)) + " |")


def test_the_table_of_guarantees_is_what_the_stores_declare(tmp_path: Path) -> None:
    urls = {
        "`memory://`": "memory://docs",
        "`sqlite://`": f"sqlite://{tmp_path}/a.db",
        "`sqlite://…?synchronous=normal`": f"sqlite://{tmp_path}/b.db?synchronous=normal",
        "`redis://`, no log": redis().url,
        "`redis://`, with a log": redis_with_log().url,
        "`postgresql://`": postgres().url,
        "`kubernetes://`": Place().url(),
        "`zookeeper://`": zookeeper().url,
        "`etcd://`": etcd().url,
    }
    wanted = []
    for name, url in urls.items():
        with leasehold.connect(url) as locks:
            wanted.append(row(name, locks.guarantees))
    page = (DOCS / "safety.md").read_text()
    table = re.search(r"<!-- guarantees: .*?-->\n\n((?:\|.*\n)+)", page)
    assert table is not None
    assert table[1].splitlines()[2:] == wanted


def test_every_file_and_name_of_the_walk_exists() -> None:
    page = (DOCS / "architecture.md").read_text()
    walk = page.split("## The walk of one acquire")[1].split("\n## ")[0]
    files = re.findall(r"`((?:\w+/)*\w+\.py)`(?: `([\w.]+)`)?", walk)
    assert len(files) > 10
    for file, name in files:
        source = (ROOT / "src" / "leasehold" / file).read_text()
        for part in filter(None, name.split(".")):
            assert re.search(rf"(?:class|def) {part}\b", source), f"{file} has no {part}"


def test_every_link_between_pages_leads_somewhere() -> None:
    for page in [*DOCS.rglob("*.md"), *ROOT.glob("*.md"), *ROOT.glob("examples/*/*.md")]:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


PROGRAMS = [
    (page.name, number, program)
    for page in [
        DOCS / "testing.md",
        *(
            DOCS / "howto" / f"{name}.md"
            for name in (
                "election",
                "fence",
                "fence-redis-kubernetes-http",
                "fence-sql",
                "guard",
                "lock-or-optimistic",
                "once",
                "once-http",
                "once-sql",
                "parts",
                "waiting",
            )
        ),
    ]
    for number, program in enumerate(re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE))
]


@pytest.mark.parametrize(
    ("page", "number", "program"), PROGRAMS, ids=[f"{page}-{number}" for page, number, _ in PROGRAMS]
)
def test_a_program_of_a_page_runs_and_prints_what_it_says(page: str, number: int, program: str) -> None:
    command = [PYTHON, "-W", "error", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert (done.returncode, done.stderr) == (0, ""), f"program {number} of {page}"
    assert done.stdout.splitlines() == re.findall(r"^ *print\(.*\)  # (.*)$", program, re.MULTILINE)
