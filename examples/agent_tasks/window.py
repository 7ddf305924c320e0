"""The context window of a task: messages, in the order in which the model reads them. Pure: values in, values out.

system? · user · (assistant that asks for tool calls · one tool message for each) … · assistant with the answer
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Message = dict[str, Any]
Window = list[Message]


def begin(spec: Mapping[str, Any]) -> Window:
    """What a task starts with."""
    system = [{"role": "system", "content": spec["system"]}] if spec.get("system") else []
    return [*system, {"role": "user", "content": spec["userMessage"]}]


def of(task: Mapping[str, Any]) -> Window:
    """The window as it stands in the status, or the beginning of one."""
    status: Mapping[str, Any] = task.get("status") or {}
    return list(status.get("contextWindow") or begin(task["spec"]))


def answers(window: Window) -> int:
    """How often the model has answered: the number of the turn that is over."""
    return sum(message["role"] == "assistant" for message in window)


def open_calls(window: Window) -> list[dict[str, str]]:
    """The tool calls that the last answer asked for, if their results are not in the window yet."""
    calls: list[dict[str, str]] = window[-1].get("toolCalls") or []
    return calls


def with_results(window: Window, results: Mapping[str, str]) -> Window:
    """The window with the results of all its open calls, in the order in which they were asked for."""
    told = [{"role": "tool", "toolCallId": call["id"], "content": results[call["id"]]} for call in open_calls(window)]
    return [*window, *told]
