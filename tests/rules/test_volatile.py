"""What is declared volatile does not count, wherever it is and whatever it holds; all else does."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leasehold.errors import InvalidInput
from leasehold.rules.canonical import canonical, fingerprint
from leasehold.rules.volatile import ANY, PATHS_MAX, escaped, volatile_paths
from tests.support import count

ORDER = {
    "id": 7,
    "meta": {"trace_id": "4bf9", "shop": "north"},
    "items": [{"sku": "a", "seen_at": 1}, {"sku": "b", "seen_at": 2}],
}
PATHS = ["/meta/trace_id", "/items/*/seen_at"]


def test_volatile_fields_do_not_count() -> None:
    later = {
        "id": 7,
        "meta": {"shop": "north"},
        "items": [{"sku": "a", "seen_at": "noon"}, {"sku": "b", "seen_at": [{"x": None}]}],
    }
    assert fingerprint(ORDER) != fingerprint(later)
    assert fingerprint(ORDER, volatile=PATHS) == fingerprint(later, volatile=PATHS)
    assert canonical(ORDER, volatile=PATHS) == canonical(
        {"id": 7, "meta": {"shop": "north"}, "items": [{"sku": "a"}, {"sku": "b"}]}
    )


@pytest.mark.parametrize(
    "other",
    [
        ORDER | {"id": 8},
        ORDER | {"meta": {"shop": "south"}},
        ORDER | {"trace_id": "4bf9"},
        ORDER | {"seen_at": 1},
        ORDER | {"meta": {"shop": "north", "inner": {"trace_id": 1}}},
        ORDER | {"items": [{"sku": "b", "seen_at": 2}, {"sku": "a", "seen_at": 1}]},
        ORDER | {"items": [{"sku": "a"}]},
        ORDER | {"items": {"sku": "a"}},
    ],
)
def test_everything_else_still_counts(other: Any) -> None:
    assert fingerprint(other, volatile=PATHS) != fingerprint(ORDER, volatile=PATHS)


STEPS = st.sampled_from(["a", "b", "0", "1", "*", "/", "~", "a.b", "", "~2"])
SMALL: st.SearchStrategy[Any] = st.recursive(
    st.sampled_from([None, 1, "x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(STEPS, inner, max_size=4),
    max_leaves=14,
)
DECLARED = st.lists(st.lists(st.just(ANY) | STEPS, min_size=1, max_size=4).map(tuple), max_size=4)


def matched(place: tuple[str, ...], declared: list[tuple[str | None, ...]]) -> bool:
    return any(
        len(path) == len(place) and all(step is ANY or step == here for step, here in zip(path, place, strict=True))
        for path in declared
    )


def without(value: Any, declared: list[tuple[str | None, ...]], place: tuple[str, ...] = ()) -> Any:
    """The same by looking at every place there is, one after another."""
    if isinstance(value, list):
        kept = [(str(index), each) for index, each in enumerate(value) if not matched((*place, str(index)), declared)]
        return [without(each, declared, (*place, step)) for step, each in kept]
    if not isinstance(value, dict):
        return value
    return {
        key: without(each, declared, (*place, key))
        for key, each in value.items()
        if not matched((*place, key), declared)
    }


def written(path: tuple[str | None, ...]) -> str:
    return "".join("/*" if step is ANY else f"/{escaped(step)}" for step in path)


@settings(max_examples=count(5_000), deadline=None)
@given(SMALL, DECLARED)
def test_a_field_is_left_out_if_and_only_if_a_path_leads_to_it(value: Any, declared) -> None:
    paths = [written(path) for path in declared]
    assert canonical([value, 0], volatile=[f"/0{path}" for path in paths]) == canonical([without(value, declared), 0])


@given(st.text(max_size=8).filter(lambda key: "\0" not in key))
def test_any_key_can_be_written_as_a_step(key: str) -> None:
    path = f"/{escaped(key)}"
    assert volatile_paths([path]) == ((key,),)
    assert canonical({key: 1, key + "x": 2}, volatile=[path]) == canonical({key + "x": 2})


def test_an_asterisk_that_is_a_key_leaves_out_that_key_alone() -> None:
    value = {"*": 1, "a": 2, "a.b": 3}
    assert canonical(value, volatile=["/~2"]) == b'{"a":2,"a.b":3}'
    assert canonical(value, volatile=["/a.b"]) == b'{"*":1,"a":2}'
    assert canonical(value, volatile=["/*"]) == b"{}"


def test_a_number_leads_to_a_place_in_a_list_and_to_a_key() -> None:
    for value, form in [(["a", "b", "c"], b'["a","c"]'), ({"0": 1, "1": 2}, b'{"0":1}')]:
        assert canonical(value, volatile=["/1"]) == form
        assert canonical(value, volatile=["/01", "/-1", "/-", "/9"]) == canonical(value)


def test_what_is_left_out_may_be_what_else_is_refused() -> None:
    body = '{"sent_ns": 1763290800123456789, "id": 7}'
    with pytest.raises(InvalidInput, match="body/sent_ns: a whole number must be within"):
        fingerprint(body)
    assert fingerprint(body, volatile=["/sent_ns"]) == fingerprint({"id": 7})
    assert fingerprint({"at": object(), "id": 7}, volatile=["/at"]) == fingerprint({"id": 7})


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("trace_id", "must begin with a slash"),
        ("meta.trace_id", "must begin with a slash"),
        ("$.meta", "must begin with a slash"),
        ("*", "must begin with a slash"),
        ("/**/trace_id", "'*' stands alone"),
        ("/trace_*", "'*' stands alone"),
        ("/a~", "a tilde in a key is written '~0'"),
        ("/a~3", "a tilde in a key is written '~0'"),
        ("", "must be 1 to 1024 characters"),
        ("/" + "a" * 1024, "must be 1 to 1024 characters"),
        ("/\ud800", "lone surrogates"),
        (5, "must be text"),
        (["/a"], "must be text"),
    ],
)
def test_a_path_that_cannot_be_read_is_refused_with_the_remedy(path: Any, words: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        fingerprint({}, volatile=["/fine", path])
    assert caught.value.field == "volatile[1]"
    assert words in caught.value.remedy


@pytest.mark.parametrize("given_paths", ["/a", b"/a", None, 5, {"/a"}, ["/a"] * (PATHS_MAX + 1)])
def test_anything_but_a_list_of_a_few_paths_is_refused(given_paths: Any) -> None:
    with pytest.raises(InvalidInput, match="volatile: must be a list of at most 32 paths"):
        fingerprint({}, volatile=given_paths)


def test_only_json_has_fields_to_leave_out() -> None:
    with pytest.raises(InvalidInput, match="content_type: only JSON has fields to leave out"):
        fingerprint("a=1", content_type="application/x-www-form-urlencoded", volatile=["/a"])
