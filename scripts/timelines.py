"""Draw the pictures of docs/safety.md: a holder that is paused, under three rules. `python -m scripts.timelines`

What happens in them is checked against the model in tests/rules/test_fence_model.py, step by step.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

FOLDER = Path(__file__).parent.parent / "docs" / "pictures"
LEFT, COLUMN, HEIGHT = 150, 94, 330
FIRST, RESOURCE, SECOND = 92, 176, 260
# The picture brings its own ground, so that it can be read on a page of either kind.
STYLE = """
  svg { --ground: #ffffff; --ink: #1f2328; --faint: #818b98; --one: #0a5fd0; --two: #1a7f37; --bad: #cf222e }
  @media (prefers-color-scheme: dark) {
    svg { --ground: #0d1117; --ink: #e6edf3; --faint: #848d97; --one: #6cb0ff; --two: #56d364; --bad: #ff7b72 }
  }
  text { font: 13px system-ui, sans-serif; fill: var(--ink); text-anchor: middle }
  .name { text-anchor: end } .title { font-size: 15px; font-weight: 600; text-anchor: start }
  .note { text-anchor: start } .faint { fill: var(--faint) } .bad { fill: var(--bad); font-weight: 600 }
  .one { stroke: var(--one) } .two { stroke: var(--two) } .wrong { stroke: var(--bad) }
  line { stroke-width: 2 } .lane { stroke: var(--faint); stroke-width: 1 }
  .lease { stroke-width: 9; stroke-opacity: 0.45 } .paused { stroke-dasharray: 2 5 }
  .ground { fill: var(--ground) }
"""


class Step(NamedTuple):
    """Whose token, what it does, what the picture says of it, and what it leaves at the resource."""

    token: int
    verb: str
    says: str
    leaves: str = ""


class Picture(NamedTuple):
    """One timeline: what the resource checks, what happens, and what came of it."""

    file: str
    title: str
    steps: tuple[Step, ...]
    ending: str
    bad: bool


NO_FENCE = Picture(
    "paused-no-fence.svg",
    "1 · The resource checks nothing",
    (
        Step(1, "granted", "granted 1"),
        Step(1, "reads", "reads 0"),
        Step(1, "checks", "still held"),
        Step(1, "ends", "lease ends"),
        Step(2, "granted", "granted 2"),
        Step(2, "reads", "reads 0"),
        Step(2, "checks", "still held"),
        Step(2, "writes", "writes 1", "total 1"),
        Step(1, "writes", "writes 1", "total 1"),
    ),
    "Two adds were acknowledged and the total is 1: the second holder's is gone.",
    bad=True,
)
WRITE_ONLY = Picture(
    "paused-write-only-mark.svg",
    "2 · The resource checks the token on writes only",
    (
        Step(1, "granted", "granted 1"),
        Step(1, "reads", "reads 0"),
        Step(1, "checks", "still held"),
        Step(1, "ends", "lease ends"),
        Step(2, "granted", "granted 2"),
        Step(2, "reads", "reads 0"),
        Step(1, "writes", "writes 1", "total 1, mark 1"),
        Step(2, "checks", "still held"),
        Step(2, "writes", "writes 1", "total 1, mark 2"),
    ),
    "The writes came in the order of their tokens, and the total is 1: the first holder's add is gone.",
    bad=True,
)
REGISTERED = Picture(
    "paused-registered.svg",
    "3 · Every holder registers its token before its first read",
    (
        Step(1, "granted", "granted 1"),
        Step(1, "opens", "opens", "mark 1"),
        Step(1, "reads", "reads 0"),
        Step(1, "checks", "still held"),
        Step(1, "ends", "lease ends"),
        Step(2, "granted", "granted 2"),
        Step(2, "opens", "opens", "mark 2"),
        Step(2, "reads", "reads 0"),
        Step(1, "writes", "refused"),
        Step(2, "checks", "still held"),
        Step(2, "writes", "writes 1", "total 1"),
    ),
    "The late write was refused with StaleToken, one add was acknowledged, and the total is 1.",
    bad=False,
)
PICTURES = (NO_FENCE, WRITE_ONLY, REGISTERED)


def draw(picture: Picture) -> str:
    """The picture as SVG, its text as text."""
    width = LEFT + COLUMN * len(picture.steps) + 20
    at = [LEFT + COLUMN * place + COLUMN // 2 for place in range(len(picture.steps))]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" role="img">',
        f"<title>{escape(picture.title)}: {escape(picture.ending)}</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="ground" width="{width}" height="{HEIGHT}" rx="8"/>',
        _text(24, 34, picture.title, "title"),
    ]
    for name, y in (("first holder", FIRST), ("resource", RESOURCE), ("second holder", SECOND)):
        parts += [_text(LEFT - 14, y + 4, name, "name"), _line(LEFT, y, width - 24, y, "lane")]
    parts += _leases(picture, at, width)
    for x, step in zip(at, picture.steps, strict=True):
        parts += _step(x, step)
    parts.append(_text(24, HEIGHT - 16, picture.ending, "note bad" if picture.bad else "note"))
    return "\n".join([*parts, "</svg>", ""])


def _leases(picture: Picture, at: list[int], width: int) -> list[str]:
    verbs = [(step.token, step.verb) for step in picture.steps]
    when = {verb: at[verbs.index(verb)] for verb in verbs}
    asleep, awake = when[1, "checks"] + 14, when[1, "writes"] - 14
    return [
        _line(when[1, "granted"], FIRST, when[1, "ends"], FIRST, "lease one"),
        _line(when[2, "granted"], SECOND, width - 24, SECOND, "lease two"),
        _line(asleep, FIRST, awake, FIRST, "wrong paused"),
        _text((when[1, "ends"] + awake) // 2 + 20, FIRST + 20, "paused, and does not know it", "faint"),
    ]


def _step(x: int, step: Step) -> list[str]:
    lane, above, colour = (FIRST, FIRST - 16, "one") if step.token == 1 else (SECOND, SECOND + 26, "two")
    refused = step.says == "refused"
    found = [_text(x, above, step.says, "bad" if refused else "")]
    if step.verb not in {"opens", "reads", "writes"}:
        return [*found, _line(x, lane - 7, x, lane + 7, colour)]
    inward = 1 if lane < RESOURCE else -1
    tip = RESOURCE - inward * (26 if refused else 5)
    # A read points at its reader.
    start, end, towards = (lane, tip, inward) if step.verb != "reads" else (tip, lane + 4 * inward, -inward)
    style = "wrong" if refused else colour
    head = f"M{x - 5} {end - 8 * towards} L{x} {end} L{x + 5} {end - 8 * towards}"
    found += [
        _line(x, start, x, end, style),
        f'<path class="{style}" d="{head}" fill="none" stroke-width="2"/>',
    ]
    if step.leaves:
        found.append(_text(x, RESOURCE + 4 + 16 * inward, step.leaves, ""))
    return found


def _text(x: int, y: int, words: str, style: str) -> str:
    return f'<text x="{x}" y="{y}" class="{style}">{escape(words)}</text>'


def _line(x: int, y: int, to_x: int, to_y: int, style: str) -> str:
    return f'<line x1="{x}" y1="{y}" x2="{to_x}" y2="{to_y}" class="{style}"/>'


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for each in PICTURES:
        (FOLDER / each.file).write_text(draw(each), encoding="utf-8")
