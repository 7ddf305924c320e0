"""The payments API as processes: a card is charged once, however often it is asked for and whoever dies meanwhile."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from leasehold.testing.servers import RedisServer
from tests import servers
from tests.examples.payments_support import PAYMENTS, TENANTS, Answer, Place, place
from tests.examples.programs import PATIENCE
from tests.support import PYTHON, count, eventually, note

SHORT = ("--ttl", "1")
POINTS = ("begun", "pending", "charged", "noted", "booked")
CROWD = 300


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """One that several tests ask: leases and answers are in Redis."""
    with place(tmp_path_factory.mktemp("shop"), servers.redis().url) as made:
        yield made


# Many requests.


def test_a_crowd_with_one_key_is_charged_once_and_gets_one_answer(shop: Place) -> None:
    before, booked = len(shop.charged()), len(shop.entries())
    shop.behave(after=0.2)
    answers = shop.charge_at_once(CROWD, "crowd")
    shop.behave(after=0)
    assert {(answer.status, answer.body) for answer in answers} == {(201, answers[0].body)}
    assert sum(not answer.is_replay for answer in answers) == 1
    assert len(shop.charged()) == before + 1
    assert shop.entries()[booked:] == [(answers[0].told["id"], 4200)]
    # More than one process had a part in it: else the crowd proves little.
    workers: set[str] = set()
    eventually(lambda: len(workers) > 1, PATIENCE, nudge=lambda: workers.update(_workers(shop, "replayed")))


def test_the_same_crowd_without_the_middleware_is_charged_more_than_once(tmp_path: Path) -> None:
    with place(tmp_path, None, "--no-once") as made:
        answers = made.charge_at_once(count(CROWD), "crowd")
        assert {answer.status for answer in answers} == {201}
        charged, booked = len(made.charged()), len(made.entries())
        note(f"{len(answers)} requests with one key and no middleware: charged {charged} times, booked {booked} times")
        assert charged > 1
        assert booked > 1


def test_tenants_with_one_key_do_not_meet(shop: Place) -> None:
    before = len(shop.charged())
    with ThreadPoolExecutor(len(TENANTS)) as pool:
        answers = list(pool.map(lambda tenant: shop.charge("shared", tenant, description=tenant), TENANTS))
    assert [(answer.status, answer.told["description"]) for answer in answers] == [(201, one) for one in TENANTS]
    assert not any(answer.is_replay for answer in answers)
    assert len({answer.told["id"] for answer in answers}) == len(TENANTS)
    assert len(shop.charged()) == before + len(TENANTS)
    # What belongs to one is not there for another, and a key that is nobody's opens nothing.
    path = f"/charges/{answers[0].told['id']}"
    assert [shop.ask("GET", path, tenant=tenant).status for tenant in (*TENANTS, "nobody")] == [200, 404, 404, 401]


def test_payloads_are_compared_without_what_changes_with_every_request(shop: Place) -> None:
    first = shop.charge("volatile", sent_at="10:00", trace_id="a")
    again = shop.charge("volatile", sent_at="10:01", trace_id="b")
    assert (again.is_replay, again.body) == (True, first.body)
    other = shop.charge("volatile", amount=4201)
    assert (other.status, other.told["reason"]) == (422, "key-reused")
    # The receipt names tenant, kind and the hash of what was asked for.
    twin = shop.charge("twin", sent_at="10:02")
    assert twin.told["id"] != first.told["id"]
    assert twin.told["receipt"]["request"] == first.told["receipt"]["request"]
    assert first.told["receipt"]["request"].startswith("payments:test:acme:charge:sha256:")


def test_a_declined_card_is_declined_once_for_all(shop: Place) -> None:
    before = shop.asked()
    first, again = (shop.charge("declined", card="tok_declined") for _ in range(2))
    assert (first.status, first.told["reason"], first.is_replay) == (402, "card-declined", False)
    assert (again.status, again.body, again.is_replay) == (402, first.body, True)
    assert shop.asked() == before + 1
    assert shop.did(first.told["charge"]) == ["charge.begun", "charge.declined"]


@pytest.mark.parametrize(
    ("headers", "body", "told"),
    [
        ({}, b"{}", (400, "key-missing")),
        ({"Idempotency-Key": "two, of them"}, b"{}", (400, "key-unreadable")),
        ({"Idempotency-Key": "m1"}, b"{", (400, "malformed")),
        (
            {"Idempotency-Key": "m2"},
            b'{"amount": 1, "amount": 2, "currency": "EUR", "card": "tok_a"}',
            (400, "malformed"),
        ),
        ({"Idempotency-Key": "m3"}, b'{"amount": 0, "currency": "EUR", "card": "tok_a"}', (400, "malformed")),
        ({"Idempotency-Key": "m4", "Content-Type": "text/plain"}, b"{}", (415, "not-json")),
        ({"Idempotency-Key": "m5"}, b" " * 70_000, (413, "request-too-large")),
    ],
)
def test_what_cannot_be_a_charge_is_refused(
    shop: Place, headers: dict[str, str], body: bytes, told: tuple[int, str]
) -> None:
    before = shop.asked()
    answer = shop.ask("POST", "/charges", body, headers=headers)
    assert (answer.status, answer.told["reason"]) == told
    assert answer.headers["content-type"] == "application/problem+json"
    assert shop.asked() == before


# Refunds.


def test_a_refund_is_told_to_the_gateway_once_however_often_it_is_asked_for(shop: Place) -> None:
    charge = shop.charge("to-refund").told["id"]
    before = len(shop.refunded())
    asked = [{"amount": 200, "reference": "r1", "sent_at": str(number)} for number in range(20)]
    with ThreadPoolExecutor(len(asked)) as pool:
        answers = list(pool.map(lambda one: shop.ask("POST", f"/charges/{charge}/refunds", one), asked))
    assert {(answer.status, answer.body) for answer in answers} == {(202, answers[0].body)}
    # Another one of the same amount differs by its reference; it must fit into what is left.
    other = shop.ask("POST", f"/charges/{charge}/refunds", {"amount": 200, "reference": "r2"})
    assert other.told["id"] != answers[0].told["id"]
    too_large = shop.ask("POST", f"/charges/{charge}/refunds", {"amount": 3801, "reference": "r3"})
    assert (too_large.status, too_large.told["reason"]) == (409, "refund-too-large")
    eventually(lambda: _refunds(shop, charge) == ["refunded", "refunded"], PATIENCE)
    assert len(shop.refunded()) == before + 2
    assert sum(amount for number, amount in shop.entries() if number == charge) == 4200 - 400
    foreign = shop.ask("POST", f"/charges/{charge}/refunds", {"amount": 1, "reference": "r4"}, tenant="globex")
    assert foreign.status == 404


def test_a_refund_waits_for_a_gateway_that_fails(shop: Place) -> None:
    charge = shop.charge("to-refund-later").told["id"]
    before = len(shop.refunded())
    # More than one message is tried: the relay has to bring it again.
    shop.behave(fail=5)
    assert shop.ask("POST", f"/charges/{charge}/refunds", {"amount": 1, "reference": "late"}).status == 202
    eventually(lambda: _refunds(shop, charge) == ["refunded"], PATIENCE)
    assert len(shop.refunded()) == before + 1


def test_a_refund_whose_relay_is_killed_is_done_once(tmp_path: Path) -> None:
    with place(tmp_path, None, *SHORT) as made:
        charge = made.charge("to-refund").told["id"]
        made.behave(after=0.5)
        assert made.ask("POST", f"/charges/{charge}/refunds", {"amount": 5, "reference": "r"}).status == 202
        eventually(made.refunded, PATIENCE)
        os.kill(made.worker("election:outbox/"), signal.SIGKILL)
        made.behave(after=0)
        eventually(lambda: _refunds(made, charge) == ["refunded"], PATIENCE)
        # The gateway was asked again, under the same key.
        assert made.asked() > 2
        assert len(made.refunded()) == 1
        assert made.entries() == [(charge, 4200), (charge, -5)]


# Who dies, and what does not answer.


@pytest.mark.parametrize("where", ["before", "after"])
def test_a_worker_killed_while_it_asks_the_gateway_is_followed_by_another(tmp_path: Path, where: str) -> None:
    with place(tmp_path, None, *SHORT) as made, ThreadPoolExecutor(1) as pool:
        made.behave(**{where: 0.5})
        first = pool.submit(made.charge, "killed")
        eventually(lambda: made.asked() and (where == "before" or made.charged()), PATIENCE)
        victim = made.worker()
        os.kill(victim, signal.SIGKILL)
        assert first.result().status == 0
        made.behave(**{where: 0})
        answer, _ = made.charge_until_told("killed")
        assert answer.status == 201
        assert_charged_once(made, answer)
        # It was begun again, the gateway was asked again, and it was booked once.
        did = made.did(answer.told["id"])
        assert did.count("charge.begun") > 1
        assert did.count("charge.charged") == 1
        assert made.asked() > 1
        eventually(lambda: f"worker {victim} ended" in made.api.said(), PATIENCE)


def test_a_charge_whose_workers_die_at_every_point_is_charged_once(tmp_path: Path) -> None:
    with place(tmp_path, None, *SHORT, "--die-at", ",".join(POINTS)) as made:
        answer, tries = made.charge_until_told("doomed")
        assert answer.status == 201
        assert tries > len(POINTS)
        assert {path.name for path in made.data.glob("died-at-*")} == {f"died-at-{point}" for point in POINTS}
        assert_charged_once(made, answer)
        # Asked again after the death that came before its answer was noted, and never after it was.
        assert made.asked() == 2
        assert made.did(answer.told["id"]).count("charge.charged") == 1
        assert made.charge("doomed").body == answer.body


@pytest.mark.parametrize("point", sorted(POINTS, key="charged".__ne__)[: count(len(POINTS), 1)])
def test_a_charge_whose_worker_dies_is_charged_once_for_a_crowd(tmp_path: Path, point: str) -> None:
    with place(tmp_path, servers.redis().url, *SHORT, "--die-at", point) as made:
        with ThreadPoolExecutor(20) as pool:
            answers = [one for one, _ in pool.map(lambda _: made.charge_until_told("crowd"), range(20))]
        assert {(answer.status, answer.body) for answer in answers} == {(201, answers[0].body)}
        assert_charged_once(made, answers[0])


@pytest.mark.parametrize("point", ["noted", "charged"])
def test_a_worker_that_slept_beyond_its_lease_changes_nothing(tmp_path: Path, point: str) -> None:
    with place(tmp_path, None, *SHORT, "--stop-at", point) as made, ThreadPoolExecutor(1) as pool:
        first = pool.submit(made.charge, "asleep")
        stopped = made.data / f"stopped-at-{point}"
        eventually(lambda: stopped.exists() and stopped.read_text(), PATIENCE)
        answer, _ = made.charge_until_told("asleep")
        assert answer.status == 201
        os.kill(int(stopped.read_text()), signal.SIGCONT)
        late = first.result()
        assert (late.status, late.told["reason"], late.told["retry"]) == (409, "request-overtaken", True)
        assert_charged_once(made, answer)
        # One that comes as far as the ledger is refused by the fence; before that, its step is.
        assert ("a worker that was overtaken" in made.api.said()) == (point == "noted")
        assert made.charge("asleep").body == answer.body


def test_without_keys_at_the_gateway_a_retry_after_a_death_charges_twice_unless_it_is_refused(tmp_path: Path) -> None:
    """The control: what the gateway's own keys are for, and what is done without them."""
    (tmp_path / "believing").mkdir()
    (tmp_path / "knowing").mkdir()
    with place(tmp_path / "believing", None, *SHORT, "--die-at", "charged") as made:
        made.behave(keys=False)
        answer, _ = made.charge_until_told("twice")
        assert answer.status == 201
        note(f"a gateway without keys that is believed to have them: charged {len(made.charged())} times")
        assert len(made.charged()) == 2
        # The ledger is fenced, and has it once.
        assert made.entries() == [(answer.told["id"], 4200)]
    with place(tmp_path / "knowing", None, *SHORT, "--die-at", "charged", "--unkeyed") as made:
        made.behave(keys=False)
        answer, _ = made.charge_until_told("once")
        assert (answer.status, answer.told["reason"]) == (409, "outcome-unknown")
        assert len(made.charged()) == 1
        assert made.entries() == []


def test_an_answer_that_the_gateway_drops_after_charging_is_asked_for_again(shop: Place) -> None:
    before = len(shop.charged())
    shop.behave(drop=2)
    answer = shop.charge("dropped")
    assert answer.status == 201
    assert len(shop.charged()) == before + 1
    # So many that this request gives up: it says so, and the next one has the answer.
    shop.behave(drop=4)
    unanswered = shop.charge("dropped-often")
    assert (unanswered.status, unanswered.told["reason"]) == (502, "unanswered")
    assert int(unanswered.headers["retry-after"]) >= 1
    again = shop.charge("dropped-often")
    assert (again.status, again.is_replay) == (201, False)
    assert len(shop.charged()) == before + 2


def test_a_gateway_that_was_not_reached_is_asked_when_it_is_there(tmp_path: Path) -> None:
    with place(tmp_path, None) as made:
        made.gateway.end()
        refused = made.charge("early")
        assert (refused.status, refused.told["reason"]) == (503, "gateway-unavailable")
        assert int(refused.headers["retry-after"]) >= 1
        made.open_gateway(made.gateway.port)
        eventually(lambda: made.gateway.is_up("/done"), PATIENCE)
        answer = made.charge("early")
        assert (answer.status, answer.is_replay) == (201, False)
        assert_charged_once(made, answer)


def test_nothing_is_charged_while_the_store_is_down(tmp_path: Path) -> None:
    with RedisServer(aof="always") as redis, place(tmp_path, redis.url, *SHORT) as made:
        kept = made.charge("kept")
        redis.kill()
        for key in ("kept", "new"):
            refused = made.charge(key)
            assert (refused.status, refused.told["reason"]) == (503, "store-unavailable")
            assert int(refused.headers["retry-after"]) >= 1
        refund = made.ask("POST", f"/charges/{kept.told['id']}/refunds", {"amount": 1, "reference": "r"})
        assert (refund.status, refund.told["reason"]) == (503, "store-unavailable")
        assert len(made.charged()) == made.asked() == 1
        redis.start()
        assert made.charge_until_told("kept")[0].body == kept.body
        answer, _ = made.charge_until_told("new")
        assert answer.status == 201
        assert Counter(one["reference"] for one in made.charged()) == Counter([kept.told["id"], answer.told["id"]])


# The document, the trail, the metrics.


def test_whatever_is_asked_the_answer_is_one_of_the_document(tmp_path: Path) -> None:
    with place(tmp_path, None) as made:
        url = f"http://127.0.0.1:{made.api.port}/openapi.json"
        assert made.ask("GET", "/openapi.json").body == (PAYMENTS / "openapi.json").read_bytes()
        words = ["--max-examples", str(count(200)), "--seed", "1", "--no-color"]
        command = [PYTHON, "-m", "schemathesis.cli", "--config-file", str(PAYMENTS / "schemathesis.toml"), "run", url]
        done = subprocess.run([*command, *words], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        # It got as far as charging, and none of its charges was booked twice.
        numbers = [number for number, amount in made.entries() if amount > 0]
        assert numbers
        assert len(numbers) == len(set(numbers)) == len(made.charged())


def test_the_audit_trail_shows_whether_it_was_changed(shop: Place, tmp_path: Path) -> None:
    number = shop.charge("audited").told["id"]
    with contextlib.closing(shop.ledger()) as ledger, contextlib.closing(sqlite3.connect(tmp_path / "ledger.db")) as db:
        ledger.backup(db)
        whole = _audit(tmp_path)
        assert whole.returncode == 0
        rows = [json.loads(line) for line in whole.stdout.splitlines()]
        assert [row["did"] for row in rows if row["subject"] == number] == ["charge.begun", "charge.charged"]
        assert all(row["intact"] for row in rows)
        with pytest.raises(sqlite3.IntegrityError, match="only added to"):
            db.execute("UPDATE audit SET token = '7' WHERE id = 2")
        # Whoever takes the trigger away as well is found out.
        with db:
            db.execute("DROP TRIGGER audit_is_not_changed")
            db.execute("UPDATE audit SET token = '7' WHERE id = 2")
    changed = _audit(tmp_path)
    assert changed.returncode == 1
    assert [json.loads(line)["intact"] for line in changed.stdout.splitlines()] == [True] + [False] * (len(rows) - 1)


def test_the_client_that_does_not_give_up_gets_its_answer(shop: Place) -> None:
    command = [PYTHON, str(PAYMENTS), "pay", "700", "--server", f"http://127.0.0.1:{shop.api.port}"]
    shop.behave(drop=4)
    said = [
        subprocess.run([*command, "--idempotency-key", "patient"], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    ]
    assert [one.partition("{")[0] for one in said] == ["201 (new) ", "201 (replayed) "]
    assert said[0].partition("{")[2] == said[1].partition("{")[2]


def test_metrics_tell_what_is_booked(shop: Place) -> None:
    shop.charge("measured")
    booked = sum(amount > 0 for _, amount in shop.entries())
    assert f'payments_ledger{{state="charge.charged"}} {booked}' in shop.metrics()


def assert_charged_once(made: Place, answer: Answer) -> None:
    assert [one["reference"] for one in made.charged()] == [answer.told["id"]]
    assert made.entries() == [(answer.told["id"], 4200)]


def _refunds(made: Place, charge: str) -> list[str]:
    return [one["status"] for one in made.ask("GET", f"/charges/{charge}").told["refunds"]]


def _workers(made: Place, outcome: str) -> list[str]:
    """Who has handled something so, of the one worker that answers this look at the metrics."""
    return [line.split('"')[1] for line in made.metrics().splitlines() if f'outcome="{outcome}"' in line]


def _audit(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [PYTHON, str(PAYMENTS), "audit", "--data", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=False)
