"""A fenced object of Kubernetes: the mark is an annotation, and every change names the resourceVersion it is made of.

Whoever else changes the object (its controller, a person) loses nothing and is not held up: a patch touches what it
names, and one that meets another revision is made anew of that, unless it shows a larger mark. The status of an object
is changed by a request of its own, which may change no annotation: there the mark is raised first, and the status
changes only in the very revision that has it.

Rights: `get` and `patch`, and `patch` of the status to write that. Whoever may patch the object can lower its mark.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from leasehold.errors import InvalidInput, NoSuchResource, StoreDamaged, TooContended
from leasehold.rules.backoff import Backoff
from leasehold.rules.fencing import admit, checked_token, read_token
from leasehold.rules.names import check_text
from leasehold.wires.chance import chance

if TYPE_CHECKING:
    from leasehold.kube.objects import ObjectStore

MARK = "leasehold/mark"
ATTEMPTS = 20
AGAIN = Backoff(base=0.02, cap=0.5, jitter=0.5)

Object = dict[str, Any]


class KubernetesResource:
    """What `KubernetesObject` means."""

    def __init__(self, objects: ObjectStore, name: str) -> None:
        self._objects = objects
        self._object = check_text("name", name, 253)

    @property
    def name(self) -> str:
        return f"{self._objects.kind.plural}/{self._object}"

    async def open(self, token: int) -> None:
        checked_token(token)
        for attempt in range(ATTEMPTS):
            if await self._marked(token) is not None:
                return
            await self._pause(attempt)
        raise TooContended(self.name, ATTEMPTS)

    async def read(self, token: int) -> Object:
        checked_token(token)
        return (await self._found(token))[0]

    async def write(self, token: int, value: Mapping[str, object], *, status: bool = False) -> None:
        checked_token(token)
        changes = checked_patch(value)
        for attempt in range(ATTEMPTS):
            if await (self._with_status(token, changes) if status else self._with_mark(token, changes)):
                return
            await self._pause(attempt)
        raise TooContended(self.name, ATTEMPTS)

    async def load(self) -> tuple[Object, object]:
        found = await self._there()
        return found, found["metadata"]["resourceVersion"]

    async def replace(self, value: Mapping[str, object], version: object) -> bool:
        """Patch it, if it is still of that revision."""
        return await self._patch(checked_patch(value), version) is not None

    async def _with_mark(self, token: int, changes: Object) -> bool:
        found, _ = await self._found(token)
        return await self._patch(changes, found["metadata"]["resourceVersion"], token) is not None

    async def _with_status(self, token: int, changes: Object) -> bool:
        marked = await self._marked(token)
        if marked is None:
            return False
        return await self._patch(changes, marked["metadata"]["resourceVersion"], status=True) is not None

    async def _marked(self, token: int) -> Object | None:
        """The object with our mark; None if it changed meanwhile."""
        found, mark = await self._found(token)
        if mark == token:
            return found
        return await self._patch({}, found["metadata"]["resourceVersion"], token)

    async def _found(self, token: int) -> tuple[Object, int]:
        """The object and its mark, which lets this token in."""
        found = await self._there()
        mark = self._mark(found)
        admit(self.name, mark, token)
        return found, mark

    async def _there(self) -> Object:
        found = await self._objects.get(self._object)
        if found is None:
            raise NoSuchResource(self.name, "create it first")
        return found

    async def _patch(
        self, changes: Object, version: object, token: int | None = None, *, status: bool = False
    ) -> Object | None:
        meta = {**changes.get("metadata", {}), "resourceVersion": version}
        if token is not None:
            meta["annotations"] = {**meta.get("annotations", {}), MARK: str(token)}
        return await self._objects.patch(self._object, {**changes, "metadata": meta}, status)

    async def _pause(self, attempt: int) -> None:
        await self._objects.colour.sleep(AGAIN.delay(attempt, chance()))

    def _mark(self, found: Object) -> int:
        text = (found["metadata"].get("annotations") or {}).get(MARK)
        if text is None:
            return 0
        try:
            return read_token(text)
        except InvalidInput as error:
            told = f"the annotation {MARK} of {self.name} holds no token; set it to the largest one granted"
            raise StoreDamaged(told) from error


def checked_patch(given: object) -> Object:
    """A merge patch that leaves to the fence what is the fence's."""
    if not isinstance(given, Mapping):
        raise InvalidInput("value", given, f"must be a JSON merge patch: a mapping, not {type(given).__name__}")
    changes = dict(given)
    meta = changes.get("metadata", {})
    if not isinstance(meta, Mapping) or not isinstance(meta.get("annotations", {}), Mapping):
        raise InvalidInput("value", meta, "must not remove all metadata or annotations: the mark is one of them")
    if "resourceVersion" in meta:
        raise InvalidInput("value", "metadata.resourceVersion", "must be a patch: what changes, not the whole object")
    if MARK in meta.get("annotations", {}):
        raise InvalidInput("value", MARK, "must leave the mark to the fence")
    return changes
