"""Objects of Kubernetes and locks made of them, blocking. `aio.py` has the same names, awaited.

    JOB = kube.Kind("batch/v1", "Job", "jobs")

    with kube.connect("kubernetes://executions", JOB) as jobs:
        locks = kube.ObjectLocks(jobs, prefix="wfe-")
        run = locks.create("production/deployment/payment-api", owner="wfe-1", manifest={"spec": {...}}, ttl=3600)

A facade decides nothing: it drives the coroutines of `objects.py` and `locks.py`.
"""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from leasehold.engine.blocking import BlockingRuntime
from leasehold.errors import InvalidInput
from leasehold.kube.locks import Keeper
from leasehold.kube.objects import ObjectStore
from leasehold.rules.kubernetes_kinds import Kind
from leasehold.rules.kubernetes_objects import LockObject
from leasehold.wires.clock import system_clock
from leasehold.wires.colour import drive


def connect(url: str, kind: Kind, *, timeout: float = 5.0) -> Objects:
    """The objects of one kind in the namespace that a `kubernetes://` URL names.

    The server is reached, and need not know the kind yet. `timeout` bounds each step of a request.
    """
    store = ObjectStore(url, kind, timeout, BlockingRuntime(system_clock()))
    drive(store.open())
    return Objects(store)


class Objects:
    """The objects of one kind in one namespace. Made by `connect`; threads may share it.

    No general client: nothing is retried or cached. None and False mean that the server
    has something else than the caller expected; a missing kind, right or namespace is an error.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    @property
    def kind(self) -> Kind:
        """What they are."""
        return self._store.kind

    @property
    def namespace(self) -> str:
        """Where they are."""
        return self._store.namespace

    def get(self, name: str) -> dict[str, Any] | None:
        """The object of that name."""
        return drive(self._store.get(name))

    def list(self, labels: Mapping[str, str] | None = None) -> builtins.list[dict[str, Any]]:
        """All of them, or those with these labels, as they were at one moment after the call."""
        return drive(self._store.list(labels))

    def create(self, manifest: Mapping[str, object]) -> dict[str, Any] | None:
        """The object as it was made; None if there is one of that name."""
        return drive(self._store.create(manifest))

    def patch(self, name: str, changes: Mapping[str, object], *, status: bool = False) -> dict[str, Any] | None:
        """The object after a JSON merge patch; None if it is gone, or not of the resourceVersion in `changes`.

        `status` changes the status, where the kind keeps it apart.
        """
        return drive(self._store.patch(name, changes, status))

    def delete(self, manifest: dict[str, Any]) -> bool:
        """Delete this very revision of this very object: False if it is gone, or has changed."""
        return drive(self._store.delete(manifest))

    def close(self) -> None:
        """Close the connections."""
        drive(self._store.close())

    def __enter__(self) -> Self:
        """Nothing: it is open already."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()


class ObjectLocks:
    """Objects that are locks: as long as one exists, its target is taken.

    At most one object per target exists, because its name follows from the target. That is
    all that is promised: an object deleted by others frees its target at once (give a
    `finalizer` to be in the way of that), and work that its owner started may go on. Nothing renews
    it; with a `ttl` whoever wants the target removes it after that time, by the API server's clock.
    Use a namespace that nothing else writes to.
    """

    def __init__(self, objects: Objects, *, prefix: str, finalizer: bool = False) -> None:
        if not isinstance(objects, Objects):
            raise InvalidInput("objects", objects, "must be what leasehold.kube.connect() returns")
        self._keeper = Keeper(objects._store, prefix, finalizer)  # noqa: SLF001  one library, two rooms

    def name(self, target: str) -> str:
        """What the object of a target is called: the prefix and 16 digits of the target's SHA-256."""
        return self._keeper.name(target)

    def create(
        self, target: str, *, owner: str, manifest: Mapping[str, object], ttl: float | None = None
    ) -> LockObject:
        """Take the target by creating its object, or raise ResourceBusy, which says who has it.

        `owner` is who may come back for it: a unit of work (the name of a custom resource),
        never a replica. If the object is its own already, it is adopted, as it is, with a larger token.
        `manifest` is the object without its name; `ttl` the last resort, in seconds.
        """
        return drive(self._keeper.create(target, owner, manifest, ttl))

    def find(self, target: str) -> LockObject | None:
        """The lock on a target, whoever has it."""
        return drive(self._keeper.find(target))

    def check(self, held: LockObject) -> LockObject:
        """The lock as it is now, or LeaseLost: deleted, adopted by a later run of its owner, or past 0.9 ttl."""
        return drive(self._keeper.check(held))

    def release(self, held: LockObject) -> bool:
        """Delete this very hold: False if it is gone already, or another's."""
        return drive(self._keeper.release(held))

    def owned_by(self, owner: str) -> builtins.list[LockObject]:
        """What an owner holds, by its label."""
        return drive(self._keeper.owned_by(owner))

    def list(self) -> builtins.list[LockObject]:
        """All locks of this prefix."""
        return drive(self._keeper.list())

    def collect(self, limit: int = 1000) -> int:
        """Remove locks that are past their ttl, and say how many."""
        return drive(self._keeper.collect(limit))
