"""A store that does not answer: nothing is handled, or what was handled is answered and marked."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from leasehold.testing.proxy import Direction, Proxy
from tests.fence.http_support import Answer
from tests.servers import redis
from tests.web.support import Call, Counting, Reply, Server, is_replay, reason, send


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with Proxy(redis().host, redis().port) as between:
        yield between


def through(proxy: Proxy) -> str:
    return f"redis://127.0.0.1:{proxy.port}/0"


def break_off(proxy: Proxy, *, broken: bool = True) -> None:
    proxy.refusing = broken
    proxy.cut()


def test_nothing_is_handled_while_the_store_is_down(server: Server, proxy: Proxy, url: str) -> None:
    handler = Counting()
    door = server.serve(handler, through(proxy), once={"name": url, "timeout": 1})
    break_off(proxy)
    for _ in range(2):
        refused = send(door)
        assert reason(refused) == (503, "store-unavailable")
        assert refused.told["retry"] is True
        assert int(refused.headers["retry-after"]) >= 1
    assert handler.runs == 0
    # A request without a key needs no store.
    assert send(door, key=None).status == 201
    break_off(proxy, broken=False)
    assert not is_replay(send(door))
    assert is_replay(send(door))
    assert handler.runs == 2


def is_unknown(answer: Answer) -> bool:
    return reason(answer) == (409, "outcome-unknown")


@pytest.mark.parametrize(("lost", "later"), [("requests", is_unknown), ("replies", is_replay)])
def test_work_that_is_done_is_answered_even_if_nobody_says_that_its_answer_is_kept(
    server: Server, proxy: Proxy, url: str, lost: str, later: Callable[[Answer], bool]
) -> None:
    way: Direction = getattr(proxy, lost)

    def losing(_call: Call) -> Reply:
        way.blackhole = True
        return Reply(201, b"charged")

    handler = Counting(losing)
    door = server.serve(handler, through(proxy), once={"name": url, "timeout": 0.5, "ttl": 0.5})
    answer = send(door)
    assert (answer.status, answer.body) == (201, b"charged")
    assert answer.headers["idempotency-stored"] == "false"
    way.blackhole = False
    break_off(proxy, broken=False)
    # Whoever comes again is told that nobody knows, or gets what was kept after all. It is not done again.
    assert later(send(door))
    assert handler.runs == 1
