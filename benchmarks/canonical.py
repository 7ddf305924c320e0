"""Fingerprints: a 1 KB order made canonical, against an independent implementation and against sorted `json.dumps`."""

from __future__ import annotations

import functools
import json
from typing import Any

import rfc8785

from benchmarks.harness import Figure, medians, micro, seconds_each
from leasehold.rules.canonical import canonical, fingerprint

TIMES = 300
ROUNDS = 21
ORDER: dict[str, Any] = {
    "order": "8e03978e-40d5-43dd-bc93-6894a57f9324",
    "customer": {
        "id": 421337,
        "name": "Zoë Ångström",
        "address": {"street": "Main Street 5", "city": "Malmö", "zip": "21120", "country": "SE"},
    },
    "items": [
        {"sku": f"SKU-{number:05d}", "title": "A thing of some kind", "quantity": number, "price": 99.95 + number}
        for number in range(8)
    ],
    "currency": "SEK",
    "total": 1249.5,
    "paid": False,
    "note": None,
    "meta": {"trace_id": "4bf92f3577b34da6a3ce929d0e0e4736", "sent_at": "2026-11-16T11:00:00Z"},
}
TEXT = json.dumps(ORDER).encode()
VOLATILE = ("/meta/trace_id", "/meta/sent_at", "/items/*/seen_at")


def figures() -> list[Figure]:
    """What a value costs beside others who write one, and what a request's body costs from bytes to fingerprint."""
    work = {
        "ours": lambda: canonical(ORDER),
        "theirs": lambda: rfc8785.dumps(ORDER),
        "sorted": lambda: json.dumps(ORDER, sort_keys=True),
        "body": lambda: fingerprint(TEXT, volatile=VOLATILE),
        "read": lambda: json.dumps(json.loads(TEXT), sort_keys=True),
    }
    found = medians({name: functools.partial(seconds_each, each, TIMES) for name, each in work.items()}, ROUNDS)
    shown = {name: micro(value) for name, value in found.items()}
    size = f"{len(TEXT) / 1024:.1f} KB"
    return [
        Figure(
            f"canonical JSON, {size} ÷ rfc8785", shown["ours"], shown["theirs"], found["ours"] / found["theirs"], 0.6
        ),
        Figure(
            f"canonical JSON, {size} ÷ json.dumps(sort_keys=True)",
            shown["ours"],
            shown["sorted"],
            found["ours"] / found["sorted"],
            3.5,
        ),
        Figure(
            f"fingerprint of {size}, 3 volatile paths ÷ json.loads + json.dumps(sort_keys=True)",
            shown["body"],
            shown["read"],
            found["body"] / found["read"],
            3.5,
        ),
    ]
