"""Which check at a resource loses no update: every order of events in a small world, breadth first.

Sections 1, 2, … are granted one after the other, each with its number as token. A section reads a total, looks
whether it still holds its lease, and writes the total with its own add; the look can be followed by any pause. A lease
can end at any time. A write can be done without its answer arriving, and a section can stop anywhere. What the resource
checks is the product's own rule (`admit`); the controls leave the check out, or make it on writes only.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

import pytest

from leasehold.errors import StaleToken
from leasehold.rules.fencing import admit
from scripts.timelines import FOLDER, NO_FENCE, PICTURES, REGISTERED, WRITE_ONLY, Picture, Step, draw
from tests.support import note

Rule = Literal["none", "writes", "registered"]
Event = tuple[int, str]
# The phases of a section, in order; `opens` is passed over where nobody registers.
WAITS, GRANTED, OPENED, READ, LOOKED, OVER = range(6)


class World(NamedTuple):
    """Sets of adds are bits: what the total contains, what was acknowledged, what each section read."""

    total: int
    acknowledged: int
    mark: int
    latest: int
    ordered: bool
    holder: int
    phases: tuple[int, ...]
    seen: tuple[int, ...]


def begin(sections: int) -> World:
    return World(0, 0, 0, 0, True, 0, (WAITS,) * sections, (0,) * sections)


def steps(world: World, rule: Rule) -> Iterator[tuple[Event, World]]:
    """Everything that can happen next."""
    if world.holder:
        yield (world.holder, "ends"), world._replace(holder=0)
    elif WAITS in world.phases:
        token = world.phases.index(WAITS) + 1
        yield (token, "granted"), _moved(world, token, GRANTED)._replace(holder=token)
    for token, phase in enumerate(world.phases, 1):
        if phase in {GRANTED, OPENED, READ, LOOKED}:
            yield from _section(world, token, phase, rule)


def _section(world: World, token: int, phase: int, rule: Rule) -> Iterator[tuple[Event, World]]:
    """What one section can do next. Doing nothing for ever is a pause, and a crash."""
    ready = OPENED if rule == "registered" else GRANTED
    try:
        if phase == LOOKED:
            mark = world.mark if rule == "none" else admit("total", world.mark, token)
            yield from _written(world._replace(mark=mark), token)
        elif phase == READ and world.holder == token:
            yield (token, "checks"), _moved(world, token, LOOKED)
        elif phase == ready:
            if rule == "registered":
                admit("total", world.mark, token)
            seen = (*world.seen[: token - 1], world.total, *world.seen[token:])
            yield (token, "reads"), _moved(world, token, READ)._replace(seen=seen)
        elif phase == GRANTED:
            yield (token, "opens"), _moved(world, token, OPENED)._replace(mark=admit("total", world.mark, token))
    except StaleToken:
        yield (token, {LOOKED: "writes", GRANTED: "opens"}.get(phase, "reads")), _over(world, token)


def _written(world: World, token: int) -> Iterator[tuple[Event, World]]:
    add = 1 << (token - 1)
    done = _over(world, token)._replace(
        total=world.seen[token - 1] | add, latest=token, ordered=world.ordered and token > world.latest
    )
    yield (token, "writes"), done._replace(acknowledged=world.acknowledged | add)
    yield (token, "writes unheard"), done


def _moved(world: World, token: int, phase: int) -> World:
    return world._replace(phases=(*world.phases[: token - 1], phase, *world.phases[token:]))


def _over(world: World, token: int) -> World:
    """The section is over, and gives back what it still holds."""
    return _moved(world, token, OVER)._replace(holder=0 if world.holder == token else world.holder)


def loses_nothing(world: World) -> bool:
    return not world.acknowledged & ~world.total


def keeps_order(world: World) -> bool:
    return world.ordered


def explore(rule: Rule, sections: int, law) -> tuple[int, list[Event] | None]:
    """How many worlds there are up to the first that breaks the law, and the shortest way there."""
    start = begin(sections)
    came: dict[World, tuple[World, Event] | None] = {start: None}
    line = deque([start])
    while line:
        world = line.popleft()
        if not law(world):
            return len(came), _way(came, world)
        for event, after in steps(world, rule):
            if after not in came:
                came[after] = (world, event)
                line.append(after)
    return len(came), None


def _way(came: dict[World, tuple[World, Event] | None], world: World) -> list[Event]:
    way: list[Event] = []
    while (before := came[world]) is not None:
        world, event = before
        way.append(event)
    return way[::-1]


def play(events: Iterable[Event], rule: Rule) -> list[World]:
    """The worlds that a timeline passes through."""
    worlds = [begin(2)]
    for event in events:
        worlds.append(dict(steps(worlds[-1], rule))[event])
    return worlds


def effects(events: Iterable[Event]) -> list[Event]:
    return [event for event in events if event[1] in {"reads", "writes"}]


def events(picture: Picture) -> list[Event]:
    return [(step.token, step.verb) for step in picture.steps]


@pytest.mark.parametrize(
    ("rule", "law", "picture"), [("none", keeps_order, NO_FENCE), ("writes", loses_nothing, WRITE_ONLY)]
)
def test_without_registering_updates_are_lost_as_the_picture_shows(rule: Rule, law, picture: Picture) -> None:
    states, shortest = explore(rule, 2, law)
    assert shortest is not None
    note(f"{rule}: broken after {states} worlds: " + ", ".join(f"{who} {verb}" for who, verb in shortest))
    assert len(shortest) == len(picture.steps)
    assert effects(shortest) == effects(events(picture))
    *before, last = play(events(picture), rule)
    assert all(map(loses_nothing, before))
    assert not loses_nothing(last)


def test_a_mark_on_writes_keeps_them_in_order_at_least() -> None:
    assert explore("writes", 3, keeps_order)[1] is None
    # The control: without any, they are not.
    assert explore("none", 3, keeps_order)[1] is not None


@pytest.mark.parametrize("sections", [2, 3, 4, 5, 6])
def test_whoever_registers_before_it_reads_loses_nothing(sections: int) -> None:
    states, broken = explore("registered", sections, lambda world: loses_nothing(world) and keeps_order(world))
    note(f"registered, {sections} sections: {states} worlds, none of them broken")
    assert broken is None


def test_the_worlds_in_which_nothing_is_lost_are_not_idle() -> None:
    """The control of the one above: late writers are refused there, and all adds can succeed."""
    reached: set[World] = {begin(3)}
    line, refused = deque(reached), 0
    while line:
        world = line.popleft()
        for event, after in steps(world, "registered"):
            refused += event[1] == "writes" and after.total == world.total
            if after not in reached:
                reached.add(after)
                line.append(after)
    assert refused > 0
    assert any(world.acknowledged == 0b111 == world.total for world in reached)


def test_a_late_write_is_refused_as_the_picture_shows() -> None:
    worlds = play(events(REGISTERED), "registered")
    assert all(map(loses_nothing, worlds))
    assert (worlds[-1].acknowledged, worlds[-1].total) == (0b10, 0b10)
    # Up to what it registers, the same holder does the same as in the picture of the lost update.
    assert effects(events(REGISTERED)) == effects(events(WRITE_ONLY))


def said(step: Step, before: World, after: World) -> str:
    """What a picture must say of a step: its numbers come from the model."""
    if step.verb == "reads":
        return f"reads {before.total.bit_count()}"
    if step.verb == "writes":
        return f"writes {after.total.bit_count()}" if after.acknowledged != before.acknowledged else "refused"
    return {"granted": f"granted {step.token}", "checks": "still held", "ends": "lease ends"}.get(step.verb, step.verb)


@pytest.mark.parametrize(("picture", "rule"), list(zip(PICTURES, ["none", "writes", "registered"], strict=True)))
def test_a_picture_says_what_the_model_does_and_is_the_one_in_the_docs(picture: Picture, rule: Rule) -> None:
    worlds = play(events(picture), rule)
    for step, before, after in zip(picture.steps, worlds, worlds[1:], strict=False):
        assert step.says == said(step, before, after)
        left = {"total": after.total.bit_count(), "mark": after.mark}
        assert all(left[what] == int(number) for what, number in re.findall(r"(total|mark) (\d)", step.leaves))
        assert bool(step.leaves) is ((after.total, after.mark) != (before.total, before.mark))
    assert picture.bad is not loses_nothing(worlds[-1])
    assert f"total is {worlds[-1].total.bit_count()}" in picture.ending
    assert (FOLDER / picture.file).read_text(encoding="utf-8") == draw(picture)
