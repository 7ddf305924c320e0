"""What an object that is a lock says, and what we write into one. Pure: objects in, values out.

The object is somebody's own (a Job, a PipelineRun): `spec` and `status` are left to
its controllers. Whose it is stands in labels, to select by, and in annotations, in
full: names are short, and two targets could meet in one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import msgspec

from leasehold.errors import InvalidInput, StoreDamaged, shown
from leasehold.rules.kubernetes_kinds import Kind
from leasehold.rules.kubernetes_leases import MANAGED_BY, MANAGER, merged, number
from leasehold.rules.kubernetes_names import NAME_MAX, label
from leasehold.rules.names import DIGITS
from leasehold.rules.timing import TRUST

OWNER = "leasehold/owner"
TARGET = "leasehold/target"
TTL = "leasehold/ttl"
HOLD = "leasehold/hold"
FINALIZER = "leasehold/lock"
# Both times have whole seconds: what seems one apart may be the same moment, or nearly two.
TICK = 1.0
_PREFIX = re.compile(r"[a-z0-9][-a-z0-9]*")
_LABEL = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")

Object = dict[str, Any]


class LockObject(msgspec.Struct, frozen=True):
    """An object that is a lock, as it was read or written.

    `token` is what a create or an adoption drew, and None for what was merely looked at.
    `age` is in whole seconds since its creation, by the API server's clock alone.
    `expires_in` is how long its owner could still rely on it then; None: it has no ttl.
    `is_going`: it was deleted, and its finalizers are all that keeps it.
    """

    name: str
    target: str
    owner: str
    uid: str
    token: int | None
    age: float
    ttl: float | None
    expires_in: float | None
    adopted: bool
    is_going: bool
    manifest: Object
    hold: str

    def __repr__(self) -> str:
        # Not the manifest, nor what proves the hold.
        return f"<LockObject {self.name} target={shown(self.target)} owner={shown(self.owner)} token={self.token}>"


def check_prefix(given: object) -> str:
    """What every name starts with, readable and short."""
    if not isinstance(given, str) or len(given) > NAME_MAX - DIGITS or not _PREFIX.fullmatch(given):
        raise InvalidInput(
            "prefix", given, f"must be a-z, 0-9 and -, not begin with -, at most {NAME_MAX - DIGITS} characters"
        )
    return given


def label_value(text: str) -> str:
    """Text as a label: itself where labels allow it, else its hash."""
    return text if _LABEL.fullmatch(text) else label(text)


def check_manifest(given: object, kind: Kind) -> Object:
    """What the caller wants in the object, less what the lock decides."""
    if not isinstance(given, Mapping):
        raise InvalidInput(
            "manifest", given, f"must be a mapping such as {{'spec': {{…}}}}, not {type(given).__name__}"
        )
    meta = given.get("metadata") or {}
    if not isinstance(meta, Mapping) or {"name", "namespace", "generateName", "finalizers"} & meta.keys():
        raise InvalidInput("manifest", meta, "metadata may hold labels, annotations and owner references: no name")
    for field, wanted in (("apiVersion", kind.api_version), ("kind", kind.kind)):
        if given.get(field, wanted) != wanted:
            raise InvalidInput("manifest", given[field], f"{field} must be {wanted}, or left out")
    try:
        plain: Object = msgspec.json.decode(msgspec.json.encode(given))
    except (TypeError, ValueError) as error:
        raise InvalidInput("manifest", given, f"must be what JSON can say: {error}") from error
    return plain | {"apiVersion": kind.api_version, "kind": kind.kind}


def claim(owner: str, target: str, ttl: float | None, hold: str) -> Object:
    """What makes an object a lock."""
    labels = {MANAGED_BY: MANAGER, OWNER: label_value(owner), TARGET: label_value(target)}
    notes = {OWNER: owner, TARGET: target, HOLD: hold, TTL: None if ttl is None else repr(ttl)}
    return {"metadata": {"labels": labels, "annotations": notes}}


def lock_object(name: str, manifest: Object, claimed: Object, *, finalizer: bool) -> Object:
    """A new one, whole."""
    made = merged(manifest, claimed)
    made["metadata"]["name"] = name
    if finalizer:
        made["metadata"]["finalizers"] = [FINALIZER]
    return made


def without_finalizer(raw: Object) -> Object | None:
    """The change that lets a deletion through, for this very revision; None where nothing of ours holds it."""
    meta = raw["metadata"]
    finalizers = meta.get("finalizers") or []
    if FINALIZER not in finalizers:
        return None
    others = [name for name in finalizers if name != FINALIZER]
    return {"metadata": {"finalizers": others, "resourceVersion": meta["resourceVersion"]}}


def read(raw: Object, date: bytes, *, token: int | None = None, adopted: bool = False) -> LockObject | None:
    """What an object says of a lock, `date` being the server's clock when it said so; None: it says nothing."""
    meta = raw.get("metadata") or {}
    notes: Mapping[str, str] = meta.get("annotations") or {}
    if not {OWNER, TARGET, HOLD} <= notes.keys():
        return None
    ttl = _seconds(meta.get("name", ""), notes.get(TTL))
    # Renewed by nobody: its time counts from its creation, by the server's clock alone.
    old = age(raw, date)
    left = None if ttl is None else TRUST * ttl - old - TICK
    return LockObject(
        name=meta["name"],
        target=notes[TARGET],
        owner=notes[OWNER],
        uid=meta.get("uid", ""),
        token=token,
        age=old,
        ttl=ttl,
        expires_in=left,
        adopted=adopted,
        is_going=meta.get("deletionTimestamp") is not None,
        manifest=raw,
        hold=notes[HOLD],
    )


def has_ended(found: LockObject, date: bytes, skew: float) -> bool:
    """Whether the last resort counts: it is older than its ttl by the server's own clock."""
    return found.ttl is not None and age(found.manifest, date) >= found.ttl + TICK + skew


def age(raw: Object, date: bytes) -> float:
    """How old it is, by the clock of the server that made it and of the one that answered: whole seconds."""
    try:
        now = parsedate_to_datetime(date.decode())
        born = datetime.fromisoformat(raw["metadata"]["creationTimestamp"])
    except (KeyError, TypeError, ValueError):
        # No clock, no end.
        return 0.0
    return (now.astimezone(UTC) - born).total_seconds()


def revision(raw: Object) -> int:
    """The resourceVersion as the number it must be."""
    return number(raw["metadata"].get("resourceVersion"))


def _seconds(name: str, text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError as error:
        raise StoreDamaged(
            f"the annotation {TTL} of {shown(name)} is no number ({shown(text)}); correct it, or delete the object"
        ) from error
