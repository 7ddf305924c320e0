"""The ordinary role is enough, and no wider than it need be: told by the API server's own log of requests."""

from __future__ import annotations

import asyncio
from pathlib import Path

import leasehold
from leasehold import aio
from leasehold.rules.kubernetes_roles import ORDINARY, RESOURCE
from leasehold.testing.conformance import kube_worlds

TTL = 2


def use_everything(url: str) -> None:
    """What a program can do: lock, wait, renew, look, break, tidy up, elect."""
    with leasehold.connect(url) as one, leasehold.connect(url) as other:
        lease = one.acquire("invoice", ttl=TTL)
        assert lease.renew()
        assert other.try_acquire("invoice") is None
        assert [info.scope for info in other.list()] == ["invoice"]
        other.break_lease("invoice", reason="stuck")
        assert other.acquire("invoice", ttl=TTL, wait=20).release()
        other.gc()
        election = leasehold.Election(one, "scheduler", ttl=TTL)
        assert election.campaign().renew()
        election.resign()


async def use_everything_later(url: str) -> None:
    async with await aio.connect(url) as one, await aio.connect(url) as other:
        lease = await one.acquire("invoice", ttl=TTL)
        waiting = asyncio.ensure_future(other.acquire("invoice", ttl=TTL, wait=20))
        assert await lease.renew()
        await lease.release()
        assert await (await waiting).release()
        assert await other.list() == []
        await aio.Election(one, "scheduler", ttl=TTL).campaign()


def test_every_verb_of_the_ordinary_role_is_used_and_no_other_is(tmp_path: Path) -> None:
    """In a run of all tests this looks back on the whole suite, which reaches the server as the same user."""
    kube = kube_worlds.kube()
    namespace = kube_worlds.namespace(kube, verbs=ORDINARY)
    url = f"kubernetes://{namespace}?kubeconfig={kube.kubeconfig(kube_worlds.USER, namespace, tmp_path / 'kubeconfig')}"
    use_everything(url)
    asyncio.run(use_everything_later(url))
    mine = [event for event in kube.audit() if event["user"].get("username") == kube_worlds.USER]
    asked = {(event["verb"], event["objectRef"]["resource"]) for event in mine if "objectRef" in event}
    # The doctor's question what it may do is open to everybody.
    assert asked - {("create", "selfsubjectaccessreviews")} == {(verb, RESOURCE) for verb in ORDINARY}
    other_paths = {event["requestURI"].partition("?")[0] for event in mine if "objectRef" not in event}
    assert other_paths <= {"/version"}
