"""The conformance suite: what every store must do, in both colours.

For a store of your own, in a test file:

    from leasehold.testing.conformance import Conformance, arenas

    arena = arenas(my_store=MyWorld)        # a fixture: every world × both colours

    class TestMyStore(Conformance):
        pass

`MyWorld` is called with a folder and answers like `worlds.SqliteWorld`. A law
whose verb was never called fails, so a store cannot pass by doing nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from leasehold.extras import require
from leasehold.testing.conformance.arena import Arena, MakeWorld, World
from leasehold.testing.conformance.exercise import claims, exercises

pytest: Any = require("pytest", feature="the conformance suite", extra="testing")
# So that a law that fails shows the values, wherever the suite is used.
pytest.register_assert_rewrite(
    *(
        f"{__name__}.{laws}_laws"
        for laws in ("store", "client", "loss", "fault", "line", "part", "process", "back", "once")
    ),
)

from leasehold.testing.conformance.back_laws import BackLaws  # noqa: E402  these need pytest
from leasehold.testing.conformance.client_laws import ClientLaws  # noqa: E402
from leasehold.testing.conformance.fault_laws import FaultLaws  # noqa: E402
from leasehold.testing.conformance.line_laws import LineLaws  # noqa: E402
from leasehold.testing.conformance.loss_laws import LossLaws  # noqa: E402
from leasehold.testing.conformance.once_fault_laws import OnceFaultLaws  # noqa: E402
from leasehold.testing.conformance.once_laws import OnceLaws  # noqa: E402
from leasehold.testing.conformance.part_laws import PartLaws  # noqa: E402
from leasehold.testing.conformance.store_laws import StoreLaws  # noqa: E402

__all__ = ["Arena", "Conformance", "MakeWorld", "OnceConformance", "World", "arenas", "claims", "exercises"]

COLOURS = ("blocking", "asyncio")


class Conformance(StoreLaws, ClientLaws, LossLaws, FaultLaws, LineLaws, PartLaws, BackLaws):
    """All laws that hold inside one process. Inherit in a test class; needs the `arena` fixture."""


class OnceConformance(OnceLaws, OnceFaultLaws):
    """The laws of `Once`, which is made of what the suite above has found in order. To be used like it."""


def arenas(**worlds: MakeWorld) -> Any:
    """A pytest fixture `arena`: every world × both colours, and a check that each law did what it claims."""
    matrix = [
        pytest.param((make, colour), id=f"{name}-{colour}") for name, make in worlds.items() for colour in COLOURS
    ]

    @pytest.fixture(params=matrix)  # type: ignore[untyped-decorator]
    def arena(request: Any, tmp_path: Any) -> Iterator[Arena]:
        make, colour = request.param
        opened = Arena(make(tmp_path), colour)
        yield opened
        unused = claims(request.function) - opened.used
        opened.close()
        assert not unused, f"the law claims to exercise {sorted(unused)}, but never called it"

    return arena
