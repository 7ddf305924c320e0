"""Asking the card gateway, which may be slow, fail, or do it and not say so. Blocking: for threads.

A request without an answer is sent again if the gateway knows Idempotency-Keys, and never if it does not.
"""

from __future__ import annotations

import http.client
import random
import time
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

import msgspec

from leasehold import Backoff

TRIES = Backoff(base=0.075, factor=2.0, jitter=0.2, attempts=4)


class NotReached(Exception):
    """Nobody listens there: nothing was sent, so nothing was done."""


class Unanswered(Exception):
    """It was asked and has not answered: it may have done it."""


class Gateway:
    """The gateway at a URL. `keyed` says whether it knows Idempotency-Keys."""

    def __init__(self, url: str, *, keyed: bool, timeout: float) -> None:
        self._host = urlsplit(url).netloc
        self._timeout = timeout
        self.keyed = keyed

    def charge(self, key: Mapping[str, str], amount: int, currency: str, card: str, reference: str) -> dict[str, Any]:
        """What became of a charge: charged, or declined."""
        asked = {"amount": amount, "currency": currency, "card": card, "reference": reference}
        return self._ask("/charges", key, asked)

    def refund(self, key: Mapping[str, str], charge: str, amount: int) -> dict[str, Any]:
        """What became of a refund."""
        return self._ask("/refunds", key, {"charge": charge, "amount": amount})

    def _ask(self, path: str, key: Mapping[str, str], asked: dict[str, Any]) -> dict[str, Any]:
        sent, tries = False, TRIES.attempts or 1
        for number in range(tries):
            try:
                return self._once(path, key, asked)
            except ConnectionRefusedError:
                pass
            except (OSError, http.client.HTTPException, Unanswered) as error:
                sent = True
                if not self.keyed:
                    raise Unanswered("the gateway has not answered, and is not asked twice") from error
            if number + 1 < tries:
                time.sleep(TRIES.delay(number, random.random()))  # noqa: S311  no secret
        raise Unanswered(f"no answer of the gateway in {tries} tries") if sent else NotReached("nobody listens")

    def _once(self, path: str, key: Mapping[str, str], asked: dict[str, Any]) -> dict[str, Any]:
        connection = http.client.HTTPConnection(self._host, timeout=self._timeout)
        try:
            connection.request("POST", path, msgspec.json.encode(asked), {"Content-Type": "application/json", **key})
            answer = connection.getresponse()
            data = answer.read()
        finally:
            connection.close()
        if answer.status != HTTPStatus.OK:
            raise Unanswered(f"the gateway says {answer.status}")
        told: dict[str, Any] = msgspec.json.decode(data)
        return told
