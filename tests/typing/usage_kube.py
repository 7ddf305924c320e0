"""Every public name of `leasehold.kube`, in both colours. Read by the type checker, never run."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, assert_type

from leasehold import kube
from leasehold.kube import aio
from leasehold.kube.kopf import serialized

JOB = kube.Kind("batch/v1", "Job", "jobs")


def blocking() -> None:
    with kube.connect("kubernetes://here", JOB, timeout=5) as objects:
        assert_type(objects, kube.Objects)
        assert_type(objects.kind, kube.Kind)
        assert_type(objects.namespace, str)
        assert_type(objects.get("a"), dict[str, Any] | None)
        assert_type(objects.list({"a": "b"}), list[dict[str, Any]])
        assert_type(objects.create({"metadata": {"name": "a"}}), dict[str, Any] | None)
        assert_type(objects.patch("a", {"spec": {}}, status=True), dict[str, Any] | None)
        assert_type(objects.delete({}), bool)
        locks = kube.ObjectLocks(objects, prefix="wfe-", finalizer=True)
        held = locks.create("target", owner="me", manifest={"spec": {}}, ttl=60)
        assert_type(held, kube.LockObject)
        assert_type(held.token, int | None)
        assert_type(held.expires_in, float | None)
        assert_type(locks.name("target"), str)
        assert_type(locks.find("target"), kube.LockObject | None)
        assert_type(locks.check(held), kube.LockObject)
        assert_type(locks.release(held), bool)
        assert_type(locks.owned_by("me"), list[kube.LockObject])
        assert_type(locks.list(), list[kube.LockObject])
        assert_type(locks.collect(10), int)


async def awaited() -> None:
    async with await aio.connect("kubernetes://here", JOB) as objects:
        assert_type(objects, aio.Objects)
        assert_type(await objects.get("a"), dict[str, Any] | None)
        locks = aio.ObjectLocks(objects, prefix="wfe-")
        held = await locks.create("target", owner="me", manifest={}, ttl=None)
        assert_type(held, kube.LockObject)
        assert_type(await locks.check(held), kube.LockObject)
        assert_type(await locks.release(held), bool)


@serialized(key=lambda spec, **_: str(spec["target"]), ttl=30, wait=0, locks="locks")
async def handler(name: str) -> int:
    return len(name)


@serialized()
def plain(name: str) -> int:
    return len(name)


kept: Callable[[str], Coroutine[Any, Any, int]] = handler
same: Callable[[str], int] = plain
