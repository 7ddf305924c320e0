"""Revisions become visible in the order in which they were drawn, with the naive form as control."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import psycopg
import pytest

from leasehold.model import Conflict, Key, Record
from tests.stores.postgres_support import LONG, all_at_once, driven, end_all, fresh, postgres, schema_of
from tests.support import count, note

CONTENDERS = 8
NAIVE_TAKE = """
INSERT INTO naive.leases SELECT %s, %s, nextval('naive.tokens') ON CONFLICT DO NOTHING RETURNING token
"""
NAIVE_GIVE = "DELETE FROM naive.leases WHERE key = %s AND owner = %s"


@pytest.fixture(autouse=True, scope="module")
def naive() -> None:
    """What one would write first: a token drawn before it is known whether the row is ours."""
    for sql in (
        "CREATE SCHEMA IF NOT EXISTS naive",
        "CREATE TABLE IF NOT EXISTS naive.leases (key text PRIMARY KEY, owner integer, token bigint)",
        "CREATE TABLE IF NOT EXISTS naive.line (family text, token bigint)",
        "CREATE SEQUENCE IF NOT EXISTS naive.tokens",
    ):
        postgres().execute(sql)


class Grants:
    """The tokens of one key, in the order in which they were granted: each is noted while it is held."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self._lock = threading.Lock()

    def note(self, token: int) -> None:
        with self._lock:
            self.tokens.append(token)

    @property
    def inversions(self) -> int:
        return sum(later <= earlier for earlier, later in pairwise(self.tokens))


def say(capsys: pytest.CaptureFixture[str], figures: str) -> None:
    with capsys.disabled():
        note(f"\n{figures}")


def contend(take_turns: Callable[[Grants, int, int], None], wanted: int) -> Grants:
    grants = Grants()
    all_at_once([partial(take_turns, grants, owner, wanted) for owner in range(CONTENDERS)])
    return grants


def naively(grants: Grants, owner: int, wanted: int) -> None:
    with psycopg.connect(postgres().url, autocommit=True) as connection:
        while len(grants.tokens) < wanted:
            found = connection.execute(NAIVE_TAKE, ("job", owner)).fetchone()
            if found:
                grants.note(found[0])
                connection.execute(NAIVE_GIVE, ("job", owner))


def ours(url: str, grants: Grants, owner: int, wanted: int) -> None:
    with driven(url) as store:
        while len(grants.tokens) < wanted:
            found = store.swap(Key("a//name/job", "lock"), None, str(owner).encode(), LONG)
            if isinstance(found, Record):
                grants.note(found.revision)
                store.swap(found.key, found, None, None)


def test_tokens_of_one_key_grow_in_the_order_of_grants_and_naive_ones_do_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    wanted = count(8_000)
    url = fresh(postgres().url)
    good = contend(partial(ours, url), wanted)
    naive = contend(naively, wanted)
    while not naive.inversions and len(naive.tokens) < 20 * wanted:
        # The control must show that they can happen; a machine that is busy elsewhere needs more of them.
        naive = contend(naively, len(naive.tokens) * 2)
    say(
        capsys,
        f"inversions: ours {good.inversions} of {len(good.tokens)}, naive {naive.inversions} of {len(naive.tokens)}",
    )
    assert good.inversions == 0
    assert len(good.tokens) >= wanted
    assert naive.inversions > 0


def missed(made: dict[int, set[int]]) -> int:
    """How often somebody who created and then looked did not see one with a smaller revision."""
    return sum(len({other for other in made if other < mine} - seen) for mine, seen in made.items())


def test_whoever_creates_and_then_scans_sees_all_before_it_and_naively_does_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rounds = count(1000)
    url = fresh(postgres().url)
    good: dict[int, set[int]] = {}
    naive: dict[int, set[int]] = {}

    def create_and_scan(owner: int) -> None:
        with driven(url) as store:
            for number in range(rounds):
                made = store.grant(Key("a//line/range", f"{owner}-{number}"))
                good[made.revision] = {record.revision for record in store.scan("a//line/range")}

    def create_and_select(owner: int) -> None:
        with psycopg.connect(postgres().url, autocommit=True) as connection:
            for _ in range(rounds):
                sql = "INSERT INTO naive.line VALUES (%s, nextval('naive.tokens')) RETURNING token"
                token = connection.execute(sql, (f"{url}",)).fetchone()[0]  # type: ignore[index]
                found = connection.execute("SELECT token FROM naive.line WHERE family = %s", (url,))
                naive[token] = {row[0] for row in found}

    all_at_once([partial(create_and_scan, owner) for owner in range(CONTENDERS)])
    for _ in range(10):
        all_at_once([partial(create_and_select, owner) for owner in range(CONTENDERS)])
        if missed(naive):
            break
    say(capsys, f"missed by a scan: ours {missed(good)} of {len(good)}, naive {missed(naive)} of {len(naive)}")
    assert missed(good) == 0
    assert len(good) == CONTENDERS * rounds
    assert missed(naive) > 0


def test_batches_in_any_order_never_wait_for_each_other() -> None:
    """Deadlocks would be found by the server after a second and told as an error."""
    url = fresh(postgres().url)
    with driven(url) as store:
        made = [store.grant(Key(f"a//name/{number}", "lock")) for number in range(40)]

        def renew(batch: list[Record]) -> None:
            with driven(url) as other:
                for _ in range(count(200)):
                    answers = other.touch([(record, LONG) for record in batch])
                    assert all(renewal for renewal, _ in answers)

        all_at_once([partial(renew, made), partial(renew, made[::-1]), partial(renew, made[20:] + made[:20])])
        deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        assert postgres().execute(deadlocks) == [(0,)]


def test_a_schema_dropped_and_made_again_goes_on_above_its_old_tokens() -> None:
    url = fresh(postgres().url)
    with driven(url) as store:
        last = [store.grant(Key(f"a//name/{number}", "lock")) for number in range(20)][-1].revision
    postgres().execute(f"DROP SCHEMA {schema_of(url)} CASCADE")
    with driven(url) as store:
        assert store.grant().revision > last


def test_a_sequence_set_back_is_raised_by_whoever_connects_next() -> None:
    """What a failover to a standby without the last commits, or an old backup, would do."""
    url = fresh(postgres().url)
    with driven(url) as store:
        last = store.grant().revision
        postgres().execute(f"SELECT setval('{schema_of(url)}.revisions', 1)")
        assert store.grant(Key("a//name/other", "lock")).revision < last, "the control: nobody raised it yet"
    with driven(url) as store:
        assert store.grant(Key("a//name/third", "lock")).revision > last


def test_raising_the_sequence_while_others_draw_never_lowers_it() -> None:
    url = fresh(postgres().url)
    grants = Grants()
    rounds = count(60)

    def connect_again_and_again() -> None:
        for _ in range(rounds):
            with driven(url):
                pass

    with driven(url):
        works = [partial(ours, url, grants, owner, 10 * rounds) for owner in range(3)]
        all_at_once([*works, connect_again_and_again, connect_again_and_again])
    assert grants.inversions == 0


def test_of_many_who_take_over_what_has_ended_one_wins() -> None:
    url = fresh(postgres().url)
    rounds = count(100)
    winners: dict[int, list[int]] = {number: [] for number in range(rounds)}
    with driven(url) as store:
        for number in range(rounds):
            store.grant(Key(f"a//name/{number}", "lock"), ttl=0.1)
        end_all(url)

        def take_over() -> None:
            with driven(url) as other:
                for number in range(rounds):
                    answer = other.swap(Key(f"a//name/{number}", "lock"), None, b"heir", LONG)
                    if not isinstance(answer, Conflict):
                        winners[number].append(answer.revision)

        all_at_once([take_over] * 4)
    assert [len(won) for won in winners.values()] == [1] * rounds
