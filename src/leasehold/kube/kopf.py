"""For operators written with kopf: one handler at a time for each key, across all replicas.

    @kopf.on.startup()
    async def connect(memo, **_):
        memo.locks = await leasehold.aio.connect("kubernetes://operators", prefix="widgets")

    @kopf.on.update("widgets")
    @serialized(key=lambda spec, **_: spec["target"])
    async def resize(spec, **_):
        ...

kopf's peering pauses operators that have seen another one; it is no lock, and both may act
meanwhile. `serialized` holds a lease while the handler runs. Whoever finds it held is
told by kopf.TemporaryError, so that kopf asks again when the lease may be free and the worker is not blocked.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple, NoReturn, ParamSpec, TypeVar, cast

from leasehold import client, client_aio
from leasehold.errors import InvalidInput, LeaseLost, MissingExtra, NotAcquired, StoreUnavailable
from leasehold.rules.arguments import function as check_function
from leasehold.rules.names import check_text
from leasehold.rules.timing import DEFAULT_TTL

try:
    import kopf
except ImportError as _error:
    raise MissingExtra("leasehold.kube.kopf", "kopf") from _error

P = ParamSpec("P")
R = TypeVar("R")
L = TypeVar("L")

# After an outage or a loss, when kopf's own default of a minute would be long.
DELAY = 5.0


def serialized(
    *, key: Callable[..., str] | None = None, ttl: float = DEFAULT_TTL, wait: float = 0, locks: str = "locks"
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Run the handler only while a lease is held, taken from the client in `memo.locks`.

    `key` is called with what kopf gives the handler and names the lease; without it that is the object's uid.
    Handlers of one key exclude each other in all replicas that share the store, whatever resource
    or event they are for. `wait` is how long to wait in the handler before kopf is asked to come back,
    `locks` the attribute of `memo`. Async handlers need the client of leasehold.aio, and are cancelled
    when the lease is lost; plain ones, which kopf runs in threads, need that of leasehold.

    A handler may still run again after it has finished, here or in another replica: it is serialized, not run once.
    """
    ask = _Ask(key or _uid, ttl, wait, check_text("locks", locks))
    check_function("key", ask.key)

    def decorate(handler: Callable[P, R]) -> Callable[P, R]:
        check_function("handler", handler)
        wrapped = _awaited(handler, ask) if inspect.iscoroutinefunction(handler) else _blocking(handler, ask)
        return cast("Callable[P, R]", functools.wraps(handler)(wrapped))

    return decorate


class _Ask(NamedTuple):
    """What each call of a handler needs."""

    key: Callable[..., str]
    ttl: float
    wait: float
    attribute: str

    def client(self, given: dict[str, Any], kind: type[L], module: str) -> L:
        found = getattr(given.get("memo"), self.attribute, None)
        if not isinstance(found, kind):
            raise InvalidInput(
                f"memo.{self.attribute}", found, f"set it in a startup handler to what {module}.connect() returns"
            )
        return found


def _uid(*, uid: str, **_: object) -> str:
    return uid


def _awaited(handler: Callable[..., Any], ask: _Ask) -> Callable[..., Coroutine[Any, Any, Any]]:
    async def wrapped(**given: Any) -> Any:
        locks = ask.client(given, client_aio.Locks, "leasehold.aio")
        try:
            async with locks.hold(ask.key(**given), ttl=ask.ttl, wait=ask.wait):
                return await handler(**given)
        except (NotAcquired, LeaseLost, StoreUnavailable) as error:
            _come_back(error)

    return wrapped


def _blocking(handler: Callable[..., Any], ask: _Ask) -> Callable[..., Any]:
    def wrapped(**given: Any) -> Any:
        locks = ask.client(given, client.Locks, "leasehold")
        try:
            with locks.hold(ask.key(**given), ttl=ask.ttl, wait=ask.wait):
                return handler(**given)
        except (NotAcquired, LeaseLost, StoreUnavailable) as error:
            _come_back(error)

    return wrapped


def _come_back(error: NotAcquired | LeaseLost | StoreUnavailable) -> NoReturn:
    delay = error.retry_after if isinstance(error, NotAcquired) else DELAY
    raise kopf.TemporaryError(str(error), delay=delay) from error
