"""Workers that are killed, or stopped for too long, at every point of handling a key: see `once_points.py`.

The work has one effect, which is done in three ways: behind a fence; after a look whether it was done, without a fence;
and blindly.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.once_points import POINTS, SCENES
from tests.servers import redis
from tests.support import PYTHON, ROOT, count, note

PLAYER = ROOT / "tests" / "once_player.py"
PATIENCE = 3600
# Only one of these ever had the key with leave to do it again.
FIRST = {"run", "long", "fail", "retry", "break", "wait"}


def play(folder: Path, scene: str, how: str, times: int) -> list[dict[str, Any]]:
    redis().command("FLUSHALL")
    words = [redis().url, str(folder), scene, how, str(times), *SCENES[scene]]
    done = subprocess.run(
        [PYTHON, "-W", "error", str(PLAYER), *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_there_are_many_points_each_with_a_name_of_its_own() -> None:
    assert len(POINTS) == len(set(POINTS)) >= 30


@pytest.mark.parametrize("scene", SCENES)
def test_no_point_of_a_scene_is_missing_in_the_list(scene: str, tmp_path: Path) -> None:
    (told,) = play(tmp_path, scene, "trace", 1)
    assert set(told["passed"]) == set(SCENES[scene])
    if scene not in {"long", "wait"}:
        assert Counter(told["passed"]) == Counter(SCENES[scene])


@pytest.mark.timeout(PATIENCE)
@pytest.mark.parametrize("scene", SCENES)
def test_whoever_is_killed_at_any_point_its_effect_is_there_once_or_not_at_all(scene: str, tmp_path: Path) -> None:
    times = count(200, few=5)
    found = play(tmp_path, scene, "kill", times)
    # They did die there, and not somewhere else or of something else.
    assert Counter(one["point"] for one in found if one["end"] == signal.SIGKILL) == dict.fromkeys(SCENES[scene], times)
    for one in found:
        assert len(one["fenced"]) <= 1, one
        # Whoever comes, however often, has one answer; and it is what was really done.
        first, *others = one["answers"]
        assert all(json.dumps(other) == json.dumps(first) for other in others), one
        if isinstance(first, dict):
            assert [first["charged"]] == one["fenced"], one
        if one["rerun"]:
            assert isinstance(first, dict) or (scene == "fail" and first[0] == "Declined"), one
        elif scene in FIRST:
            # Nobody did it again: not even what looks at nothing was done twice.
            assert len(one["blind"]) <= 1, one
    note(_told(found))


@pytest.mark.timeout(PATIENCE)
@pytest.mark.parametrize("scene", ["run", "take over"])
def test_whoever_is_stopped_at_any_point_until_it_is_too_late_changes_nothing(scene: str, tmp_path: Path) -> None:
    times = count(200, few=2)
    found = play(tmp_path, scene, "stop", times)
    assert Counter(one["point"] for one in found if os.WIFSTOPPED(one["end"])) == dict.fromkeys(SCENES[scene], times)
    for one in found:
        assert len(one["fenced"]) <= 1, one
        answers = [answer for answer in one["answers"] if isinstance(answer, dict)]
        assert all([answer["charged"]] == one["fenced"] for answer in answers), one
        if one["rerun"]:
            assert len(answers) == len(one["answers"]) and len({*map(json.dumps, answers)}) == 1, one  # noqa: PT018
    note(_told(found))
    # The controls: there was something to prevent.
    assert any(len(one["blind"]) == 2 for one in found)
    if scene == "run":
        assert any(len(one["checked"]) == 2 for one in found)


def test_the_same_effect_done_blindly_is_there_twice_for_some(tmp_path: Path) -> None:
    """The control: without the fence and the look behind it the same deaths are two effects."""
    found = play(tmp_path, "run", "kill", 1)
    assert max(len(one["blind"]) for one in found) == 2
    assert max(len(one["fenced"]) for one in found) == 1


def _told(found: list[dict[str, Any]]) -> str:
    kinds = {kind: Counter(len(one[kind]) for one in found) for kind in ("fenced", "checked", "blind")}
    counts = ", ".join(f"{kind} {dict(sorted(times.items()))}" for kind, times in kinds.items())
    return f"{len(found)} keys, effects of each: {counts}"
