"""Tokens over HTTP: the laws behind real servers, and every answer a client can get."""

from __future__ import annotations

import http.client
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import leasehold
from leasehold import fence
from leasehold.rules.token_header import written
from leasehold.testing.fences import FenceLaws
from tests.fence.http_support import ASGI, WSGI, Answer, Client, Door, Side, ask, scope_of
from tests.rules.test_token_header import HOSTILE

SEAL = fence.Seal(b"k" * 32)


class Service:
    """A counter behind the middleware, and whatever else a test serves."""

    def __init__(self, side: Side, folder: Path, port: int, apps: list[Any]) -> None:
        self.side = side
        self.folder = folder
        self._port = port
        self._apps = apps
        self.door = self.serve(side.counter(folder))

    def serve(self, app: Any, **options: Any) -> Door:
        given = {"scope": scope_of, "fence": lambda scope: self.side.file(self.folder / scope)} | options
        self._apps.append(self.side.middleware(app, **given))
        return Door(self._port, len(self._apps) - 1)

    def mark(self, name: str = "total") -> bytes:
        beside = self.folder / f"{name}.mark"
        return beside.read_bytes() if beside.exists() else b""


@pytest.fixture(scope="module", params=[ASGI, WSGI], ids=lambda side: side.name)
def server(request: pytest.FixtureRequest) -> Iterator[tuple[Side, int, list[Any]]]:
    """One of each kind for all tests: uvicorn takes its time to stop."""
    apps: list[Any] = []
    with request.param.serve(apps) as port:
        yield request.param, port, apps


@pytest.fixture
def service(server: tuple[Side, int, list[Any]], tmp_path: Path) -> Service:
    side, port, apps = server
    return Service(side, tmp_path, port, apps)


def show(token: int, scope: str = "total", **options: Any) -> list[tuple[str, str | bytes]]:
    return [("Leasehold-Token", written(token, scope, **options))]


class TestHttp(FenceLaws):
    """The laws, of a resource that is reached over HTTP alone."""

    @pytest.fixture
    def reach(self, service: Service) -> Callable[[], Any]:
        return lambda: Client(service.door)


def test_a_lease_is_shown_by_a_header(service: Service) -> None:
    with leasehold.connect("memory://http") as locks:
        with locks.hold("total") as first:
            mine = list(fence.http.header(first).items())
            assert ask(service.door, "PUT", "/total", mine, b"1").status == 200
            assert fence.http.shown(mine[0][1]) == (first.token, "total", False)
        with locks.hold("total") as second:
            theirs = list(fence.http.header(second).items())
            assert ask(service.door, "GET", "/total", theirs).body == b"1"
        with locks.hold("other") as other:
            refusal = ask(service.door, "PUT", "/total", list(fence.http.header(other).items()), b"2")
    assert (refusal.status, refusal.told["reason"]) == (403, "token-scope-mismatch")
    late = ask(service.door, "PUT", "/total", mine, b"2")
    assert late.status == 412
    assert late.told["token"] == str(first.token)
    assert late.told["mark"] == str(second.token)
    assert (service.folder / "total").read_bytes() == b"1"


def test_a_header_is_made_of_a_lease_and_of_nothing_else() -> None:
    for given in (7, "7", None):
        with pytest.raises(leasehold.InvalidInput, match="must be a lease"):
            fence.http.header(given)


def test_a_request_without_a_token_is_told_to_bring_one(service: Service) -> None:
    answer = ask(service.door, "GET", "/total", [])
    assert (answer.status, answer.told["reason"]) == (428, "token-missing")
    assert answer.headers["cache-control"] == "no-store"
    assert service.mark() == b""


def test_what_is_not_protected_needs_no_token(service: Service) -> None:
    door = service.serve(_echo(service.side))
    assert ask(door, "GET", "/free", []).body == b"None False"
    assert ask(door, "GET", "/free", [("Leasehold-Token", "garbage")]).body == b"None False"


def test_only_the_required_methods_must_show_a_token_but_all_are_checked(service: Service) -> None:
    door = service.serve(_echo(service.side), required={"PUT", "delete"})
    assert ask(door, "GET", "/total", []).body == b"None False"
    assert ask(door, "PUT", "/total", []).status == 428
    assert ask(door, "DELETE", "/total", []).status == 428
    assert ask(door, "GET", "/total", show(6)).body == b"6 False"
    assert ask(door, "GET", "/total", show(5)).status == 412
    assert ask(door, "GET", "/total", [("Leasehold-Token", "7")]).status == 400


# http.client itself refuses to send these, and a server could not tell them from a second header or the end.
SENDABLE = [value for value in HOSTILE if not set(value) & set("\n\0") and value.strip() and len(value) < 10000]


def test_a_header_that_cannot_be_read_is_refused_and_changes_nothing(service: Service) -> None:
    assert len(SENDABLE) > 60
    for value in SENDABLE:
        sent = value.replace("scope=job", "scope=total").replace('scope="job', 'scope="total')
        answer = ask(service.door, "PUT", "/total", [("Leasehold-Token", sent.encode())], b"1")
        assert (answer.status, answer.told["reason"]) == (400, "token-unreadable"), value
    assert service.mark() == b""
    assert not (service.folder / "total").exists()


@pytest.mark.parametrize("second", [show(7)[0], show(8)[0], ("leasehold-token", ""), ("LEASEHOLD-TOKEN", "x")])
def test_two_headers_are_refused(service: Service, second: Any) -> None:
    assert ask(service.door, "PUT", "/total", [*show(7), second], b"1").status == 400
    assert service.mark() == b""
    assert ask(service.door, "PUT", "/total", show(7), b"1").status == 200


def test_a_sealed_token_is_accepted_and_a_made_up_one_is_not(service: Service) -> None:
    door = service.serve(service.side.counter(service.folder), seal=SEAL)
    assert ask(door, "PUT", "/total", show(7, seal=SEAL), b"1").status == 200
    mark = service.mark()
    poison = 2**62
    for forged in (show(poison), show(poison, seal=fence.Seal(b"o" * 32))):
        answer = ask(door, "PUT", "/total", forged, b"2")
        assert (answer.status, answer.told["reason"]) == (403, "token-forged")
    answer = ask(door, "PUT", "/total", show(poison, "other", seal=SEAL), b"2")
    assert (answer.status, answer.told["reason"]) == (403, "token-scope-mismatch")
    assert service.mark() == mark
    assert (service.folder / "total").read_bytes() == b"1"
    assert ask(door, "PUT", "/total", show(6, seal=SEAL), b"2").told["mark"] == "7"


def test_a_sharer_may_look_and_not_change_and_raises_no_mark(service: Service) -> None:
    door = service.serve(_echo(service.side))
    assert ask(door, "PUT", "/total", show(5)).status == 200
    mark = service.mark()
    assert ask(door, "GET", "/total", show(9, shared=True)).body == b"9 True"
    answer = ask(door, "PUT", "/total", show(9, shared=True))
    assert (answer.status, answer.told["reason"]) == (403, "token-scope-mismatch")
    assert service.mark() == mark


def test_the_mark_is_raised_before_the_handler_runs(service: Service) -> None:
    """The handler looks at nothing: without `fence` a late request would reach it, which is the control."""
    with_fence, without = service.serve(_echo(service.side)), service.serve(_echo(service.side), fence=None)
    assert ask(with_fence, "PUT", "/total", show(6)).status == 200
    assert ask(with_fence, "PUT", "/total", show(5)).status == 412
    assert ask(without, "PUT", "/total", show(5)).status == 200


def test_a_fence_may_be_for_some_scopes_only(service: Service) -> None:
    door = service.serve(_echo(service.side), fence=lambda scope: None)
    assert ask(door, "PUT", "/total", show(5)).body == b"5 False"
    assert service.mark() == b""


def test_a_handler_that_finds_out_itself_is_answered_for(service: Service) -> None:
    door = service.serve(_raising(service.side, leasehold.StaleToken("/var/lib/secret", 5, 6)))
    answer = ask(door, "PUT", "/total", show(5))
    assert (answer.status, answer.told["token"], answer.told["mark"]) == (412, "5", "6")
    assert b"secret" not in answer.body


def test_a_handler_that_finds_out_after_its_answer_began_breaks_it_off(service: Service, capfd: Any) -> None:
    async def asgi(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"1", "more_body": True})
        raise leasehold.StaleToken("total", 5, 6)

    def wsgi(environ: Any, start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", [("Content-Length", "2")])
        yield b"1"
        raise leasehold.StaleToken("total", 5, 6)

    door = service.serve(asgi if service.side is ASGI else wsgi)
    with pytest.raises(http.client.IncompleteRead):
        ask(door, "PUT", "/total", show(5))


def test_a_generator_that_finds_out_before_its_answer_began_is_answered_for(service: Service) -> None:
    """The counter of these tests is one where WSGI has generators; its own fence refuses it, not the middleware's."""
    door = service.serve(service.side.counter(service.folder), fence=None)
    assert ask(door, "PUT", "/total", show(6), b"6").status == 200
    assert ask(door, "PUT", "/total", show(5), b"5").told["mark"] == "6"


def test_every_other_error_of_a_handler_is_the_servers_to_tell(service: Service, capfd: Any) -> None:
    door = service.serve(_raising(service.side, leasehold.InvalidInput("size", 5, "must be odd")))
    assert ask(door, "PUT", "/total", show(5)).status == 500


def test_a_path_is_the_same_text_for_both_kinds_of_servers(service: Service) -> None:
    door = service.serve(_echo(service.side), fence=None)
    assert ask(door, "GET", "/caf%C3%A9%20%2F", show(5, "café /")).status == 200
    assert ask(door, "GET", "/caf%C3%A9", show(5, "cafe")).status == 403


def test_a_refusal_of_head_has_no_body(service: Service) -> None:
    answer = ask(service.door, "HEAD", "/total", [])
    assert (answer.status, answer.body) == (428, b"")


def test_no_seal_is_told_or_logged(service: Service, caplog: pytest.LogCaptureFixture, capfd: Any) -> None:
    door = service.serve(service.side.counter(service.folder), seal=SEAL)
    sealed = SEAL.seal("total", 7)
    with caplog.at_level(logging.DEBUG):
        answers: list[Answer] = [
            ask(service.door, "PUT", "/total", show(7, seal=SEAL)),
            ask(door, "PUT", "/total", [("Leasehold-Token", f'"{sealed}x"')]),
            ask(door, "PUT", "/other", show(7, seal=SEAL)),
            ask(door, "PUT", "/total", show(7, seal=SEAL)),
            ask(door, "PUT", "/total", show(6, seal=SEAL)),
        ]
    assert [answer.status for answer in answers] == [400, 403, 403, 200, 412]
    everything = "".join([caplog.text, *capfd.readouterr(), *(str(answer) for answer in answers)])
    assert sealed.rpartition(".")[2] not in everything


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"scope": "total"}, "scope"),
        ({"scope": None}, "scope"),
        ({"fence": "total"}, "fence"),
        ({"seal": b"k" * 32}, "seal"),
        ({"required": "PUT"}, "required"),
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", [fence.http.AsgiFence, fence.http.WsgiFence])
def test_options_that_cannot_work_are_refused(kind: Any, options: Any, field: str) -> None:
    with pytest.raises(leasehold.InvalidInput) as refusal:
        kind(_echo(ASGI), **({"scope": scope_of} | options))
    assert refusal.value.field == field


def _echo(side: Side) -> Any:
    """Says what the middleware left for the handler."""

    async def asgi(scope: Any, receive: Any, send: Any) -> None:
        told = f"{scope['leasehold.token']} {scope['leasehold.shared']}".encode()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": told})

    def wsgi(environ: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [f"{environ['leasehold.token']} {environ['leasehold.shared']}".encode()]

    return asgi if side is ASGI else wsgi


def _raising(side: Side, error: Exception) -> Any:
    async def asgi(scope: Any, receive: Any, send: Any) -> None:
        raise error

    def wsgi(environ: Any, start_response: Any) -> list[bytes]:
        raise error

    return asgi if side is ASGI else wsgi
