"""Opening a client's engine: every argument is checked before the store is reached."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from leasehold.engine.engine import HOLDER_MAX, Engine
from leasehold.engine.events import Observer
from leasehold.rules.arguments import flag, whole
from leasehold.rules.names import Names, check_text
from leasehold.rules.timing import TIMEOUT_MAX, seconds
from leasehold.rules.tokens import PASSES
from leasehold.stores.open import open_store

if TYPE_CHECKING:
    from leasehold.engine.runtime import Runtime


async def open_engine(
    url: str,
    runtime: Runtime,
    *,
    holder: str | None,
    prefix: str | None,
    tenant: str | None,
    timeout: float,  # noqa: ASYNC109  bounds each request to the store, not this call
    helper: bool,
    local_passes: int,
    observers: Iterable[Observer],
) -> Engine:
    """Check every argument, then reach the store."""
    names = Names(prefix, tenant)
    flag("helper", helper)
    whole("local_passes", local_passes, 0, PASSES - 1)
    patience = seconds("timeout", timeout, 0.01, TIMEOUT_MAX)
    if holder is not None:
        holder = check_text("holder", holder, HOLDER_MAX)
    store = open_store(url, timeout=patience, colour=runtime)
    engine = Engine(
        store, runtime, names, holder=holder, timeout=patience, observers=observers, local_passes=local_passes
    )
    await store.open()
    if helper:
        from leasehold.engine.helper import start_helper  # noqa: PLC0415  brings subprocess along; few need it

        try:
            engine.heartbeat.helper = await start_helper(url, patience, runtime, engine)
        except BaseException:
            await store.close()
            raise
    return engine
