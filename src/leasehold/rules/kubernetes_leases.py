"""What a Lease object says, and what we write into one. Pure: objects in, values out.

`spec` is filled as Kubernetes' own clients fill it, for people and for elections
with client-go. What a record needs beyond that stands in annotations, and counts
only while `spec.renewTime` is the one that was written with it: another client
that takes a Lease over leaves our annotations where they are.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from leasehold.errors import StoreDamaged, shown
from leasehold.model import Key
from leasehold.rules.kubernetes_names import label, root_of

API_VERSION = "coordination.k8s.io/v1"
MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGER = "leasehold"
FAMILY_LABEL = "leasehold/family"
ROOT_LABEL = "leasehold/root"
FAMILY = "leasehold/family"
MEMBER = "leasehold/member"
VALUE = "leasehold/value"
TTL = "leasehold/ttl"
LEFT = "leasehold/left"
BORN = "leasehold/born"
RENEWED = "leasehold/renewed"
OURS = (FAMILY, MEMBER, VALUE, TTL, LEFT, BORN, RENEWED)
LASTING = "none"
ENCODED = "base64:"
TIME = "%Y-%m-%dT%H:%M:%S.%fZ"
# What others wrote: a holder without a duration is given ours, and nobody holds for longer than a day.
DURATION = 30.0
DURATION_MAX = 86_400.0
HOLDER_MAX = 256

Object = dict[str, Any]


class Seen(msgspec.Struct, frozen=True):
    """A Lease as it was read. `key` None: Leasehold did not write what it says now.

    `ttl` None: it does not end by itself. `lasts` is how long this state of it counts
    from when it is first seen; `renewed` is the writer's wall clock.
    """

    name: str
    uid: str
    revision: int
    born: int
    key: Key | None
    value: bytes
    holder: str
    ttl: float | None
    lasts: float | None
    renewed: float | None
    is_going: bool
    transitions: int
    raw: Object


def read(raw: Object) -> Seen:
    """What an object of the API server says, or StoreDamaged where it cannot be trusted to say anything."""
    meta, spec = raw.get("metadata") or {}, raw.get("spec") or {}
    notes: Mapping[str, str] = meta.get("annotations") or {}
    name, revision = meta.get("name", ""), number(meta.get("resourceVersion"))
    is_ours = {FAMILY, MEMBER, VALUE, TTL} <= notes.keys() and notes.get(RENEWED) == spec.get("renewTime")
    try:
        ours = _ours(notes, revision) if is_ours else None
    except (ValueError, binascii.Error) as error:
        raise StoreDamaged(
            f"the annotations of Lease {shown(name)} are not what Leasehold wrote; remove the Lease"
        ) from error
    holder = spec.get("holderIdentity") or ""
    key, value, ttl, lasts, born = ours or _foreign(name, holder, spec, revision)
    return Seen(
        name=name,
        uid=meta.get("uid", ""),
        revision=revision,
        born=born,
        key=key,
        value=value,
        holder=holder,
        ttl=ttl,
        lasts=lasts,
        renewed=read_time(spec.get("renewTime")),
        is_going=meta.get("deletionTimestamp") is not None,
        transitions=spec.get("leaseTransitions") or 0,
        raw=raw,
    )


def number(text: object) -> int:
    """A resourceVersion as the number it must be: tokens are made of it."""
    if not (isinstance(text, str) and text.isascii() and text.isdecimal()):
        raise StoreDamaged(
            f"the API server's resourceVersion {shown(text)} is no decimal number, so no token can be made of it; "
            "use a server whose resourceVersions are (every one that keeps its objects in etcd)"
        )
    return int(text)


def _ours(notes: Mapping[str, str], revision: int) -> tuple[Key, bytes, float | None, float | None, int]:
    ttl = None if notes[TTL] == LASTING else float(notes[TTL])
    lasts = float(notes[LEFT]) if LEFT in notes else ttl
    born = int(notes[BORN]) if BORN in notes else revision
    return Key(notes[FAMILY], notes[MEMBER]), _decoded(notes[VALUE]), ttl, lasts, born


def _foreign(
    name: str, holder: str, spec: Mapping[str, Any], revision: int
) -> tuple[None, bytes, float | None, float | None, int]:
    """As a hold without a secret: whoever is turned away by it can read whose it is."""
    given = spec.get("leaseDurationSeconds") or 0
    ttl = min(float(given), DURATION_MAX) if given > 0 else DURATION
    since = read_time(spec.get("acquireTime")) or 0.0
    value = msgspec.json.encode({"scope": name, "holder": holder or "nobody", "secret": "", "since": since})
    return None, value, ttl, ttl, revision


# Writing.


def object_of(name: str, patch: Object) -> Object:
    """A new Lease."""
    return merged({"apiVersion": API_VERSION, "kind": "Lease", "metadata": {"name": name}}, patch)


def grant(key: Key, value: bytes, ttl: float | None, now: str, transitions: int) -> Object:
    """What a new holder writes, over whatever stood there."""
    notes = {FAMILY: key.family, MEMBER: key.member, BORN: None}
    labels = {MANAGED_BY: MANAGER, FAMILY_LABEL: label(key.family), ROOT_LABEL: label(root_of(key.family))}
    changes = rewrite(value, ttl, ttl, now)
    changes["metadata"]["annotations"] |= notes
    changes["metadata"]["labels"] = labels
    changes["spec"] |= {"acquireTime": now, "leaseTransitions": transitions}
    return changes


def rewrite(value: bytes, ttl: float | None, lasts: float | None, now: str, before: bytes | None = None) -> Object:
    """What the owner writes over its own, or over what was `before` and left for it."""
    changes = renewal(ttl, lasts, now)
    changes["metadata"]["annotations"][VALUE] = _encoded(value)
    changes["spec"]["holderIdentity"] = _holder(value)
    if before is not None and _holder(before) != _holder(value):
        changes["spec"]["acquireTime"] = now
    return changes


def renewal(ttl: float | None, lasts: float | None, now: str) -> Object:
    """What a renewal changes. `lasts` differs from `ttl` where the end stays where it was."""
    left = None if lasts == ttl or lasts is None else repr(lasts)
    notes = {TTL: LASTING if ttl is None else repr(ttl), LEFT: left, RENEWED: now}
    seconds = None if lasts is None else max(math.ceil(lasts), 1)
    return {"metadata": {"annotations": notes}, "spec": {"renewTime": now, "leaseDurationSeconds": seconds}}


def release(now: str) -> Object:
    """What client-go writes when it steps down: nobody holds it, and whoever waits need not wait long."""
    return {
        "metadata": {"annotations": dict.fromkeys(OURS)},
        "spec": {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": now, "acquireTime": now},
    }


def merged(raw: Object, patch: Object) -> Object:
    """An object with a JSON merge patch applied, as the server would apply it."""
    result = dict(raw)
    for name, change in patch.items():
        if isinstance(change, dict):
            below = result.get(name)
            result[name] = merged(below if isinstance(below, dict) else {}, change)
        elif change is None:
            result.pop(name, None)
        else:
            result[name] = change
    return result


def write_time(seconds: float) -> str:
    """Always with six digits: the server refuses a MicroTime without them."""
    return datetime.fromtimestamp(seconds, UTC).strftime(TIME)


def read_time(text: object) -> float | None:
    """Seconds since 1970, or None where there is no such time."""
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except (ValueError, OverflowError):
        return None


class _Holder(msgspec.Struct):
    holder: str


def _holder(value: bytes) -> str:
    """Who holds it, as the value says; the server takes no empty holder."""
    try:
        said = msgspec.json.decode(value, type=_Holder).holder
    except msgspec.MsgspecError:
        said = ""
    return said[:HOLDER_MAX] or MANAGER


def _encoded(value: bytes) -> str:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = ENCODED
    if text.startswith(ENCODED) or "\0" in text:
        return ENCODED + base64.b64encode(value).decode()
    return text


def _decoded(text: str) -> bytes:
    if text.startswith(ENCODED):
        return base64.b64decode(text[len(ENCODED) :], validate=True)
    return text.encode()
