"""What both middlewares decide, written once: which requests are handled once, and what a client is answered.

    look      the policy of its route, its key                     a problem, or it passes, or it is handled
    begin     `Once` begins the work, or says why not              work to be done, or an answer: replayed, or a problem
    done      the record says what it came to, then the client     the answer, marked if a duplicate will not get it

Nothing of a request is logged but the digest under which it is handled.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar, cast

import msgspec

from leasehold.errors import (
    FinishedLate,
    InvalidInput,
    KeyReused,
    NotRunOnce,
    OutcomeUnknown,
    ResultNotKept,
    StillRunning,
    StoreError,
)
from leasehold.patterns.handling import Begun, Handling
from leasehold.patterns.work import Kept, Policy
from leasehold.rules import idempotency_answers as answers
from leasehold.rules.arguments import function as check_function
from leasehold.rules.backoff import retry_after
from leasehold.rules.http import Problem
from leasehold.rules.idempotency_answers import Response, kept_headers, refusal
from leasehold.rules.idempotency_key import carried, operation_key
from leasehold.rules.request_print import request_print
from leasehold.web.policy import Request, RoutePolicy
from leasehold.wires.chance import chance

WORK = "leasehold.work"
# What headers add to a record, at most; more of them are not kept.
HEADERS_MAX = 16 * 1024
Text = Callable[[Request], str | None]
O = TypeVar("O")  # noqa: E741  the Once of either colour

_log = logging.getLogger("leasehold")


class Asked(NamedTuple):
    """A request that is handled once: under which key, and how."""

    request: Request
    key: str
    policy: RoutePolicy


class Answered(NamedTuple):
    """An answer without any work. `earlier` says whether it tells of an earlier request: not everybody may see that."""

    response: Response
    earlier: bool


class _TryAgain(Exception):
    """The handler said that nothing was done."""


class _Indefinite(Exception):
    """The handler does not say what was done."""


class Gate(Generic[O]):
    """The requests of one application."""

    def __init__(
        self,
        kind: type[O],
        once: O | Callable[[], O],
        *,
        policy: RoutePolicy,
        policies: Mapping[str, RoutePolicy | None],
        route: Callable[[Request], str],
        tenant: Text,
        principal: Text,
    ) -> None:
        if not isinstance(once, kind) and not callable(once):
            raise InvalidInput("once", once, f"must be a {kind.__module__}.Once, or a function that gives it")
        given: list[object] = [policy, *(one for one in policies.values() if one is not None)]
        for one in given:
            if not isinstance(one, RoutePolicy):
                raise InvalidInput("policy", one, "must be a leasehold.web.RoutePolicy")
        for field, function in (("route", route), ("tenant", tenant), ("principal", principal)):
            check_function(field, function)
        self._kind = kind
        self._once = once
        self._policy = policy
        self._policies = dict(policies)
        self._route = route
        self._tenant = tenant
        self._principal = principal
        self._handling: Handling | None = None
        self._terms: dict[int, Policy] = {}
        if isinstance(once, kind):
            self.handling()

    def handling(self) -> Handling:
        """What handles the requests; asked for at the first of them, if it was not there before."""
        if self._handling is None:
            once = self._once if isinstance(self._once, self._kind) else self._once()  # type: ignore[operator]
            if not isinstance(once, self._kind):
                raise InvalidInput("once", once, f"must give a {self._kind.__module__}.Once")
            found: Handling = cast("Any", once)._handling  # noqa: SLF001  one library, two rooms
            for one in (self._policy, *filter(None, self._policies.values())):
                self._terms[id(one)] = _terms(found, one)
            self._handling = found
        return self._handling

    def look(self, request: Request, values: Sequence[str]) -> Asked | Problem | None:
        """What becomes of a request before its body is read; None if it is none of ours."""
        route = self._route(request)
        policy = self._policies.get(route, self._policy)
        if policy is None or request.method not in policy.methods:
            return None
        if not values:
            return answers.missing() if policy.required else None
        try:
            key = carried(values)
        except InvalidInput as error:
            return answers.unreadable(error)
        tenant, principal = self._tenant(request), self._principal(request)
        for field, given in (("route", route), ("tenant", tenant or ""), ("principal", principal or "")):
            if not isinstance(given, str):
                raise InvalidInput(field, given, "must be a function that returns text")
        key = operation_key(key, method=request.method, route=route, tenant=tenant, principal=principal)
        return Asked(request, key, policy)

    async def begin(self, asked: Asked, body: bytes) -> Begun | Answered:
        """Work to be done now, or the answer that there is without it."""
        request, policy = asked.request, asked.policy
        kind = request.headers.get("content-type", "")
        print_ = request_print(request.path, request.query, kind, body, policy.volatile)
        try:
            begun = await self.handling().begin(asked.key, print_, self._terms[id(policy)])
        except StillRunning as busy:
            told = answers.outstanding(asked.key, busy.retry_after)
        except KeyReused:
            told = answers.other_payload(asked.key)
        except OutcomeUnknown:
            told = answers.unknown(asked.key)
        except NotRunOnce:
            told = answers.not_stored(asked.key, None)
        except StoreError as error:
            _warn(asked, f"the store does not say whether it was handled, so it is not: {error}")
            return Answered(refusal(answers.unavailable(retry_after(None, chance()))), earlier=False)
        else:
            return begun if isinstance(begun, Begun) else _replayed(asked, begun)
        return Answered(refusal(told), earlier=True)

    async def done(self, begun: Begun, asked: Asked, given: Response) -> Response:
        """The answer for the client, once the record says what the work came to."""
        policy, work = asked.policy, self.handling()
        kept = msgspec.structs.replace(given, headers=kept_headers(given.headers, policy.unkept_headers))
        stored = False
        try:
            if given.status in policy.again:
                await work.failed(begun, _TryAgain())
            elif given.status not in policy.definite:
                await work.failed(begun, _Indefinite())
            else:
                await work.completed(begun, kept)
                stored = given.whole
        except FinishedLate as late:
            _warn(asked, str(late))
            return refusal(answers.overtaken(asked.key, retry_after(0.0, chance())))
        except (ResultNotKept, StoreError) as error:
            # It is done, whether anybody will know or not: whoever did it gets its answer.
            _warn(asked, f"handled, but its answer is not kept: {error}")
        return given if stored else answers.marked_unstored(given)

    async def broke(self, begun: Begun, error: BaseException) -> None:
        """The handler raised: nobody knows how far it came."""
        await self.handling().failed(begun, error)


def _terms(work: Handling, policy: RoutePolicy) -> Policy:
    """A route's policy as `Once` has it. Whatever cannot work with its store is refused here."""
    base, most = work.policy, work.engine.store.guarantees.value_max
    if base.on_replay is not None:
        raise InvalidInput("once", base.on_replay, "must be without on_replay: `authorize` is asked before a replay")
    limit = policy.response_limit * 4 // 3 + HEADERS_MAX
    if limit > most:
        remedy = f"must be {(most - HEADERS_MAX) * 3 // 4} at most: with it a record of this store is full"
        raise InvalidInput("response_limit", policy.response_limit, remedy)
    return work.checked(
        msgspec.structs.replace(
            base,
            keep=base.keep if policy.keep is None else policy.keep,
            duplicates="wait",
            wait=policy.wait,
            definite=(),
            retry=(_TryAgain,),
            rerun=base.rerun if policy.rerun is None else policy.rerun,
            result=Response,
            limit=limit,
        )
    )


def _replayed(asked: Asked, found: Kept) -> Answered:
    kept: Response = found.value
    if not kept.whole:
        return Answered(refusal(answers.not_stored(asked.key, kept.status)), earlier=True)
    return Answered(answers.replayed(kept), earlier=True)


def _warn(asked: Asked, told: str) -> None:
    _log.warning("%s: %s", asked.key, told, extra={"key": asked.key})
