"""Objects of Kubernetes and locks made of them, awaited: the names of `blocking.py`."""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from leasehold.client_aio import like
from leasehold.engine.looped import LoopedRuntime
from leasehold.errors import InvalidInput
from leasehold.kube import blocking
from leasehold.kube.locks import Keeper
from leasehold.kube.objects import ObjectStore
from leasehold.rules.kubernetes_kinds import Kind
from leasehold.rules.kubernetes_objects import LockObject
from leasehold.wires.clock import system_clock

__all__ = ["ObjectLocks", "Objects", "connect"]


@like(blocking.connect)
async def connect(
    url: str,
    kind: Kind,
    *,
    timeout: float = 5.0,  # noqa: ASYNC109  bounds each request, not this call
) -> Objects:
    runtime = LoopedRuntime(system_clock())
    store = ObjectStore(url, kind, timeout, runtime)
    await store.open()
    return Objects(store, runtime)


@like(blocking.Objects)
class Objects:
    def __init__(self, store: ObjectStore, runtime: LoopedRuntime) -> None:
        self._store = store
        self._runtime = runtime

    @property
    @like(blocking.Objects.kind)
    def kind(self) -> Kind:
        return self._store.kind

    @property
    @like(blocking.Objects.namespace)
    def namespace(self) -> str:
        return self._store.namespace

    @like(blocking.Objects.get)
    async def get(self, name: str) -> dict[str, Any] | None:
        return await self._here().get(name)

    @like(blocking.Objects.list)
    async def list(self, labels: Mapping[str, str] | None = None) -> builtins.list[dict[str, Any]]:
        return await self._here().list(labels)

    @like(blocking.Objects.create)
    async def create(self, manifest: Mapping[str, object]) -> dict[str, Any] | None:
        return await self._here().create(manifest)

    @like(blocking.Objects.patch)
    async def patch(self, name: str, changes: Mapping[str, object], *, status: bool = False) -> dict[str, Any] | None:
        return await self._here().patch(name, changes, status)

    @like(blocking.Objects.delete)
    async def delete(self, manifest: dict[str, Any]) -> bool:
        return await self._here().delete(manifest)

    @like(blocking.Objects.close)
    async def close(self) -> None:
        await self._here().close()
        await self._runtime.close()

    @like(blocking.Objects.__enter__)
    async def __aenter__(self) -> Self:
        return self

    @like(blocking.Objects.__exit__)
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _here(self) -> ObjectStore:
        self._runtime.check_here()
        return self._store


@like(blocking.ObjectLocks)
class ObjectLocks:
    def __init__(self, objects: Objects, *, prefix: str, finalizer: bool = False) -> None:
        if not isinstance(objects, Objects):
            raise InvalidInput("objects", objects, "must be what leasehold.kube.aio.connect() returns, awaited")
        self._keeper = Keeper(objects._store, prefix, finalizer)  # noqa: SLF001  one library, two rooms

    @like(blocking.ObjectLocks.name)
    def name(self, target: str) -> str:
        return self._keeper.name(target)

    @like(blocking.ObjectLocks.create)
    async def create(
        self, target: str, *, owner: str, manifest: Mapping[str, object], ttl: float | None = None
    ) -> LockObject:
        return await self._keeper.create(target, owner, manifest, ttl)

    @like(blocking.ObjectLocks.find)
    async def find(self, target: str) -> LockObject | None:
        return await self._keeper.find(target)

    @like(blocking.ObjectLocks.check)
    async def check(self, held: LockObject) -> LockObject:
        return await self._keeper.check(held)

    @like(blocking.ObjectLocks.release)
    async def release(self, held: LockObject) -> bool:
        return await self._keeper.release(held)

    @like(blocking.ObjectLocks.owned_by)
    async def owned_by(self, owner: str) -> builtins.list[LockObject]:
        return await self._keeper.owned_by(owner)

    @like(blocking.ObjectLocks.list)
    async def list(self) -> builtins.list[LockObject]:
        return await self._keeper.list()

    @like(blocking.ObjectLocks.collect)
    async def collect(self, limit: int = 1000) -> int:
        return await self._keeper.collect(limit)
