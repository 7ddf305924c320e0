"""Charging and refunding: the part this example is about.

    charge    note it in the ledger · ask the gateway, as a step · book what it told, under the fence
    refund    accept it and write a message, in one transaction with its once-record · a relay tells the gateway

A charge may be done again from its beginning, whoever died where: its number and the gateway's key are made of the
work's key, what the gateway told is kept with the step, and the ledger takes nothing from a worker that was overtaken.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, ParamSpec, TypeVar

import msgspec
from asked import Charge, Refund, Refused
from gateway import Gateway
from ledger import Ledger
from points import Points

import leasehold
from leasehold import aio, sql, web

SERVICE = "payments"
# A token for charges that are handled without a lease, to see what happens.
UNLEASED = 1
P = ParamSpec("P")
R = TypeVar("R")


class Payments:
    """Everything that is done with money. `environment` is part of every request's key in the audit trail."""

    def __init__(
        self, ledger: Ledger, gateway: Gateway, refunds: sql.Once, points: Points, *, environment: str = "test"
    ) -> None:
        self._ledger = ledger
        self._gateway = gateway
        self._refunds = refunds
        self._points = points
        self._environment = environment

    async def charge(self, work: aio.Work | None, tenant: str, asked: Charge, printed: str) -> dict[str, Any]:
        """Charge a card. With the Work of a request that is handled once; without, each request is a new charge."""
        number = f"ch_{_digest(work.key if work else secrets.token_hex())}"
        token = work.token if work else UNLEASED
        request = self._key(tenant, "charge", printed)
        self._points.reach("begun")
        await _in_thread(self._ledger.begin, number, tenant, asked, request, token)
        self._points.reach("pending")

        async def ask() -> dict[str, Any]:
            key = web.key_for(work, "gateway") if work else {}
            told = await _in_thread(self._gateway.charge, key, asked.amount, asked.currency, asked.card, number)
            self._points.reach("charged")
            return told

        # Begun and not finished, it may have charged: only a gateway that knows keys may be asked again.
        told = await work.step("gateway", ask, rerun=self._gateway.keyed) if work else await ask()
        self._points.reach("noted")
        charge = await _in_thread(self._ledger.book, number, told, token)
        self._points.reach("booked")
        return charge

    async def find(self, tenant: str, number: str) -> dict[str, Any]:
        """A charge of this tenant's."""
        return await _in_thread(self._ledger.charge, number, tenant)

    async def refund(self, tenant: str, number: str, asked: Refund, printed: str) -> dict[str, Any]:
        """Accept a refund. Its key is its payload: what asks for the same is the same refund, also without a header."""
        await self.find(tenant, number)
        key = self._key(tenant, "refund", leasehold.fingerprint([number, printed]))
        try:
            return await _in_thread(self._accept, number, asked, key)
        except leasehold.StoreError:
            detail = "It cannot be told whether somebody is about this refund: send the same later."
            raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, "store-unavailable", detail, retry_after=1) from None

    def _accept(self, number: str, asked: Refund, key: str) -> dict[str, Any]:
        refund = f"re_{_digest(key)}"
        with self._ledger.connection() as db:
            return self._refunds.run(db, key, lambda _: self._ledger.accept(db, number, asked, refund, key))

    def tell_gateway(self, message: sql.Message) -> None:
        """What the relay does with a refund. It may come twice, and is done once if the gateway knows keys."""
        told = msgspec.json.decode(message.payload)
        self._gateway.refund(web.key_for(told["refund"], "gateway"), told["gateway_id"], told["amount"])
        self._ledger.refunded(told, message.token)

    def _key(self, tenant: str, kind: str, printed: str) -> str:
        return leasehold.key(
            service=SERVICE, environment=self._environment, tenant=tenant, resource_type=kind, hash=printed
        )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:24]


async def _in_thread(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    return await asyncio.to_thread(function, *args, **kwargs)
