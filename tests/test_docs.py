"""The pages say what the code does: the table of guarantees, and the walk of one acquire."""

from __future__ import annotations

import re
from pathlib import Path

import leasehold
from leasehold.model import Guarantees
from tests.support import ROOT

DOCS = ROOT / "docs"


def row(name: str, declared: Guarantees) -> str:
    cells = (declared.clock, declared.persistence, declared.failover, declared.token_source, declared.wake_up)
    return "| " + " | ".join((name, *cells)) + " |"


def test_the_table_of_guarantees_is_what_the_stores_declare(tmp_path: Path) -> None:
    urls = {
        "`memory://`": "memory://docs",
        "`sqlite://`": f"sqlite://{tmp_path}/a.db",
        "`sqlite://…?synchronous=normal`": f"sqlite://{tmp_path}/b.db?synchronous=normal",
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
