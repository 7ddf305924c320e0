"""The cooldown, from the ConfigMap `workflowexecution-config`, read anew each time it is needed.

What cannot be used is told once, as an event of the ConfigMap and in the log, and what was
good last (or the default) counts on: a slip of the pen must not stop remediation.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import durations
import kopf
import yaml

from leasehold import StoreError, kube
from leasehold.kube import aio

KIND = kube.Kind("v1", "ConfigMap", "configmaps")
NAME = "workflowexecution-config"
FILE = "config.yaml"
COOLDOWN = 300.0
# YAML of a ConfigMap's size can unfold to anything.
SIZE_MAX = 16_384

log = logging.getLogger("executor.settings")


class Settings:
    """What may change while the executor runs."""

    def __init__(self, maps: aio.Objects) -> None:
        self._maps = maps
        self._cooldown = COOLDOWN
        self._told: object = None

    async def cooldown(self) -> float:
        """Seconds of rest after a run; never fails."""
        try:
            found = await self._maps.get(NAME)
        except StoreError as error:
            self._tell(str(error), f"{NAME} cannot be read, {self._in_use()}: {error}")
            return self._cooldown
        if found is None:
            self._cooldown = COOLDOWN
            return COOLDOWN
        try:
            self._cooldown = read(found.get("data") or {})
            self._told = None
        except durations.Malformed as error:
            words = f"{error}; until then {self._in_use()}"
            if self._tell(found["metadata"]["resourceVersion"], f"{NAME}: {words}"):
                body = found | {"apiVersion": "v1", "kind": "ConfigMap"}
                kopf.event(kopf.Body(body), type="Warning", reason="InvalidCooldown", message=words)
        return self._cooldown

    def _in_use(self) -> str:
        return f"{durations.spoken(self._cooldown)} is used"

    def _tell(self, what: str, words: str) -> bool:
        """Once for each thing that is wrong."""
        is_new = what != self._told
        if is_new:
            log.warning("%s", words)
        self._told = what
        return is_new


def read(data: Mapping[str, Any]) -> float:
    """The cooldown that a ConfigMap asks for; Malformed says where and what to write."""
    text = data.get(FILE)
    if not isinstance(text, str) or len(text) > SIZE_MAX:
        raise durations.Malformed(f"data must hold {FILE}, with resource_locking: cooldown_period: 5m in it")
    try:
        whole = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise durations.Malformed(f"{FILE} is no YAML: {' '.join(str(error).split())}") from error
    section = whole.get("resource_locking") if isinstance(whole, dict) else None
    if not isinstance(section, dict) or "cooldown_period" not in section:
        raise durations.Malformed(f"{FILE} must say resource_locking: cooldown_period, such as 5m")
    given = section["cooldown_period"]
    try:
        # A bare 0 is a number in YAML.
        return durations.seconds(str(given) if isinstance(given, str | int) else "something else")
    except durations.Malformed as error:
        raise durations.Malformed(f"resource_locking.cooldown_period: {error}") from error
