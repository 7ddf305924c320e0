"""Fenced objects of Kubernetes: the laws in both colours, and others who change the same object."""

from __future__ import annotations

import functools
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest

import leasehold
from leasehold import fence, kube
from leasehold.fence import aio, kubernetes
from leasehold.fence.kubernetes import MARK, KubernetesResource
from leasehold.kube import aio as kube_aio
from leasehold.testing.fences import FenceLaws
from tests.fence.support import Driven, Face, LoopThread
from tests.kube.support import WIDGET, Place

CONFIG = kube.Kind("v1", "ConfigMap", "configmaps")


Make = Callable[..., Any]


@functools.cache
def place_of(kind: kube.Kind) -> Place:
    """One namespace for all objects of a kind: making one takes longer than most tests here."""
    return Place(kind)


class Objects:
    """One new object, and clients of one colour, closed at the end."""

    def __init__(self, colour: str, kind: kube.Kind = CONFIG) -> None:
        self.place = place_of(kind)
        self.name = f"total-{secrets.token_hex(4)}"
        self.awaited = colour == "asyncio"
        self._loop = LoopThread() if self.awaited else None
        self._clients: list[Any] = []
        manifest = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": self.name}}
        self.place.server.request("POST", self.place.path, manifest)

    def connect(self) -> Any:
        if self._loop is None:
            self._clients.append(kube.connect(self.place.url, self.place.kind))
        else:
            self._clients.append(self._loop.run(kube_aio.connect(self.place.url, self.place.kind)))
        return self._clients[-1]

    def fenced(self, name: str | None = None) -> Any:
        kind: Any = aio.KubernetesObject if self.awaited else fence.KubernetesObject
        made = kind(self.connect(), name or self.name)
        return made if self._loop is None else Face(made, self._loop)

    def resource(self) -> Any:
        """The core below both facades."""
        core = KubernetesResource(self.connect()._store, self.name)
        return Driven(core) if self._loop is None else Face(core, self._loop)

    def get(self) -> dict[str, Any]:
        return self.place.get(self.name)

    def patch(self, changes: dict[str, Any]) -> None:
        self.place.patch(self.name, changes)

    def mark(self) -> str | None:
        found: str | None = self.get()["metadata"].get("annotations", {}).get(MARK)
        return found

    def close(self) -> None:
        for client in self._clients:
            if self._loop is None:
                client.close()
            else:
                self._loop.run(client.close())
        if self._loop is not None:
            self._loop.close()


@pytest.fixture(params=["blocking", "asyncio"])
def objects(request: pytest.FixtureRequest) -> Iterator[Objects]:
    made = Objects(request.param)
    yield made
    made.close()


@pytest.fixture
def make() -> Iterator[Callable[..., Objects]]:
    """For a test that needs another kind, or one colour only."""
    with ExitStack() as stack:
        yield lambda *given: stack.enter_context(closing(Objects(*given)))


class TestKubernetes(FenceLaws):
    """The laws, of a number in a ConfigMap."""

    def value(self, number: int) -> Any:
        return {"data": {"total": str(number)}}

    def number(self, value: Any) -> int:
        return int(value["data"]["total"])

    @pytest.fixture
    def reach(self, objects: Objects) -> Callable[[], Any]:
        return objects.resource


def test_what_others_change_meanwhile_is_not_lost_and_holds_nobody_up(objects: Objects, monkeypatch: Any) -> None:
    """Somebody changes the object between look and patch, three times while we open it and three while we write."""
    others: list[str] = []
    patch = kubernetes.KubernetesResource._patch

    async def disturbed(self: Any, *given: Any, **options: Any) -> Any:
        if others:
            objects.patch({"data": {others.pop(): "kept"}})
        return await patch(self, *given, **options)

    monkeypatch.setattr(kubernetes.KubernetesResource, "_patch", disturbed)
    others += ["a", "b", "c"]
    opened = objects.fenced().open(5)
    assert others == []
    others += ["d", "e", "f"]
    opened.write({"data": {"total": "1"}, "metadata": {"labels": {"ours": "yes"}}})
    assert others == []
    found = opened.read()
    assert found["data"] == {"total": "1"} | dict.fromkeys("abcdef", "kept")
    assert found["metadata"]["labels"] == {"ours": "yes"}
    assert objects.mark() == "5"


def test_whoever_is_overtaken_between_look_and_patch_is_refused(objects: Objects, monkeypatch: Any) -> None:
    opened = objects.fenced().open(5)
    patch = kubernetes.KubernetesResource._patch

    async def overtaken(self: Any, *given: Any, **options: Any) -> Any:
        objects.patch({"metadata": {"annotations": {MARK: "6"}}})
        return await patch(self, *given, **options)

    monkeypatch.setattr(kubernetes.KubernetesResource, "_patch", overtaken)
    with pytest.raises(leasehold.StaleToken) as refusal:
        opened.write({"data": {"total": "1"}})
    assert (refusal.value.token, refusal.value.mark) == (5, 6)
    assert "data" not in objects.get()


def test_an_object_that_never_stands_still_is_given_up(objects: Objects, monkeypatch: Any) -> None:
    opened = objects.fenced().open(5)
    patch = kubernetes.KubernetesResource._patch

    async def disturbed(self: Any, *given: Any, **options: Any) -> Any:
        objects.patch({"data": {"other": next(numbers)}})
        return await patch(self, *given, **options)

    numbers = map(str, range(100))
    monkeypatch.setattr(kubernetes, "ATTEMPTS", 3)
    monkeypatch.setattr(kubernetes.KubernetesResource, "_patch", disturbed)
    with pytest.raises(leasehold.TooContended, match="all 3 attempts"):
        opened.write({"data": {"total": "1"}})
    assert next(numbers) == "3"
    assert "total" not in objects.get()["data"]


def test_a_write_after_opening_is_a_look_and_a_patch(objects: Objects) -> None:
    opened = objects.fenced().open(5)
    before = len(objects.place.asked())
    opened.write({"data": {"total": "1"}})
    assert objects.place.asked()[before:] == [("get", "configmaps"), ("patch", "configmaps")]


@pytest.mark.parametrize("colour", ["blocking", "asyncio"])
def test_a_status_changes_only_under_the_mark(make: Make, colour: str) -> None:
    objects = make(colour, WIDGET)
    opened = objects.fenced().open(5)
    opened.write({"spec": {"size": 1}})
    opened.write({"status": {"phase": "Running"}}, status=True)
    found = objects.get()
    assert (found["spec"], found["status"]) == ({"size": 1}, {"phase": "Running"})
    objects.fenced().open(6)
    with pytest.raises(leasehold.StaleToken):
        opened.write({"status": {"phase": "Done"}}, status=True)
    assert objects.get()["status"] == {"phase": "Running"}


def test_a_status_written_without_opening_raises_the_mark_first(make: Make) -> None:
    objects = make("blocking", WIDGET)
    resource = objects.resource()
    resource.write(7, {"status": {"phase": "Done"}}, status=True)
    assert objects.mark() == "7"
    assert objects.get()["status"] == {"phase": "Done"}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ([], "a mapping, not list"),
        (None, "a mapping, not NoneType"),
        ({"metadata": None}, "must not remove"),
        ({"metadata": {"annotations": None}}, "must not remove"),
        ({"metadata": {"annotations": {MARK: "1"}}}, "leave the mark"),
        ({"metadata": {"annotations": {MARK: None}}}, "leave the mark"),
        ({"metadata": {"resourceVersion": "1"}}, "not the whole object"),
    ],
    ids=str,
)
def test_a_patch_that_would_undo_the_mark_is_refused(objects: Objects, changes: Any, why: str) -> None:
    opened = objects.fenced().open(5)
    with pytest.raises(leasehold.InvalidInput, match=why):
        opened.write(changes)
    assert objects.mark() == "5"


def test_annotations_of_others_stay(objects: Objects) -> None:
    objects.patch({"metadata": {"annotations": {"theirs": "1"}}})
    objects.fenced().open(5).write({"metadata": {"annotations": {"ours": "2"}}})
    assert objects.get()["metadata"]["annotations"] == {"theirs": "1", "ours": "2", MARK: "5"}


def test_an_object_must_exist(objects: Objects) -> None:
    with pytest.raises(leasehold.NoSuchResource, match=r"configmaps/none.*create it first"):
        objects.fenced("none").open(5)


def test_a_mark_that_is_no_token_lets_nobody_in(objects: Objects) -> None:
    objects.patch({"metadata": {"annotations": {MARK: "1e9"}}})
    with pytest.raises(leasehold.StoreDamaged, match=MARK):
        objects.fenced().open(5)


def test_what_was_loaded_is_replaced_if_it_is_still_of_that_revision(objects: Objects) -> None:
    one = objects.resource()
    found, version = one.load()
    assert found["metadata"]["name"] == objects.name
    assert one.replace({"data": {"total": "1"}}, version)
    assert not one.replace({"data": {"total": "2"}}, version)
    assert objects.get()["data"] == {"total": "1"}


def test_objects_of_the_other_colour_or_none_at_all_are_refused(objects: Objects) -> None:
    other: Any = fence.KubernetesObject if objects.awaited else aio.KubernetesObject
    for given in (objects.connect(), None, "configmaps"):
        with pytest.raises(leasehold.InvalidInput, match=r"leasehold\.kube.*connect"):
            other(given, "total")
