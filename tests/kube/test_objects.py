"""The few verbs on objects: each says what it expects, and answers when that is not so."""

from __future__ import annotations

from tests.kube.conftest import Clients
from tests.kube.support import WIDGET, Place


def test_a_write_that_expects_something_else_changes_nothing(clients: Clients) -> None:
    place = Place(WIDGET)
    widgets = clients.objects(place)
    made = widgets.create({"metadata": {"name": "one"}, "spec": {"size": 1}})
    assert widgets.create({"metadata": {"name": "one"}, "spec": {"size": 2}}) is None
    seen = {"metadata": {"resourceVersion": made["metadata"]["resourceVersion"]}}
    changed = widgets.patch("one", seen | {"spec": {"size": 3}})
    assert changed["spec"] == {"size": 3}
    assert widgets.patch("one", seen | {"spec": {"size": 4}}) is None
    assert not widgets.delete(made)
    assert widgets.get("one") == changed
    assert widgets.delete(changed)
    assert widgets.get("one") is None
    assert widgets.patch("one", {"spec": {"size": 5}}) is None
    assert not widgets.delete(changed)
    assert place.names() == []


def test_status_is_kept_apart(clients: Clients) -> None:
    widgets = clients.objects(Place(WIDGET))
    made = widgets.create({"metadata": {"name": "one"}, "spec": {"size": 1}, "status": {"phase": "Done"}})
    assert "status" not in made
    changed = widgets.patch("one", {"status": {"phase": "Done"}, "spec": {"size": 9}}, status=True)
    assert (changed["status"], changed["spec"]) == ({"phase": "Done"}, {"size": 1})


def test_a_list_is_by_labels_and_may_be_longer_than_a_page(clients: Clients, monkeypatch) -> None:
    monkeypatch.setattr("leasehold.kube.objects.PAGE", 3)
    place = Place(WIDGET)
    widgets = clients.objects(place)
    for number in range(7):
        widgets.create({"metadata": {"name": f"w-{number}", "labels": {"odd": str(number % 2)}}})
    assert len(widgets.list()) == 7
    assert place.asked().count(("list", "widgets")) == 3
    assert [one["metadata"]["name"] for one in widgets.list({"odd": "1"})] == ["w-1", "w-3", "w-5"]


def test_it_says_what_and_where_it_is(clients: Clients) -> None:
    place = Place(WIDGET)
    widgets = clients.objects(place).real
    assert (widgets.kind, widgets.namespace) == (WIDGET, place.name)
