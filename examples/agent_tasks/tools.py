"""The tools of this example. Pure, so it harms nobody that several replicas run one call: the first result counts.

A tool with effects would want a lease of its own, or an idempotency key.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

TOOLS: dict[str, Callable[..., object]] = {
    "add": lambda a, b: a + b,
    "count_words": lambda text: len(text.split()),
}


class Result(NamedTuple):
    """What the model is told. A failure is told, too: it may know better."""

    phase: str
    text: str


def run(tool: str, arguments: str) -> Result:
    """Call a tool with arguments as the model wrote them: a JSON object in text, or nothing."""
    if tool not in TOOLS:
        return Result("Failed", f"there is no tool {tool!r}; there are: {', '.join(TOOLS)}")
    try:
        given: dict[str, Any] = json.loads(arguments or "{}")
        return Result("Succeeded", str(TOOLS[tool](**given)))
    except (ValueError, TypeError, AttributeError) as error:
        return Result("Failed", f"{tool}: {error}")
