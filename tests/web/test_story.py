"""A request that comes again: handled once, answered alike."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest

import leasehold
from leasehold import web
from leasehold.rules.once import read_once, write_once
from leasehold.web import RoutePolicy
from leasehold.wires.colour import drive
from tests.servers import redis
from tests.support import eventually
from tests.web.support import KEY, Call, Counting, Reply, Server, is_replay, reason, send, send_all


@pytest.fixture(params=["memory", "redis"])
def store(request: pytest.FixtureRequest, url: str) -> tuple[str, str]:
    """A URL, and a name for the Once: the Redis is shared by all tests."""
    return (url, "story") if request.param == "memory" else (redis().url, url)


def test_a_request_that_comes_again_is_not_handled_again(server: Server, store: tuple[str, str]) -> None:
    url, name = store
    handler = Counting()
    door = server.serve(handler, url, once={"name": name})
    first, second, third = (send(door) for _ in range(3))
    assert (first.status, json.loads(first.body)) == (201, {"run": 1})
    assert not is_replay(first)
    for later in (second, third):
        assert is_replay(later)
        assert (later.status, later.body) == (first.status, first.body)
        assert later.headers["x-run"] == "1"
        assert later.headers["content-type"] == first.headers["content-type"]
    assert handler.runs == 1
    # The control: another key, and no key, are other requests.
    assert json.loads(send(door, key='"another"').body) == {"run": 2}
    assert [json.loads(send(door, key=None).body)["run"] for _ in range(2)] == [3, 4]


def test_fifty_at_once_are_handled_once_and_answered_alike(server: Server, store: tuple[str, str]) -> None:
    url, name = store
    handler = Counting()
    handler.may_go_on.clear()
    looked: list[str] = []

    def route(request: web.Request) -> str:
        looked.append(request.path)
        if len(looked) == 50:
            handler.may_go_on.set()
        return request.path

    door = server.serve(handler, url, once={"name": name}, route=route)
    found = send_all(50, lambda: send(door))
    assert handler.runs == 1
    assert {(one.status, one.body) for one in found} == {(201, b'{"run": 1}')}
    assert sum(map(is_replay, found)) == 49
    # The control: fifty keys are fifty requests.
    handler.calls.clear()
    keys = iter(range(50))
    send_all(50, lambda: send(door, key=f"key-{next(keys)}"))
    assert handler.runs == 50


def test_a_duplicate_waits_for_the_original(server: Server, url: str) -> None:
    handler = Counting()
    handler.may_go_on.clear()
    looked = threading.Semaphore(0)

    def route(request: web.Request) -> str:
        looked.release()
        return request.path

    door = server.serve(handler, url, route=route)
    with ThreadPoolExecutor(2) as pool:
        original = pool.submit(send, door)
        eventually(lambda: handler.runs)
        duplicate = pool.submit(send, door)
        assert looked.acquire(timeout=20)
        assert looked.acquire(timeout=20)
        assert not duplicate.done()
        handler.may_go_on.set()
        assert not is_replay(original.result())
        assert is_replay(duplicate.result())
    assert handler.runs == 1


def test_a_duplicate_that_does_not_wait_is_told_when_to_come_again(server: Server, url: str) -> None:
    handler = Counting()
    handler.may_go_on.clear()
    door = server.serve(handler, url, policy=RoutePolicy(wait=0))
    with ThreadPoolExecutor(1) as pool:
        original = pool.submit(send, door)
        eventually(lambda: handler.runs)
        busy = send(door)
        assert reason(busy) == (409, "request-outstanding")
        assert busy.told["retry"] is True
        assert int(busy.headers["retry-after"]) >= 1
        assert reason(send(door, b'{"amount":6}')) == (422, "key-reused")
        handler.may_go_on.set()
        assert original.result().status == 201
    assert is_replay(send(door))
    assert handler.runs == 1


def test_another_payload_is_refused_and_the_same_in_other_words_is_not(server: Server, url: str) -> None:
    handler = Counting()
    policies = {"/volatile": RoutePolicy(volatile=("/meta/trace", "/items/*/seen"))}
    door = server.serve(handler, url, policies=policies)
    send(door, b'{"a":1,"b":2}')
    assert is_replay(send(door, b'{ "b": 2, "a": 1 }'))
    for other in (b'{"a":1}', b'{"a":1,"b":3}', b'{"a":1,"b":2,"a":1}', b"", b"[]", b"\xff"):
        refused = send(door, other)
        assert reason(refused) == (422, "key-reused"), other
        assert refused.told["retry"] is False
    assert reason(send(door, b'{"a":1,"b":2}', kind="text/plain")) == (422, "key-reused")
    assert handler.runs == 1
    send(door, b'{"meta":{"trace":1},"items":[{"seen":1,"n":1}]}', path="/volatile")
    assert is_replay(send(door, b'{"meta":{"trace":2},"items":[{"seen":2,"n":1}]}', path="/volatile"))
    assert send(door, b'{"meta":{"trace":2},"items":[{"seen":2,"n":2}]}', path="/volatile").status == 422


def test_the_query_and_the_path_are_part_of_the_request(server: Server, url: str) -> None:
    door = server.serve(Counting(), url, route=lambda _request: "/orders/{id}")
    assert send(door, path="/orders/1?a=1").status == 201
    assert is_replay(send(door, path="/orders/1?a=1"))
    assert send(door, path="/orders/1?a=2").status == 422
    assert send(door, path="/orders/2?a=1").status == 422


def test_a_key_is_required_only_where_that_was_said(server: Server, url: str) -> None:
    handler = Counting()
    policies = {"/required": RoutePolicy(required=True, methods={"post", "delete"}), "/free": None}
    door = server.serve(handler, url, policies=policies)
    for method in ("POST", "DELETE"):
        refused = send(door, path="/required", key=None, method=method)
        assert reason(refused) == (400, "key-missing")
    assert handler.runs == 0
    assert send(door, path="/required", key=None, method="PATCH").status == 201
    assert send(door, key=None).status == 201
    # Where it means nothing, it is not even read.
    for _ in range(2):
        assert not is_replay(send(door, path="/free", key="a,b"))
        assert not is_replay(send(door, method="PUT"))
    assert handler.runs == 6


def test_tenants_principals_methods_and_routes_do_not_meet(server: Server, url: str) -> None:
    handler = Counting()
    door = server.serve(handler, url, tenant=lambda request: request.headers.get("x-tenant"))
    for _ in range(2):
        send(door)
        send(door, method="PATCH")
        send(door, path="/refunds")
        send(door, X_Tenant="a")
        send(door, X_Tenant="b")
        send(door, Authorization="Bearer a")
        send(door, Authorization="Bearer b")
    assert handler.runs == 7
    # The control: whoever says that all are one gets one.
    handler.calls.clear()
    door = server.serve(handler, url, once={"name": "other"}, principal=lambda _request: "all")
    send(door, Authorization="Bearer a")
    assert is_replay(send(door, Authorization="Bearer b"))
    assert handler.runs == 1


def test_quoted_and_unquoted_are_one_key_and_hostile_headers_are_refused(server: Server, url: str) -> None:
    handler = Counting()
    door = server.serve(handler, url)
    send(door, key="abc-1")
    assert is_replay(send(door, key='"abc-1"'))
    assert is_replay(send(door, key=' "abc-1"  '))
    for key in ('"', '""', '"a', 'a"', "a b", "a,b", '"a","a"', '"a";p=1', "a;p", '"a\\b"', "x" * 256, '"ä"', "ä"):
        refused = send(door, key=key)
        assert reason(refused) == (400, "key-unreadable"), key
    assert send(door, key='"a"', Idempotency_Key='"a"').status == 400
    assert handler.runs == 1
    assert send(door, key="x" * 255).status == 201


@pytest.mark.parametrize("status", [200, 201, 204, 302, 400, 404, 422])
def test_a_definite_answer_is_kept(server: Server, url: str, status: int) -> None:
    handler = Counting(lambda _call: Reply(status, b""))
    door = server.serve(handler, url)
    first, second = send(door), send(door)
    assert (is_replay(first), is_replay(second)) == (False, True)
    assert second.status == status
    assert handler.runs == 1


@pytest.mark.parametrize("status", [408, 409, 425, 429])
def test_after_an_answer_that_says_try_again_the_next_one_is_handled(server: Server, url: str, status: int) -> None:
    handler = Counting(lambda _call: Reply(status, b"later"))
    door = server.serve(handler, url)
    for _ in range(2):
        answer = send(door)
        assert (answer.status, answer.body, answer.headers["idempotency-stored"]) == (status, b"later", "false")
    assert handler.runs == 2


@pytest.mark.parametrize("status", [500, 502, 503])
def test_after_an_answer_that_says_nothing_the_outcome_is_unknown(server: Server, url: str, status: int) -> None:
    handler = Counting(lambda _call: Reply(status, b"oops"))
    door = server.serve(handler, url)
    first = send(door)
    assert (first.status, first.body, first.headers["idempotency-stored"]) == (status, b"oops", "false")
    second = send(door)
    assert reason(second) == (409, "outcome-unknown")
    assert second.told["retry"] is False
    assert "retry-after" not in second.headers
    assert handler.runs == 1


def test_a_route_declares_what_is_definite_and_what_may_be_done_again(server: Server, url: str) -> None:
    handler = Counting(lambda call: Reply(int(call.path.removeprefix("/")), b""))
    policies = {
        "/503": RoutePolicy(definite={503}),
        "/404": RoutePolicy(again={404}, definite={200}),
        "/500": RoutePolicy(rerun=True),
    }
    door = server.serve(handler, url, policies=policies)
    assert [is_replay(send(door, path="/503")) for _ in range(2)] == [False, True]
    assert [send(door, path="/404").status for _ in range(2)] == [404, 404]
    assert [send(door, path="/500").status for _ in range(2)] == [500, 500]
    assert [call.work.attempt for call in handler.calls] == [1, 1, 1, 1, 2]
    tokens = [call.work.token for call in handler.calls]
    assert tokens[4] > tokens[3]


def test_a_handler_that_raises_leaves_an_unknown_outcome(server: Server, url: str) -> None:
    def raising(_call: Call) -> Reply:
        raise ValueError("after the effect")

    handler = Counting(raising)
    door = server.serve(handler, url)
    assert send(door).status == 500
    assert reason(send(door)) == (409, "outcome-unknown")
    assert handler.runs == 1


def test_an_unknown_outcome_is_settled_by_people(server: Server, url: str) -> None:
    handler = Counting(lambda _call: Reply(500, b""))
    door = server.serve(handler, url, once={"name": "settled"}, principal=lambda _request: "ann")
    send(door)
    told = send(door).told
    key = web.operation_key("8e03978e-40d5-43dd", method="POST", route="/payments", principal="ann")
    assert told["operation"] == key
    with leasehold.connect(url) as locks:
        once = leasehold.Once(locks, "settled")
        assert once.settle(key, web.Response(201, (("x-settled", "yes"),), b"charged"))
    answer = send(door)
    assert (answer.status, answer.body, answer.headers["x-settled"]) == (201, b"charged", "yes")
    assert is_replay(answer)
    assert handler.runs == 1


def test_an_answer_that_is_finished_late_does_not_count(server: Server, url: str) -> None:
    with leasehold.connect(url) as locks:
        once = leasehold.Once(locks, "late")

        def overtaken(call: Call) -> Reply:
            place = once._handling.key_of(call.work.key)
            store: Any = locks._engine.store
            found = drive(store.load(place))
            theirs = msgspec.structs.replace(read_once(found), secret=KEY)
            drive(store.swap(place, found, write_once(theirs), None))
            return Reply(201, b"late")

        door = server.serve(Counting(overtaken), url, once={"name": "late"})
        late = send(door)
    assert reason(late) == (409, "request-overtaken")
    assert late.told["retry"] is True


def test_a_handler_finds_its_work_and_sends_keys_of_its_own(server: Server, url: str) -> None:
    sent: list[dict[str, str]] = []

    def calling(call: Call) -> Reply:
        call.work.check()
        sent.append(web.key_for(call.work, "ledger"))
        sent.append(web.key_for(call.work, "mail"))
        return Reply(500 if call.work.attempt == 1 else 200, str(call.work.token).encode())

    door = server.serve(Counting(calling), url, policy=RoutePolicy(rerun=True))
    assert send(door).status == 500
    assert int(send(door).body) > 0
    assert sent[0:2] == sent[2:4]
    assert sent[0] != sent[1]
    assert KEY not in str(sent)
