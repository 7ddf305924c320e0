"""What Alertmanager sends (its webhook, version 4), and the signals in it. Pure: bytes in, values out.

A webhook is read as a whole before anything is done: one bad alert in it, and nothing of it counts.
"""

from __future__ import annotations

import hashlib
import re
from typing import Literal

import msgspec

ALERTS_MAX = 500
TEXT_MAX = 16_384
FINGERPRINT = re.compile(r"[0-9a-f]{16}")
# The labels that Kubernetes' own exporters name a thing by, the owner before the owned.
KINDS = ("deployment", "statefulset", "daemonset", "job", "pod", "persistentvolumeclaim", "service", "node")


class Malformed(ValueError):
    """A webhook that cannot be what Alertmanager sends."""


class Alert(msgspec.Struct, rename="camel"):
    """One alert of a webhook."""

    status: Literal["firing", "resolved"]
    labels: dict[str, str]
    starts_at: str
    annotations: dict[str, str] = {}
    fingerprint: str = ""


class Webhook(msgspec.Struct, rename="camel"):
    """What is posted. Fields that say nothing about signals are not read."""

    version: Literal["4"]
    status: Literal["firing", "resolved"]
    alerts: list[Alert]


class Signal(msgspec.Struct, frozen=True):
    """Something that wants a remedy. Two signals with one fingerprint are the same."""

    fingerprint: str
    name: str
    severity: str
    namespace: str
    kind: str
    resource: str
    firing_since: str
    labels: dict[str, str]
    annotations: dict[str, str]


def read(body: bytes) -> list[Signal]:
    """The signals that fire; Malformed says what is wrong and where."""
    try:
        webhook = msgspec.json.decode(body, type=Webhook)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Malformed(f"this is no webhook of Alertmanager, version 4: {error}") from error
    if not 1 <= len(webhook.alerts) <= ALERTS_MAX:
        raise Malformed(f"alerts: must be 1 to {ALERTS_MAX}, not {len(webhook.alerts)}")
    signals = [_signal(number, alert) for number, alert in enumerate(webhook.alerts)]
    return [signal for signal, alert in zip(signals, webhook.alerts, strict=True) if alert.status == "firing"]


def _signal(number: int, alert: Alert) -> Signal:
    labels, where = alert.labels, f"alerts[{number}]"
    if not labels.get("alertname"):
        raise Malformed(f"{where}.labels: alertname is missing")
    texts = [*labels, *labels.values(), *alert.annotations, *alert.annotations.values()]
    if sum(map(len, texts)) > TEXT_MAX or any("\0" in text for text in texts):
        raise Malformed(f"{where}: labels and annotations must be at most {TEXT_MAX} characters, without NUL")
    if alert.fingerprint and not FINGERPRINT.fullmatch(alert.fingerprint):
        raise Malformed(f"{where}.fingerprint: must be 16 digits from 0 to f, or left out")
    kind = next((kind for kind in KINDS if labels.get(kind)), "")
    return Signal(
        fingerprint=alert.fingerprint or fingerprint(labels),
        name=labels["alertname"],
        severity=labels.get("severity", "unknown"),
        namespace=labels.get("namespace", ""),
        kind=kind,
        resource=labels.get(kind, ""),
        firing_since=alert.starts_at,
        labels=labels,
        annotations=alert.annotations,
    )


def fingerprint(labels: dict[str, str]) -> str:
    """Of an alert that came without one: by its labels, in any order."""
    text = "\0".join(f"{name}\0{value}" for name, value in sorted(labels.items()))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
