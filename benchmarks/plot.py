"""The table and the plot of docs/howto/lock-or-optimistic.md, from what `optimistic.py` measured."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import NamedTuple

HOWTO = Path(__file__).parent.parent / "docs" / "howto"
PAGE, PICTURE = HOWTO / "lock-or-optimistic.md", HOWTO / "lock-or-optimistic.svg"
LOAD = ("store", "items", "work", "writers")
RATES = ("lease + fence", "optimistic", "row lock", "optimistic ÷ lease")
HEAD = (*LOAD, *RATES, "attempts per update", "gave up", "Jain, lease", "Jain, optimistic")
TABLE = re.compile(r"(?<=<!-- measured: python -m benchmarks.optimistic -->\n\n)(?:\|.*\n)*")
WAYS = {"lease": "lease + fence", "optimistic": "optimistic", "row_lock": "row lock"}
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 470, 230, 76, 46, 44
# The picture brings its own ground, so that it can be read on a page of either kind.
STYLE = """
  svg { --ground: #ffffff; --ink: #1f2328; --faint: #818b98; --lease: #0a5fd0; --optimistic: #bc4c00; --row: #1a7f37 }
  @media (prefers-color-scheme: dark) {
    svg { --ground: #0d1117; --ink: #e6edf3; --faint: #848d97; --lease: #6cb0ff; --optimistic: #f0883e; --row: #56d364 }
  }
  text { font: 13px system-ui, sans-serif; fill: var(--ink); text-anchor: middle }
  .side { text-anchor: end } .start { text-anchor: start } .title { font-weight: 600; text-anchor: start }
  .ground { fill: var(--ground) } .grid { stroke: var(--faint); stroke-opacity: 0.35 }
  polyline { fill: none; stroke-width: 2.5 } .lease { stroke: var(--lease) } .optimistic { stroke: var(--optimistic) }
  .row_lock { stroke: var(--row); stroke-dasharray: 6 4 }
"""


class Row(NamedTuple):
    """One line of the table, as it is printed."""

    store: str
    items: str
    work: str
    writers: str
    lease: str
    optimistic: str
    row_lock: str
    ratio: str
    attempts: str
    given_up: str
    jain_lease: str
    jain_optimistic: str


def publish(rows: list[Row]) -> None:
    """Print the table, and put it and its plot where the page has them."""
    lines = [HEAD, ("---",) * len(HEAD), *rows]
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    print(table, end="")
    PAGE.write_text(TABLE.sub(table, PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    PICTURE.write_text(draw(rows), encoding="utf-8")


def published() -> list[Row]:
    """The lines of the table in the page."""
    found = TABLE.search(PAGE.read_text(encoding="utf-8"))
    lines = found[0].splitlines()[2:] if found else []
    return [Row(*(cell.strip() for cell in line.strip("|").split("|"))) for line in lines]


class Panel(NamedTuple):
    """One small plot over the number of writers: its ticks, both ends included, and a line for each way."""

    title: str
    ticks: dict[float, str]
    lines: dict[str, dict[int, float]]


def draw(rows: list[Row]) -> str:
    """What came of one item, for each store: updates a second, then what they cost where there is work to waste."""
    panels = [panel for store in dict.fromkeys(row.store for row in rows) for panel in _panels(store, rows)]
    width, height = 2 * WIDTH, len(panels) // 2 * HEIGHT + 40
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
        "<title>Updates of one item by the number of writers: a second, attempts for each, and fairness</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="ground" width="{width}" height="{height}" rx="8"/>',
    ]
    for place, (style, name) in enumerate(WAYS.items()):
        x = LEFT + 190 * place
        parts.append(f'<polyline class="{style}" points="{x},24 {x + 34},24"/>')
        parts.append(_text(x + 42, 28, name, "start"))
    for place, panel in enumerate(panels):
        parts += _drawn(panel, place % 2 * WIDTH, place // 2 * HEIGHT + 30)
    return "\n".join([*parts, "</svg>", ""])


def _panels(store: str, rows: list[Row]) -> list[Panel]:
    mine = [row for row in rows if (row.store, row.items) == (store, "1")]
    works = list(dict.fromkeys(row.work for row in mine))
    rates = {10.0**power: f"{10**power:,}/s" for power in range(1, 5)}
    longest = [row for row in mine if row.work == works[-1]]
    attempts = {1.0: "1", 2.0: "2", 4.0: "4", 8.0: "8"}
    shares = {0.01: "0.01", 0.1: "0.1", 1.0: "1"}
    jain = {"lease": _line(longest, "jain_lease"), "optimistic": _line(longest, "jain_optimistic")}
    return [
        *(
            Panel(f"{store}, {work} of work: updates a second", rates, {way: _line(found, way) for way in WAYS})
            for work in works
            if (found := [row for row in mine if row.work == work])
        ),
        Panel(
            f"{store}, {works[-1]} of work: attempts per update",
            attempts,
            {"optimistic": _line(longest, "attempts")},
        ),
        Panel(f"{store}, {works[-1]} of work: Jain's index of fairness", shares, jain),
    ]


def _line(rows: list[Row], column: str) -> dict[int, float]:
    found = {int(row.writers): getattr(row, column) for row in rows}
    return {writers: float(value) for writers, value in found.items() if value != "–"}


def _drawn(panel: Panel, left: int, top: int) -> list[str]:
    counts = list(panel.lines["optimistic"])
    right, bottom = WIDTH - LEFT - 24, HEIGHT - TOP - BOTTOM
    low, high = min(panel.ticks), max(panel.ticks)

    def x(writers: int) -> float:
        return left + LEFT + right * math.log2(writers) / math.log2(counts[-1])

    def y(value: float) -> float:
        return top + TOP + bottom * (1 - math.log(value / low) / math.log(high / low))

    parts = [_text(left + LEFT, top + TOP - 14, panel.title, "title")]
    for value, label in panel.ticks.items():
        parts.append(f'<path class="grid" d="M{left + LEFT} {y(value):.1f} h{right}"/>')
        parts.append(_text(left + LEFT - 8, round(y(value)) + 4, label, "side"))
    parts += [_text(round(x(count)), top + TOP + bottom + 18, str(count), "") for count in counts]
    for way, line in panel.lines.items():
        points = " ".join(f"{x(writers):.1f},{y(value):.1f}" for writers, value in line.items())
        if points:
            parts.append(f'<polyline class="{way}" points="{points}"/>')
    return [*parts, _text(left + LEFT + right // 2, top + TOP + bottom + 36, "writers", "")]


def _text(x: int, y: int, words: str, style: str) -> str:
    return f'<text x="{x}" y="{y}" class="{style}">{words}</text>'
