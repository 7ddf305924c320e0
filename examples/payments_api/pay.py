"""A client that does not give up: it sends the same request with the same key until it has an answer."""

from __future__ import annotations

import http.client
import random
import time
import uuid
from typing import Any
from urllib.parse import urlsplit

import msgspec

from leasehold import Backoff

TRIES = Backoff(base=0.1, factor=2.0, jitter=0.2, cap=5.0, attempts=8)


class NoAnswer(Exception):
    """Nobody answered. The key is for whoever tries again."""


def pay(server: str, api_key: str, asked: dict[str, Any], key: str | None = None) -> tuple[int, bool, dict[str, Any]]:
    """Status, whether it was replayed, and what was answered."""
    key, body, tries = key or str(uuid.uuid4()), msgspec.json.encode(asked), TRIES.attempts or 1
    headers = {
        "Authorization": f"Bearer {api_key}",
        "Idempotency-Key": f'"{key}"',
        "Content-Type": "application/json",
    }
    for number in range(tries):
        pause = TRIES.delay(number, random.random())  # noqa: S311  no secret
        try:
            status, told, answer = _sent(server, headers, body)
        except (OSError, http.client.HTTPException):
            pass
        else:
            if not answer.get("retry"):
                return status, told.get("Idempotent-Replayed") == "true", answer
            pause = max(pause, float(answer["retry_after"]))
        if number + 1 < tries:
            time.sleep(pause)
    raise NoAnswer(f"no answer in {tries} tries; send the same with --idempotency-key {key}")


def _sent(server: str, headers: dict[str, str], body: bytes) -> tuple[int, http.client.HTTPMessage, dict[str, Any]]:
    connection = http.client.HTTPConnection(urlsplit(server).netloc, timeout=30)
    try:
        connection.request("POST", "/charges", body, headers)
        answer = connection.getresponse()
        told: dict[str, Any] = msgspec.json.decode(answer.read())
        return answer.status, answer.headers, told
    finally:
        connection.close()
