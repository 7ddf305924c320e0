"""Fences of both colours look alike, and importing them needs nothing optional."""

from __future__ import annotations

import pytest

from leasehold import fence
from leasehold.fence import aio
from tests.test_shape import differences, modules_after

# A connection has a colour, and SQLite's has one only.
COLOURED = {"Row: docstrings", "add_mark: parameters", "add_marks_table: parameters", "under: parameters"}


@pytest.mark.parametrize("name", aio.__all__)
def test_both_colours_look_alike(name: str) -> None:
    assert set(differences(getattr(fence, name), getattr(aio, name))) <= COLOURED


def test_every_fence_has_both_colours() -> None:
    rules = {"Part", "PartMark", "Seal", "ShownParts", "admit_parts", "http"}
    assert set(aio.__all__) == set(fence.__all__) - rules


def test_importing_fences_loads_no_client_and_no_loop() -> None:
    loaded = modules_after("import leasehold.fence")
    assert "leasehold.fence.redis" in loaded
    assert not {"asyncio", "redis", "h11", "leasehold.kube", "uvicorn", "wsgiref"} & loaded
